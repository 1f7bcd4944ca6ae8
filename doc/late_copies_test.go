package doc_test

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The function has the code of decisions/late-copies.md.

func resetOnClose(o *redis.Options) {
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		raw := conn
		if secure, ok := conn.(*tls.Conn); ok {
			raw = secure.NetConn()
		}
		if tcp, ok := raw.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // Close drops what the kernel has not sent, and resets the connection
		}
		return conn, err
	}
}

func TestDialerThatResets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	o := &redis.Options{Addr: listener.Addr().String()}
	resetOnClose(o)
	client, err := o.Dialer(t.Context(), "tcp", o.Addr)
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	defer func() { _ = server.Close() }()
	require.NoError(t, client.Close())
	_, err = server.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

package redistest

import (
	"io"
	"net"
	"testing"
)

// Serve listens on a local port until the test ends, and returns its address. serve is called with
// each connection, in a goroutine of its own; the connection is closed when it returns.
func Serve(t testing.TB, serve func(conn net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	return l.Addr().String()
}

// ServeSilence listens until the test ends, reads what it gets and never answers. It returns its
// address.
func ServeSilence(t testing.TB) (addr string) {
	t.Helper()
	return Serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
}

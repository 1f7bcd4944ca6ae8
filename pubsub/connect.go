package pubsub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// closeOnDone closes conn when ctx is done. The returned func stops that and must be called once.
// It waits for a close that has begun, and reports whether conn was left open.
func closeOnDone(ctx context.Context, conn net.Conn) (stop func() bool) {
	closed := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(closed)
		conn.Close()
	})
	return func() bool {
		if cancel() {
			return true
		}
		<-closed
		return false
	}
}

// abandonAfter is how long connect waits for go-redis after its context has ended. go-redis may be
// in code of the application, such as a dialer, that does not heed it.
const abandonAfter = 100 * time.Millisecond

// connect makes go-redis dial the server and do the handshake as configured in o, and returns the
// socket. The reply to a PING is still unread on it. When ctx ends, connect closes the socket and
// returns.
func connect(ctx context.Context, o *redis.Options, limits limits) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.connect)
	defer cancel()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, err := handshake(ctx, o, limits)
		done <- result{conn, err}
	}()
	select {
	case res := <-done:
		return res.conn, res.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(abandonAfter)
	defer timer.Stop()
	select {
	case res := <-done:
		return res.conn, res.err
	case <-timer.C:
	}
	go func() {
		if res := <-done; res.conn != nil {
			_ = res.conn.Close()
		}
	}()
	return nil, fmt.Errorf("pubsub: connect: %w", context.Cause(ctx))
}

// handshake is connect without the time limit.
func handshake(ctx context.Context, o *redis.Options, limits limits) (net.Conn, error) {
	var conn *detachableConn
	stop := func() bool { return true }
	opts := *o
	// The dialer uses connect's ctx instead of its own, so that it ends with the link.
	opts.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
		// conn and stop belong to a single socket, so refuse to dial again.
		if conn != nil {
			return nil, errors.New("pubsub: a link dials only once")
		}
		c, err := o.Dialer(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c = redisutil.WithDeadlines(c)
		conn = &detachableConn{Conn: c}
		stop = closeOnDone(ctx, c) // go-redis does not watch ctx while it reads
		return conn, nil
	}
	opts.ReadTimeout = limits.answer
	opts.WriteTimeout = limits.answer
	// One connection, no retries, and nothing that uses the socket in the background.
	opts.MaxRetries = -1
	opts.MinIdleConns = 0
	opts.PoolSize = 1
	opts.ClientSideCache = nil
	opts.ClientSideCacheConfig = nil
	opts.PushNotificationProcessor = nil
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

	client := redis.NewClient(&opts)
	defer client.Close()
	err := client.Subscribe(ctx).Ping(ctx) // without channels: connects and sends a PING
	// Stop watching ctx before the socket is handed over. If ctx ended first, the socket is closed.
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	switch {
	case err == nil:
		conn.detached = true
		return conn.Conn, nil
	case conn != nil:
		_ = conn.Close() // go-redis may have closed it already
	}
	return nil, fmt.Errorf("pubsub: connect: %w", err)
}

// detachableConn lets a socket outlive the client that dialed it: once detached, Close does
// nothing. The client is closed after the handshake, which frees its buffers.
type detachableConn struct {
	net.Conn
	detached bool
}

func (c *detachableConn) Close() error {
	if c.detached {
		return nil
	}
	return c.Conn.Close()
}

package scripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// RunReplicated is Run, and then waits on the same connection until n replicas have what the script wrote, or timeout is over. It
// returns how many have. A server that does not know WAIT counts as having none.
func (r *Runner) RunReplicated(ctx context.Context, n int, timeout time.Duration, s *Script, keys []string, args ...any) (Reply, int, error) {
	if !r.enter() {
		return Reply{}, 0, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	var acked int
	reply, err := r.repeat(ctx, s.name, func(ctx context.Context) (any, error) {
		conn, err := r.connection(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		pinned := &Runner{rdb: r.rdb, via: conn}
		value, err := pinned.attempt(ctx, s, command(s.sha, "evalsha", keys, args))
		if err == nil {
			acked, err = acknowledged(ctx, conn, n, timeout)
		}
		return value, err
	})
	return reply, acked, err
}

// connection pins one connection to the node that has the key: WAIT counts the writes of its own connection.
func (r *Runner) connection(ctx context.Context, key string) (*redis.Conn, error) {
	switch c := r.rdb.(type) {
	case *redis.ClusterClient:
		node, err := c.MasterForKey(ctx, key)
		if err != nil {
			return nil, err
		}
		return node.Conn(), nil
	case interface{ Conn() *redis.Conn }:
		return c.Conn(), nil
	}
	return nil, errNoConn
}

// slice is the longest single WAIT: it must answer well before the client's read timeout.
const slice = time.Second

func acknowledged(ctx context.Context, conn *redis.Conn, n int, timeout time.Duration) (acked int, err error) {
	for start := time.Now(); ; {
		left := timeout - time.Since(start)
		got, err := conn.Wait(ctx, n, max(min(left, slice), time.Millisecond)).Result()
		if _, refused := err.(redis.Error); refused { //nolint:errorlint // as go-redis returns it
			return 0, nil
		}
		if err != nil || int(got) >= n || left <= slice {
			return int(got), err
		}
	}
}

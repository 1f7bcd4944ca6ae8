package scripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// RunReplicated is [Runner.Do], but by a connection of its own, and then waits on the same connection until n replicas have what the script wrote, or timeout is over. It
// returns how many have. A server that does not know WAIT counts as having none.
func (r *Runner) RunReplicated(ctx context.Context, n int, timeout time.Duration, s *Script, keys []any, args ...any) (Reply, int, error) {
	if !r.enter() {
		return Reply{}, 0, &Error{s.name, NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	var acked int
	c, free := newCall(s, keys, args), unbound(ctx)
	reply, err := r.repeat(ctx, s.name, func() (Reply, error) {
		conn, err := r.connection(free, keys[0].(string))
		if err != nil {
			return Reply{}, err
		}
		defer func() { _ = conn.Close() }()
		reply, err := r.attempt(free, conn, c)
		if err == nil {
			acked, err = acknowledged(free, conn, n, timeout)
		}
		return reply, err
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

package scripts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// RunReplicated is [Runner.Do] on a connection of its own. It then waits on the same connection
// until n replicas have the script's writes, or timeout is over, and returns how many have them.
// That time is added to the runner's timeout. A server without the WAIT command counts as having no
// replica. An attempt is answered when its WAIT is: if WAIT fails, a retry runs the script again.
func (r *Runner) RunReplicated(
	ctx context.Context, n int, timeout time.Duration, s *Script, keys []any, args ...any,
) (Reply, int, error) {
	if err := r.register(ctx, s.name); err != nil {
		return Reply{}, 0, err
	}
	defer r.running.Done()
	type confirmed struct {
		Reply
		acked int
	}
	c, first := newCall(s, keys, args), keys[0].(string)
	// One deadline for all attempts: a retry has what the attempts before it have left.
	c.end, c.ctx = r.ends.after(ctx, r.timeout+timeout, &c.memory.joined)
	attempt := func(ctx context.Context) (confirmed, error) {
		conn, err := r.connection(ctx, first)
		if err != nil {
			return confirmed{}, err
		}
		defer func() { _ = conn.Close() }()
		reply, err := r.attempt(ctx, conn, c)
		if err != nil {
			return confirmed{}, err
		}
		acked, err := waitForReplicas(ctx, conn, n, timeout)
		return confirmed{reply, acked}, err
	}
	var failed failures
	for {
		got, err := bounded(ctx, c.ctx, c.end, r, attempt)
		if err == nil {
			got.Doubt = failed.doubt
			return got.Reply, got.acked, nil
		}
		if err = r.again(ctx, c, &failed, err); err != nil {
			return Reply{}, 0, err
		}
	}
}

// connection returns one connection to the node that has the key: WAIT waits for the writes of its
// own connection only. The caller closes it. If it fails, nothing was sent.
func (r *Runner) connection(ctx context.Context, key string) (*redis.Conn, error) {
	// Conn is not part of redis.UniversalClient.
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

// maxWait is the longest single WAIT: it must answer well before the client's read timeout.
const maxWait = time.Second

// waitForReplicas waits until n replicas have the connection's writes, or timeout is over, and
// returns how many have them. It sends WAIT at least once, and again while there is time left. An
// error of Redis counts as no replica, since the script before it was executed. Other errors leave
// the number unknown.
func waitForReplicas(ctx context.Context, conn *redis.Conn, n int, timeout time.Duration) (acked int, err error) {
	for start := time.Now(); ; {
		// A WAIT of 0 ms would wait without limit, so the least is 1 ms.
		left := timeout - time.Since(start)
		got, err := conn.Wait(ctx, n, max(min(left, maxWait), time.Millisecond)).Result()
		if _, refused := err.(redis.Error); refused { //nolint:errorlint // as go-redis returns it
			return 0, nil
		}
		if err != nil || int(got) >= n || left <= maxWait {
			return int(got), err
		}
	}
}

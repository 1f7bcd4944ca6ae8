package contend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// pollEvery is how long the peers that poll rest between two tries, both alike: a short time, for their good. The default of redsync is a
// random one from 50 to 250 ms; bsm/redislock has none.
const pollEvery = 10 * time.Millisecond

const (
	bsmModule     = "github.com/bsm/redislock"
	redsyncModule = "github.com/go-redsync/redsync/v4"
)

// bsm is github.com/bsm/redislock: it polls, and renews nothing by itself.
type bsm struct {
	rdb    *redis.Client
	client *redislock.Client
}

func openBSM(_ context.Context, s Setting) (Client, error) {
	rdb := s.Dial()
	return &bsm{rdb, redislock.New(rdb)}, nil
}

func (c *bsm) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return &bsmLocker{c.client, name, &redislock.Options{RetryStrategy: redislock.LinearBackoff(pollEvery)}}, nil
}

func (c *bsm) Close() error { return c.rdb.Close() }

type bsmLocker struct {
	client  *redislock.Client
	name    string
	options *redislock.Options
}

// Acquire asks again when Obtain has given up, as it does when a lease's time has passed.
func (l *bsmLocker) Acquire(ctx context.Context) (Held, error) {
	for {
		lock, err := l.client.Obtain(ctx, l.name, lease, l.options)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, redislock.ErrNotObtained) || ctx.Err() != nil {
			return nil, fmt.Errorf("contend: %w", err)
		}
	}
}

// rsync is github.com/go-redsync/redsync: it polls, and renews nothing by itself.
type rsync struct {
	rdb    *redis.Client
	client *redsync.Redsync
}

func openRedsync(_ context.Context, s Setting) (Client, error) {
	rdb := s.Dial()
	return &rsync{rdb, redsync.New(goredis.NewPool(rdb))}, nil
}

func (c *rsync) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	const forever = 1 << 30
	return &rsyncLocker{c.client.NewMutex(name, redsync.WithExpiry(lease), redsync.WithRetryDelay(pollEvery), redsync.WithTries(forever))}, nil
}

func (c *rsync) Close() error { return c.rdb.Close() }

type rsyncLocker struct{ mutex *redsync.Mutex }

func (l *rsyncLocker) Acquire(ctx context.Context) (Held, error) { return l, l.mutex.LockContext(ctx) }

func (l *rsyncLocker) Release(ctx context.Context) error {
	ok, err := l.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("contend: redsync did not hold what it released")
	}
	return err
}

package contend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// pollInterval is the retry delay of the peers that poll. It is short, in their favor: redsync's
// default is a random delay from 50 to 250 ms, and bsm/redislock has no default.
const pollInterval = 10 * time.Millisecond

const (
	bsmModule     = "github.com/bsm/redislock"
	redsyncModule = "github.com/go-redsync/redsync/v4"
	rueidisModule = "github.com/redis/rueidis"
)

// bsmClient is github.com/bsm/redislock. It polls, and does not renew its locks.
type bsmClient struct {
	rdb    redis.UniversalClient
	client *redislock.Client
	three  bool // three locks at once
}

func openBSM(_ context.Context, c ClientConfig) (Client, error) {
	rdb := c.Dial()
	return &bsmClient{rdb, redislock.New(rdb), c.Workload.Primitive == Three}, nil
}

func (c *bsmClient) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	names := []string{name}
	if c.three {
		names = threeOf(name)
	}
	return &bsmLocker{c.client, names, &redislock.Options{RetryStrategy: redislock.LinearBackoff(pollInterval)}}, nil
}

func (c *bsmClient) Close() error { return c.rdb.Close() }

type bsmLocker struct {
	client  *redislock.Client
	names   []string
	options *redislock.Options
}

// Acquire calls Obtain until it succeeds: a single call gives up after the TTL.
func (l *bsmLocker) Acquire(ctx context.Context) (Hold, error) {
	for {
		lock, err := l.client.ObtainMulti(ctx, l.names, lease, l.options)
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, redislock.ErrNotObtained) || ctx.Err() != nil {
			return nil, fmt.Errorf("contend: %w", err)
		}
	}
}

// redsyncClient is github.com/go-redsync/redsync. It polls, and does not renew its locks.
type redsyncClient struct {
	rdb    redis.UniversalClient
	client *redsync.Redsync
}

func openRedsync(_ context.Context, c ClientConfig) (Client, error) {
	rdb := c.Dial()
	return &redsyncClient{rdb, redsync.New(goredis.NewPool(rdb))}, nil
}

func (c *redsyncClient) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	const unlimited = 1 << 30
	return &redsyncLocker{c.client.NewMutex(name,
		redsync.WithExpiry(lease), redsync.WithRetryDelay(pollInterval), redsync.WithTries(unlimited))}, nil
}

func (c *redsyncClient) Close() error { return c.rdb.Close() }

type redsyncLocker struct{ mutex *redsync.Mutex }

func (l *redsyncLocker) Acquire(ctx context.Context) (Hold, error) {
	return l, l.mutex.LockContext(ctx)
}

func (l *redsyncLocker) Release(ctx context.Context) error {
	ok, err := l.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = errors.New("contend: redsync released a lock that it did not hold")
	}
	return err
}

// rueidisClient is github.com/redis/rueidis/rueidislock. It renews its locks, and its waiters are
// woken by client-side caching. It has a rueidis client of its own, with a few connections for any
// number of workers. Its TTL is its default, 5 s: it is also how long a waiter sleeps that no
// invalidation wakes.
type rueidisClient struct{ locker rueidislock.Locker }

func openRueidis(_ context.Context, c ClientConfig) (Client, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{c.Target.Addr},
			DialCtxFn: func(ctx context.Context, _ string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, c.Target.Network, c.Target.Addr)
			},
		},
		KeyMajority:  1,           // one key, as the others have
		TryNextAfter: time.Second, // for an attempt: the default of 20 ms is short for a busy machine
	})
	return &rueidisClient{locker}, err
}

func (c *rueidisClient) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return &rueidisLocker{c.locker, name}, nil
}

func (c *rueidisClient) Close() error {
	c.locker.Close()
	return nil
}

type rueidisLocker struct {
	locker rueidislock.Locker
	name   string
}

// rueidisWait is how long an acquisition waits before it begins again. A waiter of rueidislock
// waits for a message alone, and was seen to wait for ever for a lock that was free. It is long
// enough not to matter otherwise.
const rueidisWait = time.Second

func (l *rueidisLocker) Acquire(ctx context.Context) (Hold, error) {
	for {
		waiting, end := context.WithCancel(ctx)
		late := time.AfterFunc(rueidisWait, end)
		held, cancel, err := l.locker.WithContext(waiting, l.name)
		switch inTime := late.Stop() || ctx.Err() != nil; {
		case inTime && err == nil:
			return &rueidisHold{held, func() { cancel(); end() }}, nil
		case inTime:
			end()
			return nil, err
		case err == nil: // it came just too late: its context has ended
			cancel()
		}
		end()
	}
}

// rueidisHold is released by its cancel function, which returns no error.
type rueidisHold struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (h *rueidisHold) Context() context.Context { return h.ctx }

func (h *rueidisHold) Release(context.Context) error {
	h.cancel()
	return nil
}

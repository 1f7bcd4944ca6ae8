package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/redlatch/redlatch/internal/torture"
	"github.com/redlatch/redlatch/interop/redisson"
	"github.com/redlatch/redlatch/primitives"
)

// client is a library in a client process, with the settings that its users get by default.
type client interface {
	// acquire waits for up to wait. It returns errBusy if somebody else has the lock, and another
	// error if nobody knows.
	acquire(ctx context.Context, name string, wait, lease time.Duration) (claim, error)
	close() error
}

var errBusy = errors.New("somebody else has the lock")

// claim is a lock that a library says it has acquired.
type claim interface {
	// until is until when the library says now that the lock is valid. It is zero if the library
	// says nothing in advance.
	until() time.Time
	// ended is closed when the library says that the lock is lost. It is nil if the library does
	// not tell.
	ended() <-chan struct{}
	// release returns torture.ErrNotOwner if the library says that the lock was not held any more.
	release(ctx context.Context) error
}

// library is a library that can be tried.
type library struct {
	name    string
	version string
	lease   time.Duration // by default; redislock has none, and gets that of redsync
	open    func(torture.LibrarySetup) (client, error)
}

var libraries = []library{
	{"redlatch", versionOf("github.com/redlatch/redlatch"), 30 * time.Second, openRedlatch},
	{"redsync", versionOf("github.com/go-redsync/redsync/v4"), 8 * time.Second, openRedsync},
	{"redislock", versionOf("github.com/bsm/redislock"), 8 * time.Second, openRedislock},
	{"rueidislock", versionOf("github.com/redis/rueidis"), 5 * time.Second, openRueidislock},
	{redissonName, string(redisson.Redisson4), 30 * time.Second, openRedisson},
}

// redissonName is the library that needs Java and Maven. It runs if it is named.
const redissonName = "redisson"

// grace is how long a library that says nothing in advance may take to tell its holder of a loss.
// It matters when a process goes on after it was stopped.
const grace = 50 * time.Millisecond

// pollInterval is how long a waiter of a library that polls sleeps between two attempts.
const pollInterval = 20 * time.Millisecond

// player is a library that plays the part of torture's other library.
type player struct {
	client

	name   string
	leases time.Duration // of holds that a library may renew
	number atomic.Int64  // of the latest lock
}

// play makes a torture library of a client. Its locks answer from what the library says: Redis is
// not asked.
func play(l library) func(torture.LibrarySetup) (torture.Library, error) {
	return func(s torture.LibrarySetup) (torture.Library, error) {
		logging.Disable()
		c, err := l.open(s)
		if err != nil {
			return nil, err
		}
		return &player{client: c, name: l.name + " " + l.version, leases: s.Watchdog}, nil
	}
}

func (p *player) Name() string { return p.name }

func (p *player) Close() error { return p.close() }

func (p *player) Lock(_ torture.LockKind, name string, _ int) torture.LibraryLock {
	return &lock{player: p, name: name, id: strconv.FormatInt(p.number.Add(1), 10)}
}

// lock is one acquisition.
type lock struct {
	player *player
	name   string
	id     string
	claim  claim
	until  time.Time // what the library said last
}

func (l *lock) ID() string { return l.id }

func (l *lock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if lease == 0 {
		lease = l.player.leases
	}
	c, err := l.player.acquire(ctx, l.name, wait, lease)
	if errors.Is(err, errBusy) {
		return false, nil
	}
	l.claim = c
	return err == nil, err
}

// TTL is asked before IsHeld. Without an end that is known in advance, the lock lasts until IsHeld
// returns.
func (l *lock) TTL(context.Context) (time.Duration, error) {
	l.until = l.claim.until()
	if !l.until.IsZero() {
		return time.Until(l.until), nil
	}
	return grace, nil
}

func (l *lock) IsHeld(context.Context) (bool, error) {
	wait := time.Duration(0)
	if l.until.IsZero() {
		wait = grace // a loss that is told within the grace is told in time
	}
	select {
	case <-l.claim.ended():
		return false, nil
	case <-time.After(wait):
		return true, nil
	}
}

func (l *lock) Token(context.Context) (int64, error) { return 0, errors.ErrUnsupported }

func (l *lock) Unlock(ctx context.Context) error {
	if l.claim == nil {
		return torture.ErrNotOwner
	}
	return l.claim.release(ctx)
}

// poll makes attempts until one of them is not errBusy, or until wait is over.
func poll(ctx context.Context, wait time.Duration, attempt func() (claim, error)) (claim, error) {
	for end := time.Now().Add(wait); ; {
		c, err := attempt()
		if !errors.Is(err, errBusy) || !time.Now().Before(end) {
			return c, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(pollInterval, time.Until(end))):
		}
	}
}

func newRedis(s torture.LibrarySetup) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, Username: s.Username, Password: s.Password, DB: s.DB})
}

// redsyncClient is github.com/go-redsync/redsync. Mutex.Until says how long a lock is valid.
type redsyncClient struct {
	rdb    *redis.Client
	client *redsync.Redsync
}

func openRedsync(s torture.LibrarySetup) (client, error) {
	rdb := newRedis(s)
	return &redsyncClient{rdb, redsync.New(goredis.NewPool(rdb))}, nil
}

func (c *redsyncClient) close() error { return c.rdb.Close() }

func (c *redsyncClient) acquire(ctx context.Context, name string, wait, lease time.Duration) (claim, error) {
	return poll(ctx, wait, func() (claim, error) {
		m := c.client.NewMutex(name, redsync.WithExpiry(lease))
		err := m.TryLockContext(ctx)
		_, taken := errors.AsType[*redsync.ErrTaken](err)
		switch {
		case taken, errors.Is(err, redsync.ErrFailed):
			return nil, errBusy
		case err != nil:
			return nil, err
		}
		return redsyncClaim{m}, nil
	})
}

type redsyncClaim struct{ mutex *redsync.Mutex }

func (c redsyncClaim) until() time.Time       { return c.mutex.Until() }
func (c redsyncClaim) ended() <-chan struct{} { return nil }

func (c redsyncClaim) release(ctx context.Context) error {
	ok, err := c.mutex.UnlockContext(ctx)
	_, taken := errors.AsType[*redsync.ErrTaken](err)
	hasExpired := errors.Is(err, redsync.ErrLockAlreadyExpired)
	wasNotHeld := err == nil && !ok
	if taken || hasExpired || wasNotHeld {
		return torture.ErrNotOwner
	}
	return err
}

// redislockClient is github.com/bsm/redislock. A lock lasts for the TTL that Obtain was called
// with: from the call on, in its favor, because Redis counts from later.
type redislockClient struct {
	rdb    *redis.Client
	client *redislock.Client
}

func openRedislock(s torture.LibrarySetup) (client, error) {
	rdb := newRedis(s)
	return &redislockClient{rdb, redislock.New(rdb)}, nil
}

func (c *redislockClient) close() error { return c.rdb.Close() }

func (c *redislockClient) acquire(ctx context.Context, name string, wait, lease time.Duration) (claim, error) {
	return poll(ctx, wait, func() (claim, error) {
		until := time.Now().Add(lease)
		l, err := c.client.Obtain(ctx, name, lease, nil)
		switch {
		case errors.Is(err, redislock.ErrNotObtained):
			return nil, errBusy
		case err != nil:
			return nil, err
		}
		return redislockClaim{l, until}, nil
	})
}

type redislockClaim struct {
	lock *redislock.Lock
	end  time.Time
}

func (c redislockClaim) until() time.Time       { return c.end }
func (c redislockClaim) ended() <-chan struct{} { return nil }

func (c redislockClaim) release(ctx context.Context) error {
	err := c.lock.Release(ctx)
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return torture.ErrNotOwner
	}
	return err
}

// rueidislockClient is github.com/redis/rueidis/rueidislock. It renews its locks, and says nothing
// in advance: the context of a lock ends when the lock is lost. All its locks have the lease that
// the client was made with.
type rueidislockClient struct{ locker rueidislock.Locker }

func openRueidislock(s torture.LibrarySetup) (client, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{
			InitAddress: []string{s.Addr}, Username: s.Username, Password: s.Password, SelectDB: s.DB,
		},
		KeyMajority:  1,          // as its README says for one server
		KeyValidity:  s.Watchdog, // the other libraries' leases
		TryNextAfter: s.Watchdog, // for an attempt: the default of 20 ms is short for a busy machine
	})
	return &rueidislockClient{locker}, err
}

func (c *rueidislockClient) close() error {
	c.locker.Close()
	return nil
}

func (c *rueidislockClient) acquire(ctx context.Context, name string, wait, _ time.Duration) (claim, error) {
	if wait == 0 {
		held, cancel, err := c.locker.TryWithContext(ctx, name)
		return claimOf(held, cancel, err)
	}
	waiting, end := context.WithCancel(ctx)
	late := time.AfterFunc(wait, end)
	held, cancel, err := c.locker.WithContext(waiting, name)
	isInTime := late.Stop()
	if err == nil && !isInTime {
		cancel()
		err = waiting.Err()
	}
	if err != nil {
		end()
	}
	if err != nil && !isInTime {
		return nil, errBusy
	}
	return claimOf(held, func() { cancel(); end() }, err)
}

func claimOf(held context.Context, cancel context.CancelFunc, err error) (claim, error) {
	switch {
	case errors.Is(err, rueidislock.ErrNotLocked):
		return nil, errBusy
	case err != nil:
		return nil, fmt.Errorf("rueidislock: %w", err)
	}
	return &rueidislockClaim{held, cancel}, nil
}

type rueidislockClaim struct {
	held   context.Context //nolint:containedctx // it is how the library tells of a loss
	cancel context.CancelFunc
}

func (c *rueidislockClaim) until() time.Time       { return time.Time{} }
func (c *rueidislockClaim) ended() <-chan struct{} { return c.held.Done() }

func (c *rueidislockClaim) release(context.Context) error {
	if c.held.Err() != nil {
		return torture.ErrNotOwner
	}
	c.cancel()
	return nil
}

// redlatchClient is redlatch, checked as the others are: by Hold.ValidUntil and Hold.Context.
type redlatchClient struct {
	rdb    *redis.Client
	client *primitives.Client
	leases time.Duration
}

func openRedlatch(s torture.LibrarySetup) (client, error) {
	rdb := newRedis(s)
	c, err := primitives.New(rdb)
	return &redlatchClient{rdb, c, s.Watchdog}, err
}

func (c *redlatchClient) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(c.client.Close(ctx), c.rdb.Close())
}

func (c *redlatchClient) acquire(ctx context.Context, name string, wait, lease time.Duration) (claim, error) {
	terms := primitives.WithLease(lease)
	if lease == c.leases {
		terms = primitives.WithWatchdog(lease)
	}
	hold, err := c.client.Lock(name).Acquire(ctx, primitives.WithWait(wait), terms)
	switch {
	case errors.Is(err, primitives.ErrNotAcquired) && !errors.Is(err, primitives.ErrOutcomeUnknown):
		return nil, errBusy
	case err != nil:
		return nil, err
	}
	return redlatchClaim{hold}, nil
}

type redlatchClaim struct{ hold *primitives.Hold }

func (c redlatchClaim) until() time.Time       { return c.hold.ValidUntil() }
func (c redlatchClaim) ended() <-chan struct{} { return c.hold.Context().Done() }

func (c redlatchClaim) release(ctx context.Context) error {
	err := c.hold.Release(ctx)
	if errors.Is(err, primitives.ErrLost) || errors.Is(err, primitives.ErrNotHeld) {
		return torture.ErrNotOwner
	}
	return err
}

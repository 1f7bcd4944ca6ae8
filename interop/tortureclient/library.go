package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/torture"
	"github.com/redlatch/redlatch/interop/redisson"
)

const (
	// commandTimeout is shorter than many faults, as that of the clients of redlatch is.
	commandTimeout = 700 * time.Millisecond
	// fairWait is how long a fair lock keeps the place of a waiter that has gone.
	fairWait = 500 * time.Millisecond
)

// library is Redisson in a Java process. It is stopped and killed with this one, as it is in the
// same process group.
type library struct {
	driver *redisson.Driver
	client *redisson.Client
	owners atomic.Int64
}

func open(s torture.LibrarySetup) (torture.Library, error) { return openWith(s, commandTimeout) }

func openWith(s torture.LibrarySetup, timeout time.Duration) (torture.Library, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Second)
	defer cancel()
	driver, err := redisson.Open(ctx, redisson.Options{})
	if err != nil {
		return nil, err
	}
	config := redisson.Config{
		Addr: s.Addr, Watchdog: s.Watchdog, FairWait: fairWait,
		Timeout: timeout, RetryAttempts: -1, // else copies of a command may come late
		Settings: map[string]any{"threads": 4, "nettyThreads": 4},
		Server: map[string]any{
			"database": s.DB, "connectTimeout": timeout.Milliseconds(),
			"subscriptionTimeout": timeout.Milliseconds(),
		},
	}
	if s.Username != "" {
		config.Server["username"] = s.Username
	}
	if s.Password != "" {
		config.Server["password"] = s.Password
	}
	for {
		client, err := driver.Connect(ctx, config)
		if err == nil {
			return &library{driver: driver, client: client}, nil
		}
		if ctx.Err() != nil || errors.Is(err, redisson.ErrEnded) {
			return nil, errors.Join(err, driver.Close())
		}
		// A fault has begun before this process, or Java starts slowly. Redisson does not try
		// again.
	}
}

func (l *library) Name() string { return "Redisson " + l.driver.Redisson() }

func (l *library) Lock(kind torture.LockKind, name string, session int) torture.LibraryLock {
	return &lock{
		Lock:  l.client.LockOf(string(kind), name).On(fmt.Sprintf("session%d", session)),
		owner: l.owners.Add(1), client: l.client.ID(),
	}
}

// Close ends the Java process, and with it all connections.
func (l *library) Close() error {
	select {
	case <-l.driver.Done():
		return errors.New("the Java process has ended by itself")
	default:
		return l.driver.Close()
	}
}

// lock is a Redisson lock with an owner in place of the current thread. Only the asynchronous
// methods take one.
type lock struct {
	redisson.Lock

	client string
	owner  int64
}

func (l *lock) ID() string { return fmt.Sprintf("%s:%d", l.client, l.owner) }

func (l *lock) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if lease == 0 {
		lease = -time.Millisecond // the watchdog
	}
	return l.is(ctx, "tryLockAsync", wait.Milliseconds(), lease.Milliseconds(), "MILLISECONDS", l.owner)
}

func (l *lock) TTL(ctx context.Context) (time.Duration, error) {
	ms, err := l.Lock.TTL(ctx)
	return time.Duration(ms) * time.Millisecond, err
}

func (l *lock) IsHeld(ctx context.Context) (bool, error) { return l.is(ctx, "isHeldByThread", l.owner) }

func (l *lock) Unlock(ctx context.Context) error {
	_, err := l.Call(ctx, "unlockAsync", l.owner)
	if e, ok := errors.AsType[*redisson.Exception](err); ok && e.Type == "java.lang.IllegalMonitorStateException" {
		return torture.ErrNotOwner
	}
	return err
}

// is calls a method that returns a boolean.
func (l *lock) is(ctx context.Context, method string, args ...any) (yes bool, err error) {
	answer, err := l.Call(ctx, method, args...)
	if err != nil {
		return false, err
	}
	return yes, answer.Decode(&yes)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/torture"
	"github.com/redlatch/redlatch/interop/redisson"
)

// redissonClient is Redisson's RLock, used as in a Java program: a thread calls tryLock, and later
// unlock. The owner in Redis is the thread, and threads are used again.
//
// Redisson tells nobody until when a lock is valid. It can be asked how long the key lasts and
// whether the thread holds the lock. A claim lasts for as long as the latest answer says, and so it
// grows while the watchdog renews the lock.
type redissonClient struct {
	client   *redisson.Client
	watchdog time.Duration // the lease of locks that are renewed

	mu      sync.Mutex
	idle    []javaThread // threads that have no lock
	threads int
}

// javaThread is a thread of the Java program.
type javaThread struct {
	name string
	id   int64
}

const (
	redissonStart    = 45 * time.Second       // of the first connection
	redissonCall     = time.Minute            // longer than Redisson tries
	redissonPatience = 100 * time.Millisecond // how long a caller waits for an answer
)

// startJava starts the Java process of this process. It is stopped and killed with it, as it is in
// the same process group, and ends with it.
var startJava = sync.OnceValues(func() (*redisson.Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // it may have to be built
	defer cancel()
	return redisson.Open(ctx, redisson.Options{})
})

func openRedisson(s torture.LibrarySetup) (client, error) {
	java, err := startJava()
	if err != nil {
		return nil, err
	}
	config := redisson.Config{Addr: s.Addr, Watchdog: s.Watchdog, Server: map[string]any{"database": s.DB}}
	if s.Username != "" {
		config.Server["username"] = s.Username
	}
	if s.Password != "" {
		config.Server["password"] = s.Password
	}
	ctx, cancel := context.WithTimeout(context.Background(), redissonStart)
	defer cancel()
	for {
		c, err := java.Connect(ctx, config)
		if err == nil {
			return &redissonClient{client: c, watchdog: s.Watchdog}, nil
		}
		if ctx.Err() != nil || errors.Is(err, redisson.ErrEnded) {
			return nil, err
		}
		// A fault has begun before this process. Redisson does not try again.
	}
}

func (c *redissonClient) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.client.Close(ctx)
}

func (c *redissonClient) acquire(ctx context.Context, name string, wait, lease time.Duration) (claim, error) {
	thread, err := c.thread(ctx)
	if err != nil {
		return nil, err
	}
	l := c.client.Lock(name)
	claim := &redissonClaim{
		client: c, thread: thread, lock: l.On(thread.name), asked: l.On(thread.name + " asks"),
		known: time.Now().Add(lease),
	}
	if lease == c.watchdog {
		lease = -1
	}
	locked, err := claim.lock.TryLockFor(ctx, wait, lease)
	switch {
	case err != nil:
		c.rest(thread)
		return nil, err
	case !locked:
		c.rest(thread)
		return nil, errBusy
	}
	return claim, nil
}

// thread returns a thread that has no lock.
func (c *redissonClient) thread(ctx context.Context) (javaThread, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.idle) - 1; last >= 0 {
		t := c.idle[last]
		c.idle = c.idle[:last]
		return t, nil
	}
	c.threads++
	name := fmt.Sprint("thread", c.threads)
	t, err := c.client.Thread(ctx, name)
	return javaThread{name, t.ID}, err
}

// rest gives a thread back.
func (c *redissonClient) rest(t javaThread) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, t)
}

type redissonClaim struct {
	client *redissonClient
	thread javaThread
	lock   redisson.Lock // used by the thread that holds it
	asked  redisson.Lock // used by another thread, as an answer may take seconds

	known  time.Time      // the end, by the latest answer; at first that of the lease, from the call on
	answer chan time.Time // of the question that is under way; else nil
}

// until asks Redisson. While there is no answer, the latest one counts.
func (c *redissonClaim) until() time.Time {
	if c.answer == nil {
		c.answer = make(chan time.Time, 1)
		go c.ask(c.answer)
	}
	select {
	case until := <-c.answer:
		c.answer = nil
		if !until.IsZero() {
			c.known = until
		}
	case <-time.After(redissonPatience):
	}
	return c.known
}

// ask sends until when the lock is valid; zero if nobody knows. Redis counts from later than the
// question, which is in the lock's favor.
func (c *redissonClaim) ask(answer chan<- time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), redissonCall)
	defer cancel()
	asked := time.Now()
	ms, err := c.asked.TTL(ctx)
	if err != nil {
		answer <- time.Time{}
		return
	}
	holds, err := c.holds(ctx) // asked last: so the key was the thread's before, too
	switch {
	case err != nil:
		answer <- time.Time{}
	case !holds:
		answer <- asked
	default:
		answer <- asked.Add(time.Duration(ms-1) * time.Millisecond) // Redis rounds up
	}
}

func (c *redissonClaim) holds(ctx context.Context) (yes bool, err error) {
	a, err := c.asked.Call(ctx, "isHeldByThread", c.thread.id)
	if err != nil {
		return false, err
	}
	return yes, a.Decode(&yes)
}

func (c *redissonClaim) ended() <-chan struct{} { return nil }

func (c *redissonClaim) release(ctx context.Context) error {
	err := c.lock.Unlock(ctx)
	c.client.rest(c.thread)
	if e, ok := errors.AsType[*redisson.Exception](err); ok && e.Type == "java.lang.IllegalMonitorStateException" {
		return torture.ErrNotOwner
	}
	return err
}

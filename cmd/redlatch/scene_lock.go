package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/primitives"
)

var lockScene = scene{
	name:  "lock",
	shows: "three clients with three goroutines each want the same lock, again and again",
	run:   runLock,
}

// How much the lock scene does, and how much of it it prints.
const (
	lockGoroutines = 3 // of each client
	lockRounds     = 15
	lockShown      = 8
)

// runLock has everybody add 1 to a number in Redis, by reading it and then writing it: without mutual exclusion updates get lost.
func runLock(ctx context.Context, s *stage) error {
	c := &contest{stage: s, crowd: crowd{limit: 1}, number: s.prefix + "number", waiting: map[string]bool{}}
	group, working := errgroup.WithContext(ctx)
	cast, err := s.cast("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	for _, m := range cast {
		lock := m.Lock("orders:42") // one handle, shared by the client's goroutines
		for i := range lockGoroutines {
			group.Go(func() error { return c.contend(working, m, lock, fmt.Sprintf("%s/%d", m.name, i+1)) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	total, err := cast[0].rdb.Get(ctx, c.number).Int64()
	if err != nil {
		return err
	}
	s.say("all", "have added 1 to a number %d times; it is %d now", c.entered.Load(), total)
	s.equal("acquisitions", c.entered.Load(), int64(len(cast)*lockGoroutines*lockRounds))
	s.equal("overlaps", c.over.Load(), 0)
	s.equal("lost updates", c.entered.Load()-total, 0)
	return nil
}

// contest is a number that many change under one lock.
type contest struct {
	*stage
	crowd

	number string // its key

	mu      sync.Mutex
	waiting map[string]bool
}

func (c *contest) contend(ctx context.Context, m *member, lock *primitives.Lock, who string) error {
	for range lockRounds {
		c.waits(who, true)
		err := lock.Do(ctx, func(ctx context.Context) error {
			nth := c.enter()
			defer c.leave()
			c.waits(who, false)
			c.show(nth, who)
			return c.increment(ctx, m)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
	}
	return nil
}

// increment adds 1 in two steps, with a little time between them.
func (c *contest) increment(ctx context.Context, m *member) error {
	n, err := m.rdb.Get(ctx, c.number).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	time.Sleep(time.Millisecond)
	return m.rdb.Set(ctx, c.number, n+1, time.Minute).Err()
}

func (c *contest) waits(who string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if on {
		c.waiting[who] = true
	} else {
		delete(c.waiting, who)
	}
}

// show prints the first few acquisitions.
func (c *contest) show(nth int64, who string) {
	switch {
	case nth <= lockShown:
		c.say(who, "holds it; waiting: %s", c.waiters())
	case nth == lockShown+1:
		c.say("...", "and so on")
	}
}

func (c *contest) waiters() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(c.waiting)), " ")
}

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

var lockScene = Scene{
	Name:  "lock",
	Shows: "three clients with three goroutines each contend for one lock",
	run:   runLock,
}

const (
	lockGoroutines = 3  // per client
	lockRounds     = 15 // per goroutine
	lockShown      = 3  // acquisitions to print
)

// runLock increments a number in Redis by a GET and a SET. Without mutual exclusion updates get
// lost.
func runLock(ctx context.Context, s *stage) error {
	c := &contest{stage: s, occupancy: occupancy{limit: 1}, number: s.prefix + "number", waiting: map[string]bool{}}
	tasks, working := newTasks(ctx)
	procs, err := s.newProcesses("anna", "ben", "cleo")
	if err != nil {
		return err
	}
	for _, p := range procs {
		lock := p.Lock("orders:42") // one handle, shared by the client's goroutines
		for i := range lockGoroutines {
			tasks.run(func() error { return c.contend(working, p, lock, fmt.Sprintf("%s/%d", p.name, i+1)) })
		}
	}
	if err := tasks.wait(); err != nil {
		return err
	}
	total, err := procs[0].rdb.Get(ctx, c.number).Int64()
	if err != nil {
		return err
	}
	s.say("all", "incremented a number %d times; its value is %d", c.entries.Load(), total)
	s.equal("acquisitions", c.entries.Load(), int64(len(procs)*lockGoroutines*lockRounds))
	s.equal("overlaps", c.violations.Load(), 0)
	s.equal("lost updates", c.entries.Load()-total, 0)
	return nil
}

// contest is the state that the goroutines of runLock share.
type contest struct {
	*stage
	occupancy

	number string // key of the number

	mu      sync.Mutex
	waiting map[string]bool // names of waiting goroutines
}

// contend acquires the lock lockRounds times and increments the number each time.
func (c *contest) contend(ctx context.Context, p *process, lock *primitives.Lock, who string) error {
	for range lockRounds {
		c.setWaiting(who, true)
		err := lock.Do(ctx, func(ctx context.Context) error {
			nth := c.enter()
			defer c.leave()
			c.setWaiting(who, false)
			c.show(nth, who)
			return c.increment(ctx, p)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
	}
	return nil
}

// increment adds 1 to the number in two steps. The pause between them makes a lost update likely if
// two goroutines overlap.
func (c *contest) increment(ctx context.Context, p *process) error {
	n, err := p.rdb.Get(ctx, c.number).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	time.Sleep(time.Millisecond)
	return p.rdb.Set(ctx, c.number, n+1, time.Minute).Err()
}

func (c *contest) setWaiting(who string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if on {
		c.waiting[who] = true
	} else {
		delete(c.waiting, who)
	}
}

// show prints the first lockShown acquisitions.
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
	return cmp.Or(strings.Join(slices.Sorted(maps.Keys(c.waiting)), " "), "nobody yet")
}

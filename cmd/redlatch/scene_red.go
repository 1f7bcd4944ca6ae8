package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var redScene = scene{
	name:  "red",
	shows: "one lock on three servers survives the loss of one, not of two",
	run:   runRed,
}

const (
	redTTL   = 800 * time.Millisecond
	redTries = 10
)

// redUser is a participant on all servers.
type redUser struct {
	lock *primitives.Lock
	on   []*member
}

func (s *stage) redUser(name string) (*redUser, error) {
	u := &redUser{}
	var locks []*primitives.Lock
	for i, node := range s.nodes {
		m, err := s.memberOn(node, name)
		if err != nil {
			return nil, err
		}
		u.on = append(u.on, m)
		locks = append(locks, m.Lock(tally(i)))
	}
	u.lock = primitives.NewRedLock(locks, primitives.WithWatchdog(redTTL))
	return u, nil
}

// acquire acquires the lock. A redlock does not wait for a slow server, as it may be a dead one: on a busy machine ours may be slow.
func (u *redUser) acquire(ctx context.Context) (hold *primitives.Hold, err error) {
	for range redTries {
		if hold, err = u.lock.Acquire(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return hold, err
}

// everywhere acquires on all servers: a majority would do, but one of that may be cut off.
func (u *redUser) everywhere(ctx context.Context) (*primitives.Hold, error) {
	for {
		hold, err := u.acquire(ctx)
		if err != nil {
			return nil, err
		}
		held, err := u.holds(ctx, hold.ID())
		if err != nil || held == len(u.on) {
			return hold, err
		}
		_ = hold.Release(ctx) // a server was slow
	}
}

// holds tells on how many servers an id holds the lock.
func (u *redUser) holds(ctx context.Context, id string) (n int, err error) {
	for i, m := range u.on {
		info, err := m.Lock(tally(i)).Info(ctx)
		if err != nil {
			return 0, err
		}
		if len(info.Holders) == 1 && info.Holders[0].ID == id {
			n++
		}
	}
	return n, nil
}

// tally is the name of the lock on a server.
func tally(server int) string { return fmt.Sprintf("tally:%d", server+1) }

// runRed cuts off one server, and then another one.
func runRed(ctx context.Context, s *stage) error {
	anna, err := s.redUser("anna")
	if err != nil {
		return err
	}
	ben, err := s.redUser("ben")
	if err != nil {
		return err
	}
	cut := func(i int) {
		anna.on[i].link.Cut()
		ben.on[i].link.Cut()
	}
	if !s.nodes.separate() {
		s.say("...", "three names on one server stand for three servers")
	}
	hold, err := anna.everywhere(ctx)
	if err != nil {
		return err
	}
	s.say("anna", "holds it on all %d, for %v at a time", len(anna.on), redTTL)
	cut(2)
	began := time.Now()
	s.say("...", "server 3 is cut off")
	taken, err := waiting(ben.on[0], func() (*primitives.Hold, error) { return ben.acquire(ctx) })
	if err != nil {
		return err
	}
	s.say("ben", "waits")
	select {
	case <-time.After(redTTL + redTTL/8):
	case <-hold.Context().Done():
	}
	stands, early, lasted := context.Cause(hold.Context()) == nil, len(taken) > 0, time.Since(began).Round(time.Millisecond)
	s.say("anna", "was renewed by the other two: still valid %v later, and lets go", lasted)
	if err := hold.Release(ctx); errors.Is(err, primitives.ErrLost) { // one that is not answered in time is tried again
		return err
	}
	a := <-taken
	if a.err != nil {
		return a.err
	}
	s.say("ben", "holds it, on two of three")
	if err := a.hold.Release(ctx); errors.Is(err, primitives.ErrLost) {
		return err
	}
	cut(1)
	s.say("...", "server 2 is cut off too")
	_, minority := anna.lock.TryAcquire(ctx)
	s.say("anna", "tries: %s", map[bool]string{true: "one server is not enough", false: "she has it"}[minority != nil])
	s.confirm("valid beyond its TTL with one server cut off", stands)
	s.confirm("nobody else had it meanwhile", !early)
	s.confirm("to be had then", a.hold != nil)
	s.confirm("not to be had with two cut off", minority != nil)
	return nil
}

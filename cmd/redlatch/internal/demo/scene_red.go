package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

var redScene = Scene{
	Name:  "red",
	Shows: "a lock on three servers survives the loss of one server, not of two",
	run:   runRed,
}

const (
	redTTL   = 800 * time.Millisecond
	redTries = 10
)

// redUser is a user of the RedLock, with one process (client) per server.
type redUser struct {
	lock *primitives.Lock
	on   []*process // by server
}

func (s *stage) newRedUser(name string) (*redUser, error) {
	u := &redUser{}
	var locks []*primitives.Lock
	for i, node := range s.nodes {
		p, err := s.newProcessOn(node, name)
		if err != nil {
			return nil, err
		}
		u.on = append(u.on, p)
		locks = append(locks, p.Lock(redName(i)))
	}
	u.lock = primitives.NewRedLock(locks, primitives.WithWatchdog(redTTL))
	return u, nil
}

// acquire acquires the lock, with redTries attempts. A RedLock does not wait for a slow server,
// because it may be down. On a busy machine the servers of the demo may be slow too.
func (u *redUser) acquire(ctx context.Context) (hold *primitives.Hold, err error) {
	for range redTries {
		if hold, err = u.lock.Acquire(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	return hold, err
}

// acquireOnAll acquires the lock on all servers, not only on a majority, so a majority remains when
// the scene cuts off one server.
func (u *redUser) acquireOnAll(ctx context.Context) (*primitives.Hold, error) {
	for {
		hold, err := u.acquire(ctx)
		if err != nil {
			return nil, err
		}
		held, err := u.countHeld(ctx, hold.ID())
		if err != nil || held == len(u.on) {
			return hold, err
		}
		_ = hold.Release(ctx) // a slow server is missing: try again
	}
}

// countHeld returns the number of servers on which id holds the lock.
func (u *redUser) countHeld(ctx context.Context, id string) (n int, err error) {
	for i, p := range u.on {
		info, err := p.Lock(redName(i)).Info(ctx)
		if err != nil {
			return 0, err
		}
		if len(info.Holders) == 1 && info.Holders[0].ID == id {
			n++
		}
	}
	return n, nil
}

// redName returns the lock's name on the given server.
func redName(server int) string { return fmt.Sprintf("tally:%d", server+1) }

// runRed cuts off one server, and then a second one.
func runRed(ctx context.Context, s *stage) error {
	anna, err := s.newRedUser("anna")
	if err != nil {
		return err
	}
	ben, err := s.newRedUser("ben")
	if err != nil {
		return err
	}
	cut := func(i int) {
		anna.on[i].link.Cut()
		ben.on[i].link.Cut()
	}
	if !s.nodes.separate() {
		s.say("...", "there is only one server: three key names replace three servers")
	}
	hold, err := anna.acquireOnAll(ctx)
	if err != nil {
		return err
	}
	s.say("anna", "holds it on all %d servers, with a TTL of %v", len(anna.on), redTTL)
	cut(2)
	cutAt := time.Now()
	s.say("...", "server 3 is cut off")
	acquired, err := startWaiting(ben.on[0], func() (*primitives.Hold, error) { return ben.acquire(ctx) })
	if err != nil {
		return err
	}
	s.say("ben", "waits")
	select {
	case <-time.After(redTTL + redTTL/8):
	case <-hold.Context().Done():
	}
	valid, early := context.Cause(hold.Context()) == nil, len(acquired) > 0
	lasted := time.Since(cutAt).Round(time.Millisecond)
	s.say("anna", "is renewed on the other two: still valid %v later; it releases", lasted)
	// Only ErrLost is a failure. A release that gets no answer in time is retried in the
	// background.
	if err := hold.Release(ctx); errors.Is(err, primitives.ErrLost) {
		return err
	}
	a := <-acquired
	if a.err != nil {
		return a.err
	}
	s.say("ben", "holds it on two of three servers")
	if err := a.hold.Release(ctx); errors.Is(err, primitives.ErrLost) {
		return err
	}
	cut(1)
	s.say("...", "server 2 is cut off too")
	_, minority := anna.lock.TryAcquire(ctx)
	s.say("anna", "tries: %s", map[bool]string{true: "one server is not enough", false: "acquired"}[minority != nil])
	s.confirm("one server cut off: valid beyond its TTL", valid)
	s.confirm("one server cut off: no second holder", !early)
	s.confirm("one server cut off: acquired after the release", a.hold != nil)
	s.confirm("two servers cut off: not acquired", minority != nil)
	return nil
}

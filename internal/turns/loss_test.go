package turns_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// However a tenure ends, nothing of it is left in the client once its user has released.
func TestTenureThatIsLostLeavesNothingBehind(t *testing.T) {
	terms := map[string]func(*engine.Terms){"cohort": InCohort(testCohort), "linger": Lingering(testLinger)}
	for name, keep := range terms {
		RunBubble(t, name+", lost before its first turn begins", func(t *testing.T, s *Server) {
			var c *Client
			var once sync.Once
			loseNow := func() {
				s.Forget("x")
				for _, o := range c.LeasedOwnerships(func(*engine.Hold) bool { return true }) {
					o.LoseAsGone()
				}
			}
			c = s.Client(t, "a", func(config *engine.Config) {
				added := config.Presence.HoldAdded
				config.Presence.HoldAdded = func() {
					added()
					once.Do(loseNow)
				}
			})
			hold := Acquire(t, t.Context(), c.Lock("x"), keep)
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			Settle()
			assert.Empty(t, c.Leftovers())
		})
		RunBubble(t, name+", found by a check of the user's hold", func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.Lock("x"), keep)
			require.Error(t, hold.Lose(t.Context(), engine.Loss{Reason: engine.LossExpired}))
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			Settle()
			assert.Empty(t, c.Leftovers())
		})
	}
}

// The request for the next tenure stays in its queue until the turn ends, although nobody waits any
// longer. It leaves when the turn ends, however that is.
func TestRequestForTheNextTenureLeavesWithTheTurn(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, hold *engine.Hold){
		"released": func(t *testing.T, hold *engine.Hold) { _ = hold.Release(t.Context()) },
		"detached": func(_ *testing.T, hold *engine.Hold) { hold.Detach() },
		"lost": func(t *testing.T, hold *engine.Hold) {
			hold.Ownership().LoseAsGone()
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		},
	} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			first := Acquire(t, t.Context(), r, InCohort(time.Minute))
			second := StartAcquire(t, t.Context(), r, InCohort(time.Minute))
			Release(t, first)
			hold := second.AwaitHold()
			s.Forget("x")
			s.Seize("x", "other", 0) // so that the request is not granted
			end(t, hold)
			Settle()
			assert.Empty(t, c.Leftovers())
			s.Forget("x")
		})
	}
}

// A waiter has the turn but has not seen it, because its observer is slow. Its tenure is over, so
// its entry is removed. When the loss is reported, the waiter waits again, and the lock that
// lingers after it is given up like any other.
func TestWaiterThatWaitsAgainKeepsItsEntry(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		waits := func() {} // called once, when a waiter begins to wait
		c := s.Client(t, "a", func(config *engine.Config) {
			observe := config.Observe
			config.Observe = func(e engine.Event) {
				observe(e)
				if e.Kind == engine.EventWait {
					once := waits
					waits = func() {}
					once()
				}
			}
		})
		r := c.Lock("x")
		keep := Lingering(time.Hour)
		first := Acquire(t, t.Context(), r, keep)
		_, tenureHold := c.Turns().Tenure("x")
		var other *engine.Hold
		waits = func() {
			Release(t, first) // the waiter has the turn
			s.Forget("x")
			other = Acquire(t, t.Context(), r, Lingering(2*time.Hour))
			require.Error(t, ErrOf(r.Acquire(t.Context(), NewTerms(keep), engine.NoWait)))
			tenureHold.Ownership().LoseAsGone()
		}
		waiter := StartAcquire(t, t.Context(), r, keep)
		Settle()
		Release(t, other)
		Release(t, waiter.AwaitHold())
		Release(t, Acquire(t, t.Context(), r))
		assert.Less(t, s.Now(), time.Minute, "the lingering lock is given up")
	})
}

// subscribing is a driver that calls a function when a waiter subscribes. The mutex of the wait
// queues is held then, and the end of a turn waits for it before it decides whether the lock
// lingers.
type subscribing struct {
	engine.Driver
	begins func()
}

func (d *subscribing) Subscribe(hear func(engine.Message)) []engine.Subscription {
	d.begins()
	return d.Driver.Subscribe(hear)
}

// letOthersRun lets other goroutines go on until they wait for something.
func letOthersRun() {
	for range 2000 {
		runtime.Gosched()
	}
}

// The client begins to close while it is decided whether a lock lingers. Close gives up that lock
// too.
func TestCloseGivesUpALockThatIsAboutToLinger(t *testing.T) {
	for range 20 {
		Bubble(t, func(t *testing.T, s *Server) {
			s.Seize("y", "other", 0)
			c := s.Client(t, "a")
			x := c.Lock("x")
			y := c.Lock("y")
			hold := Acquire(t, t.Context(), x, Lingering(time.Hour))
			closed := make(chan error, 1)
			y.Driver = &subscribing{y.Driver, func() {
				go func() { _ = hold.Release(context.Background()) }()
				letOthersRun()
				go func() { closed <- c.Shut(context.Background()) }()
				for !c.IsClosing() {
					runtime.Gosched()
				}
				letOthersRun()
			}}
			_, err := y.Acquire(t.Context(), NewTerms(), engine.Forever)
			require.ErrorIs(t, err, engine.ErrClosed)
			require.NoError(t, <-closed)
			assert.Less(t, s.Now(), time.Minute)
			s.Forget("y")
		})
	}
}

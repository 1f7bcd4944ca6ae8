package turns_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

const (
	ms         = time.Millisecond
	testLinger = 500 * ms
)

func TestLingeringLockIsAcquiredWithoutACommand(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		r := c.Lock("x")
		first := Acquire(t, t.Context(), r, Lingering(testLinger))
		last, ctx := first, Carry(first)
		Release(t, first)
		commands := len(s.Commands())
		for range 20 {
			Sleep(testLinger - ms)
			assert.ErrorIs(t, context.Cause(ctx), engine.ErrReleased)
			assert.Equal(t, []string{first.ID()}, s.IDs("x"))
			hold := Acquire(t, t.Context(), r, Lingering(testLinger))
			assert.Equal(t, first.ID(), hold.ID())
			assert.Equal(t, last.Token()+1, hold.Token())
			assert.Equal(t, 1, hold.Depth())
			assert.False(t, hold.ValidUntil().After(time.Now().Add(DefaultTTL)))
			assert.NoError(t, Carry(hold).Err())
			assert.ErrorIs(t, last.Release(t.Context()), engine.ErrReleased)
			nested := Acquire(t, Carry(hold), r, Lingering(testLinger))
			assert.Equal(t, hold.Token(), nested.Token())
			Release(t, nested)
			last, ctx = hold, Carry(hold)
			Release(t, hold)
		}
		assert.Len(t, s.Sent("acquire"), 1)
		assert.Empty(t, s.Sent("release"))
		assert.Equal(t, commands+2*20, len(s.Commands())-len(s.Sent("renew")), "two for each nested hold")
		Sleep(testLinger - ms)
		assert.NotEmpty(t, s.IDs("x"))
		Sleep(ms)
		s.RequireFree(t)
		assert.Len(t, s.Sent("release"), 1)
		began, ended := 0, 0
		for _, kind := range c.Kinds(engine.EventRenewed) {
			switch kind {
			case engine.EventAcquired, engine.EventNested:
				began++
			case engine.EventReleased:
				ended++
			default:
				assert.Fail(t, "an event of a lock that lingers", "%v", kind)
			}
		}
		assert.Equal(t, 41, began)
		assert.Equal(t, began, ended)
		again := Acquire(t, t.Context(), r)
		assert.Greater(t, again.Token(), last.Token())
		Release(t, again)
	})
}

// The time for which users may keep a lock that lingers begins anew whenever nobody waits. However
// long the client has had it, the next user who waits gets it without a command.
func TestLockThatHasLingeredOftenIsPassedOn(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		first := Acquire(t, t.Context(), r, Lingering(testLinger))
		Release(t, first)
		for range 5 {
			Sleep(testLinger - ms)
			Release(t, Acquire(t, t.Context(), r, Lingering(testLinger)))
		}
		hold := Acquire(t, t.Context(), r, Lingering(testLinger))
		waiter := StartAcquire(t, t.Context(), r, Lingering(testLinger))
		Release(t, hold)
		next := waiter.AwaitHold()
		assert.Equal(t, first.ID(), next.ID())
		assert.Empty(t, s.Sent("release"))
		Release(t, next)
		Sleep(testLinger)
	})
}

// A user has the lock. A single try of the same client fails without a command.
func TestTryBehindAUserSendsNothing(t *testing.T) {
	for name, option := range map[string]func(*engine.Terms){"cohort": InCohort(testCohort),
		"linger": Lingering(testLinger)} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			r := s.Client(t, "a").Lock("x")
			hold := Acquire(t, t.Context(), r, option)
			commands := len(s.Commands())
			require.ErrorIs(t, ErrOf(r.Acquire(t.Context(), NewTerms(option), engine.NoWait)), engine.ErrNotAcquired)
			assert.Len(t, s.Commands(), commands)
			Release(t, hold)
		})
	}
}

func TestLingeringLockIsRenewed(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := s.Client(t, "a")
		r := c.Lock("x")
		Release(t, Acquire(t, t.Context(), r, Lingering(time.Hour)))
		Sleep(10 * DefaultTTL)
		hold := Acquire(t, t.Context(), r, Lingering(time.Hour))
		assert.Len(t, s.Sent("acquire"), 1)
		assert.Greater(t, time.Until(hold.ValidUntil()), DefaultTTL/2)
		assert.Empty(t, c.Kinds(engine.EventAcquired, engine.EventReleased), "nobody holds, so there is no event")
		Release(t, hold)
	})
}

// Each case releases a hold, or acquires the lock that lingers.
func TestLockDoesNotLinger(t *testing.T) {
	limit := Lingering(testLinger)
	for _, tt := range []struct {
		name   string
		holder []func(*engine.Terms) // in addition to its linger
		config func(*engine.Config)
		act    func(t *testing.T, s *Server, holder *engine.Hold)
	}{
		{name: "with a fixed lease", holder: []func(*engine.Terms){FixedLease(DefaultTTL)}},
		{name: "with a limit of the hold", holder: []func(*engine.Terms){MaxHold(DefaultTTL)}},
		{name: "with a shared id", holder: []func(*engine.Terms){OwnedBy("me")}},
		{name: "where replicas must confirm", config: func(c *engine.Config) { c.NeedsReplicas = true }},
		{name: "where the client does not listen", config: func(c *engine.Config) {
			c.Presence.CanLinger = func(context.Context) bool { return false }
		}},
		{name: "that was extended", act: func(t *testing.T, _ *Server, h *engine.Hold) {
			require.NoError(t, h.Extend(t.Context(), time.Hour, nil))
		}},
		{name: "that another client has asked for", act: func(t *testing.T, s *Server, h *engine.Hold) {
			other := Start(t, func() (*engine.Hold, error) {
				return s.Client(t, "b").Lock("x").Acquire(t.Context(), NewTerms(), 100*ms)
			})
			_ = other.AwaitErr()
		}},
		{name: "that the server has not confirmed for half a TTL", act: func(_ *testing.T, s *Server, _ *engine.Hold) {
			s.OnEach(func(c Command) Fault { return Fault{Lost: c.Op == "renew"} })
			Sleep(DefaultTTL/2 + ms)
			s.ResetFaults()
		}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			if tt.config == nil {
				tt.config = func(*engine.Config) {}
			}
			r := s.Client(t, "a", tt.config).Lock("x")
			hold := Acquire(t, t.Context(), r, append([]func(*engine.Terms){limit}, tt.holder...)...)
			if tt.act != nil {
				tt.act(t, s, hold)
			}
			Release(t, hold)
		})
	}
}

// While a lock lingers, its own client acquires it in another way.
func TestLocalRequestsEndLingering(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options []func(*engine.Terms)
	}{
		{"without linger", nil},
		{"with another time", []func(*engine.Terms){Lingering(time.Second)}},
		{"with another TTL", []func(*engine.Terms){Lingering(testLinger), TTL(7 * time.Second)}},
		{"with a fixed lease", []func(*engine.Terms){Lingering(testLinger), FixedLease(DefaultTTL)}},
		{"with a shared id", []func(*engine.Terms){Lingering(testLinger), OwnedBy("me")}},
		{"as a part of a cohort", []func(*engine.Terms){Lingering(testLinger), InCohort(testCohort)}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			first := Acquire(t, t.Context(), r, Lingering(testLinger))
			Release(t, first)
			hold, err := r.Acquire(t.Context(), NewTerms(tt.options...), engine.NoWait)
			require.NoError(t, err, "a single try too")
			assert.NotEqual(t, first.ID(), hold.ID())
			assert.Zero(t, s.Now())
			Release(t, hold)
			Sleep(2 * time.Second)
		})
	}
}

// The lock is released while an attempt of the same client is under way, which Redis has refused
// already.
func TestWaiterThatWasRefusedEndsLingering(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		r := s.Client(t, "a").Lock("x")
		first := Acquire(t, t.Context(), r, Lingering(time.Hour))
		s.Script("acquire", Fault{Reply: 10 * ms})
		waiter := StartAcquire(t, t.Context(), r, Lingering(2*time.Hour))
		Release(t, first)
		Release(t, waiter.AwaitHold())
		assert.Equal(t, 10*ms, s.Now())
		assert.Len(t, s.IDs("x"), 1, "it lingers again")
	})
}

// The same with a request that polls. The lock does not linger while a request polls.
func TestRequestThatPollsEndsLingering(t *testing.T) {
	for _, reply := range []time.Duration{0, 15 * ms} { // of the first attempt
		RunBubble(t, reply.String(), func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			first := Acquire(t, t.Context(), r, Lingering(time.Hour))
			s.Script("acquire", Fault{Reply: reply})
			waiter := StartAcquire(t, t.Context(), r, Polling(20*ms, 20*ms))
			Sleep(10 * ms)
			Release(t, first)
			Release(t, waiter.AwaitHold())
			assert.LessOrEqual(t, s.Now(), reply+25*ms)
		})
	}
}

func TestOtherClientAsksForALingeringLock(t *testing.T) {
	for _, tt := range []struct {
		name string
		act  func(s *Server, a *Client)
		at   time.Duration
	}{
		{"at once", func(*Server, *Client) {}, 0},
		{"12 ms away", func(s *Server, a *Client) { s.SetAway(a, 12*ms) }, 12 * ms},
		{"the message is lost: its time ends", func(s *Server, a *Client) { s.Deaf = a }, testLinger},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			a := s.Client(t, "a")
			first := Acquire(t, t.Context(), a.Lock("x"), Lingering(testLinger))
			Release(t, first)
			tt.act(s, a)
			b := s.Client(t, "b").Lock("x")
			require.ErrorIs(t, ErrOf(b.Acquire(t.Context(), NewTerms(), engine.NoWait)), engine.ErrNotAcquired)
			assert.Empty(t, s.Sent("ask"), "a single try does not ask")
			hold := StartAcquire(t, t.Context(), b).AwaitHold()
			assert.Equal(t, tt.at, s.Now())
			Release(t, hold)
			Sleep(time.Second)
			s.RequireFree(t)
			assert.Empty(t, a.Kinds(engine.EventAcquired, engine.EventReleased))
		})
	}
}

// The user of a lock that could be passed on, or linger, hears that another client has asked,
// because the user's hold has the same id. Later users of the same tenure hear it at once.
func TestUserHearsThatAnotherClientAsks(t *testing.T) {
	for name, option := range map[string]func(*engine.Terms){"cohort": InCohort(time.Hour),
		"linger": Lingering(time.Hour)} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			a := s.Client(t, "a")
			first := Acquire(t, t.Context(), a.Lock("x"), option)
			second := StartAcquire(t, t.Context(), a.Lock("x"), option)
			assert.False(t, engine.IsClosed(first.Wanted()))
			a.HandleAsk("x", first.ID())
			assert.True(t, engine.IsClosed(first.Wanted()))
			Release(t, first)
			next := second.AwaitHold()
			isSameTenure := next.ID() == first.ID()
			assert.Equal(t, name == "cohort", isSameTenure)
			assert.Equal(t, isSameTenure, engine.IsClosed(next.Wanted()))
			Release(t, next)
		})
	}
}

// The ask overtakes the reply that grants the lock. The holder's client does not yet know that it
// has the lock.
func TestAskThatOvertakesTheGrantIsHeard(t *testing.T) {
	const late = 300 * ms // an ask for a former holder would be forgotten by then
	Bubble(t, func(t *testing.T, s *Server) {
		a := s.Client(t, "a")
		s.Script("acquire", Fault{Reply: late})
		first := StartAcquire(t, t.Context(), a.Lock("x"), Lingering(time.Hour))
		Sleep(5 * ms)
		other := StartAcquire(t, t.Context(), s.Client(t, "b").Lock("x"))
		hold := first.AwaitHold()
		assert.True(t, engine.IsClosed(hold.Wanted()))
		Release(t, hold)
		Release(t, other.AwaitHold())
		assert.Equal(t, late, s.Now())
	})
}

// The lock is handed off within its client before the ask comes, or at that moment. The client that
// asks does not know of the hand-off. So its ask is for the current holder, even for one that is
// not known yet.
func TestAskForAFormerHolderIsForItsSuccessor(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   time.Duration // of the ask, after the release has begun
	}{
		{"while the release is under way", ms},
		{"before the successor is known", 2 * ms},
		{"later", 10 * ms},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			a := s.Client(t, "a")
			r := a.Lock("x")
			first := Acquire(t, t.Context(), r, Lingering(time.Hour))
			waiter := StartAcquire(t, t.Context(), r, Lingering(time.Hour))
			Sleep(ms)
			s.Script("handoff", Fault{Reply: 2 * ms})
			released := StartRelease(t, first)
			time.Sleep(tt.at)
			a.HandleAsk("x", first.ID())
			released.AwaitHold()
			Release(t, waiter.AwaitHold())
			s.RequireFree(t)
			Sleep(time.Second)
			Release(t, Acquire(t, t.Context(), r, Lingering(time.Hour)))
			assert.NotEmpty(t, s.IDs("x"), "it was asked for once")
		})
	}
}

// The client that gives a lingering lock up, because another one has asked, leaves it to the
// others: also with its next acquisition, and with waiters of its own. It does not stand back for
// longer than a turn lasts.
func TestLockThatWasAskedForIsLeftToOthers(t *testing.T) {
	const away = 2 * ms // latency of the client that asks: it always comes later. A streak would last longer
	for _, tt := range []struct {
		name     string
		waiters  int // waiters of the client that has the lock, when it is asked
		goesAway bool
		at       time.Duration // when the client has the lock again
	}{
		{"no local waiter", 0, false, 2 * away},
		{"a local waiter", 1, false, 2 * away},
		{"two local waiters", 2, false, 2 * away},
		{"the other client has gone", 0, true, 85 * ms},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			a, b := s.Client(t, "a"), s.Client(t, "b")
			s.SetAway(b, away)
			r := a.Lock("x")
			first := Acquire(t, t.Context(), r, Lingering(time.Hour))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			other := StartAcquire(t, ctx, b.Lock("x"))
			Sleep(3 * away)
			var waiters []*Call
			for range tt.waiters {
				waiters = append(waiters, StartAcquire(t, t.Context(), r, Lingering(time.Hour)))
			}
			Sleep(away)
			if tt.goesAway {
				cancel()
				_ = other.AwaitErr()
			}
			freed := s.Now()
			Release(t, first)
			if len(waiters) == 0 {
				waiters = append(waiters, StartAcquire(t, t.Context(), r, Lingering(time.Hour)))
			}
			if !tt.goesAway {
				Release(t, other.AwaitHold())
			}
			hold := waiters[0].AwaitHold()
			assert.GreaterOrEqual(t, s.Now()-freed, tt.at)
			assert.LessOrEqual(t, s.Now()-freed, tt.at+10*ms)
			Release(t, hold)
			for _, w := range waiters[1:] {
				Release(t, w.AwaitHold())
			}
		})
	}
}

// Close frees lingering locks, even if its context has already ended.
func TestCloseFreesWhatLingers(t *testing.T) {
	for _, isOver := range []bool{false, true} {
		RunBubble(t, fmt.Sprint("its context has ended: ", isOver), func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			for i := range 20 {
				Release(t, Acquire(t, t.Context(), c.Lock(fmt.Sprint("x", i)), Lingering(time.Hour)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if isOver {
				cancel()
			}
			_ = c.Shut(ctx) // it waits for the releases, and may name them if its context has ended
			s.RequireFree(t)
			assert.Empty(t, c.Kinds(engine.EventAcquired, engine.EventReleased))
		})
	}
}

// The holder's client was asked while the lock was in use.
func TestReleaseOfALockThatWasAskedForFreesIt(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		first := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), Lingering(testLinger))
		other := StartAcquire(t, t.Context(), s.Client(t, "b").Lock("x"))
		Release(t, first)
		Release(t, other.AwaitHold())
		assert.Zero(t, s.Now())
	})
}

// A loss ends lingering, and nobody is told.
func TestLossEndsLingering(t *testing.T) {
	for _, foundBy := range []string{"a renewal", "the end of its time", "the next holder"} {
		RunBubble(t, foundBy, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			r := c.Lock("x")
			d := map[string]time.Duration{"the end of its time": time.Second}[foundBy]
			limit := Lingering(max(d, DefaultTTL))
			if d > 0 {
				limit = Lingering(d)
			}
			first := Acquire(t, t.Context(), r, limit)
			Release(t, first)
			s.Forget("x")
			switch foundBy {
			case "a renewal":
				Sleep(DefaultTTL / 2)
			case "the end of its time":
				Sleep(2 * time.Second)
			case "the next holder":
				hold := Acquire(t, t.Context(), r, limit)
				assert.ErrorIs(t, hold.Check(t.Context()), engine.ErrLost)
				_ = hold.Release(t.Context())
				assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventLost}, c.Kinds()[2:])
				return
			}
			assert.Equal(t, []engine.EventKind{engine.EventAcquired, engine.EventReleased}, c.Kinds())
			hold := Acquire(t, t.Context(), r, limit)
			assert.NotEqual(t, first.ID(), hold.ID())
			Release(t, hold)
		})
	}
}

// A lock is deleted while it is held, and its client acquires it again before the holder learns of
// that. When both have released it, neither acquisition keeps it from others for longer than it may
// linger.
func TestLockThatWasLostAndAcquiredAgainDoesNotLinger(t *testing.T) {
	for _, lostFirst := range []bool{true, false} {
		RunBubble(t, fmt.Sprint("the lost hold is released first: ", lostFirst), func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			r := c.Lock("x")
			holds := []*engine.Hold{Acquire(t, t.Context(), r, Lingering(time.Hour))}
			s.Forget("x")
			holds = append(holds, Acquire(t, t.Context(), r, Lingering(time.Hour)))
			require.NotEqual(t, holds[0].ID(), holds[1].ID())
			if !lostFirst {
				slices.Reverse(holds)
			}
			for _, hold := range holds {
				_ = hold.Release(t.Context()) // the lost one may say so
			}
			synctest.Wait()
			s.RequireFree(t)
			Release(t, Acquire(t, t.Context(), s.Client(t, "b").Lock("x")))
		})
	}
}

func TestCloseFreesLingeringLocks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault Fault
		took  time.Duration
		free  bool
	}{
		{"at once", Fault{}, 0, true},
		{"it waits for the release", Fault{Reply: 100 * ms}, 100 * ms, true},
		{"the server is silent", Fault{Lost: true}, CommandTimeout, false},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			Release(t, Acquire(t, t.Context(), c.Lock("x"), Lingering(time.Hour)))
			Release(t, Acquire(t, t.Context(), c.Lock("y"), Lingering(ms)))
			Sleep(2 * ms)
			began := time.Now()
			s.OnEach(func(Command) Fault { return tt.fault })
			ctx, cancel := context.WithTimeout(t.Context(), CommandTimeout)
			defer cancel()
			require.NoError(t, c.Shut(ctx))
			assert.LessOrEqual(t, time.Since(began), tt.took)
			if tt.free {
				s.RequireFree(t)
			}
			synctest.Wait()
		})
	}
}

// A lock that is released while its client closes does not linger.
func TestLockDoesNotLingerWhileItsClientCloses(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"), Lingering(time.Hour))
		go func() { _ = c.Shut(t.Context()) }()
		synctest.Wait()
		Release(t, hold)
		s.RequireFree(t)
		<-c.Closed
	})
}

// A process that dies while a lock lingers leaves it to its lease.
func TestLingeringLockOfADeadClientEndsWithItsLease(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		a := s.Client(t, "a")
		Release(t, Acquire(t, t.Context(), a.Lock("x"), Lingering(time.Hour), TTL(2*time.Second)))
		s.OnEach(func(cmd Command) Fault { return Fault{Lost: cmd.Client == "a"} })
		s.Deaf = a
		other := StartAcquire(t, t.Context(), s.Client(t, "b").Lock("x"))
		Release(t, other.AwaitHold())
		assert.LessOrEqual(t, s.Now(), 2*time.Second+ms)
		s.ResetFaults()
	})
}

// Cohort and linger together: local waiters pass the lock on, and the last release keeps it.
func TestCohortThatLingers(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		both := func(t *engine.Terms) { t.Cohort, t.Linger = testCohort, testLinger }
		first := Acquire(t, t.Context(), r, both)
		waiter := StartAcquire(t, t.Context(), r, both)
		commands := len(s.Commands())
		Release(t, first)
		Release(t, waiter.AwaitHold())
		Sleep(100 * ms)
		hold := Acquire(t, t.Context(), r, both)
		assert.Equal(t, first.ID(), hold.ID())
		assert.Len(t, s.Commands(), commands)
		Release(t, hold)
		Sleep(time.Second)
	})
}

// A waiter of Redisson cannot ask for a lock that lingers. It gets a message when the cohort is
// over, however often the client uses the lock.
func TestLingeringDoesNotProlongACohort(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Lock("x")
		both := func(t *engine.Terms) { t.Cohort, t.Linger = testCohort, testLinger }
		use := func() {
			hold := Acquire(t, t.Context(), r, both)
			Sleep(10 * ms)
			Release(t, hold)
		}
		for began := time.Now(); time.Since(began) < testCohort-10*ms; {
			use()
		}
		assert.Empty(t, s.Sent("release"))
		for range 3 {
			use()
		}
		assert.Len(t, s.Sent("release"), 1)
		Sleep(testLinger)
	})
}

// The observer panics while a lock lingers, or is passed on. The caller gets no hold, and nothing
// stays behind.
func TestAnObserverThatPanicsWhileALockIsPassedOn(t *testing.T) {
	for name, keep := range map[string]func(*engine.Terms){"linger": Lingering(testLinger),
		"cohort": InCohort(time.Minute)} {
		for _, at := range []engine.EventKind{engine.EventWait, engine.EventAcquired, engine.EventReleased} {
			RunBubble(t, fmt.Sprintf("%s, %s", name, at), func(t *testing.T, s *Server) {
				s.KeepLeases()
				var hold *engine.Hold
				c := s.Client(t, "a", func(config *engine.Config) {
					config.Observe = func(e engine.Event) {
						if hold == nil || e.Kind != at {
							return
						}
						first := hold
						hold = nil
						if at == engine.EventWait {
							Release(t, first) // the lock is the waiter's now
						}
						panic("observer")
					}
				})
				r := c.Lock("x")
				hold = Acquire(t, t.Context(), r, keep)
				require.PanicsWithValue(t, "observer", func() {
					if at != engine.EventWait {
						Release(t, hold)
					}
					Acquire(t, t.Context(), r, keep)
				})
				Sleep(testLinger)
				s.RequireFree(t)
				require.NoError(t, c.Shut(t.Context()), "no hold is left")
			})
		}
	}
}

// A lingering lock was released when its Release returns, not when it is free. Its keeper has no
// events.
func TestALingeringLockIsReleasedAtOnceForTheObserver(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"), Lingering(time.Hour))
		Sleep(time.Minute)
		Release(t, hold)
		want := []engine.EventKind{engine.EventAcquired, engine.EventReleased}
		require.Equal(t, want, c.Kinds(engine.EventRenewed))
		require.Equal(t, time.Minute, c.Event(t, engine.EventReleased).Held)
		renewed := len(c.Kinds(want...))
		Sleep(2 * time.Hour)
		s.RequireFree(t)
		require.Equal(t, want, c.Kinds(engine.EventRenewed))
		require.Len(t, c.Kinds(want...), renewed)
	})
}

// The request for the next tenure joins its queue just before the release that leaves the lock to
// others. Its subscription is confirmed while the release is on its way. It makes no attempt that
// could arrive after the release, and before the client that has asked.
func TestRequestThatJoinsBeforeTheReleaseLetsOthersGoFirst(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		pause := time.Duration(0) // before each command
		a := s.Client(t, "a", func(c *engine.Config) {
			c.Commands.Ready = func(context.Context) error { time.Sleep(pause); return nil }
		})
		b := s.Client(t, "b")
		s.SetAway(b, 2*ms)
		r := a.Lock("x")
		first := Acquire(t, t.Context(), r, Lingering(time.Hour))
		waiter := StartAcquire(t, t.Context(), r, Lingering(time.Hour))
		other := StartAcquire(t, t.Context(), b.Lock("x"))
		Sleep(10 * ms)
		pause = ms
		s.Script("acquire", Fault{Delay: 3 * ms})
		Release(t, first)
		assert.False(t, waiter.Returned())
		Release(t, other.AwaitHold())
		Release(t, waiter.AwaitHold())
	})
}

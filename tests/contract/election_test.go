package contract

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// candidate stands for election in a goroutine.
type candidate struct {
	*primitives.Election

	terms chan *term
	stop  context.CancelCauseFunc
	ended chan error // the result of Run
}

// term is a term of a candidate. Its lead function returns what the test sends to result.
type term struct {
	primitives.Term

	ctx    context.Context //nolint:containedctx // of the term
	result chan error
}

// stand begins to stand for election. inside, if not nil, counts the leaders.
func stand(t *testing.T, e *primitives.Election, inside *atomic.Int32) *candidate {
	t.Helper()
	ctx, stop := context.WithCancelCause(context.Background())
	c := &candidate{e, make(chan *term, 100), stop, make(chan error, 1)}
	over := make(chan struct{}) // the test
	go func() {
		c.ended <- e.Run(ctx, func(ctx context.Context, of primitives.Term) error {
			if inside != nil {
				if inside.Add(1) > 1 {
					t.Error("two lead at once")
				}
				defer inside.Add(-1)
			}
			led := &term{of, ctx, make(chan error)}
			c.terms <- led
			select {
			case err := <-led.result:
				return err
			case <-over:
				return nil
			}
		})
	}()
	t.Cleanup(func() {
		stop(nil)
		close(over)
	})
	return c
}

// await returns the next term of c.
func (c *candidate) await(t *testing.T) *term {
	t.Helper()
	select {
	case led := <-c.terms:
		return led
	case err := <-c.ended:
		require.FailNow(t, "Run has returned", "%v", err)
	case <-time.After(time.Minute):
		require.FailNow(t, "nobody was elected")
	}
	return nil
}

// result returns what Run returns.
func (c *candidate) result(t *testing.T) error {
	t.Helper()
	select {
	case err := <-c.ended:
		return err
	case <-time.After(time.Minute):
		require.FailNow(t, "Run goes on")
		return nil
	}
}

// C29: how terms and Run end.
func TestC29RunEnds(t *testing.T) {
	errCause := errors.New("SIGTERM")
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, tt := range []struct {
			name string
			// do returns what lead returns. It may end the context of Run, or the hold.
			do    func(t *testing.T, c *candidate, led *term) error
			again bool  // it stands again, and leads
			want  error // of Run, if it does not; nil: no error
		}{
			{"lead resigns", func(*testing.T, *candidate, *term) error { return nil }, true, nil},
			{"lead fails", func(*testing.T, *candidate, *term) error { return fixture.ErrTest }, false, fixture.ErrTest},
			{"lead fails with an error that looks like a refusal", func(*testing.T, *candidate, *term) error {
				return primitives.ErrNotAcquired
			}, false, primitives.ErrNotAcquired},
			{"lead fails with the loss of something else", func(*testing.T, *candidate, *term) error {
				return primitives.ErrLost
			}, false, primitives.ErrLost},
			{"ctx ends", func(_ *testing.T, c *candidate, led *term) error {
				c.stop(errCause)
				<-led.ctx.Done()
				return led.ctx.Err()
			}, false, nil},
			{"ctx ends, and lead returns its cause", func(t *testing.T, c *candidate, led *term) error {
				c.stop(errCause)
				<-led.ctx.Done()
				require.Equal(t, errCause, context.Cause(led.ctx))
				return fmt.Errorf("serve: %w", context.Cause(led.ctx))
			}, false, nil},
			{"ctx ends, and lead returns its cause, which joins two errors", func(_ *testing.T, c *candidate, led *term) error {
				c.stop(errors.Join(errCause, fixture.ErrTest))
				<-led.ctx.Done()
				return fmt.Errorf("serve: %w", context.Cause(led.ctx))
			}, false, nil},
			{"ctx ends, and lead returns a part of its cause and another error", func(
				_ *testing.T, c *candidate, led *term,
			) error {
				c.stop(errCause)
				<-led.ctx.Done()
				return errors.Join(context.Cause(led.ctx), fmt.Errorf("close: %w", fixture.ErrTest))
			}, false, fixture.ErrTest},
			{"ctx ends, and lead returns nil", func(_ *testing.T, c *candidate, led *term) error {
				c.stop(errCause)
				<-led.ctx.Done()
				return nil
			}, false, nil},
			{"ctx ends, and lead waits for another lock", func(_ *testing.T, c *candidate, led *term) error {
				c.stop(errCause)
				<-led.ctx.Done()
				return fixture.ErrOf(fixture.NewClient(t, s.Client(t)).Lock(c.Name() + ":other").Acquire(led.ctx))
			}, false, nil},
			{"ctx ends, and lead fails", func(_ *testing.T, c *candidate, led *term) error {
				c.stop(errCause)
				<-led.ctx.Done()
				return errors.Join(led.ctx.Err(), fixture.ErrTest)
			}, false, fixture.ErrTest},
			{"the leadership is lost", func(t *testing.T, c *candidate, led *term) error {
				require.ErrorIs(t, forceRelease(t, s, c.Name(), led), primitives.ErrLost)
				return led.ctx.Err()
			}, true, nil},
			{"the leadership is lost, and lead returns the cause", func(t *testing.T, c *candidate, led *term) error {
				return fmt.Errorf("serve: %w", forceRelease(t, s, c.Name(), led))
			}, true, nil},
			{"the leadership is lost, and lead asks", func(t *testing.T, c *candidate, led *term) error {
				_ = forceRelease(t, s, c.Name(), led)
				return led.Hold.Check(t.Context())
			}, true, nil},
			{"the leadership is lost, and lead says so by the error of this library", func(
				t *testing.T, c *candidate, led *term,
			) error {
				_ = forceRelease(t, s, c.Name(), led)
				return fmt.Errorf("serve: %w", primitives.ErrLost)
			}, true, nil},
			{"the leadership is lost, and lead fails", func(t *testing.T, c *candidate, led *term) error {
				return errors.Join(forceRelease(t, s, c.Name(), led), fixture.ErrTest)
			}, false, fixture.ErrTest},
		} {
			t.Run(tt.name, func(t *testing.T) {
				c := stand(t, fixture.NewClient(t, s.Client(t)).Election(redistest.Name(t)), nil)
				led := c.await(t)
				led.result <- tt.do(t, c, led)
				if tt.again {
					next := c.await(t)
					require.Greater(t, next.Token, led.Token)
					c.stop(errCause)
					next.result <- nil
				}
				err := c.result(t)
				if tt.want == nil {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, tt.want)
				}
				leader, err := c.Leader(t.Context())
				require.NoError(t, err)
				require.Zero(t, leader, "the leadership was given back")
			})
		}
	})
}

// forceRelease takes the leadership away, and returns the cause with which the term ends.
func forceRelease(t *testing.T, s *redistest.Server, name string, led *term) error {
	t.Helper()
	require.NoError(t, fixture.ErrOf(fixture.NewClient(t, s.Client(t)).FencedLock(name).ForceRelease(t.Context())))
	_ = led.Hold.Check(t.Context()) // at once, instead of with the next renewal
	<-led.ctx.Done()
	return context.Cause(led.ctx)
}

// C29: what lead gets.
func TestC29Term(t *testing.T) {
	type key struct{}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := fixture.NewClient(t, s.Client(t), primitives.WithClientName("host-1")).Election(redistest.Name(t))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		err := e.Run(ctx, func(ctx context.Context, term primitives.Term) error {
			defer cancel()
			require.Equal(t, "value", ctx.Value(key{}))
			require.Same(t, term.Hold, primitives.HoldFrom(ctx))
			require.Positive(t, term.Token)
			require.Equal(t, term.Token, term.Hold.Token())
			leader, err := e.Leader(ctx)
			require.NoError(t, err)
			require.Equal(t, []any{term.Hold.ID(), term.Token}, []any{leader.ID, leader.Token})
			require.Positive(t, leader.TTL)
			java, err := fixture.NewClient(t, s.Client(t)).FencedLock(e.Name()).TryAcquire(ctx)
			require.Nil(t, java)
			require.ErrorIs(t, err, primitives.ErrNotAcquired, "it is the fenced lock of that name")
			return nil
		})
		require.NoError(t, err)
	})
}

// C29: a candidate that does not lead ends with the cause of ctx.
func TestC29RunEndsWhileItStands(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		stand(t, fixture.NewClient(t, s.Client(t)).Election(name), nil).await(t)
		c := fixture.NewClient(t, s.Client(t))
		waits := stand(t, c.Election(name), nil)
		fixture.AwaitWaiters(t, c, 1)
		waits.stop(fixture.ErrTest)
		require.Equal(t, fixture.ErrTest, waits.result(t))
		ended, end := context.WithCancelCause(t.Context())
		end(fixture.ErrTest)
		require.Equal(t, fixture.ErrTest, c.Election(name).Run(ended, nil))
	})
}

// C29: permanent errors end Run, others do not.
func TestC29ErrorsThatEndRun(t *testing.T) {
	s := redistest.Fresh(t)
	s.SetUser(t, "bob", "on", ">"+redistest.Password, "resetkeys", "~mine*", "resetchannels", "&mine*", "+@all")
	wrongPassword := func(o *redis.Options) { o.Username, o.Password = "bob", "wrong" }
	open := func(t *testing.T, s *redistest.Server, tweaks ...func(*redis.Options)) *primitives.Client {
		return fixture.NewClient(t, s.Client(t, tweaks...))
	}
	for name, tt := range map[string]struct {
		e    func(t *testing.T, name string) *primitives.Election
		want error
	}{
		"an empty name": {func(t *testing.T, _ string) *primitives.Election {
			return open(t, s).Election("")
		}, primitives.ErrInvalid},
		"an option": {func(t *testing.T, name string) *primitives.Election {
			return open(t, s).Election(name, primitives.WithLease(-1))
		}, primitives.ErrInvalid},
		"an owner": {func(t *testing.T, name string) *primitives.Election {
			return open(t, s).Election(name, primitives.WithOwner("one for all"))
		}, primitives.ErrInvalid},
		"foreign data": {func(t *testing.T, name string) *primitives.Election {
			require.NoError(t, s.Client(t).HSet(t.Context(), name, "color", "red").Err())
			return open(t, s).Election(name)
		}, primitives.ErrForeign},
		"another type": {func(t *testing.T, name string) *primitives.Election {
			require.NoError(t, s.Client(t).LPush(t.Context(), name, 1).Err())
			return open(t, s).Election(name)
		}, primitives.ErrForeign},
		"a closed client": {func(t *testing.T, name string) *primitives.Election {
			c := open(t, s)
			require.NoError(t, c.Close(t.Context()))
			return c.Election(name)
		}, primitives.ErrClosed},
		"a missing permission": {func(t *testing.T, name string) *primitives.Election {
			return open(t, s.As("bob")).Election(name)
		}, nil},
		"a wrong password": {func(t *testing.T, name string) *primitives.Election {
			return open(t, s, wrongPassword).Election(name)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := stand(t, tt.e(t, redistest.Name(t)), nil)
			err := c.result(t)
			require.Error(t, err)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			n := 0
			for leader, err := range c.Watch(t.Context()) {
				n++
				require.Zero(t, leader)
				require.Error(t, err)
			}
			require.Equal(t, 1, n, "Watch ends, too")
		})
	}
}

// C29: Watch ends when Close begins, although Close waits for a hold.
func TestC29WatchEndsWhenTheClientCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		c := fixture.NewClient(t, s.Client(t))
		hold := fixture.Acquire(t, t.Context(), c.Lock("held"))
		ended := make(chan error, 1)
		go func() {
			var last error
			for _, err := range c.Election("e").Watch(t.Context()) {
				last = err
			}
			ended <- last
		}()
		time.Sleep(time.Minute)
		closed := fixture.Go(func() error { return c.Close(t.Context()) })
		synctest.Wait()
		before := redistest.Commands(t, s)
		require.ErrorIs(t, <-ended, primitives.ErrClosed)
		time.Sleep(time.Second)
		require.Zero(t, redistest.Commands(t, s).Since(before)["evalsha"], "it does not look again and again")
		fixture.Release(t, hold)
		require.NoError(t, <-closed)
	})
}

// C29: an outage does not end Run, whether it comes before the first answer, or while it stands or
// leads.
func TestC29Outages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		var inside atomic.Int32
		proxies := []*redistest.Proxy{s.Proxy(t), s.Proxy(t)}
		proxies[0].Refuse(true)
		first := stand(t, fixture.NewClient(t, proxies[0].Client(t)).Election("e"), &inside)
		time.Sleep(20 * time.Second)
		proxies[0].Heal()
		led := first.await(t)
		second := stand(t, fixture.NewClient(t, proxies[1].Client(t)).Election("e"), &inside)
		time.Sleep(time.Second)
		proxies[1].Cut() // it stands
		time.Sleep(time.Minute)
		proxies[1].Heal()
		time.Sleep(time.Minute)

		cut := time.Now()
		proxies[0].BlackHole(true) // it leads
		<-led.ctx.Done()
		require.ErrorIs(t, context.Cause(led.ctx), primitives.ErrLost)
		led.result <- context.Cause(led.ctx)
		next := second.await(t)
		require.LessOrEqual(t, time.Since(cut), 31*time.Second, "a successor leads within the TTL")
		require.Greater(t, next.Token, led.Token)
		proxies[0].Heal()
		time.Sleep(time.Minute)
		next.result <- nil // it resigns, and stands behind the first one
		third := first.await(t)
		require.Greater(t, third.Token, next.Token)
		time.Sleep(time.Second) // the second one stands again
		for _, c := range []*candidate{first, second} {
			c.stop(nil)
		}
		third.result <- nil
		require.NoError(t, first.result(t))
		require.ErrorIs(t, second.result(t), context.Canceled)
	})
}

// C29: the successor leads one exchange after lead has returned, and whoever resigned stands behind
// the others.
func TestC29HandOver(t *testing.T) {
	const exchange = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		// The server knows the scripts from then on. Otherwise the first release would take two
		// more exchanges.
		fixture.Release(t, fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FencedLock("e")))
		var inside atomic.Int32
		var all []*candidate
		for range 3 {
			p := s.Proxy(t)
			p.Delay(exchange)
			c := stand(t, fixture.NewClient(t, p.Client(t)).Election("e"), &inside)
			time.Sleep(3 * time.Second)
			all = append(all, c)
		}
		led, last := all[0].await(t), int64(0)
		for round := range 9 {
			require.Greater(t, led.Token, last)
			last = led.Token
			began := time.Now()
			led.result <- nil
			next := all[(round+1)%3]
			led = next.await(t)
			// The message that wakes the successor comes as late as an answer.
			require.LessOrEqual(t, time.Since(began), 2*exchange+time.Millisecond, "round %d", round)
			time.Sleep(5 * time.Second)
		}
		for _, c := range all {
			c.stop(nil)
		}
		led.result <- nil
		for _, c := range all {
			_ = c.result(t)
		}
	})
}

// C29: a candidate does not stand again before a lead that overstays has returned.
func TestC29LeadThatOverstays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		p := s.Proxy(t)
		c := stand(t, fixture.NewClient(t, p.Client(t)).Election("e"), nil)
		led := c.await(t)
		p.BlackHole(true)
		<-led.ctx.Done()
		require.ErrorIs(t, context.Cause(led.ctx), primitives.ErrLost)
		p.Heal()
		time.Sleep(time.Hour)
		require.Empty(t, c.terms)
		leader, err := c.Leader(t.Context())
		require.NoError(t, err)
		require.Zero(t, leader)
		led.result <- nil
		next := c.await(t)
		c.stop(nil)
		next.result <- nil
		require.NoError(t, c.result(t))
	})
}

// C29: options that would keep a leadership from the others, or a candidate from waiting, have no
// effect, wherever they are given.
func TestC29OptionsWithoutEffect(t *testing.T) {
	for name, opt := range map[string]primitives.Option{
		"a minimum hold": primitives.WithMinHold(time.Hour),
		"linger":         primitives.WithLinger(time.Hour),
		"a cohort":       primitives.WithCohort(time.Hour),
		"no wait":        primitives.WithWait(0),
		"a short wait":   primitives.WithWait(time.Second),
	} {
		fixture.RunEmbedded(t, name, func(t *testing.T, s *redistest.Server) {
			var inside atomic.Int32
			first := stand(t, fixture.NewClient(t, s.Client(t), primitives.WithDefaults(opt)).Election("e"), &inside)
			led := first.await(t)
			c := fixture.NewClient(t, s.Client(t))
			second := stand(t, fixture.NewClient(t, s.Client(t)).Election("e", opt), &inside)
			time.Sleep(time.Minute)
			first.stop(nil)
			led.result <- nil
			require.NoError(t, first.result(t))
			resigned := time.Now()
			next := second.await(t)
			require.LessOrEqual(t, time.Since(resigned), 10*time.Millisecond)
			second.stop(nil)
			next.result <- nil
			require.NoError(t, second.result(t))
			leader, err := c.Election("e").Leader(t.Context())
			require.NoError(t, err)
			require.Zero(t, leader)
		})
	}
}

// C29: an election does not nest in a hold that its context carries. Otherwise two would lead.
func TestC29DoesNotNest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fixture.NewClient(t, redistest.Embedded(t).Client(t))
		never := func(context.Context, primitives.Term) error {
			t.Error("two lead")
			return nil
		}
		for _, hold := range []*primitives.Hold{
			fixture.Acquire(t, t.Context(), c.FencedLock("e")),
			fixture.Acquire(t, t.Context(), c.FencedLock("another name")), // which is no obstacle for an election of e2
		} {
			ctx, stop := context.WithTimeoutCause(hold.Context(), time.Minute, fixture.ErrTest)
			defer stop()
			require.Equal(t, fixture.ErrTest, c.Election("e").Run(ctx, never))
		}
		led := 0
		err := c.Election("e2").Run(t.Context(), func(ctx context.Context, _ primitives.Term) error {
			led++
			ctx, stop := context.WithTimeoutCause(ctx, time.Minute, fixture.ErrTest)
			defer stop()
			return c.Election("e2").Run(ctx, never)
		})
		require.ErrorIs(t, err, fixture.ErrTest)
		require.Equal(t, 1, led)
	})
}

// C29: a lead that panics gives the leadership back.
func TestC29LeadPanics(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := fixture.NewClient(t, s.Client(t)).Election(redistest.Name(t))
		require.Panics(t, func() {
			_ = e.Run(t.Context(), func(context.Context, primitives.Term) error { panic("x") })
		})
		leader, err := e.Leader(t.Context())
		require.NoError(t, err)
		require.Zero(t, leader)
	})
}

// sighting is what a watcher has seen.
type sighting struct {
	primitives.Leader

	err error
	at  time.Time
}

// watch ranges over Watch in a goroutine until ctx ends.
func watch(ctx context.Context, e *primitives.Election) <-chan sighting {
	seen := make(chan sighting, 1000)
	go func() {
		defer close(seen)
		for leader, err := range e.Watch(ctx) {
			seen <- sighting{leader, err, time.Now()}
		}
	}()
	return seen
}

// C29: Watch yields the present leader at once, and each change within 200 ms, or by the slow poll.
func TestC29Watch(t *testing.T) {
	const soon, slow = 200 * time.Millisecond, time.Second + 200*time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		ctx, stop := context.WithCancel(t.Context())
		p := s.Proxy(t)
		seen := watch(ctx, fixture.NewClient(t, p.Client(t)).Election("e"))
		expect := func(name, id string, within time.Duration) {
			t.Helper()
			began := time.Now()
			got, ok := <-seen
			require.True(t, ok, name)
			require.NoError(t, got.err, name)
			require.Equal(t, id, got.ID, name)
			require.LessOrEqual(t, got.at.Sub(began), within, name)
		}
		expect("nobody leads, at once", "", 0)
		time.Sleep(10 * time.Second)
		host := fixture.NewClient(t, s.Client(t), primitives.WithClientName("host-1"))
		first := stand(t, host.Election("e"), nil)
		led := first.await(t)
		began := time.Now()
		got := <-seen
		require.LessOrEqual(t, got.at.Sub(began), soon, "elected")
		require.Equal(t, []any{led.Hold.ID(), led.Token, "host-1"}, []any{got.ID, got.Token, got.Client})

		second := stand(t, host.Election("e"), nil) // of the same client: nothing may stay between the two
		time.Sleep(10 * time.Second)
		require.Empty(t, seen, "renewals are no changes")
		led.result <- nil
		led = second.await(t)
		expect("the next one", led.Hold.ID(), soon)
		time.Sleep(10 * time.Second)

		first.stop(nil)
		_ = first.result(t)
		second.stop(nil)
		led.result <- nil
		_ = second.result(t)
		expect("nobody leads any longer", "", soon)

		java := "6c2a2ba5-6ba4-4b8c-9e1f-3a2d3b1c0d4e:7"
		require.NoError(t, s.Client(t).HSet(ctx, "e", java, 1).Err())
		require.NoError(t, s.Client(t).PExpire(ctx, "e", 30*time.Second).Err())
		expect("Java leads", java, slow)
		time.Sleep(29*time.Second - slow)
		require.Empty(t, seen)
		s.Mini().FastForward(30 * time.Second)
		expect("Java's leader has expired", "", slow)

		third := stand(t, fixture.NewClient(t, s.Client(t)).Election("e"), nil)
		led = third.await(t)
		expect("before the outage", led.Hold.ID(), soon)
		p.Cut()
		got = <-seen
		require.Error(t, got.err)
		require.Zero(t, got.Leader)
		time.Sleep(time.Minute)
		require.Empty(t, seen, "one error for an outage")
		p.Heal()
		expect("after the outage", led.Hold.ID(), time.Minute)
		stop()
		_, ok := <-seen
		require.False(t, ok, "it ends with ctx")
		third.stop(nil)
		led.result <- nil
		_ = third.result(t)
	})
}

// C29: what Watch yields of leaders that Java elects, which come and go as a test says.
func TestC29WatchDetails(t *testing.T) {
	const java, successor = "6c2a2ba5-6ba4-4b8c-9e1f-3a2d3b1c0d4e:7", "6c2a2ba5-6ba4-4b8c-9e1f-3a2d3b1c0d4e:8"
	for _, tt := range []struct {
		name   string
		act    func(leads func(id string, token int64, lease time.Duration), leaves func())
		want   []string // the ids
		tokens []int64
		within time.Duration // from the end of act until the last one is yielded
	}{
		{"a thread leads again, with another token", func(leads func(string, int64, time.Duration), leaves func()) {
			leads(java, 8, time.Minute)
		}, []string{java}, []int64{8}, time.Second},
		{"a leader has left, and the next one comes soon", func(leads func(string, int64, time.Duration), leaves func()) {
			leaves()
			time.Sleep(40 * time.Millisecond)
			leads(successor, 8, time.Minute)
		}, []string{successor}, []int64{8}, 100 * time.Millisecond},
		{"a leader has left, and the next one comes late", func(leads func(string, int64, time.Duration), leaves func()) {
			leaves()
			time.Sleep(140 * time.Millisecond)
			leads(successor, 8, time.Minute)
		}, []string{"", successor}, []int64{0, 8}, 200 * time.Millisecond},
		{"a leader's lease ends before the next look", func(leads func(string, int64, time.Duration), leaves func()) {
			leads(java, 8, 1500*time.Millisecond)
			time.Sleep(1500 * time.Millisecond)
		}, []string{java, ""}, []int64{8, 0}, 200 * time.Millisecond},
	} {
		fixture.RunEmbedded(t, tt.name, func(t *testing.T, s *redistest.Server) {
			ctx, stop := context.WithCancel(t.Context())
			rdb := s.Client(t)
			leads := func(id string, token int64, lease time.Duration) {
				require.NoError(t, rdb.Set(ctx, "redisson_lock_token:{e}", token, 0).Err())
				require.NoError(t, rdb.HSet(ctx, "e", id, 1).Err())
				require.NoError(t, rdb.PExpire(ctx, "e", lease).Err())
			}
			leaves := func() {
				require.NoError(t, rdb.Del(ctx, "e").Err())
				require.NoError(t, rdb.Publish(ctx, "redisson_lock__channel:{e}", "0").Err())
			}
			leads(java, 7, time.Minute)
			seen := watch(ctx, fixture.NewClient(t, s.Client(t)).Election("e"))
			first := <-seen
			require.Equal(t, java, first.ID)
			time.Sleep(10 * time.Second)
			require.Empty(t, seen)
			tt.act(leads, leaves)
			acted := time.Now()
			for i, id := range tt.want {
				got := <-seen
				require.NoError(t, got.err)
				require.Equal(t, []any{id, tt.tokens[i]}, []any{got.ID, got.Token})
				require.LessOrEqual(t, got.at.Sub(acted), tt.within)
			}
			time.Sleep(10 * time.Second)
			require.Empty(t, seen)
			stop()
			for range seen { // until it ends
			}
		})
	}
}

// C29: the end of each term is published, also if the successor is a candidate of the same client.
// Watchers rely on it.
func TestC29EachEndIsPublished(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, c := redistest.Name(t), fixture.NewClient(t, s.Client(t))
		led := stand(t, c.Election(name), nil).await(t)
		const others = 5
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		terms := make(chan int64, 1000)
		for range others {
			go func() {
				_ = c.Election(name).Run(ctx, func(_ context.Context, term primitives.Term) error {
					terms <- term.Token
					return nil
				})
			}()
		}
		fixture.AwaitWaiters(t, c, others)
		released := fixture.Subscribe(t, s, "redisson_lock__channel:{"+name+"}")
		led.result <- fixture.ErrTest
		for range others {
			<-terms
		}
		fixture.AwaitWaiters(t, c, 0)
		require.GreaterOrEqual(t, len(released.Received(t)), others)
	})
}

// C29: an election that nobody watches sends what a fenced lock sends.
func TestC29SendsWhatALockSends(t *testing.T) {
	sent := func(t *testing.T, lead func(ctx context.Context, c *primitives.Client)) (commands []string) {
		synctest.Test(t, func(t *testing.T) {
			s := redistest.Embedded(t)
			p := s.Proxy(t)
			c := fixture.NewClient(t, p.Client(t))
			p.Record()
			lead(t.Context(), c)
			time.Sleep(5 * time.Second)
			for _, command := range p.Commands() {
				commands = append(commands, command.Args[0])
			}
		})
		return commands
	}
	const held = 65 * time.Second // not when a renewal is due
	lock := sent(t, func(ctx context.Context, c *primitives.Client) {
		_ = c.FencedLock("e").Do(ctx, func(context.Context) error {
			time.Sleep(held)
			return nil
		})
	})
	election := sent(t, func(ctx context.Context, c *primitives.Client) {
		ctx, cancel := context.WithCancel(ctx)
		_ = c.Election("e").Run(ctx, func(context.Context, primitives.Term) error {
			time.Sleep(held)
			cancel()
			return nil
		})
	})
	require.Equal(t, lock, election)
}

// C29: never two leads at once, and tokens rise, while candidates of two clients resign and are
// forced out.
func TestC29NeverTwoLeads(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var inside atomic.Int32
		var mu sync.Mutex
		var last int64
		terms := 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		name := redistest.Name(t)
		var group sync.WaitGroup
		for range 2 {
			c := fixture.NewClient(t, s.Client(t))
			for range 3 {
				group.Go(func() {
					_ = c.Election(name).Run(ctx, func(ctx context.Context, term primitives.Term) error {
						if inside.Add(1) > 1 {
							t.Error("two lead at once")
						}
						defer inside.Add(-1)
						mu.Lock()
						defer mu.Unlock()
						if term.Token <= last {
							t.Errorf("token %d after %d", term.Token, last)
						}
						last = term.Token
						terms++
						if terms == 30 {
							cancel()
						}
						return nil
					})
				})
			}
		}
		group.Wait()
		require.GreaterOrEqual(t, terms, 30)
	})
}

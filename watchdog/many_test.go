package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// withFakeTime runs f in a synctest bubble, with a Dog and a fake server.
func withFakeTime(t *testing.T, r func(request) reply, f func(t *testing.T, d *Dog, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(r)
		d := New(s.renew)
		defer d.Close()
		f(t, d, s)
	})
}

func TestLeaseIsRenewedOncePerPeriod(t *testing.T) {
	withFakeTime(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		keep(t, d, k, schedule())
		sleep(time.Hour)
		require.Len(t, s.requests(), 360)
		require.Len(t, k.events(), 360)
	})
}

// An unknown answer is retried, soon at first, then less often, until the end of validity.
func TestUnknownIsRetriedWithBackoffUntilTheEnd(t *testing.T) {
	back := 29 * time.Second
	withFakeTime(t, func(q request) reply {
		if q.at >= back {
			return reply{state: Renewed}
		}
		return reply{}
	}, func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		keep(t, d, k, schedule())
		sleep(ttl)
		require.Equal(t, 1, d.Len())

		asked := s.requests()
		for i, q := range asked[1:] {
			wait, left := q.at-asked[i].at, ttl-margin-asked[i].at
			want := min(minBackoff<<i, ttl/9)
			require.LessOrEqual(t, wait, want, "attempt %d", i)
			require.GreaterOrEqual(t, wait, min(want, left/2)*3/4, "attempt %d", i)
		}
		require.Len(t, k.eventsWithout("unknown"), 1)
		require.GreaterOrEqual(t, k.validFor(), back+ttl-margin)
	})
}

// 5,000 leases of 3 s take about 50 batches a second, however they were registered.
func TestLeasesShareBatches(t *testing.T) {
	const n, short = 5000, 3 * time.Second
	random := func(int) time.Duration { return rand.N(2 * time.Second / n) }
	for _, tt := range []struct {
		name   string
		wait   func(i int) time.Duration // before lease i is registered
		answer time.Duration
		churn  int // leases per second that are replaced by new ones
	}{
		{name: "at once", wait: func(int) time.Duration { return 0 }},
		{name: "evenly over a second", wait: func(int) time.Duration { return time.Second / n }},
		{name: "evenly over ten seconds", wait: func(int) time.Duration { return 10 * time.Second / n }},
		{name: "at random over a second", wait: random},
		{name: "in bursts of 77", wait: func(i int) time.Duration {
			if i%77 == 0 {
				return 15*time.Millisecond + rand.N(time.Millisecond)
			}
			return 0
		}},
		{name: "slow answers", wait: random, answer: 30 * time.Millisecond},
		{name: "leases are replaced", wait: random, churn: 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withFakeTime(t, always(reply{state: Renewed, after: tt.answer}), func(t *testing.T, d *Dog, s *server) {
				sched := Schedule{Group: "g", TTL: short, Margin: 32 * time.Millisecond}
				leases := make([]*keeper, n)
				for i := range leases {
					time.Sleep(tt.wait(i))
					leases[i] = newKeeper()
					keep(t, d, leases[i], sched)
				}
				for range 7 * tt.churn {
					sleep(time.Second / time.Duration(tt.churn))
					i := rand.N(n)
					d.Drop(&leases[i].Lease)
					leases[i] = newKeeper()
					keep(t, d, leases[i], sched)
				}
				if tt.churn == 0 {
					sleep(7 * time.Second)
				}
				ended := time.Since(s.start)

				perSecond := make([]int, int(ended/time.Second)+1)
				sum, full := 0, 0
				for _, q := range s.requests() {
					require.LessOrEqual(t, len(q.batch), Batch)
					perSecond[int(q.at/time.Second)]++
					if q.at > ended-5*time.Second {
						sum++
						full += len(q.batch)
					}
				}
				t.Logf("batches in each second: %v; %.1f a second in the last five, %d leases each",
					perSecond, float64(sum)/5, full/sum)
				for second, batches := range perSecond {
					require.LessOrEqual(t, batches, 60, "second %d", second)
				}
				require.LessOrEqual(t, sum, 275)
				require.Equal(t, n, d.Len())
				for _, k := range leases {
					require.Empty(t, k.eventsWithout("renewed"))
				}
			})
		})
	}
}

func TestBatchesDoNotMixGroups(t *testing.T) {
	withFakeTime(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, s *server) {
		type slot struct{ n int }
		of := map[*Lease]any{}
		for i := range 500 {
			k, sched := newKeeper(), schedule()
			sched.Group = slot{i % 3}
			of[&k.Lease] = sched.Group
			keep(t, d, k, sched)
		}
		sleep(10 * time.Second)
		require.Len(t, s.requests(), 6)
		for _, q := range s.requests() {
			for _, a := range q.batch {
				require.Equal(t, of[a.Lease], q.group)
			}
		}
		for l := range of {
			d.Drop(l)
		}
		require.Zero(t, d.Len())
		require.Empty(t, d.groups)
	})
}

// A failing group does not affect other groups. Losses are reported on time, even if calls hang.
func TestStuckGroupDoesNotAffectOthers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		stuck func(ctx context.Context, over <-chan struct{})
	}{
		{"answers nothing", func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() }},
		{"ignores its context", func(_ context.Context, over <-chan struct{}) { <-over }},
		{"fails at once", func(context.Context, <-chan struct{}) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				var stuck, most atomic.Int64
				healthy := newServer(always(reply{state: Renewed}))
				d := New(func(ctx context.Context, group any, batch []Renewal) ([]State, error) {
					if group != "stuck" {
						return healthy.renew(ctx, group, batch)
					}
					most.Store(max(most.Load(), stuck.Add(1)))
					defer stuck.Add(-1)
					tt.stuck(ctx, over)
					return nil, errDown
				})
				defer d.Close()
				defer close(over)

				stuckLeases, healthyLeases := make([]*keeper, 7000), make([]*keeper, 250)
				for i := range stuckLeases {
					stuckLeases[i] = newKeeper()
					keep(t, d, stuckLeases[i], Schedule{Group: "stuck", TTL: ttl, Margin: margin})
				}
				for i := range healthyLeases {
					healthyLeases[i] = newKeeper()
					keep(t, d, healthyLeases[i], Schedule{Group: "healthy", TTL: ttl, Margin: margin})
				}
				sleep(65 * time.Second)

				require.Equal(t, len(healthyLeases), d.Len())
				for _, k := range healthyLeases {
					require.Equal(t, []string{
						"renewed@10s", "renewed@20s", "renewed@30s", "renewed@40s", "renewed@50s", "renewed@1m0s",
					}, k.events())
				}
				for _, k := range stuckLeases {
					events := k.events()
					require.Equal(t, "expired@29.7s", events[len(events)-1])
				}

				// Later leases of the group are lost too, and do not exceed the limit of calls.
				late := make([]*keeper, 2*Batch)
				for i := range late {
					late[i] = newKeeper()
					keep(t, d, late[i], Schedule{Group: "stuck", TTL: ttl, Margin: margin})
				}
				sleep(ttl)
				for _, k := range late {
					events := k.events()
					require.Equal(t, "expired@29.7s", events[len(events)-1])
				}
				require.Equal(t, len(healthyLeases), d.Len())
				require.LessOrEqual(t, most.Load(), int64(maxInFlight))
			})
		})
	}
}

// A hanging call frees its slot: the batches behind it start, and its leases are renewed by another
// call.
func TestHangingCallsDoNotBlockTheQueue(t *testing.T) {
	withFakeTime(t, func(q request) reply {
		if q.n < maxOnTime {
			return reply{hang: true}
		}
		return reply{state: Renewed}
	}, func(t *testing.T, d *Dog, s *server) {
		ks := make([]*keeper, 5000)
		for i := range ks {
			ks[i] = newKeeper()
			keep(t, d, ks[i], schedule())
		}
		sleep(10 * time.Second)
		require.Len(t, s.requests(), maxOnTime)
		sleep(5 * time.Second)
		for _, k := range ks {
			require.Equal(t, "renewed@15s", k.events()[len(k.events())-1])
		}
		require.Len(t, s.requests(), maxOnTime+50)
		require.Equal(t, maxOnTime, s.ended, "calls without leases are canceled")
	})
}

// A Confirm frees the slots of hanging calls, even if they ignore the end of their context.
func TestConfirmFreesTheSlotsOfHangingCalls(t *testing.T) {
	withFakeTime(t, func(q request) reply {
		if q.n < maxOnTime {
			return reply{state: Renewed, after: time.Minute}
		}
		return reply{state: Renewed}
	}, func(t *testing.T, d *Dog, s *server) {
		of := map[*Lease]*keeper{}
		for range (maxOnTime + 1) * Batch {
			k := newKeeper()
			of[&k.Lease] = k
			keep(t, d, k, schedule())
		}
		sleep(12 * time.Second)
		require.Len(t, s.requests(), maxOnTime)
		for _, q := range s.requests() {
			for _, a := range q.batch {
				d.Confirm(a.Lease, time.Now().Add(ttl-margin))
				delete(of, a.Lease)
			}
		}
		synctest.Wait()
		require.Len(t, of, Batch)
		for _, k := range of {
			require.Equal(t, []string{"renewed@12s"}, k.events())
		}
	})
}

// Drop frees the slots of calls in flight, and removes a lease from the call that is queued. That
// call starts, and is hedged in time.
func TestDropFreesTheSlotsOfHangingCalls(t *testing.T) {
	withFakeTime(t, func(q request) reply {
		if q.n <= maxOnTime {
			return reply{state: Renewed, after: 5 * time.Minute}
		}
		return reply{state: Renewed}
	}, func(t *testing.T, d *Dog, s *server) {
		long := make([]*keeper, maxOnTime*Batch)
		for i := range long {
			long[i] = newKeeper()
			keep(t, d, long[i], Schedule{Group: "g", TTL: 10 * ttl, Margin: margin})
		}
		require.Zero(t, d.Drop(new(Lease)), "of no dog")
		sleep(91 * time.Second)
		dropped, k := newKeeper(), newKeeper()
		keep(t, d, dropped, schedule())
		keep(t, d, k, schedule())
		sleep(11 * time.Second)
		require.Len(t, s.requests(), maxOnTime)
		require.Zero(t, d.Drop(&dropped.Lease), "queued")
		for _, l := range long {
			require.Equal(t, l.ttl, d.Drop(&l.Lease), "in flight")
			require.Zero(t, d.Drop(&l.Lease))
		}
		sleep(6 * time.Second)
		require.Equal(t, []string{"overdue@16s", "renewed@16s"}, k.events())
		require.Len(t, s.requests(), maxOnTime+2)
		require.Len(t, s.requests()[maxOnTime].batch, 1)
		require.Empty(t, dropped.events())
		require.Zero(t, d.Drop(&k.Lease), "answered")
	})
}

// After a pause that outlasts validity, the lease is lost. It is neither renewed nor confirmed.
func TestExpiredLeaseIsNotRenewedAfterAPause(t *testing.T) {
	withFakeTime(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, s *server) {
		d.running, d.armed = true, never // no scheduler runs
		lost, kept := newKeeper(), newKeeper()
		// Due after kept, so that it would join the batch of kept.
		short := schedule()
		short.TTL = 3 * time.Second
		require.NoError(t, d.Keep(&lost.Lease, lost, short, time.Now().Add(34*time.Second)))
		keep(t, d, kept, schedule())
		sleep(15 * time.Second)
		d.Confirm(&kept.Lease, time.Now().Add(ttl-margin))
		sleep(20 * time.Second)
		d.Confirm(&lost.Lease, time.Now().Add(ttl-margin))
		d.step()
		synctest.Wait()
		require.Equal(t, []string{"expired@35s"}, lost.events())
		require.Equal(t, []string{"renewed@35s"}, kept.events())
		require.Len(t, s.requests(), 1)
		require.Len(t, s.requests()[0].batch, 1)
	})
}

func TestContextOfACallEndsWithItsLastLease(t *testing.T) {
	withFakeTime(t, always(reply{hang: true}), func(t *testing.T, d *Dog, s *server) {
		a, b := newKeeper(), newKeeper()
		keep(t, d, a, schedule())
		keep(t, d, b, schedule())
		sleep(11 * time.Second)
		d.Drop(&a.Lease)
		synctest.Wait()
		require.Zero(t, s.ended)
		d.Drop(&b.Lease)
		synctest.Wait()
		require.Equal(t, 1, s.ended)
		require.Len(t, s.requests(), 1)
		require.Empty(t, append(a.events(), b.events()...))
		require.Empty(t, d.groups)
	})
}

// Calls of a keeper do not overlap, and undelivered events are dropped by Drop.
func TestEventsOfALeaseDoNotOverlap(t *testing.T) {
	for _, tt := range []struct {
		name string
		drop bool
		want []string
	}{
		{"the loss waits for the running call", false, []string{"renewed@10s", "unknown@50s", "expired@50s"}},
		{"the loss is not delivered after Drop", true, []string{"renewed@10s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			withFakeTime(t, func(q request) reply {
				if q.n == 0 {
					return reply{state: Renewed}
				}
				return reply{}
			}, func(t *testing.T, d *Dog, _ *server) {
				k := newKeeper()
				k.hook = func(event string) {
					if event == "renewed" {
						time.Sleep(40 * time.Second) // a keeper that blocks must not delay others
					}
				}
				other := newKeeper()
				keep(t, d, k, schedule())
				require.NoError(t, d.Keep(&other.Lease, other, Schedule{}, time.Now().Add(20*time.Second)))
				sleep(45 * time.Second)
				require.Equal(t, []string{"expired@20s"}, other.events())
				if tt.drop {
					d.Drop(&k.Lease)
				}
				sleep(time.Minute)
				require.Equal(t, tt.want, k.events())
			})
		})
	}
}

// A keeper must not block. One that does delays no other keeper.
func TestBlockingKeeperDelaysNoOtherKeeper(t *testing.T) {
	withFakeTime(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, _ *server) {
		slow, other := newKeeper(), newKeeper()
		slow.hook = func(string) { time.Sleep(time.Minute) }
		require.NoError(t, d.Keep(&slow.Lease, slow, Schedule{}, time.Now().Add(15*time.Second)))
		require.NoError(t, d.Keep(&other.Lease, other, Schedule{}, time.Now().Add(20*time.Second)))
		sleep(ttl)
		require.Equal(t, []string{"expired@20s"}, other.events())
	})
}

// A keeper may call Len, Confirm, Drop and Keep.
func TestKeeperMayCallTheDog(t *testing.T) {
	withFakeTime(t, calls(renewed, unknown, refused), func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		k.hook = func(event string) {
			d.Len()
			d.Confirm(&k.Lease, time.Now())
			if event == "refused" {
				d.Drop(&k.Lease)
				keep(t, d, k, schedule())
			}
		}
		keep(t, d, k, schedule())
		sleep(21 * time.Second)
		require.Len(t, k.events(), 3)
		require.Equal(t, 1, d.Len())
	})
}

func TestCloseStopsRenewals(t *testing.T) {
	t.Run("during calls", func(t *testing.T) {
		withFakeTime(t, always(reply{hang: true}), func(t *testing.T, d *Dog, s *server) {
			ks := make([]*keeper, 250)
			for i := range ks {
				ks[i] = newKeeper()
				keep(t, d, ks[i], schedule())
			}
			sleep(11 * time.Second)
			require.Len(t, s.requests(), 3)
			d.Close()
			require.Equal(t, 3, s.ended)
			d.Close()
			sleep(time.Hour)
			require.Len(t, s.requests(), 3)
			for _, k := range ks {
				require.Empty(t, k.events())
				require.Equal(t, ttl-margin, k.validFor())
				d.Drop(&k.Lease)
				d.Confirm(&k.Lease, time.Now().Add(ttl))
				require.ErrorIs(t, d.Keep(&k.Lease, k, schedule(), time.Now().Add(ttl)), ErrClosed)
			}
			require.Zero(t, d.Len())
		})
	})
	t.Run("waits for a call that ignores its context", func(t *testing.T) {
		withFakeTime(t, always(reply{state: Renewed, after: 7 * time.Second}), func(t *testing.T, d *Dog, s *server) {
			k := newKeeper()
			keep(t, d, k, schedule())
			sleep(11 * time.Second)
			d.Close()
			require.Equal(t, 17*time.Second, time.Since(k.start))
			require.Empty(t, k.events())
		})
	})
	t.Run("delivers no event that waits for its keeper", func(t *testing.T) {
		withFakeTime(t, calls(renewed, refused), func(t *testing.T, d *Dog, _ *server) {
			k, closing := newKeeper(), make(chan struct{})
			k.hook = func(string) { <-closing }
			keep(t, d, k, schedule())
			sleep(21 * time.Second)
			require.Zero(t, d.Len())
			go d.Close()
			synctest.Wait()
			close(closing)
			synctest.Wait()
			require.Equal(t, []string{"renewed@10s"}, k.events())
		})
	})
	t.Run("unused", func(t *testing.T) {
		d := New(nil)
		d.Close()
		d.Close()
	})
}

// Without leases the Dog has no goroutines: the bubble ends although the Dog is never closed.
func TestSchedulerEndsWithoutLeasesAndStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(always(reply{state: Renewed}))
		d := New(s.renew) // never closed
		for i := range 3 {
			k := newKeeper()
			keep(t, d, k, schedule())
			sleep(15 * time.Second)
			require.Equal(t, []string{"renewed@10s"}, k.events())
			d.Drop(&k.Lease)
			sleep(ttl)
			require.Len(t, s.requests(), i+1)
			require.False(t, d.running)
		}
	})
}

func TestKeepRejectsInvalidSchedules(t *testing.T) {
	d, other := New(nil), New(nil)
	defer d.Close()
	defer other.Close()
	var mine Lease
	require.Zero(t, mine.ValidUntil())
	require.Zero(t, mine.Silent())
	require.NoError(t, d.Keep(&mine, newKeeper(), Schedule{}, time.Now().Add(time.Hour)))
	for _, tt := range []struct {
		name     string
		dog      *Dog
		lease    *Lease
		schedule Schedule
	}{
		{"no TTL", d, new(Lease), Schedule{Group: 1}},
		{"negative period", d, new(Lease), Schedule{Group: 1, TTL: 1, Period: -1}},
		{"negative margin", d, new(Lease), Schedule{Group: 1, TTL: 1, Margin: -1}},
		{"lease of another dog", other, &mine, schedule()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.ErrorIs(t, tt.dog.Keep(tt.lease, newKeeper(), tt.schedule, time.Now()), ErrInvalid)
		})
	}
	other.Drop(&mine)
	other.Confirm(&mine, time.Now().Add(2*time.Hour))
	require.Equal(t, 1, d.Len())
	require.Less(t, time.Until(mine.ValidUntil()), time.Hour)
}

// A Keep, Drop or Confirm that moves no alarm forward does not wake up the scheduler.
func TestSchedulerWakesOnlyForEarlierAlarms(t *testing.T) {
	withFakeTime(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, _ *server) {
		first := newKeeper()
		keep(t, d, first, schedule())
		synctest.Wait()
		d.wake = make(chan struct{}, 1) // the sleeping scheduler waits for the old channel
		for range 100 {
			k := newKeeper()
			keep(t, d, k, schedule())
			d.Confirm(&k.Lease, time.Now().Add(ttl))
			d.Drop(&k.Lease)
			require.Empty(t, d.wake)
		}
		sched := schedule()
		sched.TTL = beatEvery // due before the next beat
		keep(t, d, newKeeper(), sched)
		require.Len(t, d.wake, 1)
	})
}

func TestLeaseUnknownGetsTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{errDown, nil} {
			var got error
			d := New(func(context.Context, any, []Renewal) ([]State, error) { return nil, err })
			k := unknownFunc(func(err error) { got = err })
			require.NoError(t, d.Keep(new(Lease), k, schedule(), time.Now().Add(ttl-margin)))
			sleep(10 * time.Second)
			require.Error(t, got)
			require.Equal(t, err == nil, errors.Is(got, ErrNoAnswer), fmt.Sprint(got))
			d.Close()
		}
	})
}

// A batch without an answer is logged once, unless nobody needs the answer. The context of each
// call ends.
func TestFailedBatchesAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := make(logLines, 10)
		contexts := make(chan context.Context, 3)
		s := newServer(calls(renewed, unknown, hang))
		d := New(func(ctx context.Context, group any, batch []Renewal) ([]State, error) {
			contexts <- ctx
			return s.renew(ctx, group, batch)
		}, WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		defer d.Close()
		a, b := newKeeper(), newKeeper()
		keep(t, d, a, schedule())
		keep(t, d, b, schedule())
		sleep(10 * time.Second)
		require.Len(t, s.requests(), 1)
		require.Empty(t, log)
		require.Error(t, (<-contexts).Err())
		sleep(10 * time.Second)
		require.Len(t, s.requests(), 2)
		require.Len(t, log, 1)
		require.Contains(t, <-log, `level=WARN msg="renewal failed" leases=2 error=down`)
		sleep(time.Second)
		require.Len(t, s.requests(), 3)
		d.Drop(&a.Lease)
		d.Drop(&b.Lease)
		synctest.Wait()
		require.Empty(t, log)
	})
}

// logLines receives each line of a log.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// unknownFunc is a keeper that handles LeaseUnknown only.
type unknownFunc func(error)

func (f unknownFunc) LeaseUnknown(_ *Lease, err error) { f(err) }
func (unknownFunc) LeaseRenewed(*Lease)                {}
func (unknownFunc) LeaseLost(*Lease, bool)             {}

// The server is back after an outage. All leases are renewed at once, in full batches, although
// calls hang.
func TestRenewNowAsksAboutAllLeasesAtOnce(t *testing.T) {
	for name, down := range map[string]reply{
		"calls fail": {}, "calls hang": {hang: true}, "all is well": {state: Renewed},
	} {
		t.Run(name, func(t *testing.T) {
			withFakeTime(t, until(13*time.Second, down, reply{state: Lost}), func(t *testing.T, d *Dog, s *server) {
				ks := make([]*keeper, 1000)
				var leases []*Lease
				for i := range ks {
					ks[i] = newKeeper()
					keep(t, d, ks[i], schedule())
					leases = append(leases, &ks[i].Lease)
				}
				sleep(13*time.Second + time.Microsecond) // hanging calls are not overdue
				before := len(s.requests())
				d.RenewNow(append(leases, new(Lease))...)
				synctest.Wait()
				require.Len(t, s.requests(), before+10)
				for _, k := range ks {
					events := k.events()
					require.Equal(t, "refused@13.000001s", events[len(events)-1])
				}
				d.RenewNow(leases...) // they are lost
				synctest.Wait()
				require.Len(t, s.requests(), before+10)
			})
		})
	}
}

// A renewal in flight is not repeated while it is young. Later another one is sent, and the first
// one is reported as overdue no earlier than without RenewNow.
func TestRenewNowDuringARenewal(t *testing.T) {
	withFakeTime(t, calls(hang, hang, renewed), func(t *testing.T, d *Dog, s *server) {
		k, watched := newKeeper(), newKeeper()
		keep(t, d, k, schedule())
		keep(t, d, watched, Schedule{TTL: ttl})
		sleep(10*time.Second + youngAttempt - 1)
		d.RenewNow(&k.Lease, &watched.Lease)
		synctest.Wait()
		require.Len(t, s.requests(), 1)
		sleep(time.Second)
		d.RenewNow(&k.Lease, &watched.Lease)
		synctest.Wait()
		require.Len(t, s.requests(), 2)
		require.Empty(t, k.events())
		sleep(5 * time.Second)
		require.Equal(t, []string{"overdue@16.999999999s", "renewed@16.999999999s"}, k.events())
		require.Equal(t, 2, d.Len())
	})
}

// A renewal that RenewNow makes too early is repeated soon.
func TestRenewNowIsRepeatedSoon(t *testing.T) {
	withFakeTime(t, until(29*time.Second, unknown, refused), func(t *testing.T, d *Dog, _ *server) {
		k := newKeeper()
		keep(t, d, k, schedule())
		d.Confirm(&k.Lease, time.Now().Add(time.Hour))
		sleep(28800 * time.Millisecond)
		d.RenewNow(&k.Lease)
		sleep(400 * time.Millisecond)
		require.Zero(t, d.Len())
	})
}

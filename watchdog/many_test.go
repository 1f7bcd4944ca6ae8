package watchdog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// bubble runs f on fake time, with a Dog that asks a server of that reply.
func bubble(t *testing.T, r func(request) reply, f func(t *testing.T, d *Dog, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(r)
		d := New(s.renew)
		defer d.Close()
		f(t, d, s)
	})
}

func TestAnHour(t *testing.T) {
	bubble(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		keep(t, d, k, terms())
		sleep(time.Hour)
		require.Len(t, s.requests(), 360)
		require.Len(t, k.told(), 360)
	})
}

// What cannot be known is asked again, soon at first, then less often, until the very end of validity.
func TestUnknownIsRetried(t *testing.T) {
	back := 29 * time.Second
	bubble(t, func(q request) reply {
		if q.at >= back {
			return reply{state: Renewed}
		}
		return reply{}
	}, func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		keep(t, d, k, terms())
		sleep(ttl)
		require.Equal(t, 1, d.Len())

		asked := s.requests()
		for i, q := range asked[1:] {
			wait, left := q.at-asked[i].at, ttl-margin-asked[i].at
			want := min(minBackoff<<i, ttl/9)
			require.LessOrEqual(t, wait, want, "attempt %d", i)
			require.GreaterOrEqual(t, wait, min(want, left/2)*3/4, "attempt %d", i)
		}
		require.Len(t, k.but("unknown"), 1)
		require.GreaterOrEqual(t, k.validFor(), back+ttl-margin)
	})
}

// 5,000 leases of 3 s cost 50 batches a second, however they came.
func TestBatches(t *testing.T) {
	const n, short = 5000, 3 * time.Second
	for _, tt := range []struct {
		name   string
		wait   func(i int) time.Duration // before lease i comes
		answer time.Duration
		churn  int // leases a second that go, another coming for each
	}{
		{name: "at once", wait: func(int) time.Duration { return 0 }},
		{name: "evenly over a second", wait: func(int) time.Duration { return time.Second / n }},
		{name: "evenly over ten seconds", wait: func(int) time.Duration { return 10 * time.Second / n }},
		{name: "at random over a second", wait: func(int) time.Duration { return rand.N(2 * time.Second / n) }},
		{name: "in bursts of 77", wait: func(i int) time.Duration {
			if i%77 == 0 {
				return 15*time.Millisecond + rand.N(time.Millisecond)
			}
			return 0
		}},
		{name: "slow answers", wait: func(int) time.Duration { return rand.N(2 * time.Second / n) }, answer: 30 * time.Millisecond},
		{name: "coming and going", wait: func(int) time.Duration { return rand.N(2 * time.Second / n) }, churn: 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, always(reply{state: Renewed, after: tt.answer}), func(t *testing.T, d *Dog, s *server) {
				tm := Terms{Group: "g", TTL: short, Margin: 32 * time.Millisecond}
				leases := make([]*keeper, n)
				for i := range leases {
					time.Sleep(tt.wait(i))
					leases[i] = newKeeper()
					keep(t, d, leases[i], tm)
				}
				for range 7 * tt.churn {
					sleep(time.Second / time.Duration(tt.churn))
					i := rand.N(n)
					d.Drop(&leases[i].Lease)
					leases[i] = newKeeper()
					keep(t, d, leases[i], tm)
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
				t.Logf("batches in each second: %v; %.1f a second in the last five, %d leases each", perSecond, float64(sum)/5, full/sum)
				for second, batches := range perSecond {
					require.LessOrEqual(t, batches, 60, "second %d", second)
				}
				require.LessOrEqual(t, sum, 275)
				require.Equal(t, n, d.Len())
				for _, k := range leases {
					require.Empty(t, k.but("renewed"))
				}
			})
		})
	}
}

func TestGroups(t *testing.T) {
	bubble(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, s *server) {
		type slot struct{ n int }
		of := map[*Lease]any{}
		for i := range 500 {
			k, tm := newKeeper(), terms()
			tm.Group = slot{i % 3}
			of[&k.Lease] = tm.Group
			keep(t, d, k, tm)
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

// What one group suffers does not reach another, and losses are told on time whatever the calls do.
func TestIsolation(t *testing.T) {
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
				well := newServer(always(reply{state: Renewed}))
				d := New(func(ctx context.Context, group any, batch []Ask) ([]State, error) {
					if group != "ill" {
						return well.renew(ctx, group, batch)
					}
					most.Store(max(most.Load(), stuck.Add(1)))
					defer stuck.Add(-1)
					tt.stuck(ctx, over)
					return nil, errDown
				})
				defer d.Close()
				defer close(over)

				ill, fit := make([]*keeper, 7000), make([]*keeper, 250)
				for i := range ill {
					ill[i] = newKeeper()
					keep(t, d, ill[i], Terms{Group: "ill", TTL: ttl, Margin: margin})
				}
				for i := range fit {
					fit[i] = newKeeper()
					keep(t, d, fit[i], Terms{Group: "fit", TTL: ttl, Margin: margin})
				}
				sleep(65 * time.Second)

				require.Equal(t, len(fit), d.Len())
				for _, k := range fit {
					require.Equal(t, []string{"renewed@10s", "renewed@20s", "renewed@30s", "renewed@40s", "renewed@50s", "renewed@1m0s"}, k.told())
				}
				for _, k := range ill {
					told := k.told()
					require.Equal(t, "over@29.7s", told[len(told)-1])
				}

				// Those that come later suffer the same, and there are no more calls for it.
				late := make([]*keeper, 2*Batch)
				for i := range late {
					late[i] = newKeeper()
					keep(t, d, late[i], Terms{Group: "ill", TTL: ttl, Margin: margin})
				}
				sleep(ttl)
				for _, k := range late {
					told := k.told()
					require.Equal(t, "over@29.7s", told[len(told)-1])
				}
				require.Equal(t, len(fit), d.Len())
				require.LessOrEqual(t, most.Load(), int64(maxCalls))
			})
		})
	}
}

// A call that hangs takes nobody's place for long: the batches behind it go out, and those that it holds are asked again.
func TestHungCallsGiveWay(t *testing.T) {
	bubble(t, func(q request) reply {
		if q.n < maxTimely {
			return reply{hang: true}
		}
		return reply{state: Renewed}
	}, func(t *testing.T, d *Dog, s *server) {
		ks := make([]*keeper, 5000)
		for i := range ks {
			ks[i] = newKeeper()
			keep(t, d, ks[i], terms())
		}
		sleep(10 * time.Second)
		require.Len(t, s.requests(), maxTimely)
		sleep(5 * time.Second)
		for _, k := range ks {
			require.Equal(t, "renewed@15s", k.told()[len(k.told())-1])
		}
		require.Len(t, s.requests(), maxTimely+50)
		require.Equal(t, maxTimely, s.ended, "nobody is interested in the hung ones any more")
	})
}

// So do calls that a Confirm made uninteresting, though they ignore the end of their context.
func TestConfirmedCallsGiveWay(t *testing.T) {
	bubble(t, func(q request) reply {
		if q.n < maxTimely {
			return reply{state: Renewed, after: time.Minute}
		}
		return reply{state: Renewed}
	}, func(t *testing.T, d *Dog, s *server) {
		of := map[*Lease]*keeper{}
		for range (maxTimely + 1) * Batch {
			k := newKeeper()
			of[&k.Lease] = k
			keep(t, d, k, terms())
		}
		sleep(12 * time.Second)
		require.Len(t, s.requests(), maxTimely)
		for _, q := range s.requests() {
			for _, a := range q.batch {
				d.Confirm(a.Lease, time.Now().Add(ttl-margin))
				delete(of, a.Lease)
			}
		}
		synctest.Wait()
		require.Len(t, of, Batch)
		for _, k := range of {
			require.Equal(t, []string{"renewed@12s"}, k.told())
		}
	})
}

// A process that was stopped beyond a validity finds the lease lost, and does not ask or have it confirmed any more.
func TestPause(t *testing.T) {
	bubble(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, s *server) {
		d.running, d.armed = true, never // the scheduler is stopped
		lost, kept := newKeeper(), newKeeper()
		// Due after kept is, so that it comes up in kept's batch.
		short := terms()
		short.TTL = 3 * time.Second
		require.NoError(t, d.Keep(&lost.Lease, lost, short, time.Now().Add(34*time.Second)))
		keep(t, d, kept, terms())
		sleep(15 * time.Second)
		d.Confirm(&kept.Lease, time.Now().Add(ttl-margin))
		sleep(20 * time.Second)
		d.Confirm(&lost.Lease, time.Now().Add(ttl-margin))
		d.pass()
		synctest.Wait()
		require.Equal(t, []string{"over@35s"}, lost.told())
		require.Equal(t, []string{"renewed@35s"}, kept.told())
		require.Len(t, s.requests(), 1)
		require.Len(t, s.requests()[0].batch, 1)
	})
}

func TestContextEndsWithTheLastLease(t *testing.T) {
	bubble(t, always(reply{hang: true}), func(t *testing.T, d *Dog, s *server) {
		a, b := newKeeper(), newKeeper()
		keep(t, d, a, terms())
		keep(t, d, b, terms())
		sleep(11 * time.Second)
		d.Drop(&a.Lease)
		synctest.Wait()
		require.Zero(t, s.ended)
		d.Drop(&b.Lease)
		synctest.Wait()
		require.Equal(t, 1, s.ended)
		require.Len(t, s.requests(), 1)
		require.Empty(t, append(a.told(), b.told()...))
		require.Empty(t, d.groups)
	})
}

// Calls of a keeper follow each other, and what was found but not told is not told after Drop.
func TestTelling(t *testing.T) {
	for _, tt := range []struct {
		name string
		drop bool
		want []string
	}{
		{"the loss waits for the call under way", false, []string{"renewed@10s", "unknown@50s", "over@50s"}},
		{"the loss is not told after Drop", true, []string{"renewed@10s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(q request) reply {
				if q.n == 0 {
					return reply{state: Renewed}
				}
				return reply{}
			}, func(t *testing.T, d *Dog, _ *server) {
				k := newKeeper()
				k.hook = func(what string) {
					if what == "renewed" {
						time.Sleep(40 * time.Second) // it should not, but others must not suffer
					}
				}
				other := newKeeper()
				keep(t, d, k, terms())
				require.NoError(t, d.Keep(&other.Lease, other, Terms{}, time.Now().Add(20*time.Second)))
				sleep(45 * time.Second)
				require.Equal(t, []string{"over@20s"}, other.told())
				if tt.drop {
					d.Drop(&k.Lease)
				}
				sleep(time.Minute)
				require.Equal(t, tt.want, k.told())
			})
		})
	}
}

// A keeper that blocks, though it must not, delays no other round of telling.
func TestBlockingKeeper(t *testing.T) {
	bubble(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, _ *server) {
		slow, other := newKeeper(), newKeeper()
		slow.hook = func(string) { time.Sleep(time.Minute) }
		require.NoError(t, d.Keep(&slow.Lease, slow, Terms{}, time.Now().Add(15*time.Second)))
		require.NoError(t, d.Keep(&other.Lease, other, Terms{}, time.Now().Add(20*time.Second)))
		sleep(ttl)
		require.Equal(t, []string{"over@20s"}, other.told())
	})
}

// A keeper may call the Dog.
func TestKeeperCallsBack(t *testing.T) {
	bubble(t, func(q request) reply { return reply{state: []State{Renewed, Unknown, Lost}[min(q.n, 2)]} }, func(t *testing.T, d *Dog, s *server) {
		k := newKeeper()
		k.hook = func(what string) {
			d.Len()
			d.Confirm(&k.Lease, time.Now())
			if what == "refused" {
				d.Drop(&k.Lease)
				keep(t, d, k, terms())
			}
		}
		keep(t, d, k, terms())
		sleep(21 * time.Second)
		require.Len(t, k.told(), 3)
		require.Equal(t, 1, d.Len())
	})
}

func TestClose(t *testing.T) {
	t.Run("during calls", func(t *testing.T) {
		bubble(t, always(reply{hang: true}), func(t *testing.T, d *Dog, s *server) {
			ks := make([]*keeper, 250)
			for i := range ks {
				ks[i] = newKeeper()
				keep(t, d, ks[i], terms())
			}
			sleep(11 * time.Second)
			require.Len(t, s.requests(), 3)
			d.Close()
			require.Equal(t, 3, s.ended)
			d.Close()
			sleep(time.Hour)
			require.Len(t, s.requests(), 3)
			for _, k := range ks {
				require.Empty(t, k.told())
				require.Equal(t, ttl-margin, k.validFor())
				d.Drop(&k.Lease)
				d.Confirm(&k.Lease, time.Now().Add(ttl))
				require.ErrorIs(t, d.Keep(&k.Lease, k, terms(), time.Now().Add(ttl)), ErrClosed)
			}
			require.Zero(t, d.Len())
		})
	})
	t.Run("waits for a call that ignores its context", func(t *testing.T) {
		bubble(t, always(reply{state: Renewed, after: 7 * time.Second}), func(t *testing.T, d *Dog, s *server) {
			k := newKeeper()
			keep(t, d, k, terms())
			sleep(11 * time.Second)
			d.Close()
			require.Equal(t, 17*time.Second, time.Since(k.start))
			require.Empty(t, k.told())
		})
	})
	t.Run("unused", func(t *testing.T) {
		d := New(nil)
		d.Close()
		d.Close()
	})
}

// Nothing to keep, no goroutine: the bubble would say so. And it comes back.
func TestSchedulerComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(always(reply{state: Renewed}))
		d := New(s.renew) // never closed
		for i := range 3 {
			k := newKeeper()
			keep(t, d, k, terms())
			sleep(15 * time.Second)
			require.Equal(t, []string{"renewed@10s"}, k.told())
			d.Drop(&k.Lease)
			sleep(ttl)
			require.Len(t, s.requests(), i+1)
			require.False(t, d.running)
		}
	})
}

func TestKeepRefuses(t *testing.T) {
	d, other := New(nil), New(nil)
	defer d.Close()
	defer other.Close()
	var mine Lease
	require.Zero(t, mine.ValidUntil())
	require.NoError(t, d.Keep(&mine, newKeeper(), Terms{}, time.Now().Add(time.Hour)))
	for _, tt := range []struct {
		name  string
		dog   *Dog
		lease *Lease
		terms Terms
	}{
		{"no TTL", d, new(Lease), Terms{Group: 1}},
		{"a negative margin", d, new(Lease), Terms{Group: 1, TTL: 1, Margin: -1}},
		{"another dog's lease", other, &mine, terms()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.ErrorIs(t, tt.dog.Keep(tt.lease, newKeeper(), tt.terms, time.Now()), ErrInvalid)
		})
	}
	other.Drop(&mine)
	other.Confirm(&mine, time.Now().Add(2*time.Hour))
	require.Equal(t, 1, d.Len())
	require.Less(t, time.Until(mine.ValidUntil()), time.Hour)
}

// A Keep, Drop or Confirm that brings nothing forward leaves the scheduler asleep.
func TestWakesOnlyForWhatComesEarlier(t *testing.T) {
	bubble(t, always(reply{state: Renewed}), func(t *testing.T, d *Dog, _ *server) {
		first := newKeeper()
		keep(t, d, first, terms())
		synctest.Wait()
		d.wake = make(chan struct{}, 1) // the scheduler, asleep, listens to the old one
		for range 100 {
			k := newKeeper()
			keep(t, d, k, terms())
			d.Confirm(&k.Lease, time.Now().Add(ttl))
			d.Drop(&k.Lease)
			require.Empty(t, d.wake)
		}
		tm := terms()
		tm.TTL /= 2
		keep(t, d, newKeeper(), tm)
		require.Len(t, d.wake, 1)
	})
}

func TestErrorsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{errDown, nil} {
			var told error
			d := New(func(context.Context, any, []Ask) ([]State, error) { return nil, err })
			require.NoError(t, d.Keep(new(Lease), unknownFunc(func(err error) { told = err }), terms(), time.Now().Add(ttl-margin)))
			sleep(10 * time.Second)
			require.Error(t, told)
			require.Equal(t, err == nil, errors.Is(told, ErrNoAnswer), fmt.Sprint(told))
			d.Close()
		}
	})
}

type unknownFunc func(error)

func (f unknownFunc) LeaseUnknown(_ *Lease, err error) { f(err) }
func (unknownFunc) LeaseRenewed(*Lease)                {}
func (unknownFunc) LeaseLost(*Lease, bool)             {}

package watchdog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is a fake server that also computes the expected validity of the leases from its own
// answers.
type model struct {
	mu     sync.Mutex
	start  time.Time
	leases []*modelLease
	fault  string // the first violation

	// The current answer of the server and its delay, changed by the test.
	state State
	delay time.Duration
}

type modelLease struct {
	Lease
	m *model

	schedule   Schedule
	nth        int // number of the registration
	registered bool
	refused    bool      // the server has refused
	granted    time.Time // latest confirmed start + TTL
}

func (m *model) failf(format string, args ...any) {
	if m.fault == "" {
		m.fault = fmt.Sprintf("at %v: ", time.Since(m.start)) + fmt.Sprintf(format, args...)
	}
}

func (l *modelLease) valid() time.Time {
	valid := l.granted.Add(-l.schedule.Margin)
	if end := l.schedule.End; !end.IsZero() && valid.After(end) {
		return end
	}
	return valid
}

func (l *modelLease) confirm(granted time.Time) {
	if granted.After(l.granted) {
		l.granted = granted
	}
}

func (m *model) renew(ctx context.Context, group any, batch []Renewal) ([]State, error) {
	start := time.Now()
	m.mu.Lock()
	state, delay := m.state, m.delay
	nth, known := make([]int, len(batch)), make([]time.Time, len(batch))
	for i, a := range batch {
		l := m.of(a.Lease)
		nth[i], known[i] = l.nth, l.granted
		want := l.schedule.TTL
		if end := l.schedule.End; !end.IsZero() && end.Sub(start) < want {
			want = end.Sub(start).Truncate(time.Millisecond)
		}
		switch {
		case !l.registered:
			m.failf("renewal of a lease that is not registered")
		case a.Keeper != Keeper(l):
			m.failf("renewal with another keeper")
		case l.schedule.Group != group:
			m.failf("renewal in group %v, not %v", group, l.schedule.Group)
		case a.TTL != want:
			m.failf("TTL %v requested, not %v", a.TTL, want)
		case !start.Before(l.valid()):
			m.failf("renewal after the end of validity")
		}
	}
	m.mu.Unlock()

	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	states := make([]State, len(batch))
	for i, a := range batch {
		states[i] = state
		l, granted := m.of(a.Lease), start.Add(a.TTL)
		if !l.registered || l.nth != nth[i] || !time.Now().Before(l.valid()) {
			continue
		}
		switch state {
		case Renewed:
			l.confirm(granted)
		case Lost:
			// What was confirmed since then may be newer than the answer.
			l.refused = l.refused || granted.After(l.granted) || l.granted.Equal(known[i])
		case Unknown:
		}
	}
	return states, errDown
}

func (m *model) of(l *Lease) *modelLease {
	for _, ml := range m.leases {
		if &ml.Lease == l {
			return ml
		}
	}
	panic("unknown lease")
}

func (l *modelLease) LeaseRenewed(*Lease) { l.event("renewed") }

func (l *modelLease) LeaseUnknown(_ *Lease, err error) {
	l.event("unknown")
	if err == nil {
		l.m.failf("unknown without an error")
	}
}

func (l *modelLease) event(what string) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if !l.registered {
		l.m.failf("event %s of a lease that is not registered", what)
	}
}

func (l *modelLease) LeaseLost(_ *Lease, refused bool) {
	l.event("lost")
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	switch {
	case refused && !l.refused:
		l.m.failf("loss reported as refused, but the server did not refuse")
	case !refused && !time.Now().Equal(l.valid()) && time.Now().Before(l.valid()):
		l.m.failf("lost %v before the end of validity", time.Until(l.valid()))
	}
	l.registered = false
}

// check compares the Dog with the model while all goroutines are idle.
func (m *model) check(rt *rapid.T, d *Dog) {
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Empty(rt, m.fault)
	n := 0
	for i, l := range m.leases {
		if !l.registered {
			continue
		}
		n++
		require.Falsef(rt, l.refused, "lease %d was refused, but no loss was reported", i)
		require.Truef(rt, time.Now().Before(l.valid()), "lease %d has expired, but no loss was reported", i)
		require.Truef(rt, l.valid().Equal(l.ValidUntil()), "lease %d: valid %v longer than expected",
			i, l.ValidUntil().Sub(l.valid()))
	}
	require.Equal(rt, n, d.Len())
}

func TestValidityMatchesTheModel(t *testing.T) {
	// Every duration is odd, so that events do not happen at the same instant by construction.
	duration := func(lo, hi time.Duration) *rapid.Generator[time.Duration] {
		return rapid.Map(rapid.Int64Range(int64(lo), int64(hi)), func(n int64) time.Duration {
			return time.Duration(n | 1)
		})
	}
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			m := &model{start: time.Now(), leases: make([]*modelLease, 5), state: Renewed}
			for i := range m.leases {
				m.leases[i] = &modelLease{m: m}
			}
			d := New(m.renew)
			defer d.Close()

			pickOne := func(rt *rapid.T) *modelLease { return rapid.SampledFrom(m.leases).Draw(rt, "lease") }
			actions := map[string]func(*rapid.T){
				"": func(rt *rapid.T) {
					synctest.Wait()
					m.check(rt, d)
				},
				"keep": func(rt *rapid.T) {
					l := pickOne(rt)
					sched := Schedule{
						Group:  rapid.SampledFrom([]any{nil, "a", "b"}).Draw(rt, "group"),
						TTL:    duration(10*time.Millisecond, 10*time.Second).Draw(rt, "ttl"),
						Margin: duration(0, 4*time.Millisecond).Draw(rt, "margin"),
					}
					if rapid.Bool().Draw(rt, "ends") {
						sched.End = time.Now().Add(duration(1, 20*time.Second).Draw(rt, "end"))
					}
					m.mu.Lock()
					l.schedule, l.registered, l.refused = sched, true, false
					l.nth++
					l.granted = time.Now().Add(sched.TTL)
					m.mu.Unlock()
					require.NoError(rt, d.Keep(&l.Lease, l, sched, time.Now().Add(sched.TTL-sched.Margin)))
				},
				"drop": func(rt *rapid.T) {
					l := pickOne(rt)
					d.Drop(&l.Lease)
					m.mu.Lock()
					l.registered = false
					m.mu.Unlock()
				},
				"confirm": func(rt *rapid.T) {
					l := pickOne(rt)
					until := time.Now().Add(duration(0, 10*time.Second).Draw(rt, "until"))
					m.mu.Lock()
					if l.registered {
						l.confirm(until.Add(l.schedule.Margin))
					}
					m.mu.Unlock()
					d.Confirm(&l.Lease, until)
				},
				"server": func(rt *rapid.T) {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.state = rapid.SampledFrom([]State{Renewed, Renewed, Unknown, Lost}).Draw(rt, "state")
					m.delay = 0
					if rapid.Bool().Draw(rt, "slow") {
						m.delay = duration(1, 10*time.Second).Draw(rt, "delay")
					}
				},
			}
			for _, name := range []string{"time passes", "more time passes"} {
				actions[name] = func(rt *rapid.T) { time.Sleep(duration(1, 5*time.Second).Draw(rt, "time")) }
			}
			rt.Repeat(actions)
		})
	})
}

// stressed counts violations of the Keeper contract: overlapping calls, and calls after the loss.
type stressed struct {
	Lease
	in     atomic.Int32
	lost   atomic.Bool
	faults *atomic.Int64
	events *atomic.Int64
}

func (s *stressed) enter() func() {
	s.events.Add(1)
	if s.in.Add(1) != 1 || s.lost.Load() {
		s.faults.Add(1)
	}
	return func() { s.in.Add(-1) }
}

func (s *stressed) LeaseRenewed(*Lease)        { s.enter()() }
func (s *stressed) LeaseUnknown(*Lease, error) { s.enter()() }
func (s *stressed) LeaseLost(l *Lease, _ bool) {
	defer s.enter()()
	s.lost.Store(true)
	l.ValidUntil()
}

// This test runs in real time, for the race detector.
func TestConcurrentUseKeepsKeeperCallsApart(t *testing.T) {
	var faults, events, calls atomic.Int64
	d := New(func(ctx context.Context, _ any, batch []Renewal) ([]State, error) {
		calls.Add(1)
		states := make([]State, len(batch))
		for i := range states {
			states[i] = []State{Renewed, Renewed, Renewed, Unknown, Lost}[rand.N(5)]
		}
		if rand.N(10) == 0 {
			<-ctx.Done()
		}
		return states, errDown
	})
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	for g := range 8 {
		wg.Go(func() {
			held := make([]*stressed, 40)
			for ctx.Err() == nil {
				i := rand.N(len(held))
				if s := held[i]; s != nil && rand.N(3) > 0 {
					d.Confirm(&s.Lease, time.Now().Add(5*time.Millisecond))
					s.ValidUntil()
					continue
				}
				if held[i] != nil {
					d.Drop(&held[i].Lease)
				}
				held[i] = &stressed{faults: &faults, events: &events}
				sched := Schedule{Group: g % 3, TTL: 6 * time.Millisecond, Margin: time.Millisecond}
				if d.Keep(&held[i].Lease, held[i], sched, time.Now().Add(rand.N(5*time.Millisecond))) != nil {
					faults.Add(1)
				}
				time.Sleep(rand.N(200 * time.Microsecond))
			}
		})
	}
	wg.Wait()
	d.Close()
	before := events.Load()
	require.Zero(t, faults.Load())
	require.NotZero(t, before)
	require.NotZero(t, calls.Load())
	require.Zero(t, d.Len())
}

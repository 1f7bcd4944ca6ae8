package primitives_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRedLockWorksWhileAMinorityIsDown takes a minority of the servers down in several ways. Each
// call succeeds, and takes no longer than one budget.
func TestRedLockWorksWhileAMinorityIsDown(t *testing.T) {
	for _, n := range []int{3, 5} {
		q := newQuorum(t, n)
		down := all(n)[n/2+1:]
		heal := func(i int) { q.proxies[i].Heal() }
		for _, tt := range []struct {
			name          string
			fail, recover func(i int)
		}{
			{"refusing", func(i int) { q.proxies[i].Refuse(true) }, func(i int) { q.proxies[i].Refuse(false) }},
			{"black-holed", func(i int) { q.proxies[i].BlackHole(true) }, heal},
			{"replies black-holed", func(i int) { q.proxies[i].BlackHoleReplies(true) }, heal},
			{"stopped", func(i int) { _ = q.servers[i].Pause() }, func(i int) { _ = q.servers[i].Resume() }},
		} {
			if n == 5 && tt.name != "black-holed" {
				continue
			}
			t.Run(tt.name+"/"+string(rune('0'+n)), func(t *testing.T) {
				l := q.lock(q.patientClients(t), budgetTTL)
				release(t, acquire(t, t.Context(), l)) // loads the scripts
				for _, i := range down {
					tt.fail(i)
				}
				inTime := func(what string, f func()) {
					t.Helper()
					began := time.Now()
					f()
					// Without a budget, a release would take 5 s and other calls 30 s.
					require.Less(t, time.Since(began), budget+3*time.Second, what)
				}
				var hold, inner *primitives.Hold
				inTime("acquire", func() { hold = acquire(t, t.Context(), l) })
				inTime("nested", func() { inner = acquire(t, hold.Context(), l) })
				inTime("check", func() { require.NoError(t, hold.Check(t.Context())) })
				inTime("extend", func() { require.NoError(t, hold.Extend(t.Context(), 6*time.Second)) })
				inTime("release", func() { release(t, inner) })
				inTime("release", func() { release(t, hold) })
				for _, i := range down {
					tt.recover(i)
					q.proxies[i].Reset() // or the client would wait for replies on silent connections
				}
				q.requireFree(t, all(n)...)
			})
		}
	}
}

// TestRedLockRollsBackOnAPausedServer pauses a server during an attempt. When it resumes, it
// executes the acquisition and then the rollback.
func TestRedLockRollsBackOnAPausedServer(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	for _, tt := range []struct {
		name string
		held []int // by other owners
	}{
		{"acquired on the others", nil},
		{"failed", []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := q.on(t, primitives.WithLease(time.Minute)) // what is free by the end was rolled back
			others := q.hold(t, tt.held...)
			require.NoError(t, q.servers[2].Pause())
			hold, err := l.TryAcquire(t.Context())
			if tt.held == nil {
				require.NoError(t, err)
				release(t, hold)
			} else {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
			}
			require.NoError(t, q.servers[2].Resume())
			for _, other := range others {
				release(t, other)
			}
			q.requireFree(t, 0, 1, 2)
		})
	}
}

// TestRedLockSurvivesTheRestartOfOneServer restarts servers without persistence. The hold survives
// the loss of one server's data, but not of two.
func TestRedLockSurvivesTheRestartOfOneServer(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	events := &recorder{}
	l := q.lock(q.clients(t, events.option()), primitives.WithWatchdog(watched))
	hold := acquire(t, t.Context(), l)
	restart := func(i int) {
		require.NoError(t, q.servers[i].Kill())
		require.NoError(t, q.servers[i].Restart())
	}
	restart(0)
	redistest.WaitFor(t, soon, func() bool {
		return fields(t, q.servers[0], q.name)[hold.ID()] == "1"
	}, "acquired again")
	require.NoError(t, hold.Check(t.Context()))
	requireLive(t, hold.Context())
	require.NoError(t, q.servers[0].Kill())
	restart(1)
	require.NoError(t, q.servers[0].Restart())
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	q.requireFree(t, 0, 1, 2)
	redistest.WaitFor(t, soon, func() bool { return len(events.all(primitives.EventLost)) > 0 }, "the loss is reported")
	require.Len(t, events.all(primitives.EventLost), 1)
}

// TestRedLockHolderLearnsOfItsLossBeforeTheNextAcquires partitions a holder from a majority.
func TestRedLockHolderLearnsOfItsLossBeforeTheNextAcquires(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	hold := acquire(t, t.Context(), q.lock(q.clients(t, busy), primitives.WithWatchdog(watched)))
	var others []*primitives.Client // not partitioned
	for _, s := range q.servers {
		others = append(others, newClient(t, s.Client(t)))
	}
	for _, p := range q.proxies[:2] {
		p.BlackHole(true)
	}
	r := await(t, start(func() (*primitives.Hold, error) {
		next, err := q.lock(others).Acquire(t.Context())
		return next, errors.Join(err, stillHeld(hold))
	}))
	require.NoError(t, r.err)
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
	for _, p := range q.proxies {
		p.Heal()
	}
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, r.hold.Check(t.Context()))
	release(t, r.hold)
	q.requireFree(t, 0, 1, 2)
}

// stillHeld returns an error if the context of hold has not ended.
func stillHeld(hold *primitives.Hold) error {
	if hold.Context().Err() == nil {
		return errors.New("the former holder has not learned of its loss")
	}
	return nil
}

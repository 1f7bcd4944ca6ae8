package faults

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRedLockWorksWhileAMinorityIsDown takes a minority of the servers down in several ways. Each
// call succeeds, and takes no longer than one budget.
func TestRedLockWorksWhileAMinorityIsDown(t *testing.T) {
	t.Parallel()
	// Where a silent member uses up its budget, time is fake: on a busy machine, the servers that
	// are not down might not answer within their budgets either.
	for _, tt := range []struct {
		name    string
		servers int
		fail    func(p *redistest.Proxy)
	}{
		{"refusing", 3, func(p *redistest.Proxy) { p.Refuse(true); p.Reset() }},
		{"black-holed", 3, func(p *redistest.Proxy) { p.BlackHole(true) }},
		{"black-holed", 5, func(p *redistest.Proxy) { p.BlackHole(true) }},
		{"replies black-holed", 3, func(p *redistest.Proxy) { p.BlackHoleReplies(true) }},
	} {
		redistest.RunBubble(t, tt.name+"/"+strconv.Itoa(tt.servers), func(t *testing.T) {
			q := fixture.EmbeddedQuorum(t, tt.servers)
			testMinorityDown(t, q, fixture.BudgetTTL, fixture.Budget, func(i int) { tt.fail(q.Proxies[i]) },
				func(i int) { q.Proxies[i].Heal() })
		})
	}
	// A real server has the longest budget that there is.
	const longest = 2 * time.Second
	ttl := primitives.WithWatchdog(10 * longest)
	t.Run("refused by the system", func(t *testing.T) {
		q := fixture.NewQuorum(t, 3)
		testMinorityDown(t, q, ttl, longest+3*time.Second, func(i int) { q.Proxies[i].Refuse(true); q.Proxies[i].Reset() },
			func(i int) { q.Proxies[i].Heal() })
	})
	t.Run("stopped", func(t *testing.T) {
		q := fixture.NewQuorum(t, 3)
		testMinorityDown(t, q, ttl, longest+3*time.Second, func(i int) { require.NoError(t, q.Servers[i].Pause()) },
			func(i int) { require.NoError(t, q.Servers[i].Resume()) })
	})
}

// testMinorityDown makes a minority of the servers fail, and requires that no call takes longer
// than limit. Without a budget, a release would take 5 s and other calls 30 s.
func testMinorityDown(t *testing.T, q *fixture.Quorum, ttl primitives.Option, limit time.Duration, fail,
	recover func(i int)) {
	n := len(q.Servers)
	down := fixture.All(n)[n/2+1:]
	l := q.Lock(q.PatientClients(t), ttl)
	fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
	for _, i := range down {
		fail(i)
	}
	inTime := func(what string, f func()) {
		t.Helper()
		began := time.Now()
		f()
		require.LessOrEqual(t, time.Since(began), limit, what)
	}
	var hold, inner *primitives.Hold
	inTime("acquire", func() { hold = fixture.Acquire(t, t.Context(), l) })
	inTime("nested", func() { inner = fixture.Acquire(t, hold.Context(), l) })
	inTime("check", func() { require.NoError(t, hold.Check(t.Context())) })
	inTime("extend", func() { require.NoError(t, hold.Extend(t.Context(), 21*time.Second)) })
	inTime("release", func() { fixture.Release(t, inner) })
	inTime("release", func() { fixture.Release(t, hold) })
	for _, i := range down {
		recover(i)
		q.Proxies[i].Reset() // or the client would wait for replies on silent connections
	}
	q.RequireFree(t, fixture.All(n)...)
}

// TestRedLockRollsBackOnAPausedServer pauses a server during an attempt. When it resumes, it
// executes the acquisition and then the rollback.
func TestRedLockRollsBackOnAPausedServer(t *testing.T) {
	t.Parallel()
	q := fixture.NewQuorum(t, 3)
	for _, tt := range []struct {
		name string
		held []int // by other owners
	}{
		{"acquired on the others", nil},
		{"failed", []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := q.On(t, primitives.WithLease(time.Minute)) // what is free by the end was rolled back
			others := q.Hold(t, tt.held...)
			require.NoError(t, q.Servers[2].Pause())
			hold, err := l.TryAcquire(t.Context())
			if tt.held == nil {
				require.NoError(t, err)
				fixture.Release(t, hold)
			} else {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
			}
			require.NoError(t, q.Servers[2].Resume())
			fixture.Release(t, others...)
			q.RequireFree(t, 0, 1, 2)
		})
	}
}

// TestRedLockHolderLearnsOfItsLossBeforeTheNextAcquires partitions a holder from a majority.
func TestRedLockHolderLearnsOfItsLossBeforeTheNextAcquires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 3)
		hold := fixture.Acquire(t, t.Context(), q.Lock(q.Clients(t), primitives.WithWatchdog(fixture.RenewedTTL)))
		var others []*primitives.Client // not partitioned
		for _, s := range q.Servers {
			others = append(others, fixture.NewClient(t, s.Client(t)))
		}
		for _, p := range q.Proxies[:2] {
			p.BlackHole(true)
		}
		r := fixture.Await(t, fixture.Start(func() (*primitives.Hold, error) {
			next, err := q.Lock(others).Acquire(t.Context())
			return next, errors.Join(err, stillHeld(hold))
		}))
		require.NoError(t, r.Err)
		require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
		for _, p := range q.Proxies {
			p.Heal()
		}
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.NoError(t, r.Hold.Check(t.Context()))
		fixture.Release(t, r.Hold)
		q.RequireFree(t, 0, 1, 2)
	})
}

// TestRedReleaseWaitsForASlowMemberForItsBudget acquires a majority, and releases it while the
// attempt for a slow member is under way. The client knows how slow that is.
func TestRedReleaseWaitsForASlowMemberForItsBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 3)
		clients := q.PatientClients(t)
		l := q.Lock(clients, fixture.BudgetTTL)
		q.Proxies[2].Delay(4 * fixture.Budget)
		for range 2 { // the first attempt also makes a connection
			fixture.Release(t, q.Acquire(t, t.Context(), clients, fixture.BudgetTTL))
			q.RequireFree(t, fixture.All(3)...)
		}
		hold := fixture.Acquire(t, t.Context(), l)
		began := time.Now()
		fixture.Release(t, hold)
		require.LessOrEqual(t, time.Since(began), fixture.Budget+returnGrace)
		q.RequireFree(t, fixture.All(3)...)
	})
}

// stillHeld returns an error if the context of hold has not ended.
func stillHeld(hold *primitives.Hold) error {
	if hold.Context().Err() == nil {
		return errors.New("the former holder has not learned of its loss")
	}
	return nil
}

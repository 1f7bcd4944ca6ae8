package primitives_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRedLockAttemptOutcomes makes one attempt on five servers, some of them held or down.
func TestRedLockAttemptOutcomes(t *testing.T) { // not parallel: on a busy machine members miss their budget
	q := fixture.NewQuorum(t, 5)
	for _, tt := range []struct {
		name       string
		held, down []int
		acquired   bool
		refused    bool // the error is ErrNotAcquired
		transport  bool // the error wraps a transport error
	}{
		{"all free", nil, nil, true, false, false},
		{"a minority held", []int{0, 1}, nil, true, false, false},
		{"a minority down", nil, []int{3, 4}, true, false, false},
		{"one held, one down", []int{0}, []int{4}, true, false, false},
		{"a majority held", []int{0, 1, 2}, nil, false, true, false},
		{"a majority held, others down", []int{0, 1, 2}, []int{3, 4}, false, true, true},
		{"no majority free, a minority down", []int{0, 1}, []int{3}, false, true, true},
		{"a majority down", nil, []int{2, 3, 4}, false, false, true},
		{"a majority down, others held", []int{0, 1}, []int{2, 3, 4}, false, false, true},
		{"all down", nil, []int{0, 1, 2, 3, 4}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := q.Lock(q.PatientClients(t))
			others := q.Hold(t, tt.held...)
			for _, i := range tt.down {
				q.Proxies[i].Refuse(true)
			}
			hold, err := l.TryAcquire(t.Context())
			if tt.acquired {
				require.NoError(t, err)
				fixture.Release(t, hold)
			} else {
				require.Error(t, err)
				require.Equal(t, tt.refused, errors.Is(err, primitives.ErrNotAcquired), "%v", err)
				if tt.refused && len(tt.held) > 0 {
					require.Regexp(t, `held by [0-9a-f-]{36}:\d+ for another `, err.Error(), "one of the holders")
				}
				_, transport := errors.AsType[*failure.Error](err)
				require.Equal(t, tt.transport, transport, "%v", err)
			}
			for i, s := range q.Servers { // all members are released by the time the call returns
				if len(others) > i || tt.down != nil {
					continue
				}
				require.Empty(t, redistest.Keys(t, s, q.Name))
			}
			for _, i := range tt.down {
				q.Proxies[i].Refuse(false)
			}
			for _, other := range others {
				require.NoError(t, other.Check(t.Context()))
				fixture.Release(t, other)
			}
			q.RequireFree(t, fixture.All(5)...)
		})
	}
}

// TestRedLockRivalsExcludeEachOther runs rivals that acquire different servers first. All of them
// finish, even while one server is down.
func TestRedLockRivalsExcludeEachOther(t *testing.T) { // not parallel, as TestRedLockAttemptOutcomes
	for _, n := range []int{3, 5} {
		q := fixture.NewQuorum(t, n)
		q.Proxies[n-1].Refuse(n == 5)
		const rivals = 5
		count, each := 0, redistest.Scaled(q.Servers[0], 20)
		var wg sync.WaitGroup
		began := time.Now()
		for range rivals {
			l := q.Lock(q.PatientClients(t)) // on a busy machine, other clients would keep sending their commands again
			wg.Go(func() { fixture.Increment(t, fixture.AsAcquirer(l), &count, each) })
		}
		wg.Wait()
		t.Logf("%d servers, %d rivals: %v per acquisition", n, rivals, time.Since(began)/time.Duration(rivals*each))
		require.Equal(t, rivals*each, count)
		q.Proxies[n-1].Refuse(false)
		q.RequireFree(t, fixture.All(n)...)
	}
}

// TestRedLockWaitersDoNotWakeEachOther has waiters behind a holder of two of three members. Their
// attempts acquire and release the third, which must not wake up the others.
func TestRedLockWaitersDoNotWakeEachOther(t *testing.T) {
	t.Parallel()
	q := fixture.NewQuorum(t, 3)
	holds := q.Hold(t, 0, 1)
	const waiters = 4
	results := make(chan fixture.Result, waiters)
	for range waiters {
		l := q.On(t)
		go func() {
			hold, err := l.Acquire(t.Context())
			results <- fixture.Result{Hold: hold, Err: err}
		}()
	}
	for _, s := range q.Servers {
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return redistest.Connections(t, s) >= waiters*2
		}, "all waiters are subscribed")
	}
	time.Sleep(500 * time.Millisecond) // most have made their second attempt
	before, began := redistest.Commands(t, q.Servers[2]), time.Now()
	const span = 2 * time.Second
	time.Sleep(span)
	spent := redistest.Commands(t, q.Servers[2]).Since(before)["evalsha"]
	t.Logf("%d waiters: %d scripts in %v on the free server", waiters, spent, span)
	// An attempt and its rollback each second, and a margin of the same size.
	require.LessOrEqual(t, float64(spent), waiters*2*2*max(time.Since(began), span).Seconds())

	fixture.Release(t, holds[0]) // two members are free now: a majority
	for range waiters {
		fixture.Release(t, fixture.AwaitHold(t, results))
	}
	fixture.Release(t, holds[1])
	q.RequireFree(t, 0, 1, 2)
}

func redMinorityLost(t *testing.T, x *fixture.JointTest) {
	hold := x.Acquire(t, t.Context())
	require.NoError(t, fixture.ErrOf(x.C.Lock(x.Names[0]).ForceRelease(t.Context())))
	redissonLock(t, x.S, x.Names[0])
	require.NoError(t, hold.Check(t.Context()))
	require.NoError(t, hold.Extend(t.Context(), time.Minute))
	fixture.RequireLive(t, hold.Context())
	require.Greater(t, time.Until(hold.ValidUntil()), 55*time.Second)
	inner := fixture.Acquire(t, hold.Context(), x.L)
	require.Equal(t, hold.ID(), inner.ID())
	fixture.Release(t, inner)
	require.ErrorIs(t, fixture.ErrOf(x.On(x.Other(t)).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	require.NoError(t, fixture.ErrOf(x.C.Lock(x.Names[1]).ForceRelease(t.Context())))
	require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return len(x.Events.All(primitives.EventLost)) == 1
	}, "the loss is reported")
	fixture.RedissonUnlock(t, x.S, x.Names[0])
}

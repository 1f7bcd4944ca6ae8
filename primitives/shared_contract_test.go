package primitives_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// places is how many are let in together where there is a limit.
const places = 5

// sharedRow is one row of the contract of whatever lets several in together.
type sharedRow struct {
	name string
	// open makes a handle, by default waiting forever.
	open func(t testing.TB, c *primitives.Client, key string) acquirer
	// block has nobody get in until what it returns is called.
	block func(t testing.TB, c *primitives.Client, key string) (free func())
	// keeps are the keys that stay when nobody is in.
	keeps func(key string) []string
	// limited: only so many as there are places.
	limited bool
	// leases: WithLease ends a hold.
	leases bool
}

var sharedRows = []sharedRow{
	{
		name: "reader", leases: true,
		open: func(_ testing.TB, c *primitives.Client, key string) acquirer { return acts(c.RWLock(key).Reader()) },
		block: func(t testing.TB, c *primitives.Client, key string) func() {
			hold := acquire(t, context.Background(), c.RWLock(key).Writer())
			return func() { release(t, hold) }
		},
	},
	{
		name: "reader with owners", leases: true,
		open: func(_ testing.TB, c *primitives.Client, key string) acquirer {
			return acts(owned{c.RWLock(key).Reader(), c.ID()})
		},
		block: func(t testing.TB, c *primitives.Client, key string) func() {
			hold := acquire(t, context.Background(), c.RWLock(key).Writer())
			return func() { release(t, hold) }
		},
	},
	{
		name: "semaphore", limited: true, keeps: itself,
		open: func(t testing.TB, c *primitives.Client, key string) acquirer {
			return acts(ofSome(t, c.Semaphore(key)))
		},
		block: func(t testing.TB, c *primitives.Client, key string) func() { return takeAll(t, c.Semaphore(key)) },
	},
	{
		name: "permits", limited: true, leases: true, keeps: itself,
		open: func(t testing.TB, c *primitives.Client, key string) acquirer {
			return acts(ofSome(t, c.PermitExpirableSemaphore(key)))
		},
		block: func(t testing.TB, c *primitives.Client, key string) func() {
			return takeAll(t, c.PermitExpirableSemaphore(key))
		},
	},
}

// ofSome has as many permits as there are places.
func ofSome(t testing.TB, sem countable) countable {
	initPool(t, sem, places)
	return sem
}

func takeAll(t testing.TB, sem countable) func() {
	hold, err := ofSome(t, sem).Acquire(context.Background(), primitives.WithPermits(places))
	require.NoError(t, err)
	return func() { release(t, hold) }
}

// sharedCase is what one clause works with.
type sharedCase struct {
	sharedRow
	s   *redistest.Server
	key string
}

func (m *sharedCase) on(t testing.TB) acquirer {
	t.Helper()
	return m.open(t, newClient(t, m.s.Client(t)), m.key)
}

// blocked has nobody get in.
func (m *sharedCase) blocked(t testing.TB) (free func()) {
	t.Helper()
	return m.block(t, newClient(t, m.s.Client(t)), m.key)
}

// TestSharedContract puts everything that lets several in together through one contract, on every kind of server.
func TestSharedContract(t *testing.T) {
	t.Parallel()
	clauses := []struct {
		name  string
		check func(t *testing.T, m *sharedCase)
	}{
		{"several are in together", severalIn},
		{"who leaves takes nobody along", leavesAlone},
		{"nobody gets in while it is blocked", blockedFails},
		{"all that wait are woken", wakesAll},
		{"no notification is needed", sharedPollCovers},
		{"cancelling ends the wait", sharedCancelEnds},
		{"a lost reply never shows", sharedLostReplies},
		{"a lease ends alone", sharedLeaseEnds},
	}
	for _, row := range sharedRows {
		t.Run(row.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for _, clause := range clauses {
					t.Run(clause.name, func(t *testing.T) {
						m := &sharedCase{sharedRow: row, s: s, key: redistest.Name(t)}
						clause.check(t, m)
						redistest.WaitFor(t, soon, func() bool {
							left := leftovers(t, s, m.key)
							return len(left) == 0 || (m.keeps != nil && len(left) == 1 && left[0] == m.keeps(m.key)[0])
						}, "nothing is left")
					})
				}
			})
		})
	}
}

// fill gets as many in as there are places, from two clients.
func (m *sharedCase) fill(t testing.TB) (holds []holder) {
	t.Helper()
	sides := []acquirer{m.on(t), m.on(t)}
	for i := range places {
		h, err := sides[i%2].TryAcquire(context.Background())
		require.NoError(t, err)
		holds = append(holds, h)
	}
	return holds
}

func severalIn(t *testing.T, m *sharedCase) {
	holds := m.fill(t)
	h, err := m.on(t).TryAcquire(t.Context())
	if m.limited {
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
	} else {
		require.NoError(t, err)
		holds = append(holds, h)
	}
	for _, h := range holds {
		requireLive(t, h.Context())
		require.NoError(t, h.Release(t.Context()))
	}
}

func leavesAlone(t *testing.T, m *sharedCase) {
	holds := m.fill(t)
	require.NoError(t, holds[2].Release(t.Context()))
	require.ErrorIs(t, holds[2].Release(t.Context()), primitives.ErrReleased)
	h, err := m.on(t).TryAcquire(t.Context())
	require.NoError(t, err, "there is room again")
	require.NoError(t, h.Release(t.Context()))
	for i, h := range holds {
		if i != 2 {
			require.NoError(t, h.Release(t.Context()), "still in")
		}
	}
}

func blockedFails(t *testing.T, m *sharedCase) {
	free := m.blocked(t)
	a := m.on(t)
	_, err := a.TryAcquire(t.Context())
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	began := time.Now()
	_, err = a.Acquire(t.Context(), primitives.WithWait(50*time.Millisecond))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
	free()
	require.NoError(t, a.Do(t.Context(), func(context.Context) error { return nil }))
}

// waitAll has n wait on a client. in waits until they are, and tells since when; they leave when t ends.
func (m *sharedCase) waitAll(t *testing.T, a acquirer, n int) (in func() time.Time) {
	var wg sync.WaitGroup
	var last atomic.Int64
	for range n {
		wg.Go(func() {
			h, err := a.Acquire(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			last.Store(max(last.Load(), time.Now().UnixNano()))
			t.Cleanup(func() { _ = h.Release(context.Background()) })
		})
	}
	awaitWaiter(t, m.s, m.key)
	return func() time.Time { wg.Wait(); return time.Unix(0, last.Load()) }
}

func wakesAll(t *testing.T, m *sharedCase) {
	t.Run("waiting", func(t *testing.T) {
		free := m.blocked(t)
		in := m.waitAll(t, m.on(t), places)
		freed := time.Now()
		free()
		require.Less(t, in().Sub(freed), time.Second)
	})
}

func sharedPollCovers(t *testing.T, m *sharedCase) {
	t.Run("waiting", func(t *testing.T) {
		p := m.s.Proxy(t)
		p.DropMessages(true)
		free := m.blocked(t)
		in := m.waitAll(t, m.open(t, newClient(t, p.Client(t)), m.key), places)
		freed := time.Now()
		free()
		require.Less(t, in().Sub(freed), slowPoll)
	})
}

func sharedCancelEnds(t *testing.T, m *sharedCase) {
	free := m.blocked(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	a := m.on(t)
	go func() {
		_, err := a.Acquire(ctx)
		failed <- err
	}()
	awaitWaiter(t, m.s, m.key)
	cancel(errTest)
	err := <-failed
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.ErrorIs(t, err, errTest)
	free()
	for _, h := range m.fill(t) {
		require.NoError(t, h.Release(t.Context()), "the one that gave up took no place")
	}
}

func sharedLostReplies(t *testing.T, m *sharedCase) {
	p := m.s.Proxy(t)
	a := m.open(t, newClient(t, p.Client(t)), m.key)
	for _, lost := range []int{1, 2} {
		p.DropReplies(lost, script)
		h, err := a.Acquire(t.Context())
		require.NoError(t, err)
		other, err := m.on(t).TryAcquire(t.Context())
		require.NoError(t, err)
		p.DropReplies(lost, script)
		require.NoError(t, h.Release(t.Context()))
		require.NoError(t, other.Release(t.Context()), "one release lets one out")
		m.blocked(t)()
	}
}

func sharedLeaseEnds(t *testing.T, m *sharedCase) {
	if !m.leases {
		t.Skip("no leases")
	}
	a := m.on(t)
	short, err := a.Acquire(t.Context(), primitives.WithLease(200*time.Millisecond))
	require.NoError(t, err)
	long, err := a.Acquire(t.Context())
	require.NoError(t, err)
	requireEnds(t, short.Context(), primitives.ErrLost)
	requireLive(t, long.Context())
	require.ErrorIs(t, short.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, long.Release(t.Context()))
	m.blocked(t)()
}

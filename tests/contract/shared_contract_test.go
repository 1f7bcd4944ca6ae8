package contract

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// permitCount is the number of permits of the semaphores in the shared contract, and the number of
// holds that a clause makes of a primitive without a limit.
const permitCount = 5

// sharedRow is a kind that several may hold at once, and a way to use it.
type sharedRow struct {
	kinds.Kind
	owners bool // each acquisition has an owner of its own
}

func sharedRows() (rows []sharedRow) {
	for _, k := range kinds.Select(func(k kinds.Kind) bool { return k.Pool || k.Shared }) {
		rows = append(rows, sharedRow{Kind: k})
		if k.Shared {
			k.Name += " with owners"
			rows = append(rows, sharedRow{Kind: k, owners: true})
		}
	}
	return rows
}

// open returns a handle that waits without a limit by default. A pool has permitCount permits: no
// more holds.
func (r sharedRow) open(t testing.TB, c *primitives.Client, key string) fixture.Acquirer {
	l := r.Some(t, c, key, permitCount)
	if r.owners {
		l = owned{l, c.ID()}
	}
	return fixture.AsAcquirer(l)
}

// block makes every acquisition fail or wait until free is called.
func (r sharedRow) block(t testing.TB, c *primitives.Client, key string) (free func()) {
	var opts []primitives.Option
	if r.Pool {
		r.Some(t, c, key, permitCount)
		opts = append(opts, primitives.WithPermits(permitCount))
	}
	hold := fixture.Acquire(t, context.Background(), r.Rival(c, key), opts...)
	return func() { fixture.Release(t, hold) }
}

// sharedCase is the input of one clause of the contract.
type sharedCase struct {
	sharedRow
	s   *redistest.Server
	key string
}

// on opens the primitive on a new client.
func (m *sharedCase) on(t testing.TB) fixture.Acquirer {
	t.Helper()
	return m.open(t, fixture.NewClient(t, m.s.Client(t)), m.key)
}

// blocked makes every acquisition fail or wait until free is called.
func (m *sharedCase) blocked(t testing.TB) (free func()) {
	t.Helper()
	return m.block(t, fixture.NewClient(t, m.s.Client(t)), m.key)
}

// TestSharedContract tests every primitive that several may hold at once against one contract, on
// both servers, with the rights of doc/operations.md.
func TestSharedContract(t *testing.T) {
	t.Parallel()
	clauses := []struct {
		name  string
		check func(t *testing.T, m *sharedCase)
	}{
		{"several hold at once", severalHold},
		{"a release frees one place only", releaseFreesOne},
		{"acquiring fails while it is blocked", blockedFails},
		{"all waiters wake up", wakesAll},
		{"polling covers lost notifications", sharedPollCovers},
		{"cancelling ends the wait", sharedCancelEnds},
		{"one lease expires without the others", sharedLeaseEnds},
	}
	for _, row := range sharedRows() {
		t.Run(row.Name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				s = fixture.LeastRights(t, s)
				for _, clause := range clauses {
					t.Run(clause.name, func(t *testing.T) {
						m := &sharedCase{sharedRow: row, s: s, key: fixture.Permitted + redistest.Name(t)}
						clause.check(t, m)
						redistest.WaitFor(t, fixture.Soon, func() bool {
							left := fixture.Leftovers(t, s, m.key)
							return len(left) == 0 || slices.Equal(left, m.Stays(m.key))
						}, "no key and no channel is left")
					})
				}
			})
		})
	}
}

// fill makes permitCount holds from two clients.
func (m *sharedCase) fill(t testing.TB) (holds []fixture.Holder) {
	t.Helper()
	sides := []fixture.Acquirer{m.on(t), m.on(t)}
	for i := range permitCount {
		h := fixture.TryAcquire(t, context.Background(), sides[i%2])
		holds = append(holds, h)
	}
	return holds
}

// severalHold checks that permitCount holds exist at once, on two clients, and that one more is
// refused if the primitive is limited.
func severalHold(t *testing.T, m *sharedCase) {
	holds := m.fill(t)
	h, err := m.on(t).TryAcquire(t.Context())
	if m.Pool {
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
	} else {
		require.NoError(t, err)
		holds = append(holds, h)
	}
	for _, h := range holds {
		fixture.RequireLive(t, h.Context())
		fixture.Release(t, h)
	}
}

// releaseFreesOne checks that one release makes room for one hold and leaves the others.
func releaseFreesOne(t *testing.T, m *sharedCase) {
	holds := m.fill(t)
	require.NoError(t, holds[2].Release(t.Context()))
	require.ErrorIs(t, holds[2].Release(t.Context()), primitives.ErrReleased)
	h, err := m.on(t).TryAcquire(t.Context())
	require.NoError(t, err, "a permit is free again")
	fixture.Release(t, h)
	for i, h := range holds {
		if i != 2 {
			require.NoError(t, h.Release(t.Context()), "the others still hold")
		}
	}
}

// blockedFails checks that TryAcquire and a bounded wait fail while the primitive is blocked.
func blockedFails(t *testing.T, m *sharedCase) {
	free := m.blocked(t)
	a := m.on(t)
	require.ErrorIs(t, fixture.ErrOf(a.TryAcquire(t.Context())), primitives.ErrNotAcquired)
	began := time.Now()
	require.ErrorIs(t, fixture.ErrOf(a.Acquire(t.Context(), primitives.WithWait(50*time.Millisecond))),
		primitives.ErrNotAcquired)
	require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
	free()
	require.NoError(t, a.Do(t.Context(), func(context.Context) error { return nil }))
}

// waitAll starts n waiters. The function it returns waits until all have acquired and returns when
// the last one did. The holds are released when t ends.
func (m *sharedCase) waitAll(t *testing.T, a fixture.Acquirer, n int) (acquired func() time.Time) {
	var wg sync.WaitGroup
	var last atomic.Int64
	for range n {
		wg.Go(func() {
			h, err := a.Acquire(context.Background())
			if !assert.NoError(t, err) {
				return
			}
			last.Store(max(last.Load(), time.Now().UnixNano()))
			t.Cleanup(func() { _ = h.Release(context.Background()) })
		})
	}
	fixture.AwaitWaiter(t, m.s, m.key)
	return func() time.Time { wg.Wait(); return time.Unix(0, last.Load()) }
}

// wakesAll checks that all waiters of a client acquire after the primitive is free. The engine's
// tests check in fake time that a message wakes them all.
func wakesAll(t *testing.T, m *sharedCase) {
	t.Run("waiting", func(t *testing.T) {
		free := m.blocked(t)
		acquired := m.waitAll(t, m.on(t), permitCount)
		freed := time.Now()
		free()
		require.Less(t, acquired().Sub(freed), fixture.SlowPoll)
	})
}

// sharedPollCovers checks that waiters that receive no notification acquire within the slow poll,
// and so does what the kind excludes.
func sharedPollCovers(t *testing.T, m *sharedCase) {
	t.Run("waiting", func(t *testing.T) {
		p := m.s.Proxy(t)
		p.DropMessages(true)
		deaf := fixture.NewClient(t, p.Client(t))
		free := m.blocked(t)
		acquired := m.waitAll(t, m.open(t, deaf, m.key), permitCount)
		freed := time.Now()
		free()
		require.Less(t, acquired().Sub(freed), fixture.SlowPoll)
	})
	if m.Pool {
		return
	}
	t.Run("the rival", func(t *testing.T) {
		p := m.s.Proxy(t)
		p.DropMessages(true)
		deaf := fixture.NewClient(t, p.Client(t))
		h := fixture.Acquire(t, t.Context(), m.on(t))
		waiting := fixture.StartAcquire(t.Context(), m.Rival(deaf, m.key))
		fixture.AwaitWaiters(t, deaf, 1)
		freed := time.Now()
		fixture.Release(t, h)
		rival := fixture.AwaitHold(t, waiting)
		require.Less(t, time.Since(freed), fixture.SlowPoll)
		fixture.Release(t, rival)
	})
}

// sharedCancelEnds checks that a cancelled waiter returns its cause and takes no permit.
func sharedCancelEnds(t *testing.T, m *sharedCase) {
	free := m.blocked(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error, 1)
	c := fixture.NewClient(t, m.s.Client(t))
	a := m.open(t, c, m.key)
	go func() {
		_, err := a.Acquire(ctx)
		failed <- err
	}()
	fixture.AwaitWaiter(t, m.s, m.key)
	cancel(fixture.ErrTest)
	err := <-failed
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.ErrorIs(t, err, fixture.ErrTest)
	require.NoError(t, c.Close(t.Context())) // no attempt is under way any longer
	free()
	for _, h := range m.fill(t) {
		require.NoError(t, h.Release(t.Context()), "the cancelled waiter took no permit")
	}
}

// sharedLeaseEnds checks that an expired lease ends its own hold only.
func sharedLeaseEnds(t *testing.T, m *sharedCase) {
	if !m.Leased {
		t.Skip("no leases")
	}
	a := m.on(t)
	short := fixture.Acquire(t, t.Context(), a, primitives.WithLease(fixture.ShortLease))
	long := fixture.Acquire(t, t.Context(), a)
	fixture.RequireEnds(t, short.Context(), primitives.ErrLost)
	fixture.RequireLive(t, long.Context())
	require.ErrorIs(t, short.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, long.Release(t.Context()))
	m.blocked(t)()
}

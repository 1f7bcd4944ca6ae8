package contract

import (
	"context"
	"errors"
	"fmt"
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

// mutexRow is a kind that one caller may hold at a time, and a way to use it.
type mutexRow struct {
	kinds.Kind
	// open returns a handle on one client and key. By default it waits without a limit and its
	// holds are renewed. A key may be opened many times; all handles of one key exclude each other,
	// on the same client and on others.
	open func(t testing.TB, c *primitives.Client, key string) fixture.Acquirer

	nests bool          // Acquire with a hold's context nests (C3)
	ids   bool          // Hold.ID is "<client id>:<n>" (C1)
	holds bool          // Release and Context report ErrReleased and loss; a Locker's do not
	poll  time.Duration // the longest polling interval; 0: waiters subscribe
	lease time.Duration // a short lease that a busy machine can keep
}

// mutexRows has a row for each kind, and one for each other way to use a lock.
func mutexRows() (rows []mutexRow) {
	for _, k := range append(kinds.Mutexes(), kinds.Joints()...) {
		row := mutexRow{Kind: k, nests: !k.Pool, ids: !k.Pool, holds: true, lease: 2 * time.Second}
		if k.Name == "red" {
			row.lease = 4 * time.Second // a member has a tenth of the lease to answer
		}
		row.open = func(t testing.TB, c *primitives.Client, key string) fixture.Acquirer {
			return fixture.AsAcquirer(k.One(t, c, key))
		}
		rows = append(rows, row)
	}
	used := func(name string, open func(c *primitives.Client, key string) fixture.Acquirer) *mutexRow {
		row := mutexRow{Kind: kinds.Of("lock"), holds: true, lease: 2 * time.Second}
		row.Name = name
		row.open = func(_ testing.TB, c *primitives.Client, key string) fixture.Acquirer { return open(c, key) }
		rows = append(rows, row)
		return &rows[len(rows)-1]
	}
	polling := used("polling lock", func(c *primitives.Client, key string) fixture.Acquirer {
		return fixture.AsAcquirer(c.Lock(key, primitives.WithPolling(2*time.Millisecond, 20*time.Millisecond)))
	})
	polling.nests, polling.ids, polling.poll = true, true, 20*time.Millisecond
	stripe := used("stripe", func(c *primitives.Client, key string) fixture.Acquirer {
		return fixture.AsAcquirer(c.Striped(key, 4).Lock("x"))
	})
	stripe.nests, stripe.ids = true, true
	used("lock with owners", func(c *primitives.Client, key string) fixture.Acquirer {
		return fixture.AsAcquirer(owned{c.Lock(key), c.ID()})
	})
	locker := used("locker", func(c *primitives.Client, key string) fixture.Acquirer { return lockers{c.Lock(key)} })
	locker.Leased, locker.holds = false, false
	return rows
}

// owned makes each acquisition with WithOwner and an id of its own.
type owned struct {
	l      fixture.Handle
	client string
}

// ownerIDs counts the ids that all owned handles have used.
var ownerIDs atomic.Int64

func (o owned) with(opts []primitives.Option) []primitives.Option {
	id := fmt.Sprintf("%s:owner-%d", o.client, ownerIDs.Add(1))
	return append([]primitives.Option{primitives.WithOwner(id)}, opts...)
}

func (o owned) Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error) {
	return o.l.Acquire(ctx, o.with(opts)...)
}

func (o owned) TryAcquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error) {
	return o.l.TryAcquire(ctx, o.with(opts)...)
}

func (o owned) Do(ctx context.Context, f func(context.Context) error, opts ...primitives.Option) error {
	return o.l.Do(ctx, f, o.with(opts)...)
}

// lockers makes each acquisition with a Locker of its own. The hold's context is the Locker's, and
// a panic of Lock becomes the error.
type lockers struct{ l *primitives.Lock }

func (a lockers) Acquire(ctx context.Context, opts ...primitives.Option) (h fixture.Holder, err error) {
	if len(opts) > 0 { // Locker takes no options
		return fixture.AsHolder(a.l.Acquire(ctx, opts...))
	}
	mu := a.l.Locker(ctx)
	defer func() {
		if p := recover(); p != nil {
			h, err = nil, p.(error)
		}
	}()
	mu.Lock()
	return locked{mu, ctx}, nil
}

func (a lockers) TryAcquire(ctx context.Context, _ ...primitives.Option) (fixture.Holder, error) {
	mu := a.l.Locker(ctx)
	if !mu.TryLock() {
		return nil, primitives.ErrNotAcquired
	}
	return locked{mu, ctx}, nil
}

func (a lockers) Do(ctx context.Context, f func(context.Context) error, _ ...primitives.Option) error {
	h, err := a.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = h.Release(ctx) }()
	return f(ctx)
}

// locked is a Locker that lockers has locked.
type locked struct {
	mu  *primitives.Locker
	ctx context.Context
}

func (l locked) Release(context.Context) error { l.mu.Unlock(); return nil }
func (l locked) Context() context.Context      { return l.ctx }

// mutexCase is the input of one clause of the contract.
type mutexCase struct {
	mutexRow
	s   *redistest.Server
	key string
}

// on opens the mutex on a new client.
func (m *mutexCase) on(t testing.TB, opts ...primitives.ClientOption) fixture.Acquirer {
	t.Helper()
	return m.open(t, fixture.NewClient(t, m.s.Client(t), opts...), m.key)
}

// through opens the mutex on a new client that connects through p.
func (m *mutexCase) through(t testing.TB, p *redistest.Proxy) fixture.Acquirer {
	t.Helper()
	return m.open(t, fixture.NewClient(t, p.Client(t)), m.key)
}

// TestMutexContract tests every primitive that can act as a mutex against one contract, on both
// servers, with the rights of doc/operations.md.
func TestMutexContract(t *testing.T) {
	t.Parallel()
	clauses := []struct {
		name  string
		check func(t *testing.T, m *mutexCase)
	}{
		{"clients exclude each other", clientsExclude},
		{"goroutines on one handle exclude each other", goroutinesExclude},
		{"TryAcquire fails while it is held", tryFails},
		{"the wait is bounded", waitIsBounded},
		{"cancelling ends the wait", cancelEndsWait},
		{"a done context sends nothing", doneContext},
		{"a release wakes a waiter", releaseWakes},
		{"polling covers lost notifications", pollCovers},
		{"a second release fails", releaseIsFinal},
		{"Do releases on return, error and panic", doReleases},
		{"a nested acquisition is counted", nests},
		{"a lease expires", leaseEnds},
		{"ids start with the client id", idsAreClients},
		{"a closed client refuses", closedRefuses},
	}
	for _, row := range mutexRows() {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel() // the clauses mostly wait
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				s = fixture.LeastRights(t, s)
				for _, clause := range clauses {
					t.Run(clause.name, func(t *testing.T) {
						// The suffix keeps one name from being a prefix of another, which
						// fixture.RequireClean relies on.
						m := &mutexCase{mutexRow: row, s: s, key: fixture.Permitted + redistest.Name(t) + "."}
						clause.check(t, m)
						fixture.RequireClean(t, s, m.key, row.Stays(m.key)...)
					})
				}
			})
		})
	}
}

// clientsExclude increments a counter from many clients.
func clientsExclude(t *testing.T, m *mutexCase) {
	clients, each := 16, redistest.Scaled(m.s, 40)
	switch {
	case m.s.Mini() != nil:
		clients = 4
	case !redistest.Full():
		clients = 8
	}
	n := 0
	var wg sync.WaitGroup
	for range clients {
		a := m.on(t)
		wg.Go(func() { fixture.Increment(t, a, &n, each) })
	}
	wg.Wait()
	require.Equal(t, clients*each, n)
}

// goroutinesExclude increments a counter from many goroutines that share one handle.
func goroutinesExclude(t *testing.T, m *mutexCase) {
	a := m.on(t)
	n, goroutines := 0, redistest.Scaled(m.s, 100)
	fixture.Concurrently(goroutines, func(int) { fixture.Increment(t, a, &n, 2) })
	require.Equal(t, 2*goroutines, n)
}

// tryFails checks that TryAcquire fails on the holder's own handle and on another client, and
// succeeds after the release.
func tryFails(t *testing.T, m *mutexCase) {
	one, other := m.on(t), m.on(t)
	h := fixture.TryAcquire(t, t.Context(), one)
	for _, a := range []fixture.Acquirer{one, other} {
		require.ErrorIs(t, fixture.ErrOf(a.TryAcquire(t.Context())), primitives.ErrNotAcquired)
	}
	fixture.Release(t, h)
	h = fixture.TryAcquire(t, t.Context(), other)
	fixture.Release(t, h)
}

// waitIsBounded checks that WithWait ends the wait in time, with an error that is not a context's.
func waitIsBounded(t *testing.T, m *mutexCase) {
	h := fixture.Acquire(t, t.Context(), m.on(t))
	other := m.on(t)
	began := time.Now()
	_, err := other.Acquire(t.Context(), primitives.WithWait(50*time.Millisecond))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond)
	fixture.Release(t, h)
}

// cancelEndsWait checks that the error of a cancelled waiter matches both ErrNotAcquired and the
// cause.
func cancelEndsWait(t *testing.T, m *mutexCase) {
	h := fixture.Acquire(t, t.Context(), m.on(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	other := m.on(t)
	failed := fixture.Go(func() error { return fixture.ErrOf(other.Acquire(ctx)) })
	if m.poll == 0 {
		fixture.AwaitWaiter(t, m.s, m.key)
	}
	cancel(fixture.ErrTest)
	err := <-failed
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.ErrorIs(t, err, fixture.ErrTest)
	fixture.Release(t, h)
}

// doneContext checks that an acquisition with a done context fails before it sends a command.
func doneContext(t *testing.T, m *mutexCase) {
	p := m.s.Proxy(t)
	a := m.through(t, p)
	p.Record()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fixture.ErrTest)
	_, err := a.Acquire(ctx)
	require.ErrorIs(t, err, fixture.ErrTest)
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.Empty(t, p.Commands())
}

// releaseWakes checks that a release wakes up a waiter on another client.
func releaseWakes(t *testing.T, m *mutexCase) {
	one, other := m.on(t), m.on(t)
	h := fixture.Acquire(t, t.Context(), one)
	got := make(chan fixture.Holder, 1)
	go func() {
		h, err := other.Acquire(t.Context())
		assert.NoError(t, err)
		got <- h
	}()
	if m.poll == 0 {
		fixture.AwaitWaiter(t, m.s, m.key)
	}
	require.Empty(t, got)
	fixture.Release(t, h)
	select {
	case h := <-got:
		fixture.Release(t, h)
	case <-time.After(fixture.Soon):
		require.FailNow(t, "timed out waiting for the waiter to wake up")
	}
}

// pollCovers checks that a waiter that receives no notification acquires within the slow poll.
func pollCovers(t *testing.T, m *mutexCase) {
	p := m.s.Proxy(t)
	p.DropMessages(true)
	one, other := m.on(t), m.through(t, p)
	h := fixture.Acquire(t, t.Context(), one)
	got := make(chan time.Time, 1)
	go func() {
		if h, err := other.Acquire(t.Context()); err != nil {
			t.Error(err)
		} else if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		got <- time.Now()
	}()
	if m.poll == 0 {
		fixture.AwaitWaiter(t, m.s, m.key)
	}
	released := time.Now()
	fixture.Release(t, h)
	require.Less(t, (<-got).Sub(released), fixture.SlowPoll)
}

// releaseIsFinal checks that the first release works with a done context, and that the second fails
// without a command.
func releaseIsFinal(t *testing.T, m *mutexCase) {
	if !m.holds {
		t.Skip("no hold to release twice")
	}
	p := m.s.Proxy(t)
	a := m.through(t, p)
	h := fixture.Acquire(t, t.Context(), a)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, h.Release(done), "Release sends its command even if ctx is done")
	fixture.RequireEnds(t, h.Context(), primitives.ErrReleased)
	p.Record()
	err := h.Release(t.Context())
	require.ErrorIs(t, err, primitives.ErrReleased)
	require.ErrorIs(t, err, primitives.ErrNotHeld)
	require.Empty(t, fixture.ScriptsOf(p)) // the client's name may be written at any time
}

// doReleases checks that the mutex is free after each way to leave Do.
func doReleases(t *testing.T, m *mutexCase) {
	a := m.on(t)
	free := func() {
		t.Helper()
		fixture.Release(t, fixture.TryAcquire(t, t.Context(), a))
	}
	require.NoError(t, a.Do(t.Context(), func(context.Context) error { return nil }))
	free()
	require.ErrorIs(t, a.Do(t.Context(), func(context.Context) error { return fixture.ErrTest }), fixture.ErrTest)
	free()
	require.PanicsWithError(t, "test", func() {
		_ = a.Do(t.Context(), func(context.Context) error { panic(fixture.ErrTest) })
	})
	free()
}

// nests checks that the mutex is free only after both the outer and the inner hold are released, in
// either order.
func nests(t *testing.T, m *mutexCase) {
	if !m.nests {
		t.Skip("does not nest")
	}
	a, other := m.on(t), m.on(t)
	for _, outerFirst := range []bool{false, true} {
		outer := fixture.Acquire(t, t.Context(), a)
		inner := fixture.Acquire(t, outer.Context(), a)
		order := []fixture.Holder{inner, outer}
		if outerFirst {
			order = []fixture.Holder{outer, inner}
		}
		require.NoError(t, order[0].Release(t.Context()))
		require.ErrorIs(t, fixture.ErrOf(other.TryAcquire(t.Context())), primitives.ErrNotAcquired)
		require.NoError(t, order[1].Release(t.Context()))
		fixture.Release(t, fixture.TryAcquire(t, t.Context(), other))
		_, err := a.Acquire(outer.Context(), primitives.WithWait(0))
		require.ErrorIs(t, err, primitives.ErrReleased, "a released hold does not nest")
	}
	outer := fixture.Acquire(t, t.Context(), a)
	_, err := a.Acquire(outer.Context(), primitives.WithNonReentrant())
	require.ErrorIs(t, err, primitives.ErrDeadlock)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	fixture.Release(t, outer)
}

// leaseEnds checks that the loss of an expired lease is reported before a waiter acquires. The
// WideMargin keeps that order on a slow machine.
func leaseEnds(t *testing.T, m *mutexCase) {
	if !m.Leased {
		t.Skip("no leases")
	}
	one, other := m.on(t, fixture.WideMargin), m.on(t)
	began := time.Now()
	h := fixture.Acquire(t, t.Context(), one, primitives.WithLease(m.lease))
	got := make(chan error, 1)
	go func() {
		g, err := other.Acquire(t.Context())
		if err == nil {
			if context.Cause(h.Context()) == nil {
				err = errors.New("acquired before the former hold was reported lost")
			}
			err = errors.Join(err, g.Release(context.Background()))
		}
		got <- err
	}()
	fixture.RequireEnds(t, h.Context(), primitives.ErrLost)
	if hold, ok := h.(*primitives.Hold); ok {
		require.WithinRange(t, hold.ValidUntil(), began, time.Now(), "a lost hold keeps the end of its validity")
	}
	require.NoError(t, <-got)
	require.ErrorIs(t, h.Release(t.Context()), primitives.ErrLost)
	require.ErrorIs(t, h.Release(t.Context()), primitives.ErrReleased)
}

// idsAreClients checks that every acquisition has an id of its own, made of the client's id and a
// number.
func idsAreClients(t *testing.T, m *mutexCase) {
	if !m.ids {
		t.Skip("the caller chooses the ids")
	}
	c := fixture.NewClient(t, m.s.Client(t))
	a := m.open(t, c, m.key)
	seen := map[string]bool{}
	for range 3 {
		h := fixture.Acquire(t, t.Context(), a)
		id := h.(*primitives.Hold).ID()
		require.Regexp(t, "^"+c.ID()+`:\d+$`, id)
		require.False(t, seen[id])
		seen[id] = true
		fixture.Release(t, h)
	}
}

// closedRefuses checks that Close ends a waiter, and that later acquisitions fail.
func closedRefuses(t *testing.T, m *mutexCase) {
	c := fixture.NewClient(t, m.s.Client(t))
	a := m.open(t, c, m.key)
	h := fixture.Acquire(t, t.Context(), m.on(t))
	failed := fixture.Go(func() error { return fixture.ErrOf(a.Acquire(context.Background())) })
	if m.poll == 0 {
		fixture.AwaitWaiter(t, m.s, m.key)
	}
	require.NoError(t, c.Close(t.Context()))
	require.ErrorIs(t, <-failed, primitives.ErrClosed)
	_, err := a.Acquire(context.Background())
	require.ErrorIs(t, err, primitives.ErrClosed)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	fixture.Release(t, h)
}

package primitives_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// permitState is a pool of permits in Redis, and the leases of its taken permits.
type permitState struct {
	counterState
	s      *redistest.Server
	leases string                               // the key of their leases
	sem    *primitives.PermitExpirableSemaphore // set by tests that have a table
	hold   *primitives.Hold                     // the hold of such a test
}

// watchPermits subscribes to the pool's channel.
func watchPermits(t testing.TB, s *redistest.Server, key string) *permitState {
	t.Helper()
	state := counterState{s.Client(t), key, fixture.Subscribe(t, s, "redisson_sc:{"+key+"}")}
	return &permitState{counterState: state, s: s, leases: "{" + key + "}:timeout"}
}

// taken returns the ids of taken permits, as the API reports them, and how long their leases last.
func (w *permitState) taken(t testing.TB) map[string]time.Duration {
	t.Helper()
	now, err := w.rdb.Time(t.Context()).Result()
	require.NoError(t, err)
	members, err := w.rdb.ZRangeWithScores(t.Context(), w.leases, 0, -1).Result()
	require.NoError(t, err)
	taken := map[string]time.Duration{}
	for _, m := range members {
		raw := m.Member.(string)
		require.Len(t, raw, 16, "ids are raw bytes in Redis")
		taken[hex.EncodeToString([]byte(raw))] = time.Duration(int64(m.Score)-now.UnixMilli()) * time.Millisecond
	}
	return taken
}

// takeForeign takes a permit as a client with a clock of its own does.
func (w *permitState) takeForeign(t testing.TB, id string, ends int64) {
	t.Helper()
	require.NoError(t, w.rdb.Decr(t.Context(), w.key).Err())
	require.NoError(t, w.rdb.ZAdd(t.Context(), w.leases,
		redis.Z{Score: float64(ends), Member: fixture.Unhex(t, id)}).Err())
}

// foreignID returns the nth id of another client.
func foreignID(n int) string { return fmt.Sprintf("%032x", 0xf00000+n) }

// TestPermitsWireFormat checks the keys in Redis and the published messages after each call.
func TestPermitsWireFormat(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		permits int // at first; 0 if none are set
		run     func(t *testing.T, w *permitState)
	}{
		{"init, acquire, extend and release", 0, testPermitsWireAcquire},
		{"permits of another client", 3, testPermitsWireForeign},
		{"expired permit and delete", 1, testPermitsWireDelete},
		{"TTL of the pool", 2, testPermitsWireTTL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, s *redistest.Server, c *primitives.Client) {
				key := redistest.Name(t)
				w := watchPermits(t, s, key)
				w.sem = c.PermitExpirableSemaphore(key)
				if tt.permits > 0 {
					fixture.InitPool(t, w.sem, tt.permits)
					w.Received(t)
				}
				tt.run(t, w)
			})
		})
	}
}

// lasts returns a call that checks how long the lease of a permit lasts, and how many are taken.
func (w *permitState) lasts(t *testing.T, id func() string, d time.Duration, taken int) func() (any, error) {
	return func() (any, error) {
		all := w.taken(t)
		require.InDelta(t, d, all[id()], float64(2*time.Second))
		return len(all) == taken, nil
	}
}

func testPermitsWireAcquire(t *testing.T, w *permitState) {
	ctx, sem := t.Context(), w.sem
	id := func(i int) func() string { return func() string { return strings.Split(w.hold.ID(), ",")[i] } }
	extend := func(d time.Duration) func() (any, error) {
		return func() (any, error) { return nil, w.hold.Extend(ctx, d) }
	}
	two := primitives.WithPermits(2)
	w.requireSteps(t, []wireStep{
		{"Init", func() (any, error) { return sem.Init(ctx, 3) }, true, "3", "3"},
		{"the second Init changes nothing", func() (any, error) { return sem.Init(ctx, 5) }, false, "3", ""},
		{"Acquire 2", func() (any, error) { w.hold = fixture.Acquire(t, ctx, sem, two); return nil, nil }, nil, "1", ""},
		{"the ids are hexadecimal", func() (any, error) {
			require.Regexp(t, "^[0-9a-f]{32},[0-9a-f]{32}$", w.hold.ID())
			return nil, nil
		}, nil, "1", ""},
		{"the first is leased", w.lasts(t, id(0), 30*time.Second, 2), true, "1", ""},
		{"the second is leased", w.lasts(t, id(1), 30*time.Second, 2), true, "1", ""},
		{"Check", func() (any, error) { return nil, w.hold.Check(ctx) }, nil, "1", ""},
		{"Extend", extend(time.Hour), nil, "1", ""},
		{"the second is extended", w.lasts(t, id(1), time.Hour, 2), true, "1", ""},
		{"Extend by less", extend(time.Minute), nil, "1", ""},
		{"Extend never shortens", w.lasts(t, id(0), time.Hour, 2), true, "1", ""},
		{"2 of 1 are refused", func() (any, error) { return nil, fixture.ErrOf(sem.TryAcquire(ctx, two)) },
			primitives.ErrNotAcquired, "1", ""},
		{"Release", func() (any, error) { return nil, w.hold.Release(ctx) }, nil, "3", "3"},
		{"none is taken", func() (any, error) { return w.taken(t), nil }, map[string]time.Duration{}, "3", ""},
	})
}

func testPermitsWireForeign(t *testing.T, w *permitState) {
	ctx, sem := t.Context(), w.sem
	// Redisson takes two permits: one without a lease, and one with a lease of an hour.
	w.takeForeign(t, foreignID(1), fixture.NoExpiry)
	w.takeForeign(t, foreignID(2), time.Now().Add(time.Hour).UnixMilli())
	info, err := sem.Info(ctx)
	require.NoError(t, err)
	require.Equal(t, []int{3, 1, 2}, []int{info.Permits, info.Available, len(info.Holders)})
	require.Equal(t, time.Duration(-1), info.TTL)
	require.Equal(t, primitives.Holder{ID: foreignID(1), Count: 1, TTL: -1}, info.Holders[1])
	require.Equal(t, foreignID(2), info.Holders[0].ID)
	require.InDelta(t, time.Hour, info.Holders[0].TTL, float64(2*time.Second))

	release := func(ids ...string) func() (any, error) {
		return func() (any, error) { return nil, sem.ReleaseID(ctx, strings.Join(ids, ",")) }
	}
	adopt := func() (_ any, err error) {
		adopted, err := sem.Adopt(ctx, foreignID(2))
		w.hold = cmp.Or(w.hold, adopted)
		return nil, err
	}
	w.requireSteps(t, []wireStep{
		{"ReleaseID of one that is not taken", release(foreignID(1), foreignID(3)), primitives.ErrNotHeld, "1", ""},
		{"ReleaseID of an id twice counts once", release(foreignID(1), foreignID(1)), nil, "2", "2"},
		{"ReleaseID again", release(foreignID(1)), primitives.ErrNotHeld, "2", ""},
		{"Adopt", adopt, nil, "2", ""},
		{"Adopt gives a new id", func() (any, error) { return w.hold.ID() != foreignID(2), nil }, true, "2", ""},
		{"the adopter's lease replaces the other", w.lasts(t, func() string { return w.hold.ID() }, 30*time.Second, 1),
			true, "2", ""},
		{"Adopt again", adopt, primitives.ErrNotHeld, "2", ""},
		{"Resize to 0", func() (any, error) { return nil, sem.Resize(ctx, 0) }, nil, "-1", "0"},
		{"Add -1", func() (any, error) { return nil, sem.Add(ctx, -1) }, nil, "-2", ""},
		{"Add 2", func() (any, error) { return nil, sem.Add(ctx, 2) }, nil, "0", "2"},
		{"Resize to 1", func() (any, error) { return nil, sem.Resize(ctx, 1) }, nil, "0", ""},
		{"Release", func() (any, error) { return nil, w.hold.Release(ctx) }, nil, "1", "1"},
	})
}

func testPermitsWireDelete(t *testing.T, w *permitState) {
	ctx, sem := t.Context(), w.sem
	w.takeForeign(t, foreignID(4), 1) // its lease has ended by the server's clock
	take := func() (_ any, err error) {
		w.hold, err = sem.TryAcquire(ctx, primitives.WithLease(time.Hour))
		return nil, err
	}
	w.requireSteps(t, []wireStep{
		{"an acquisition collects the expired permit", take, nil, "0", "1"},
		{"only the new one is taken", w.lasts(t, func() string { return w.hold.ID() }, time.Hour, 1), true, "0", ""},
		{"Delete", func() (any, error) { return sem.Delete(ctx) }, true, "", ""},
		{"Release of nothing", func() (any, error) { return nil, w.hold.Release(ctx) }, primitives.ErrLost, "", ""},
		{"no lease is left", func() (any, error) { return w.rdb.Exists(ctx, w.leases).Result() }, int64(0), "", ""},
		{"Delete of nothing", func() (any, error) { return sem.Delete(ctx) }, false, "", ""},
		{"Resize creates the pool", func() (any, error) { return nil, sem.Resize(ctx, 2) }, nil, "2", "2"},
	})
}

func testPermitsWireTTL(t *testing.T, w *permitState) {
	ctx, sem, key := t.Context(), w.sem, w.key
	// The leases get the TTL of the pool.
	require.NoError(t, w.rdb.PExpire(ctx, key, time.Hour).Err())
	hold := fixture.Acquire(t, ctx, sem)
	require.InDelta(t, time.Hour, w.rdb.PTTL(ctx, w.leases).Val(), float64(2*time.Second))
	require.NoError(t, sem.Add(ctx, 1))
	require.Positive(t, w.rdb.PTTL(ctx, key).Val())
	require.NoError(t, w.rdb.Persist(ctx, key).Err())
	second := fixture.Acquire(t, ctx, sem)
	require.Equal(t, time.Duration(-1), w.rdb.PTTL(ctx, w.leases).Val())
	fixture.Release(t, second, hold)
}

// TestPermitsOfADeletedPoolAreLost deletes the pool while permits are taken. A new pool has all its
// permits.
func TestPermitsOfADeletedPoolAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, key := t.Context(), redistest.Name(t)
		sem := fixture.NewClient(t, s.Client(t)).PermitExpirableSemaphore(key)
		w := watchPermits(t, s, key)
		calls := map[string]func() error{
			"init":   func() error { return fixture.ErrOf(sem.Init(ctx, 3)) },
			"add":    func() error { return sem.Add(ctx, 3) },
			"resize": func() error { return sem.Resize(ctx, 3) },
		}
		for name, create := range calls {
			t.Run(name, func(t *testing.T) {
				require.NoError(t, fixture.ErrOf(sem.Delete(ctx)))
				fixture.InitPool(t, sem, 3)
				hold := make([]*primitives.Hold, 3)
				for i := range hold {
					hold[i] = fixture.Acquire(t, ctx, sem)
				}
				require.NoError(t, w.rdb.Del(ctx, key).Err())
				w.Received(t)
				require.ErrorIs(t, hold[0].Check(ctx), primitives.ErrLost)
				require.ErrorIs(t, hold[1].Release(ctx), primitives.ErrLost)
				require.ErrorIs(t, hold[2].Extend(ctx, time.Minute), primitives.ErrLost)
				fixture.RequireEnds(t, hold[0].Context(), primitives.ErrLost)
				w.requireStep(t, "")
				require.Equal(t, primitives.Info{Name: key, Kind: "permits", Holders: []primitives.Holder{}},
					fixture.InfoOf(t, sem))
				require.NoError(t, create())
				w.requireStep(t, "3", "3")
				require.Empty(t, w.taken(t))
			})
		}
	})
}

func TestPermitsRejectInvalidArguments(t *testing.T) {
	s := redistest.Miniredis(t)
	sem := fixture.NewClient(t, s.Client(t)).PermitExpirableSemaphore("n")
	rows := map[string]func(ctx context.Context) error{
		"resize below 0": func(ctx context.Context) error { return sem.Resize(ctx, -1) },
		"too many permits": func(ctx context.Context) error {
			return fixture.ErrOf(sem.Acquire(ctx, primitives.WithPermits(100_001)))
		},
	}
	for name, id := range map[string]string{"no id": "", "no hex": strings.Repeat("x", 32), "short": "abcd",
		"long": strings.Repeat("ab", 17), "comma": foreignID(1) + ","} {
		rows["release "+name] = func(ctx context.Context) error { return sem.ReleaseID(ctx, id) }
		rows["adopt "+name] = func(ctx context.Context) error { return fixture.ErrOf(sem.Adopt(ctx, id)) }
	}
	for name, do := range rows {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, do(t.Context()), primitives.ErrInvalid) })
	}
	require.Zero(t, redistest.Commands(t, s).Total(), "no command is sent")
}

// permitCases end holds in different ways, and return the result of the last call. w.hold has 2 of
// 4 permits.
var permitCases = []struct {
	name string
	want error
	left int // free permits
	call func(t *testing.T, w *permitState) error
}{
	{"Adopt takes the permits from their holder", primitives.ErrLost, 2, func(t *testing.T, w *permitState) error {
		adopted := fixture.Adopt(t, fixture.NewClient(t, w.s.Client(t)).PermitExpirableSemaphore(w.key), w.hold.ID())
		require.Equal(t, 1, adopted.Depth())
		require.ErrorIs(t, w.hold.Check(t.Context()), primitives.ErrLost)
		fixture.RequireEnds(t, w.hold.Context(), primitives.ErrLost)
		require.NoError(t, adopted.Check(t.Context()))
		return w.hold.Release(t.Context())
	}},
	{"Detach leaves the permits taken", primitives.ErrReleased, 2, func(t *testing.T, w *permitState) error {
		require.Equal(t, w.hold.ID(), w.hold.Detach())
		fixture.RequireEnds(t, w.hold.Context(), primitives.ErrReleased)
		return w.hold.Release(t.Context())
	}},
	{"ReleaseID frees the permits of a detached hold", nil, 4, func(t *testing.T, w *permitState) error {
		return w.sem.ReleaseID(t.Context(), w.hold.Detach())
	}},
	{"Release returns what ReleaseID has left", primitives.ErrLost, 4, func(t *testing.T, w *permitState) error {
		require.NoError(t, w.sem.ReleaseID(t.Context(), strings.Split(w.hold.ID(), ",")[0]))
		return w.hold.Release(t.Context())
	}},
	{"permits come back when their lease ends", primitives.ErrLost, 2, func(t *testing.T, w *permitState) error {
		leased := fixture.Acquire(t, t.Context(), w.sem, primitives.WithPermits(2), primitives.WithLease(fixture.ShortLease))
		fixture.RequireEnds(t, leased.Context(), primitives.ErrLost)
		lost := leased.Release(t.Context())
		fixture.Release(t, fixture.Acquire(t, t.Context(), w.sem, primitives.WithPermits(2)))
		return lost
	}},
}

func TestPermitHolds(t *testing.T) {
	t.Parallel()
	for _, tt := range permitCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				w := watchPermits(t, s, redistest.Name(t))
				w.sem = fixture.NewClient(t, s.Client(t)).PermitExpirableSemaphore(w.key)
				fixture.InitPool(t, w.sem, 4)
				w.hold = fixture.Acquire(t, t.Context(), w.sem, primitives.WithPermits(2))
				require.ErrorIs(t, tt.call(t, w), tt.want)
				require.Equal(t, tt.left, fixture.Available(t, w.rdb, w.key))
			})
		})
	}
}

// TestPermitWaiterWakesWhenALeaseEnds checks that a waiter acquires within milliseconds of the end
// of a lease, which nobody publishes.
func TestPermitWaiterWakesWhenALeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := fixture.NewClient(t, redistest.Embedded(t).Client(t))
		sem := c.PermitExpirableSemaphore("n")
		fixture.InitPool(t, sem, 2)
		fixture.Acquire(t, ctx, sem)
		fixture.Acquire(t, ctx, sem, primitives.WithLease(300*time.Millisecond))
		began := time.Now()
		hold := fixture.Acquire(t, ctx, sem)
		require.InDelta(t, 302*time.Millisecond, time.Since(began), float64(3*time.Millisecond))
		fixture.Release(t, hold)
		fixture.CloseNow(c)
	})
}

// TestPermitsCollectExpiredOnesInSlices collects 10,000 permits whose leases have ended.
func TestPermitsCollectExpiredOnesInSlices(t *testing.T) {
	t.Parallel()
	const many = 10_000
	s := redistest.Redis(t)
	ctx, key := t.Context(), redistest.Name(t)
	sem := fixture.NewClient(t, s.Client(t)).PermitExpirableSemaphore(key)
	w := watchPermits(t, s, key)
	fixture.InitPool(t, sem, 0)
	members := make([]redis.Z, many)
	for i := range members {
		members[i] = redis.Z{Score: float64(i + 1), Member: fixture.Unhex(t, foreignID(i))}
	}
	require.NoError(t, w.rdb.ZAdd(ctx, w.leases, members...).Err())
	require.Equal(t, many, fixture.InfoOf(t, sem).Available)
	one := fixture.TryAcquire(t, ctx, sem)
	require.Equal(t, 999, fixture.Available(t, w.rdb, key), "one slice of 1,000")
	began := time.Now()
	all := fixture.TryAcquire(t, ctx, sem, primitives.WithPermits(many-1))
	t.Log("10,000 permits collected and acquired in", time.Since(began))
	require.Len(t, w.taken(t), many)
	require.Equal(t, 0, fixture.Available(t, w.rdb, key))
	require.NoError(t, all.Extend(ctx, time.Minute))
	fixture.Release(t, all, one)
	require.Equal(t, many, fixture.Available(t, w.rdb, key))
}

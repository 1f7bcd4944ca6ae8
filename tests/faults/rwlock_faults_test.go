package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRWLockCountsAreExactWhenRepliesAreLost (C16) drops replies at random. Redis has the right
// counts after each step.
func TestRWLockCountsAreExactWhenRepliesAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		measured, cuts := redistest.Bar(t, s, 1), 0
		p := s.Proxy(t)
		x := OnRWNamed(t, s, p.Client(t, Quick), redistest.Name(t))
		step := func(want map[string]string, f func() error) { // nil: the next step shows it
			t.Helper()
			lost := rand.IntN(3) // up to two of the four attempts
			cuts += lost
			p.DropReplies(lost, Script)
			require.NoError(t, f())
			p.Heal()
			if want != nil {
				require.Equal(t, want, Fields(t, s, x.Name))
			}
		}
		ctx, none := t.Context(), map[string]string{}
		n := redistest.Sized(s, redistest.Scaled(s, 200), FullCuts)
		for i := range n { // ten steps each, with one lost reply per step on average
			opts, id := []primitives.Option(nil), func(h *primitives.Hold) string { return h.ID() }
			if i%2 == 1 {
				opts, id = []primitives.Option{primitives.WithOwner("o")}, func(*primitives.Hold) string { return "o" }
			}
			var a, in, w, again *primitives.Hold
			count := func(mode, field string, n int) map[string]string {
				return map[string]string{"mode": mode, field: strconv.Itoa(n)}
			}
			take := func(hold **primitives.Hold, ctx context.Context, l *primitives.Lock,
				opts ...primitives.Option) error {
				got, err := l.Acquire(ctx, opts...)
				*hold = got
				return err
			}
			step(nil, func() error { return take(&a, ctx, x.Rw.Reader(), opts...) })
			step(count("read", id(a), 2), func() error { return take(&in, a.Context(), x.Rw.Reader()) })
			step(count("read", id(a), 1), func() error { return a.Release(ctx) })
			step(none, func() error { return in.Release(ctx) })
			step(nil, func() error { return take(&w, ctx, x.Rw.Writer(), opts...) })
			step(count("write", id(w)+":write", 2), func() error { return take(&again, w.Context(), x.Rw.Writer()) })
			both := count("write", id(w)+":write", 2)
			both[id(w)] = "1"
			step(both, func() error { return take(&in, context.WithoutCancel(w.Context()), x.Rw.Reader()) })
			both[id(w)+":write"] = "1"
			step(both, func() error { return again.Release(ctx) })
			step(count("read", id(w), 1), func() error { return w.Release(ctx) })
			step(none, func() error { return in.Release(ctx) })
		}
		RequireClean(t, s, x.Name)
		measured("%d replies lost in %d times ten calls: acquire and release of each side, nested, and a downgrade", cuts, n)
	})
}

// TestRWLockLateCopiesTakeNothing executes every recorded command again after all holds are
// released.
func TestRWLockLateCopiesTakeNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := OnRWNamed(t, s, p.Client(t), redistest.Name(t))
		p.Record()
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			for _, l := range []*primitives.Lock{x.Rw.Reader(), x.Rw.Writer()} {
				hold := Acquire(t, t.Context(), l, opts...)
				in := Acquire(t, hold.Context(), l)
				require.NoError(t, in.Extend(t.Context(), time.Minute))
				reading := Acquire(t, in.Context(), x.Rw.Reader())
				Release(t, hold)
				Release(t, reading)
				adopted, err := l.Adopt(t.Context(), hold.ID())
				require.NoError(t, err)
				Release(t, adopted)
				require.ErrorIs(t, in.Release(t.Context()), primitives.ErrLost)
				reader := Acquire(t, t.Context(), NewClient(t, s.Client(t)).RWLock(x.Name).Reader())
				_, err = x.Rw.Writer().Acquire(t.Context(), primitives.WithWait(20*time.Millisecond))
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				Release(t, reader)
			}
		}
		sent := ScriptsOf(p)
		require.Greater(t, len(sent), 20)
		stop := time.Now().Add(5 * time.Second) // Redis remembers the requests for longer
		for range redistest.Scaled(s, 10) {
			for _, i := range rand.Perm(len(sent)) {
				if time.Now().After(stop) {
					break
				}
				_ = Again(x.Rdb, sent[i]).Err()
				left, err := x.Rdb.Exists(t.Context(), x.Name, "redlatch_rwlock_claim:{"+x.Name+"}").Result()
				require.NoError(t, err)
				require.Zero(t, left, "%v", sent[i].Args)
			}
		}
		require.Empty(t, x.State(t))
	})
}

// TestRWLockCancelledAcquireLeavesNothing (C5) cancels acquisitions at random times. No key, claim
// or channel stays.
func TestRWLockCancelledAcquireLeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		measured := redistest.Bar(t, s, 4)
		name := redistest.Name(t)
		c := NewClient(t, s.Client(t))
		rounds, meanTimeout := redistest.Sized(s, redistest.Scaled(s, 100), 5000), 4*time.Millisecond
		if s.Mini() != nil {
			meanTimeout *= 20
		}
		var got atomic.Int64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				rw := c.RWLock(name + "-" + strconv.Itoa(i%4))
				for range rounds {
					l := rw.Reader()
					if rand.IntN(3) == 0 {
						l = rw.Writer()
					}
					ctx, cancel := context.WithTimeoutCause(t.Context(),
						time.Duration(rand.ExpFloat64()*float64(meanTimeout)), ErrTest)
					hold, err := l.Acquire(ctx)
					if err == nil {
						got.Add(1)
						err = hold.Release(ctx)
					} else {
						assert.ErrorIs(t, err, ErrTest)
						assert.True(t, errors.Is(err, primitives.ErrNotAcquired) || errors.Is(err, primitives.ErrUnavailable), err)
						err = nil
					}
					assert.NoError(t, err)
					cancel()
				}
			})
		}
		wg.Wait()
		clean := RequireClean(t, s, name)
		measured("%d acquisitions, %d of them cancelled in time; nothing left after %v",
			20*rounds, 20*rounds-int(got.Load()), clean)
		require.NoError(t, c.Close(t.Context()))
	})
}

// TestRWLockReleasesWhenRedisIsFull checks that a full server refuses new holds, and that holds are
// still renewed and released.
func TestRWLockReleasesWhenRedisIsFull(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	x := OnRW(t, s)
	ctx := t.Context()
	lock := func(suffix string) *primitives.RWLock { return x.C.RWLock(x.Name + suffix) }
	renewed := primitives.WithWatchdog(Watched)
	a := Acquire(t, ctx, x.Rw.Reader(), renewed)
	in := Acquire(t, a.Context(), x.Rw.Reader(), renewed)
	short := Acquire(t, ctx, x.Rw.Reader(), primitives.WithLease(time.Minute))
	one, two := Acquire(t, ctx, lock("-o").Reader(), primitives.WithOwner("o")), Acquire(t, ctx, lock("-o").Reader(),
		primitives.WithOwner("o"))
	w := Acquire(t, ctx, lock("-w").Writer(), renewed)
	v := Acquire(t, w.Context(), lock("-w").Writer(), renewed)
	r := Acquire(t, context.WithoutCancel(w.Context()), lock("-w").Reader(), renewed)
	Acquire(t, ctx, lock("-f").Reader())
	Acquire(t, ctx, lock("-g").Writer())
	require.NoError(t, x.Rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, l := range []*primitives.Lock{lock("-new").Reader(), lock("-new").Writer(), x.Rw.Reader(), x.Rw.Writer()} {
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("p")}} {
			_, err := l.Acquire(ctx, opts...)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		}
	}
	_, err := x.Rw.Reader().Acquire(a.Context())
	require.ErrorContains(t, err, "OOM")
	require.NoError(t, a.Extend(ctx, Watched+time.Second))
	AwaitRenewal(t, 2, a, in, w, v, r)
	for _, h := range []*primitives.Hold{a, in, w, v, r} {
		require.NoError(t, h.Check(ctx), "renewed")
	}
	for _, h := range []*primitives.Hold{a, in, short, one, two, w, v, r} {
		Release(t, h)
	}
	for _, l := range []*primitives.Lock{lock("-f").Reader(), lock("-g").Writer()} {
		held, err := l.ForceRelease(ctx)
		require.NoError(t, err)
		require.True(t, held)
	}
	require.NoError(t, x.Rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	RequireClean(t, s, x.Name)
}

// TestRWLockChecksPermissionsBeforeWriting checks that an acquisition fails and writes nothing if
// its release would lack a permission.
func TestRWLockChecksPermissionsBeforeWriting(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	name := redistest.Name(t)
	all := "~" + name + " ~{" + name + "}:* ~redisson_unlock_latch:{" + name + "}:* " +
		"~redisson_rwlock:{" + name + "} ~redlatch_rwlock_claim:{" + name + "} "
	for _, tt := range []struct {
		name, rules string
		ok          bool
	}{
		{"all permissions", all + "&redisson_rwlock:{" + name + "}", true},
		{"no channel", "~*", false},
		{"no publish", "~* &* -publish", false},
		{"no timeout keys", strings.Replace(all, "~{"+name+"}:* ", "", 1) + "&*", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []any{"acl", "setuser", tt.name, "on", ">pw", "+@all", "resetchannels", "resetkeys"}
			for rule := range strings.FieldsSeq(tt.rules) {
				args = append(args, rule)
			}
			args[2] = "u" + strconv.Itoa(len(tt.name))
			require.NoError(t, admin.Do(t.Context(), args...).Err())
			rw := NewClient(t,
				s.Client(t, func(o *redis.Options) { o.Username, o.Password = args[2].(string), "pw" })).RWLock(name)
			for _, l := range []*primitives.Lock{rw.Reader(), rw.Writer()} {
				for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
					hold, err := l.Acquire(t.Context(), opts...)
					if tt.ok {
						require.NoError(t, err)
						Release(t, hold)
						continue
					}
					require.Error(t, err)
					require.True(t, strings.Contains(err.Error(), "NOPERM") ||
						strings.Contains(err.Error(), "No permissions"), err)
					require.Empty(t, Fields(t, s, name))
				}
			}
		})
	}
	RequireClean(t, s, name)
}

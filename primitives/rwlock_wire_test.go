package primitives_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRWLockWireFormat checks the keys and messages in Redis after each step. The result must not
// depend on what the network repeats. The last reader publishes "0" when it releases the lock. A
// writer publishes "1", and so does one that withdraws its claim.
func TestRWLockWireFormat(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		run  func(t *testing.T, x *rwTest)
	}{
		{"reader", testWireReader},
		{"writer", testWireWriter},
		{"downgrade", testWireDowngrade},
		{"read released before the write", testWireReadReleasedBeforeWrite},
		{"caller-chosen owner", testWireOwners},
		{"adopt and release a reader by id", testWireReaderByID},
		{"adopt and release a writer by id", testWireWriterByID},
		{"force release", testWireForceRelease},
		{"claim of a waiting writer", testWireWriterClaim},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, network := range networks {
			t.Run(network.name, func(t *testing.T) {
				for _, tt := range cases {
					t.Run(tt.name, func(t *testing.T) {
						tt.run(t, onRWNamed(t, s, network.open(t, s), redistest.Name(t)))
					})
				}
			})
		}
	})
}

// testWireReader: each read hold has a timeout key, and the hash lives as long as the longest one.
func testWireReader(t *testing.T, x *rwTest) {
	ctx := t.Context()
	a := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(20*time.Second))
	x.requireState(t, reads(a.ID(), 1))
	x.requireTTL(t, x.name, 20*time.Second)
	x.requireTTL(t, x.timeoutKey(a.ID(), 1), 20*time.Second)
	in := acquire(t, a.Context(), x.rw.Reader())
	require.Equal(t, a.ID(), in.ID())
	require.Equal(t, 2, in.Depth())
	x.requireState(t, reads(a.ID(), 2))
	x.requireTTL(t, x.name, 30*time.Second)
	x.requireTTL(t, x.timeoutKey(a.ID(), 1), 20*time.Second)
	x.requireTTL(t, x.timeoutKey(a.ID(), 2), 30*time.Second)
	release(t, a)
	x.requireState(t, reads(a.ID(), 1))
	x.requireTTL(t, x.timeoutKey(a.ID(), 1), 30*time.Second)
	b := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(time.Minute))
	x.requireState(t, mergeStates(reads(a.ID(), 1), reads(b.ID(), 1)))
	x.requireTTL(t, x.name, time.Minute)
	release(t, b)
	x.requireState(t, reads(a.ID(), 1))
	x.requireTTL(t, x.name, 30*time.Second)
	require.NoError(t, in.Extend(ctx, time.Hour))
	x.requireTTL(t, x.name, time.Hour)
	x.requireTTL(t, x.timeoutKey(a.ID(), 1), time.Hour)
	require.NoError(t, in.Check(ctx))
	_, err := x.rw.Writer().TryAcquire(ctx)
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	x.requireState(t, reads(a.ID(), 1)) // a refused attempt publishes nothing
	release(t, in)
	x.requireState(t, nil, "0")
}

// testWireWriter: the hash carries the writer's TTL, and nested holds are counted in its field.
func testWireWriter(t *testing.T, x *rwTest) {
	ctx := t.Context()
	a := acquire(t, ctx, x.rw.Writer())
	x.requireState(t, writes(a.ID(), 1))
	x.requireTTL(t, x.name, 30*time.Second)
	in := acquire(t, a.Context(), x.rw.Writer(), primitives.WithLease(time.Minute))
	x.requireState(t, writes(a.ID(), 2))
	x.requireTTL(t, x.name, time.Minute)
	require.NoError(t, in.Extend(ctx, time.Hour))
	x.requireTTL(t, x.name, time.Hour)
	require.NoError(t, in.Check(ctx))
	release(t, in)
	x.requireState(t, writes(a.ID(), 1))
	release(t, a)
	x.requireState(t, nil, "1")
}

// testWireDowngrade: the writer's id also counts as a reader, which stays when the writer leaves.
func testWireDowngrade(t *testing.T, x *rwTest) {
	ctx := t.Context()
	w := acquire(t, ctx, x.rw.Writer(), primitives.WithLease(time.Minute))
	r := acquire(t, context.WithoutCancel(w.Context()), x.rw.Reader())
	require.Equal(t, w.ID(), r.ID())
	require.Equal(t, 2, r.Depth())
	x.requireState(t, mergeStates(writes(w.ID(), 1), reads(w.ID(), 1)))
	sibling := acquire(t, w.Context(), x.rw.Reader())
	x.requireState(t, mergeStates(writes(w.ID(), 1), reads(w.ID(), 2)))
	release(t, sibling)
	x.requireState(t, mergeStates(writes(w.ID(), 1), reads(w.ID(), 1)))
	x.requireTTL(t, x.name, time.Minute)
	release(t, w)
	x.requireState(t, reads(w.ID(), 1), "1")
	x.requireTTL(t, x.name, 30*time.Second)
	requireLive(t, r.Context())
	in := acquire(t, r.Context(), x.rw.Reader())
	require.Equal(t, 3, in.Depth())
	x.requireState(t, reads(w.ID(), 2))
	release(t, r)
	release(t, in)
	x.requireState(t, nil, "0")
}

func testWireReadReleasedBeforeWrite(t *testing.T, x *rwTest) {
	ctx := t.Context()
	w := acquire(t, ctx, x.rw.Writer())
	r := acquire(t, w.Context(), x.rw.Reader())
	release(t, r)
	x.requireState(t, writes(w.ID(), 1))
	release(t, w)
	x.requireState(t, nil, "1")
}

// testWireOwners: holds of one owner share its id and are counted.
func testWireOwners(t *testing.T, x *rwTest) {
	ctx := t.Context()
	opt := primitives.WithOwner("o")
	a, b := acquire(t, ctx, x.rw.Reader(), opt), acquire(t, ctx, x.rw.Reader(), opt)
	x.requireState(t, reads("o", 2))
	release(t, a)
	x.requireState(t, reads("o", 1))
	release(t, b)
	x.requireState(t, nil, "0")
	w, v := acquire(t, ctx, x.rw.Writer(), opt), acquire(t, ctx, x.rw.Writer(), opt)
	x.requireState(t, writes("o", 2))
	a = acquire(t, ctx, x.rw.Reader(), opt)
	x.requireState(t, mergeStates(writes("o", 2), reads("o", 1)))
	release(t, w)
	x.requireState(t, mergeStates(writes("o", 1), reads("o", 1)))
	release(t, v)
	x.requireState(t, reads("o", 1), "1")
	release(t, a)
	x.requireState(t, nil, "0")
}

// testWireReaderByID: Adopt replaces the id and ends the former hold.
func testWireReaderByID(t *testing.T, x *rwTest) {
	ctx := t.Context()
	a := acquire(t, ctx, x.rw.Reader())
	acquire(t, a.Context(), x.rw.Reader())
	b, err := x.rw.Reader().Adopt(ctx, a.ID(), primitives.WithLease(time.Minute))
	require.NoError(t, err)
	require.NotEqual(t, a.ID(), b.ID())
	x.requireState(t, reads(b.ID(), 2))
	x.requireTTL(t, x.name, time.Minute)
	require.ErrorIs(t, a.Check(ctx), primitives.ErrLost)
	c, err := x.rw.Reader().Adopt(ctx, b.ID(), primitives.WithLease(20*time.Second))
	require.NoError(t, err)
	x.requireState(t, reads(c.ID(), 2))
	x.requireTTL(t, x.name, 20*time.Second)
	require.NoError(t, x.rw.Reader().ReleaseID(ctx, c.ID()))
	x.requireState(t, reads(c.ID(), 1))
	require.ErrorIs(t, x.rw.Writer().ReleaseID(ctx, c.ID()), primitives.ErrNotHeld)
	release(t, c)
	x.requireState(t, nil, "0")
	require.ErrorIs(t, x.rw.Reader().ReleaseID(ctx, c.ID()), primitives.ErrNotHeld)
	_, err = x.rw.Reader().Adopt(ctx, c.ID())
	require.ErrorIs(t, err, primitives.ErrNotHeld)
}

func testWireWriterByID(t *testing.T, x *rwTest) {
	ctx := t.Context()
	w := acquire(t, ctx, x.rw.Writer())
	acquire(t, w.Context(), x.rw.Writer())
	r := acquire(t, w.Context(), x.rw.Reader())
	_, err := x.rw.Reader().Adopt(ctx, w.ID())
	require.ErrorIs(t, err, primitives.ErrUnsupported)
	v, err := x.rw.Writer().Adopt(ctx, w.ID())
	require.NoError(t, err)
	x.requireState(t, writes(v.ID(), 2))
	require.ErrorIs(t, r.Check(ctx), primitives.ErrLost)
	require.ErrorIs(t, w.Check(ctx), primitives.ErrLost)
	require.NoError(t, x.rw.Writer().ReleaseID(ctx, v.ID()))
	x.requireState(t, writes(v.ID(), 1))
	require.NoError(t, x.rw.Writer().ReleaseID(ctx, v.ID()))
	x.requireState(t, nil, "1")
	require.ErrorIs(t, v.Release(ctx), primitives.ErrLost)
}

// testWireForceRelease: each side releases its own holders only.
func testWireForceRelease(t *testing.T, x *rwTest) {
	ctx := t.Context()
	force := func(l *primitives.Lock, want bool) {
		t.Helper()
		held, err := l.ForceRelease(ctx)
		require.NoError(t, err)
		require.Equal(t, want, held)
	}
	force(x.rw.Reader(), false)
	force(x.rw.Writer(), false)
	x.requireState(t, nil)
	a := acquire(t, ctx, x.rw.Reader())
	acquire(t, ctx, x.rw.Reader())
	force(x.rw.Writer(), false)
	force(x.rw.Reader(), true)
	x.requireState(t, nil, "0")
	require.ErrorIs(t, a.Release(ctx), primitives.ErrLost)
	w := acquire(t, ctx, x.rw.Writer())
	acquire(t, w.Context(), x.rw.Reader())
	force(x.rw.Reader(), true)
	x.requireState(t, writes(w.ID(), 1))
	force(x.rw.Reader(), false)
	acquire(t, w.Context(), x.rw.Reader())
	force(x.rw.Writer(), true)
	x.requireState(t, reads(w.ID(), 1), "1")
	require.ErrorIs(t, w.Release(ctx), primitives.ErrLost)
	force(x.rw.Reader(), true)
	x.requireState(t, nil, "0")
}

// testWireWriterClaim: the claim of a waiting writer keeps new readers out, but not nested ones.
func testWireWriterClaim(t *testing.T, x *rwTest) {
	ctx := t.Context()
	claim := "redlatch_rwlock_claim:{" + x.name + "}"
	r := acquire(t, ctx, x.rw.Reader())
	cancelled, cancel := context.WithCancel(ctx)
	w := start(func() (*primitives.Hold, error) { return x.rw.Writer().Acquire(cancelled) })
	redistest.WaitFor(t, soon, func() bool { return x.rdb.Exists(ctx, claim).Val() == 1 }, "the writer claims")
	x.requireTTL(t, claim, 2500*time.Millisecond)
	_, err := x.other(t).Reader().TryAcquire(ctx)
	require.ErrorIs(t, err, primitives.ErrNotAcquired, "a reader waits behind a waiting writer")
	_, err = x.other(t).Reader().TryAcquire(ctx, primitives.WithOwner("o"))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	in := acquire(t, r.Context(), x.rw.Reader())
	x.requireState(t, reads(r.ID(), 2))
	release(t, in)
	require.True(t, x.redisson(1).readLock(t, time.Minute), "Redisson does not know claims")
	x.redisson(1).readUnlock(t)
	cancel()
	require.ErrorIs(t, await(t, w).err, primitives.ErrNotAcquired)
	// The call waits for the withdrawal for a moment only. The message below shows that the claim has not
	// just expired.
	redistest.WaitFor(t, soon, func() bool { return x.rdb.Exists(ctx, claim).Val() == 0 }, "the claim is withdrawn")
	x.requireState(t, reads(r.ID(), 1), "1")
	w = start(func() (*primitives.Hold, error) { return x.rw.Writer().Acquire(ctx) })
	redistest.WaitFor(t, soon, func() bool { return x.rdb.Exists(ctx, claim).Val() == 1 }, "the writer claims again")
	release(t, r)
	got := await(t, w)
	require.NoError(t, got.err)
	x.requireState(t, writes(got.hold.ID(), 1), "0")
	require.Zero(t, x.rdb.Exists(ctx, claim).Val())
	release(t, got.hold)
	x.requireState(t, nil, "1")
}

package primitives_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

type rwOptions = []primitives.Option

// rwAdmissionCase is a state of the lock, and the result of one attempt to acquire each side.
type rwAdmissionCase struct {
	name        string
	setUp       func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) // returns the arguments
	read, write error
}

// The error of an attempt; nil if it acquires.
var (
	rwYes      error
	rwNo       = primitives.ErrNotAcquired
	rwDeadlock = primitives.ErrDeadlock
)

func rwAdmissionCases() []rwAdmissionCase {
	plain := func(f func(t *testing.T, x *fixture.RWTest)) func(t *testing.T, x *fixture.RWTest) (context.Context,
		rwOptions) {
		return func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) { f(t, x); return t.Context(), nil }
	}
	return []rwAdmissionCase{
		{"free", plain(func(*testing.T, *fixture.RWTest) {}), rwYes, rwYes},
		{"a reader", plain(func(t *testing.T, x *fixture.RWTest) { fixture.Acquire(t, t.Context(), x.RW.Reader()) }),
			rwYes, rwNo},
		{"two readers", plain(func(t *testing.T, x *fixture.RWTest) {
			fixture.Acquire(t, t.Context(), x.RW.Reader())
			fixture.Acquire(t, t.Context(), x.Other(t).Reader())
		}), rwYes, rwNo},
		{"a writer", plain(func(t *testing.T, x *fixture.RWTest) { fixture.Acquire(t, t.Context(), x.RW.Writer()) }),
			rwNo, rwNo},
		{"a writer of another client", plain(func(t *testing.T, x *fixture.RWTest) {
			fixture.Acquire(t, t.Context(), x.Other(t).Writer())
		}), rwNo, rwNo},
		{"a writer that also reads", plain(func(t *testing.T, x *fixture.RWTest) {
			fixture.Acquire(t, fixture.Acquire(t, t.Context(), x.RW.Writer()).Context(), x.RW.Reader())
		}), rwNo, rwNo},
		{"a writer downgraded to a reader", plain(func(t *testing.T, x *fixture.RWTest) {
			w := fixture.Acquire(t, t.Context(), x.RW.Writer())
			fixture.Acquire(t, w.Context(), x.RW.Reader())
			fixture.Release(t, w)
		}), rwYes, rwNo},
		{"ctx carries a read hold", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			return fixture.Acquire(t, t.Context(), x.RW.Reader()).Context(), nil
		}, rwYes, rwDeadlock},
		{"ctx carries a read hold nested in a write hold",
			func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
				return fixture.Acquire(t, fixture.Acquire(t, t.Context(), x.RW.Writer()).Context(), x.RW.Reader()).Context(), nil
			}, rwYes, rwYes},
		{"ctx carries a write hold", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			return fixture.Acquire(t, t.Context(), x.RW.Writer()).Context(), nil
		}, rwYes, rwYes},
		{"ctx carries a released read hold", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			r := fixture.Acquire(t, t.Context(), x.RW.Reader())
			fixture.Release(t, r)
			return context.WithoutCancel(r.Context()), nil
		}, rwYes, rwYes},
		{"a Redisson reader", plain(func(t *testing.T, x *fixture.RWTest) {
			require.True(t, x.Redisson(1).ReadLock(t, time.Minute))
		}), rwYes, rwNo},
		{"a Redisson writer", plain(func(t *testing.T, x *fixture.RWTest) {
			require.True(t, x.Redisson(1).WriteLock(t, time.Minute))
		}), rwNo, rwNo},
		{"a plain lock", plain(func(t *testing.T,
			x *fixture.RWTest) {
			fixture.Acquire(t, t.Context(), x.C.Lock(x.Name))
		}), rwNo, rwNo},
	}
}

// rwOwnerAdmissionCases are the cases in which the attempt has a caller-chosen owner.
func rwOwnerAdmissionCases() []rwAdmissionCase {
	owner := primitives.WithOwner("owner")
	return []rwAdmissionCase{
		{"the owner reads", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			fixture.Acquire(t, t.Context(), x.Other(t).Reader(), owner)
			return t.Context(), rwOptions{owner}
		}, rwYes, rwDeadlock},
		{"the owner and another reader", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			fixture.Acquire(t, t.Context(), x.Other(t).Reader(), owner)
			fixture.Acquire(t, t.Context(), x.RW.Reader())
			return t.Context(), rwOptions{owner}
		}, rwYes, rwDeadlock},
		{"an expired read of the owner, another reader", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			fixture.Acquire(t, t.Context(), x.RW.Reader())
			require.NoError(t, x.Rdb.HSet(t.Context(), x.Name, "owner", 1).Err())
			return t.Context(), rwOptions{owner}
		}, rwYes, rwNo},
		{"the owner writes", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			fixture.Acquire(t, t.Context(), x.Other(t).Writer(), owner)
			return t.Context(), rwOptions{owner}
		}, rwYes, rwYes},
		{"another owner writes", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			fixture.Acquire(t, t.Context(), x.Other(t).Writer(), owner)
			return t.Context(), rwOptions{primitives.WithOwner("another")}
		}, rwNo, rwNo},
		{"the owner is a Redisson thread that writes", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			require.True(t, x.Redisson(1).WriteLock(t, time.Minute))
			return t.Context(), rwOptions{primitives.WithOwner(x.Redisson(1).ID)}
		}, rwYes, rwYes},
		{"the owner is a Redisson thread that reads", func(t *testing.T, x *fixture.RWTest) (context.Context, rwOptions) {
			require.True(t, x.Redisson(1).ReadLock(t, time.Minute))
			return t.Context(), rwOptions{primitives.WithOwner(x.Redisson(1).ID)}
		}, rwYes, rwDeadlock},
	}
}

func TestRWLockAdmission(t *testing.T) {
	t.Parallel()
	for _, tt := range append(rwAdmissionCases(), rwOwnerAdmissionCases()...) {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for side, want := range map[string]error{"read": tt.read, "write": tt.write} {
					t.Run(side, func(t *testing.T) { testRWAdmission(t, fixture.OnRW(t, s), tt, side, want) })
				}
			})
		})
	}
}

func testRWAdmission(t *testing.T, x *fixture.RWTest, tt rwAdmissionCase, side string, want error) {
	ctx, opts := tt.setUp(t, x)
	l := x.RW.Reader()
	if side == "write" {
		l = x.RW.Writer()
	}
	hold, err := l.TryAcquire(ctx, opts...)
	require.ErrorIs(t, err, want)
	if hold != nil {
		fixture.Release(t, hold)
	}
	if errors.Is(want, primitives.ErrDeadlock) {
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		err := fixture.ErrOf(l.Acquire(ctx, opts...))
		require.ErrorIs(t, err, primitives.ErrDeadlock, "Acquire does not wait for itself")
		require.ErrorContains(t, err, "would deadlock: ") // and the reason
	}
	_, err = x.S.Client(t).Get(t.Context(), "redlatch_rwlock_claim:{"+x.Name+"}").Result()
	require.ErrorIs(t, err, redis.Nil, "TryAcquire claims nothing")
}

// TestRWLockWritersRunAlone runs 16 clients with 100 critical sections each. Every fourth one
// writes.
func TestRWLockWritersRunAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		times := redistest.Scaled(s, 100)
		n, written := 0, 0 // only the lock guards n
		var inside, readers, most atomic.Int64
		var wg sync.WaitGroup
		for i := range 16 {
			rw := fixture.NewClient(t, s.Client(t)).RWLock(name)
			for j := range times {
				if (i+j)%4 == 0 {
					written++
				}
			}
			wg.Go(func() {
				for j := range times {
					var err error
					if (i+j)%4 == 0 {
						err = rw.Writer().Do(t.Context(), func(context.Context) error {
							if inside.Add(1) != 1 {
								t.Error("a writer runs beside another holder")
							}
							n++
							inside.Add(-1)
							return nil
						})
					} else {
						err = rw.Reader().Do(t.Context(), func(context.Context) error {
							inside.Add(1)
							most.Store(max(most.Load(), readers.Add(1)))
							_ = n // the race detector reports a writer that runs beside this read
							time.Sleep(time.Millisecond)
							readers.Add(-1)
							inside.Add(-1)
							return nil
						})
					}
					if !assert.NoError(t, err) {
						return
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, written, n)
		require.Greater(t, most.Load(), int64(1), "readers run concurrently")
		fixture.RequireClean(t, s, name)
	})
}

// TestRWLockWriterIsNotStarved acquires the writer while readers overlap without a break.
func TestRWLockWriterIsNotStarved(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var reads atomic.Int64
		for range 4 {
			reader := fixture.NewClient(t, s.Client(t)).RWLock(name).Reader()
			for range 3 {
				wg.Go(func() {
					for ctx.Err() == nil {
						_ = reader.Do(ctx, func(context.Context) error {
							reads.Add(1)
							time.Sleep(time.Duration(10+rand.IntN(20)) * time.Millisecond)
							return nil
						})
					}
				})
			}
		}
		redistest.WaitFor(t, fixture.Soon, func() bool { return reads.Load() > 12 }, "readers run")
		writer := fixture.NewClient(t, s.Client(t)).RWLock(name).Writer()
		for range 5 {
			began, before := time.Now(), reads.Load()
			// Without a claim the writer would never find the lock free.
			hold := fixture.Acquire(t, t.Context(), writer, primitives.WithWait(fixture.Soon))
			t.Logf("acquired after %v and %d readers", time.Since(began), reads.Load()-before)
			fixture.Release(t, hold)
			before = reads.Load()
			redistest.WaitFor(t, fixture.Soon, func() bool { return reads.Load() > before+12 }, "readers run again")
		}
		cancel()
		wg.Wait()
		fixture.RequireClean(t, s, name)
	})
}

// TestRWLockWriteReleaseWakesAllReaders has twenty readers of several clients wait for a writer,
// which may downgrade. All readers acquire after the release.
func TestRWLockWriteReleaseWakesAllReaders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, downgrade := range []bool{false, true} {
			x := fixture.OnRW(t, s)
			w := fixture.Acquire(t, t.Context(), x.RW.Writer())
			if downgrade {
				fixture.Acquire(t, w.Context(), x.RW.Reader())
			}
			var waiting []<-chan fixture.Result
			for range 4 {
				c := fixture.NewClient(t, s.Client(t))
				reader := c.RWLock(x.Name).Reader()
				for range 5 {
					waiting = append(waiting, fixture.StartAcquire(t.Context(), reader))
				}
				fixture.AwaitWaiters(t, c, 5)
			}
			x.AwaitWaiter(t)
			released := time.Now()
			fixture.Release(t, w)
			for _, c := range waiting {
				got := fixture.AwaitAcquired(t, c)
				require.Less(t, got.At.Sub(released), fixture.SlowPoll)
			}
		}
	})
}

// TestRWLockNestedReadersShareAndNestedWritersExclude nests siblings under one hold.
func TestRWLockNestedReadersShareAndNestedWritersExclude(t *testing.T) {
	t.Parallel()
	fixture.EachRW(t, func(t *testing.T, x *fixture.RWTest) {
		r := fixture.Acquire(t, t.Context(), x.RW.Reader())
		siblings := []*primitives.Hold{fixture.Acquire(t, r.Context(), x.RW.Reader()),
			fixture.Acquire(t, r.Context(), x.RW.Reader())}
		require.Equal(t, "3", fixture.Fields(t, x.S, x.Name)[r.ID()])
		fixture.Release(t, r, siblings[0], siblings[1])
		w := fixture.Acquire(t, t.Context(), x.RW.Writer())
		first := fixture.Acquire(t, w.Context(), x.RW.Writer())
		require.ErrorIs(t, fixture.ErrOf(x.RW.Writer().TryAcquire(w.Context())), primitives.ErrNotAcquired)
		for range 2 {
			fixture.Release(t, fixture.Acquire(t, first.Context(), x.RW.Reader()))
		}
		require.ErrorIs(t, fixture.ErrOf(x.RW.Reader().Acquire(w.Context(), primitives.WithNonReentrant())),
			primitives.ErrDeadlock)
		fixture.Release(t, first, w)
		fixture.RequireClean(t, x.S, x.Name)
	})
}

func TestRWLockInfoListsTheHoldersOfItsSide(t *testing.T) {
	t.Parallel()
	type (
		Info   = primitives.Info
		Holder = primitives.Holder
	)
	fixture.RWBubble(t, func(t *testing.T, x *fixture.RWTest) {
		ctx := t.Context()
		info := func(l *primitives.Lock, want Info) {
			t.Helper()
			got := fixture.InfoOf(t, l)
			slices.SortFunc(got.Holders, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
			require.Equal(t, want, got)
		}
		noReader, noWriter := Info{Name: "n", Kind: "reader"}, Info{Name: "n", Kind: "writer"}
		info(x.RW.Reader(), noReader)
		info(x.RW.Writer(), noWriter)
		a := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithLease(10*time.Second))
		b := fixture.Acquire(t, ctx, x.RW.Reader(), primitives.WithLease(20*time.Second))
		in := fixture.Acquire(t, a.Context(), x.RW.Reader(), primitives.WithLease(15*time.Second))
		info(x.RW.Reader(), Info{Name: "n", Kind: "reader", TTL: 20 * time.Second, Holders: []Holder{
			{ID: a.ID(), Count: 2, TTL: 15 * time.Second}, {ID: b.ID(), Count: 1, TTL: 20 * time.Second},
		}})
		info(x.RW.Writer(), noWriter)
		for _, h := range []*primitives.Hold{a, b, in} {
			fixture.Release(t, h)
		}
		w := fixture.Acquire(t, ctx, x.RW.Writer(), primitives.WithLease(time.Minute))
		info(x.RW.Reader(), noReader)
		info(x.RW.Writer(), Info{Name: "n", Kind: "writer", TTL: time.Minute, Holders: []Holder{
			{ID: w.ID(), Count: 1, TTL: time.Minute},
		}})
		r := fixture.Acquire(t, w.Context(), x.RW.Reader(), primitives.WithLease(10*time.Second))
		info(x.RW.Reader(), Info{Name: "n", Kind: "reader", TTL: 10 * time.Second, Holders: []Holder{
			{ID: r.ID(), Count: 1, TTL: 10 * time.Second},
		}})
		require.Nil(t, x.RW.Reader().HoldFrom(w.Context()))
		require.Nil(t, x.RW.Writer().HoldFrom(ctx))
		require.Same(t, w, x.RW.Writer().HoldFrom(r.Context()))
		require.Same(t, r, x.RW.Reader().HoldFrom(r.Context()))
		require.Same(t, x.RW.Reader(), x.RW.Reader())
		require.Equal(t, []string{"n", "n", "n"}, []string{x.RW.Name(), r.Name(), w.Name()})
		require.Zero(t, r.Token())
	})
}

func TestRWLockInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	c := fixture.NewClient(t, cluster.ClusterClient(t))
	for _, name := range []string{redistest.Name(t), "{" + redistest.Name(t) + "}x"} {
		rw := c.RWLock(name)
		a := fixture.Acquire(t, t.Context(), rw.Reader())
		b := fixture.Acquire(t, t.Context(), rw.Reader(), primitives.WithLease(time.Minute))
		other := fixture.NewClient(t, cluster.ClusterClient(t))
		waiting := fixture.StartAcquire(t.Context(), other.RWLock(name).Writer())
		fixture.Release(t, b)
		require.NoError(t, a.Extend(t.Context(), time.Minute))
		fixture.AwaitWaiters(t, other, 1)
		fixture.Release(t, a)
		next := fixture.AwaitHold(t, waiting)
		third := fixture.NewClient(t, cluster.ClusterClient(t)).RWLock(name).Reader()
		fixture.Release(t, fixture.Acquire(t, next.Context(), third, primitives.WithOwner(next.ID())))
		fixture.Release(t, next)
	}
	for _, name := range []string{"{}x", "a{b", "a}b"} {
		for _, l := range []*primitives.Lock{c.RWLock(name).Reader(), c.RWLock(name).Writer()} {
			require.ErrorIs(t, fixture.ErrOf(l.Acquire(t.Context())), primitives.ErrInvalid, name)
		}
	}
}

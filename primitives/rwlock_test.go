package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

type rwOptions = []primitives.Option

// rwAdmissionCase is a state of the lock, and the result of one attempt to acquire each side.
type rwAdmissionCase struct {
	name        string
	setUp       func(t *testing.T, x *rwTest) (context.Context, rwOptions) // returns the arguments
	read, write error
}

// The error of an attempt; nil: acquired.
var (
	rwYes      error
	rwNo       = primitives.ErrNotAcquired
	rwDeadlock = primitives.ErrDeadlock
)

func rwAdmissionCases() []rwAdmissionCase {
	plain := func(f func(t *testing.T, x *rwTest)) func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
		return func(t *testing.T, x *rwTest) (context.Context, rwOptions) { f(t, x); return t.Context(), nil }
	}
	return []rwAdmissionCase{
		{"free", plain(func(*testing.T, *rwTest) {}), rwYes, rwYes},
		{"a reader", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.rw.Reader()) }), rwYes, rwNo},
		{"two readers", plain(func(t *testing.T, x *rwTest) {
			acquire(t, t.Context(), x.rw.Reader())
			acquire(t, t.Context(), x.other(t).Reader())
		}), rwYes, rwNo},
		{"a writer", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.rw.Writer()) }), rwNo, rwNo},
		{"a writer of another client", plain(func(t *testing.T, x *rwTest) {
			acquire(t, t.Context(), x.other(t).Writer())
		}), rwNo, rwNo},
		{"a writer that also reads", plain(func(t *testing.T, x *rwTest) {
			acquire(t, acquire(t, t.Context(), x.rw.Writer()).Context(), x.rw.Reader())
		}), rwNo, rwNo},
		{"a writer downgraded to a reader", plain(func(t *testing.T, x *rwTest) {
			w := acquire(t, t.Context(), x.rw.Writer())
			acquire(t, w.Context(), x.rw.Reader())
			release(t, w)
		}), rwYes, rwNo},
		{"ctx carries a read hold", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			return acquire(t, t.Context(), x.rw.Reader()).Context(), nil
		}, rwYes, rwDeadlock},
		{"ctx carries a read hold nested in a write hold", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			return acquire(t, acquire(t, t.Context(), x.rw.Writer()).Context(), x.rw.Reader()).Context(), nil
		}, rwYes, rwYes},
		{"ctx carries a write hold", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			return acquire(t, t.Context(), x.rw.Writer()).Context(), nil
		}, rwYes, rwYes},
		{"ctx carries a released read hold", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			r := acquire(t, t.Context(), x.rw.Reader())
			release(t, r)
			return context.WithoutCancel(r.Context()), nil
		}, rwYes, rwYes},
		{"a Redisson reader", plain(func(t *testing.T, x *rwTest) {
			require.True(t, x.redisson(1).readLock(t, time.Minute))
		}), rwYes, rwNo},
		{"a Redisson writer", plain(func(t *testing.T, x *rwTest) {
			require.True(t, x.redisson(1).writeLock(t, time.Minute))
		}), rwNo, rwNo},
		{"a plain lock", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.c.Lock(x.name)) }), rwNo, rwNo},
	}
}

// rwOwnerAdmissionCases are the cases in which the attempt has a caller-chosen owner.
func rwOwnerAdmissionCases() []rwAdmissionCase {
	owner := primitives.WithOwner("owner")
	return []rwAdmissionCase{
		{"the owner reads", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			acquire(t, t.Context(), x.other(t).Reader(), owner)
			return t.Context(), rwOptions{owner}
		}, rwYes, rwDeadlock},
		{"the owner and another reader", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			acquire(t, t.Context(), x.other(t).Reader(), owner)
			acquire(t, t.Context(), x.rw.Reader())
			return t.Context(), rwOptions{owner}
		}, rwYes, rwDeadlock},
		{"an expired read of the owner, another reader", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			acquire(t, t.Context(), x.rw.Reader())
			require.NoError(t, x.rdb.HSet(t.Context(), x.name, "owner", 1).Err())
			return t.Context(), rwOptions{owner}
		}, rwYes, rwNo},
		{"the owner writes", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			acquire(t, t.Context(), x.other(t).Writer(), owner)
			return t.Context(), rwOptions{owner}
		}, rwYes, rwYes},
		{"another owner writes", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			acquire(t, t.Context(), x.other(t).Writer(), owner)
			return t.Context(), rwOptions{primitives.WithOwner("another")}
		}, rwNo, rwNo},
		{"the owner is a Redisson thread that writes", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			require.True(t, x.redisson(1).writeLock(t, time.Minute))
			return t.Context(), rwOptions{primitives.WithOwner(x.redisson(1).id)}
		}, rwYes, rwYes},
		{"the owner is a Redisson thread that reads", func(t *testing.T, x *rwTest) (context.Context, rwOptions) {
			require.True(t, x.redisson(1).readLock(t, time.Minute))
			return t.Context(), rwOptions{primitives.WithOwner(x.redisson(1).id)}
		}, rwYes, rwDeadlock},
	}
}

func TestRWLockAdmission(t *testing.T) {
	t.Parallel()
	for _, tt := range append(rwAdmissionCases(), rwOwnerAdmissionCases()...) {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for side, want := range map[string]error{"read": tt.read, "write": tt.write} {
					t.Run(side, func(t *testing.T) { testRWAdmission(t, onRW(t, s), tt, side, want) })
				}
			})
		})
	}
}

func testRWAdmission(t *testing.T, x *rwTest, tt rwAdmissionCase, side string, want error) {
	ctx, opts := tt.setUp(t, x)
	l := x.rw.Reader()
	if side == "write" {
		l = x.rw.Writer()
	}
	hold, err := l.TryAcquire(ctx, opts...)
	require.ErrorIs(t, err, want)
	if hold != nil {
		release(t, hold)
	}
	if errors.Is(want, primitives.ErrDeadlock) {
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		require.ErrorIs(t, errOf(l.Acquire(ctx, opts...)), primitives.ErrDeadlock, "Acquire does not wait for itself")
	}
	_, err = x.s.Client(t).Get(t.Context(), "redlatch_rwlock_claim:{"+x.name+"}").Result()
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
			rw := newClient(t, s.Client(t)).RWLock(name)
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
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, written, n)
		require.Greater(t, most.Load(), int64(1), "readers run concurrently")
		requireClean(t, s, name)
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
			reader := newClient(t, s.Client(t)).RWLock(name).Reader()
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
		redistest.WaitFor(t, soon, func() bool { return reads.Load() > 12 }, "readers run")
		writer := newClient(t, s.Client(t)).RWLock(name).Writer()
		for range 5 {
			began, before := time.Now(), reads.Load()
			// Without a claim the writer would never find the lock free.
			hold := acquire(t, t.Context(), writer, primitives.WithWait(soon))
			t.Logf("acquired after %v and %d readers", time.Since(began), reads.Load()-before)
			release(t, hold)
			before = reads.Load()
			redistest.WaitFor(t, soon, func() bool { return reads.Load() > before+12 }, "readers run again")
		}
		cancel()
		wg.Wait()
		requireClean(t, s, name)
	})
}

// TestRWLockWriteReleaseWakesAllReaders has twenty readers of several clients wait for a writer,
// which may downgrade. All readers acquire after the release.
func TestRWLockWriteReleaseWakesAllReaders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, downgrade := range []bool{false, true} {
			x := onRW(t, s)
			w := acquire(t, t.Context(), x.rw.Writer())
			if downgrade {
				acquire(t, w.Context(), x.rw.Reader())
			}
			var waiting []<-chan result
			for range 4 {
				c := newClient(t, s.Client(t))
				reader := c.RWLock(x.name).Reader()
				for range 5 {
					waiting = append(waiting, start(func() (*primitives.Hold, error) { return reader.Acquire(t.Context()) }))
				}
				awaitLocalWaiters(t, c, 5)
			}
			x.awaitWaiter(t)
			released := time.Now()
			release(t, w)
			for _, c := range waiting {
				got := await(t, c)
				require.NoError(t, got.err)
				require.Less(t, got.at.Sub(released), slowPoll)
			}
		}
	})
}

// TestRWLockWaitersPollWhenMessagesAreLost drops all messages. Waiters acquire by the slow poll.
func TestRWLockWaitersPollWhenMessagesAreLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		p.DropMessages(true)
		x := onRWNamed(t, s, p.Client(t), redistest.Name(t))
		other := x.other(t)
		for _, tt := range []struct{ first, then *primitives.Lock }{
			{other.Writer(), x.rw.Reader()}, {other.Reader(), x.rw.Writer()}, {other.Writer(), x.rw.Writer()},
		} {
			hold := acquire(t, t.Context(), tt.first)
			waiting := start(func() (*primitives.Hold, error) { return tt.then.Acquire(t.Context()) })
			x.awaitWaiter(t)
			released := time.Now()
			release(t, hold)
			got := await(t, waiting)
			require.NoError(t, got.err)
			require.Less(t, got.at.Sub(released), slowPoll)
			release(t, got.hold)
		}
	})
}

// TestRWLockNestedReadersShareAndNestedWritersExclude nests siblings under one hold.
func TestRWLockNestedReadersShareAndNestedWritersExclude(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		r := acquire(t, t.Context(), x.rw.Reader())
		siblings := []*primitives.Hold{acquire(t, r.Context(), x.rw.Reader()), acquire(t, r.Context(), x.rw.Reader())}
		require.Equal(t, "3", fields(t, x.s, x.name)[r.ID()])
		release(t, r)
		release(t, siblings[0])
		release(t, siblings[1])
		w := acquire(t, t.Context(), x.rw.Writer())
		first := acquire(t, w.Context(), x.rw.Writer())
		require.ErrorIs(t, errOf(x.rw.Writer().TryAcquire(w.Context())), primitives.ErrNotAcquired)
		for range 2 {
			release(t, acquire(t, first.Context(), x.rw.Reader()))
		}
		require.ErrorIs(t, errOf(x.rw.Reader().Acquire(w.Context(), primitives.WithNonReentrant())), primitives.ErrDeadlock)
		release(t, first)
		release(t, w)
		requireClean(t, x.s, x.name)
	})
}

func TestRWLockInfoListsTheHoldersOfItsSide(t *testing.T) {
	t.Parallel()
	type (
		Info   = primitives.Info
		Holder = primitives.Holder
	)
	inBubble(t, func(t *testing.T, x *rwTest) {
		ctx := t.Context()
		info := func(l *primitives.Lock, want Info) {
			t.Helper()
			got, err := l.Info(ctx)
			require.NoError(t, err)
			slices.SortFunc(got.Holders, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
			require.Equal(t, want, got)
		}
		noReader, noWriter := Info{Name: "n", Kind: "reader"}, Info{Name: "n", Kind: "writer"}
		info(x.rw.Reader(), noReader)
		info(x.rw.Writer(), noWriter)
		a := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(10*time.Second))
		b := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(20*time.Second))
		in := acquire(t, a.Context(), x.rw.Reader(), primitives.WithLease(15*time.Second))
		info(x.rw.Reader(), Info{Name: "n", Kind: "reader", TTL: 20 * time.Second, Holders: []Holder{
			{ID: a.ID(), Count: 2, TTL: 15 * time.Second}, {ID: b.ID(), Count: 1, TTL: 20 * time.Second},
		}})
		info(x.rw.Writer(), noWriter)
		for _, h := range []*primitives.Hold{a, b, in} {
			release(t, h)
		}
		w := acquire(t, ctx, x.rw.Writer(), primitives.WithLease(time.Minute))
		info(x.rw.Reader(), noReader)
		info(x.rw.Writer(), Info{Name: "n", Kind: "writer", TTL: time.Minute, Holders: []Holder{
			{ID: w.ID(), Count: 1, TTL: time.Minute},
		}})
		r := acquire(t, w.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
		info(x.rw.Reader(), Info{Name: "n", Kind: "reader", TTL: 10 * time.Second, Holders: []Holder{
			{ID: r.ID(), Count: 1, TTL: 10 * time.Second},
		}})
		require.Nil(t, x.rw.Reader().HoldFrom(w.Context()))
		require.Nil(t, x.rw.Writer().HoldFrom(ctx))
		require.Same(t, w, x.rw.Writer().HoldFrom(r.Context()))
		require.Same(t, r, x.rw.Reader().HoldFrom(r.Context()))
		require.Same(t, x.rw.Reader(), x.rw.Reader())
		require.Equal(t, []string{"n", "n", "n"}, []string{x.rw.Name(), r.Name(), w.Name()})
		require.Zero(t, r.Token())
	})
}

func TestRWLockAcceptsAnyName(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, form := range []string{"a{%s}b", "%s}", "{%s", "%s:write", "\xff\x00 %s"} {
			x := onRWNamed(t, s, s.Client(t), fmt.Sprintf(form, redistest.Name(t)))
			r := acquire(t, t.Context(), x.rw.Reader())
			b := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
			x.requireState(t, mergeStates(reads(r.ID(), 1), reads(b.ID(), 1)))
			release(t, r)
			x.requireTTL(t, x.name, 10*time.Second)
			release(t, b)
			x.requireState(t, nil, "0")
			w := acquire(t, t.Context(), x.rw.Writer())
			x.requireState(t, writes(w.ID(), 1))
			release(t, w)
			x.requireState(t, nil, "1")
		}
		x := onRW(t, s, primitives.WithPrefix("p:"))
		r := acquire(t, t.Context(), x.rw.Reader())
		require.Equal(t, "1", x.rdb.Get(t.Context(), "{p:"+x.name+"}:"+r.ID()+":rwlock_timeout:1").Val())
		require.Equal(t, x.name, r.Name())
		release(t, r)
	})
}

func TestRWLockReportsAKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	eachRW(t, func(t *testing.T, x *rwTest) {
		ctx := t.Context()
		require.NoError(t, x.rdb.Set(ctx, x.name, "mine", 0).Err())
		for _, l := range []*primitives.Lock{x.rw.Reader(), x.rw.Writer()} {
			for _, call := range []func() error{
				func() error { return errOf(l.Acquire(ctx)) },
				func() error { return errOf(l.Acquire(ctx, primitives.WithOwner("o"))) },
				func() error { return errOf(l.Info(ctx)) },
				func() error { return errOf(l.ForceRelease(ctx)) },
				func() error { return errOf(l.Adopt(ctx, "o")) },
				func() error { return l.ReleaseID(ctx, "o") },
			} {
				err := call()
				require.ErrorContains(t, err, "WRONGTYPE")
				require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			}
			for _, id := range []string{"", "mode", "x:write"} {
				require.ErrorIs(t, errOf(l.Acquire(ctx, primitives.WithOwner(id))), primitives.ErrInvalid)
				require.ErrorIs(t, l.ReleaseID(ctx, id), primitives.ErrInvalid)
			}
		}
		require.Equal(t, "mine", x.rdb.Get(ctx, x.name).Val())
		require.ErrorIs(t, errOf(x.c.RWLock("").Reader().Acquire(ctx)), primitives.ErrInvalid)
	})
}

func TestRWLockInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	c := newClient(t, cluster.ClusterClient(t))
	for _, name := range []string{redistest.Name(t), "{" + redistest.Name(t) + "}x"} {
		rw := c.RWLock(name)
		a := acquire(t, t.Context(), rw.Reader())
		b := acquire(t, t.Context(), rw.Reader(), primitives.WithLease(time.Minute))
		other := newClient(t, cluster.ClusterClient(t))
		waiting := start(func() (*primitives.Hold, error) { return other.RWLock(name).Writer().Acquire(t.Context()) })
		release(t, b)
		require.NoError(t, a.Extend(t.Context(), time.Minute))
		awaitLocalWaiters(t, other, 1)
		release(t, a)
		next := awaitHold(t, waiting)
		third := newClient(t, cluster.ClusterClient(t)).RWLock(name).Reader()
		release(t, acquire(t, next.Context(), third, primitives.WithOwner(next.ID())))
		release(t, next)
	}
	for _, name := range []string{"{}x", "a{b", "a}b"} {
		for _, l := range []*primitives.Lock{c.RWLock(name).Reader(), c.RWLock(name).Writer()} {
			require.ErrorIs(t, errOf(l.Acquire(t.Context())), primitives.ErrInvalid, name)
		}
	}
}

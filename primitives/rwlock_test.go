package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// rwTest is a read-write lock on one server, and what stands in Redis for it.
type rwTest struct {
	s    *redistest.Server
	rdb  *redis.Client
	c    *primitives.Client
	name string
	rw   *primitives.RWLock

	channel string
	ear     *ear // made when first asked for
}

func onRW(t testing.TB, s *redistest.Server, opts ...primitives.ClientOption) *rwTest {
	return onRWNamed(t, s, s.Client(t), redistest.Name(t), opts...)
}

// onRWNamed: via is the client's way to Redis.
func onRWNamed(t testing.TB, s *redistest.Server, via *redis.Client, name string, opts ...primitives.ClientOption) *rwTest {
	t.Helper()
	c := newClient(t, via, opts...)
	channel := "redisson_rwlock:{" + name + "}"
	if strings.Contains(name, "{") {
		channel = "redisson_rwlock:" + name
	}
	return &rwTest{s: s, rdb: s.Client(t), c: c, name: name, rw: c.RWLock(name), channel: channel}
}

// waits is the number of clients that listen for releases.
func (x *rwTest) waits(t testing.TB) int {
	t.Helper()
	n, err := x.rdb.PubSubNumSub(t.Context(), x.channel).Result()
	require.NoError(t, err)
	if x.ear != nil {
		n[x.channel]--
	}
	return int(n[x.channel])
}

func (x *rwTest) awaitWaiter(t testing.TB) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return x.waits(t) > 0 }, "somebody waits")
}

func eachRW(t *testing.T, f func(t *testing.T, x *rwTest)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { f(t, onRW(t, s)) })
}

// other is the same lock on another client.
func (x *rwTest) other(t testing.TB) *primitives.RWLock {
	return newClient(t, x.s.Client(t)).RWLock(x.name)
}

// timeoutKey is the key of a reader's nth hold.
func (x *rwTest) timeoutKey(id string, n int) string {
	if strings.Contains(x.name, "{") {
		return fmt.Sprintf("%s:%s:rwlock_timeout:%d", x.name, id, n)
	}
	return fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", x.name, id, n)
}

// state is the hash, and each key of a reader's hold as "id#n". Times to come are told by requireLives.
func (x *rwTest) state(t testing.TB) map[string]string {
	t.Helper()
	state := fields(t, x.s, x.name)
	prefix, _, _ := strings.Cut(x.timeoutKey("", 0), ":rwlock_timeout")
	for _, key := range redistest.Keys(t, x.s, "*:rwlock_timeout:*") {
		own, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		id, n, _ := strings.Cut(own, ":rwlock_timeout:")
		value, err := x.rdb.Get(t.Context(), key).Result()
		require.NoError(t, err)
		state[id+"#"+n] = value
	}
	return state
}

// requireState compares the state, and what was published since.
func (x *rwTest) requireState(t testing.TB, want map[string]string, heard ...string) {
	t.Helper()
	if want == nil {
		want = map[string]string{}
	}
	require.Equal(t, want, x.state(t))
	if x.ear == nil {
		require.Empty(t, heard, "listen first")
		x.ear = listen(t, x.s, x.channel)
		return
	}
	require.Equal(t, append([]string{}, heard...), x.ear.heard(t))
}

// requireLives: the key has about d to live.
func (x *rwTest) requireLives(t testing.TB, key string, d time.Duration) {
	t.Helper()
	ttl := x.rdb.PTTL(t.Context(), key).Val()
	require.LessOrEqual(t, ttl, d, key)
	require.Greater(t, ttl, d-5*time.Second, key)
}

// reads is the state of one reader with so many holds.
func reads(id string, count int) map[string]string {
	state := map[string]string{"mode": "read", id: strconv.Itoa(count)}
	for n := range count {
		state[id+"#"+strconv.Itoa(n+1)] = "1"
	}
	return state
}

func writes(id string, count int) map[string]string {
	return map[string]string{"mode": "write", id + ":write": strconv.Itoa(count)}
}

// with joins states; the first one's mode stands.
func with(states ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, state := range slices.Backward(states) {
		maps.Copy(all, state)
	}
	return all
}

// foreign is a thread of Redisson's, step by step as it does to Redis.
type foreign struct {
	x  *rwTest
	id string
}

func (x *rwTest) foreign(thread int) *foreign {
	return &foreign{x, "6f0ee5b5-0000-4000-8000-000000000000:" + strconv.Itoa(thread)}
}

// readLock tells whether it got in.
func (f *foreign) readLock(t require.TestingT, lease time.Duration) bool {
	ctx, rdb, key := context.Background(), f.x.rdb, f.x.name
	switch rdb.HGet(ctx, key, "mode").Val() {
	case "write":
		if !rdb.HExists(ctx, key, f.id+":write").Val() {
			return false
		}
	case "":
		require.NoError(t, rdb.HSet(ctx, key, "mode", "read").Err())
	}
	n := rdb.HIncrBy(ctx, key, f.id, 1).Val()
	require.NoError(t, rdb.Set(ctx, f.x.timeoutKey(f.id, int(n)), "1", lease).Err())
	require.NoError(t, rdb.PExpire(ctx, key, max(rdb.PTTL(ctx, key).Val(), lease)).Err())
	return true
}

func (f *foreign) readUnlock(t require.TestingT) {
	ctx, rdb, key := context.Background(), f.x.rdb, f.x.name
	require.True(t, rdb.HExists(ctx, key, f.id).Val())
	n := rdb.HIncrBy(ctx, key, f.id, -1).Val()
	if n == 0 {
		rdb.HDel(ctx, key, f.id)
	}
	rdb.Del(ctx, f.x.timeoutKey(f.id, int(n)+1))
	best := time.Duration(-1)
	if rdb.HLen(ctx, key).Val() > 1 {
		for field, value := range rdb.HGetAll(ctx, key).Val() {
			count, _ := strconv.Atoi(value)
			for i := count; i > 0; i-- {
				best = max(best, rdb.PTTL(ctx, f.x.timeoutKey(field, i)).Val())
			}
		}
		if best > 0 {
			rdb.PExpire(ctx, key, best)
			return
		}
		if rdb.HGet(ctx, key, "mode").Val() == "write" {
			return
		}
	}
	rdb.Del(ctx, key)
	rdb.Publish(ctx, f.x.channel, "0")
}

func (f *foreign) writeLock(t require.TestingT, lease time.Duration) bool {
	ctx, rdb, key := context.Background(), f.x.rdb, f.x.name
	mode := rdb.HGet(ctx, key, "mode").Val()
	if mode != "" && (mode != "write" || !rdb.HExists(ctx, key, f.id+":write").Val()) {
		return false
	}
	require.NoError(t, rdb.HSet(ctx, key, "mode", "write").Err())
	require.NoError(t, rdb.HIncrBy(ctx, key, f.id+":write", 1).Err())
	require.NoError(t, rdb.PExpire(ctx, key, max(rdb.PTTL(ctx, key).Val(), 0)+lease).Err())
	return true
}

func (f *foreign) writeUnlock(t require.TestingT) {
	ctx, rdb, key := context.Background(), f.x.rdb, f.x.name
	require.True(t, rdb.HExists(ctx, key, f.id+":write").Val())
	if rdb.HIncrBy(ctx, key, f.id+":write", -1).Val() > 0 {
		return
	}
	rdb.HDel(ctx, key, f.id+":write")
	if rdb.HLen(ctx, key).Val() == 1 {
		rdb.Del(ctx, key)
		rdb.Publish(ctx, f.x.channel, "1")
		return
	}
	rdb.HSet(ctx, key, "mode", "read")
}

func TestRWLockWhoMayEnter(t *testing.T) {
	t.Parallel()
	var (
		yes      error
		no       = primitives.ErrNotAcquired
		deadlock = primitives.ErrDeadlock
	)
	owner := primitives.WithOwner("owner")
	type setUp func(t *testing.T, x *rwTest) (context.Context, []primitives.Option)
	plain := func(f func(t *testing.T, x *rwTest)) setUp {
		return func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) { f(t, x); return t.Context(), nil }
	}
	for _, tt := range []struct {
		name        string
		set         setUp
		read, write error
	}{
		{"free", plain(func(*testing.T, *rwTest) {}), yes, yes},
		{"a reader", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.rw.Reader()) }), yes, no},
		{"two readers", plain(func(t *testing.T, x *rwTest) {
			acquire(t, t.Context(), x.rw.Reader())
			acquire(t, t.Context(), x.other(t).Reader())
		}), yes, no},
		{"a writer", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.rw.Writer()) }), no, no},
		{"another client's writer", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.other(t).Writer()) }), no, no},
		{"a writer that reads", plain(func(t *testing.T, x *rwTest) {
			acquire(t, acquire(t, t.Context(), x.rw.Writer()).Context(), x.rw.Reader())
		}), no, no},
		{"a writer that became a reader", plain(func(t *testing.T, x *rwTest) {
			w := acquire(t, t.Context(), x.rw.Writer())
			acquire(t, w.Context(), x.rw.Reader())
			release(t, w)
		}), yes, no},
		{"own read", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			return acquire(t, t.Context(), x.rw.Reader()).Context(), nil
		}, yes, deadlock},
		{"own read in own write", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			return acquire(t, acquire(t, t.Context(), x.rw.Writer()).Context(), x.rw.Reader()).Context(), nil
		}, yes, yes},
		{"own write", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			return acquire(t, t.Context(), x.rw.Writer()).Context(), nil
		}, yes, yes},
		{"own read, released", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			r := acquire(t, t.Context(), x.rw.Reader())
			release(t, r)
			return context.WithoutCancel(r.Context()), nil
		}, yes, yes},
		{"the owner reads", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			acquire(t, t.Context(), x.other(t).Reader(), owner)
			return t.Context(), []primitives.Option{owner}
		}, yes, deadlock},
		{"the owner reads, and another", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			acquire(t, t.Context(), x.other(t).Reader(), owner)
			acquire(t, t.Context(), x.rw.Reader())
			return t.Context(), []primitives.Option{owner}
		}, yes, deadlock},
		{"the owner's dead read, and another", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			acquire(t, t.Context(), x.rw.Reader())
			require.NoError(t, x.rdb.HSet(t.Context(), x.name, "owner", 1).Err())
			return t.Context(), []primitives.Option{owner}
		}, yes, no},
		{"the owner writes", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			acquire(t, t.Context(), x.other(t).Writer(), owner)
			return t.Context(), []primitives.Option{owner}
		}, yes, yes},
		{"another owner writes", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			acquire(t, t.Context(), x.other(t).Writer(), owner)
			return t.Context(), []primitives.Option{primitives.WithOwner("another")}
		}, no, no},
		{"a Java reader", plain(func(t *testing.T, x *rwTest) { require.True(t, x.foreign(1).readLock(t, time.Minute)) }), yes, no},
		{"a Java writer", plain(func(t *testing.T, x *rwTest) { require.True(t, x.foreign(1).writeLock(t, time.Minute)) }), no, no},
		{"this Java thread writes", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			require.True(t, x.foreign(1).writeLock(t, time.Minute))
			return t.Context(), []primitives.Option{primitives.WithOwner(x.foreign(1).id)}
		}, yes, yes},
		{"this Java thread reads", func(t *testing.T, x *rwTest) (context.Context, []primitives.Option) {
			require.True(t, x.foreign(1).readLock(t, time.Minute))
			return t.Context(), []primitives.Option{primitives.WithOwner(x.foreign(1).id)}
		}, yes, deadlock},
		{"a plain lock", plain(func(t *testing.T, x *rwTest) { acquire(t, t.Context(), x.c.Lock(x.name)) }), no, no},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for side, want := range map[string]error{"read": tt.read, "write": tt.write} {
					t.Run(side, func(t *testing.T) {
						x := onRW(t, s)
						ctx, opts := tt.set(t, x)
						l := x.rw.Reader()
						if side == "write" {
							l = x.rw.Writer()
						}
						hold, err := l.TryAcquire(ctx, opts...)
						require.ErrorIs(t, err, want)
						if hold != nil {
							release(t, hold)
						}
						if errors.Is(want, deadlock) {
							require.NotErrorIs(t, err, primitives.ErrNotAcquired)
							_, err := l.Acquire(ctx, opts...)
							require.ErrorIs(t, err, deadlock, "waiting does not help")
						}
						_, err = s.Client(t).Get(t.Context(), "redlatch_rwlock_claim:{"+x.name+"}").Result()
						require.ErrorIs(t, err, redis.Nil, "a try claims nothing")
					})
				}
			})
		})
	}
}

// Redis's state and messages after each step, whatever the network repeats.
func TestRWLockOnTheWire(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				ctx := t.Context()
				on := func(t *testing.T) *rwTest { return onRWNamed(t, s, way.open(t, s), redistest.Name(t)) }
				t.Run("reader", func(t *testing.T) {
					x := on(t)
					a := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(20*time.Second))
					x.requireState(t, reads(a.ID(), 1))
					x.requireLives(t, x.name, 20*time.Second)
					x.requireLives(t, x.timeoutKey(a.ID(), 1), 20*time.Second)
					in := acquire(t, a.Context(), x.rw.Reader())
					require.Equal(t, a.ID(), in.ID())
					require.Equal(t, 2, in.Depth())
					x.requireState(t, reads(a.ID(), 2))
					x.requireLives(t, x.name, 30*time.Second)
					x.requireLives(t, x.timeoutKey(a.ID(), 1), 20*time.Second)
					x.requireLives(t, x.timeoutKey(a.ID(), 2), 30*time.Second)
					release(t, a)
					x.requireState(t, reads(a.ID(), 1))
					x.requireLives(t, x.timeoutKey(a.ID(), 1), 30*time.Second)
					b := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(time.Minute))
					x.requireState(t, with(reads(a.ID(), 1), reads(b.ID(), 1)))
					x.requireLives(t, x.name, time.Minute)
					release(t, b)
					x.requireState(t, reads(a.ID(), 1))
					x.requireLives(t, x.name, 30*time.Second)
					require.NoError(t, in.Extend(ctx, time.Hour))
					x.requireLives(t, x.name, time.Hour)
					x.requireLives(t, x.timeoutKey(a.ID(), 1), time.Hour)
					require.NoError(t, in.Check(ctx))
					_, err := x.rw.Writer().TryAcquire(ctx)
					require.ErrorIs(t, err, primitives.ErrNotAcquired)
					x.requireState(t, reads(a.ID(), 1)) // a try says nothing
					release(t, in)
					x.requireState(t, nil, "0")
				})
				t.Run("writer", func(t *testing.T) {
					x := on(t)
					a := acquire(t, ctx, x.rw.Writer())
					x.requireState(t, writes(a.ID(), 1))
					x.requireLives(t, x.name, 30*time.Second)
					in := acquire(t, a.Context(), x.rw.Writer(), primitives.WithLease(time.Minute))
					x.requireState(t, writes(a.ID(), 2))
					x.requireLives(t, x.name, time.Minute)
					require.NoError(t, in.Extend(ctx, time.Hour))
					x.requireLives(t, x.name, time.Hour)
					require.NoError(t, in.Check(ctx))
					release(t, in)
					x.requireState(t, writes(a.ID(), 1))
					release(t, a)
					x.requireState(t, nil, "1")
				})
				t.Run("downgrade", func(t *testing.T) {
					x := on(t)
					w := acquire(t, ctx, x.rw.Writer(), primitives.WithLease(time.Minute))
					r := acquire(t, context.WithoutCancel(w.Context()), x.rw.Reader())
					require.Equal(t, w.ID(), r.ID())
					require.Equal(t, 2, r.Depth())
					x.requireState(t, with(writes(w.ID(), 1), reads(w.ID(), 1)))
					sibling := acquire(t, w.Context(), x.rw.Reader())
					x.requireState(t, with(writes(w.ID(), 1), reads(w.ID(), 2)))
					release(t, sibling)
					x.requireState(t, with(writes(w.ID(), 1), reads(w.ID(), 1)))
					x.requireLives(t, x.name, time.Minute)
					release(t, w)
					x.requireState(t, reads(w.ID(), 1), "1")
					x.requireLives(t, x.name, 30*time.Second)
					requireLive(t, r.Context())
					in := acquire(t, r.Context(), x.rw.Reader())
					require.Equal(t, 3, in.Depth())
					x.requireState(t, reads(w.ID(), 2))
					release(t, r)
					release(t, in)
					x.requireState(t, nil, "0")
				})
				t.Run("downgrade given up first", func(t *testing.T) {
					x := on(t)
					w := acquire(t, ctx, x.rw.Writer())
					r := acquire(t, w.Context(), x.rw.Reader())
					release(t, r)
					x.requireState(t, writes(w.ID(), 1))
					release(t, w)
					x.requireState(t, nil, "1")
				})
				t.Run("owners", func(t *testing.T) {
					x := on(t)
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
					x.requireState(t, with(writes("o", 2), reads("o", 1)))
					release(t, w)
					x.requireState(t, with(writes("o", 1), reads("o", 1)))
					release(t, v)
					x.requireState(t, reads("o", 1), "1")
					release(t, a)
					x.requireState(t, nil, "0")
				})
				t.Run("by id", func(t *testing.T) {
					x := on(t)
					a := acquire(t, ctx, x.rw.Reader())
					acquire(t, a.Context(), x.rw.Reader())
					b, err := x.rw.Reader().Adopt(ctx, a.ID(), primitives.WithLease(time.Minute))
					require.NoError(t, err)
					require.NotEqual(t, a.ID(), b.ID())
					x.requireState(t, reads(b.ID(), 2))
					x.requireLives(t, x.name, time.Minute)
					require.ErrorIs(t, a.Check(ctx), primitives.ErrLost)
					c, err := x.rw.Reader().Adopt(ctx, b.ID(), primitives.WithLease(20*time.Second))
					require.NoError(t, err)
					x.requireState(t, reads(c.ID(), 2))
					x.requireLives(t, x.name, 20*time.Second)
					require.NoError(t, x.rw.Reader().ReleaseID(ctx, c.ID()))
					x.requireState(t, reads(c.ID(), 1))
					require.ErrorIs(t, x.rw.Writer().ReleaseID(ctx, c.ID()), primitives.ErrNotHeld)
					release(t, c)
					x.requireState(t, nil, "0")
					require.ErrorIs(t, x.rw.Reader().ReleaseID(ctx, c.ID()), primitives.ErrNotHeld)
					_, err = x.rw.Reader().Adopt(ctx, c.ID())
					require.ErrorIs(t, err, primitives.ErrNotHeld)

					w := acquire(t, ctx, x.rw.Writer())
					acquire(t, w.Context(), x.rw.Writer())
					r := acquire(t, w.Context(), x.rw.Reader())
					_, err = x.rw.Reader().Adopt(ctx, w.ID())
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
				})
				t.Run("by force", func(t *testing.T) {
					x := on(t)
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
				})
				t.Run("claim", func(t *testing.T) {
					x := on(t)
					claim := "redlatch_rwlock_claim:{" + x.name + "}"
					r := acquire(t, ctx, x.rw.Reader())
					gone, cancel := context.WithCancel(ctx)
					w := start(func() (*primitives.Hold, error) { return x.rw.Writer().Acquire(gone) })
					redistest.WaitFor(t, soon, func() bool { return x.rdb.Exists(ctx, claim).Val() == 1 }, "claimed")
					x.requireLives(t, claim, 2500*time.Millisecond)
					_, err := x.other(t).Reader().TryAcquire(ctx)
					require.ErrorIs(t, err, primitives.ErrNotAcquired, "who comes after a writer waits")
					_, err = x.other(t).Reader().TryAcquire(ctx, primitives.WithOwner("o"))
					require.ErrorIs(t, err, primitives.ErrNotAcquired)
					in := acquire(t, r.Context(), x.rw.Reader())
					x.requireState(t, reads(r.ID(), 2))
					release(t, in)
					require.True(t, x.foreign(1).readLock(t, time.Minute), "Java does not know of it")
					x.foreign(1).readUnlock(t)
					cancel()
					require.ErrorIs(t, await(t, w).err, primitives.ErrNotAcquired)
					require.Zero(t, x.rdb.Exists(ctx, claim).Val())
					x.requireState(t, reads(r.ID(), 1), "1")
					w = start(func() (*primitives.Hold, error) { return x.rw.Writer().Acquire(ctx) })
					redistest.WaitFor(t, soon, func() bool { return x.rdb.Exists(ctx, claim).Val() == 1 }, "claimed again")
					release(t, r)
					got := await(t, w)
					require.NoError(t, got.err)
					x.requireState(t, writes(got.hold.ID(), 1), "0")
					require.Zero(t, x.rdb.Exists(ctx, claim).Val())
					release(t, got.hold)
					x.requireState(t, nil, "1")
				})
			})
		}
	})
}

// Redisson's clients are played by raw commands: each side finds what it needs of the other.
func TestRWLockBesideJava(t *testing.T) {
	eachRW(t, func(t *testing.T, x *rwTest) {
		ctx, java := t.Context(), x.foreign(1)
		reader, writer := x.rw.Reader(), x.rw.Writer()

		// Readers of both, in either order of leaving.
		require.True(t, java.readLock(t, 20*time.Second))
		a := acquire(t, ctx, reader, primitives.WithLease(time.Minute))
		x.requireState(t, with(reads(java.id, 1), reads(a.ID(), 1)))
		java.readUnlock(t)
		x.requireState(t, reads(a.ID(), 1))
		x.requireLives(t, x.name, time.Minute)
		require.True(t, java.readLock(t, 20*time.Second))
		require.True(t, java.readLock(t, 15*time.Second))
		release(t, a)
		x.requireState(t, reads(java.id, 2))
		x.requireLives(t, x.name, 20*time.Second)
		java.readUnlock(t)
		java.readUnlock(t)
		x.requireState(t, nil, "0")

		// A nested reader keeps a key for each hold: Redisson looks for them all.
		a = acquire(t, ctx, reader)
		in := acquire(t, a.Context(), reader)
		require.True(t, java.readLock(t, 20*time.Second))
		release(t, a)
		java.readUnlock(t)
		x.requireState(t, reads(a.ID(), 1))
		release(t, in)
		x.requireState(t, nil, "0")

		// A Java thread's id, shared.
		require.True(t, java.readLock(t, 20*time.Second))
		shared := acquire(t, ctx, reader, primitives.WithOwner(java.id))
		x.requireState(t, reads(java.id, 2))
		java.readUnlock(t)
		x.requireState(t, reads(java.id, 1))
		require.NoError(t, shared.Check(ctx))
		release(t, shared)
		x.requireState(t, nil, "0")

		// Redisson's writer keeps its time after a downgrade; ours sets it right.
		require.True(t, java.writeLock(t, time.Hour))
		require.True(t, java.readLock(t, 20*time.Second))
		java.writeUnlock(t)
		x.requireLives(t, x.name, time.Hour)
		a = acquire(t, ctx, reader)
		release(t, a)
		x.requireState(t, reads(java.id, 1))
		x.requireLives(t, x.name, 20*time.Second)
		java.readUnlock(t)
		x.requireState(t, nil, "0")

		// One that died is not waited for.
		require.True(t, java.readLock(t, 20*time.Second))
		a = acquire(t, ctx, reader)
		require.NoError(t, x.rdb.Del(ctx, x.timeoutKey(java.id, 1)).Err())
		release(t, a)
		x.requireState(t, nil, "0")

		// Waiting for each other.
		require.True(t, java.writeLock(t, time.Minute))
		waiting := []<-chan result{start(func() (*primitives.Hold, error) { return reader.Acquire(ctx) })}
		for range 3 {
			waiting = append(waiting, start(func() (*primitives.Hold, error) { return reader.Acquire(ctx) }))
		}
		x.awaitWaiter(t)
		java.writeUnlock(t)
		for _, w := range waiting {
			got := await(t, w)
			require.NoError(t, got.err)
			defer release(t, got.hold)
		}
		require.False(t, java.writeLock(t, time.Minute))
		w := start(func() (*primitives.Hold, error) { return writer.Acquire(ctx, primitives.WithWait(50*time.Millisecond)) })
		require.ErrorIs(t, await(t, w).err, primitives.ErrNotAcquired)

		// A Java reader's unlock takes the lock from a reader whose keys are gone: we are told.
		y := x.rw.Reader()
		b := acquire(t, ctx, y)
		require.NoError(t, x.rdb.Del(ctx, x.timeoutKey(b.ID(), 1)).Err())
		require.ErrorIs(t, b.Check(ctx), primitives.ErrLost)
		requireEnds(t, b.Context(), primitives.ErrLost)
	})
}

// inBubble runs f on a read-write lock in a synctest bubble.
func inBubble(t *testing.T, f func(t *testing.T, x *rwTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		rdb := s.Client(t)
		c := newClient(t, s.Client(t))
		f(t, &rwTest{s: s, rdb: rdb, c: c, name: "n", rw: c.RWLock("n"), channel: "redisson_rwlock:{n}"})
		shut(c)
	})
}

func TestRWLockLives(t *testing.T) {
	lease, renewed := primitives.WithLease, primitives.WithWatchdog
	ttl := func(t *testing.T, x *rwTest) time.Duration { return x.rdb.PTTL(t.Context(), x.name).Val() }
	t.Run("a short lease shortens no other", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			long := acquire(t, t.Context(), x.rw.Reader(), lease(time.Minute))
			short := acquire(t, t.Context(), x.rw.Reader(), lease(time.Second))
			in := acquire(t, long.Context(), x.rw.Reader(), lease(time.Second))
			require.Equal(t, time.Minute, ttl(t, x))
			release(t, short)
			release(t, in)
			require.Equal(t, time.Minute, ttl(t, x))
			require.Equal(t, time.Minute, x.rdb.PTTL(t.Context(), x.timeoutKey(long.ID(), 1)).Val())
			time.Sleep(59 * time.Second)
			require.NoError(t, long.Check(t.Context()))
			time.Sleep(time.Second)
			require.Empty(t, fields(t, x.s, x.name))
		})
	})
	t.Run("the dead are not kept alive", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			live := acquire(t, t.Context(), x.rw.Reader(), renewed(10*time.Second))
			dead := acquire(t, t.Context(), x.rw.Reader(), renewed(10*time.Second))
			dead.Detach()
			time.Sleep(time.Minute)
			synctest.Wait()
			info, err := x.rw.Reader().Info(t.Context())
			require.NoError(t, err)
			require.Len(t, info.Holders, 1)
			require.Equal(t, live.ID(), info.Holders[0].ID)
			require.Contains(t, fields(t, x.s, x.name), dead.ID())
			require.ErrorIs(t, x.rw.Reader().ReleaseID(t.Context(), dead.ID()), primitives.ErrNotHeld)
			require.NotContains(t, fields(t, x.s, x.name), dead.ID())
			acquire(t, t.Context(), x.rw.Reader(), lease(time.Second))
			time.Sleep(2 * time.Second)
			release(t, live)
			require.Empty(t, fields(t, x.s, x.name), "nobody alive is left")
		})
	})
	t.Run("a dead owner comes back with one count", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			acquire(t, t.Context(), x.rw.Reader())
			owner := primitives.WithOwner("o")
			acquire(t, t.Context(), x.rw.Reader(), owner, lease(time.Second))
			time.Sleep(2 * time.Second)
			require.Equal(t, "1", fields(t, x.s, x.name)["o"])
			again := acquire(t, t.Context(), x.rw.Reader(), owner)
			require.Equal(t, "1", fields(t, x.s, x.name)["o"])
			require.Equal(t, "1", x.rdb.Get(t.Context(), x.timeoutKey("o", 1)).Val())
			release(t, again)
			require.NotContains(t, fields(t, x.s, x.name), "o")
		})
	})
	t.Run("each reader is renewed by itself", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			a := acquire(t, t.Context(), x.rw.Reader(), renewed(9*time.Second))
			in := acquire(t, a.Context(), x.rw.Reader(), renewed(9*time.Second))
			other := acquire(t, t.Context(), x.rw.Reader(), lease(2*time.Minute))
			time.Sleep(time.Minute)
			synctest.Wait()
			for n := range 2 {
				require.GreaterOrEqual(t, x.rdb.PTTL(t.Context(), x.timeoutKey(a.ID(), n+1)).Val(), 5*time.Second)
			}
			require.Equal(t, time.Minute, x.rdb.PTTL(t.Context(), x.timeoutKey(other.ID(), 1)).Val())
			require.Equal(t, time.Minute, ttl(t, x))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			require.GreaterOrEqual(t, ttl(t, x), 5*time.Second)
			requireEnds(t, other.Context(), primitives.ErrLost)
			release(t, in)
			release(t, a)
			require.Empty(t, fields(t, x.s, x.name))
		})
	})
	t.Run("a writer is renewed while it reads, and a reader when it has stopped writing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			w := acquire(t, t.Context(), x.rw.Writer(), renewed(9*time.Second))
			r := acquire(t, context.WithoutCancel(w.Context()), x.rw.Reader(), renewed(6*time.Second))
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NoError(t, w.Check(t.Context()))
			require.NoError(t, r.Check(t.Context()))
			release(t, w)
			require.LessOrEqual(t, ttl(t, x), 6*time.Second)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NoError(t, r.Check(t.Context()))
			release(t, r)
			require.Empty(t, fields(t, x.s, x.name))
		})
	})
	t.Run("a reader without its key is lost", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			r := acquire(t, t.Context(), x.rw.Reader(), renewed(9*time.Second))
			require.NoError(t, x.rdb.Del(t.Context(), x.timeoutKey(r.ID(), 1)).Err())
			time.Sleep(4 * time.Second)
			synctest.Wait()
			require.ErrorIs(t, context.Cause(r.Context()), primitives.ErrLost)
			require.ErrorIs(t, r.Release(t.Context()), primitives.ErrLost)
			time.Sleep(time.Second)
			synctest.Wait()
			require.Empty(t, fields(t, x.s, x.name), "its field is taken out in the background")
		})
	})
	t.Run("a claim dies with its writer", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			acquire(t, t.Context(), x.rw.Reader())
			require.NoError(t, x.rdb.Set(t.Context(), "redlatch_rwlock_claim:{n}", "dead", 2500*time.Millisecond).Err())
			began := time.Now()
			acquire(t, t.Context(), x.other(t).Reader())
			require.LessOrEqual(t, time.Since(began), 2502*time.Millisecond)
		})
	})
	t.Run("a writer that waits goes on claiming", func(t *testing.T) {
		inBubble(t, func(t *testing.T, x *rwTest) {
			r := acquire(t, t.Context(), x.rw.Reader())
			w := start(func() (*primitives.Hold, error) { return x.other(t).Writer().Acquire(t.Context()) })
			for range 100 {
				synctest.Wait()
				_, err := x.rw.Reader().TryAcquire(t.Context())
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				time.Sleep(100 * time.Millisecond)
			}
			release(t, r)
			got := <-w
			require.NoError(t, got.err)
			release(t, got.hold)
		})
	})
}

// C16: replies are dropped at random, and after each step Redis has what was asked for.
func TestRWLockExactUnderLostReplies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := onRWNamed(t, s, p.Client(t, quick), redistest.Name(t))
		step := func(want map[string]string, f func() error) {
			t.Helper()
			p.DropReplies(rand.IntN(3), script) // up to two of the four attempts
			require.NoError(t, f())
			p.Heal()
			require.Equal(t, want, fields(t, s, x.name))
		}
		ctx, none := t.Context(), map[string]string{}
		for i := range scaled(s, 2000) / 10 { // ten steps, one cut each on average
			opts, id := []primitives.Option(nil), func(h *primitives.Hold) string { return h.ID() }
			if i%2 == 1 {
				opts, id = []primitives.Option{primitives.WithOwner("o")}, func(*primitives.Hold) string { return "o" }
			}
			var a, in, w, again *primitives.Hold
			count := func(mode, field string, n int) map[string]string {
				return map[string]string{"mode": mode, field: strconv.Itoa(n)}
			}
			take := func(hold **primitives.Hold, ctx context.Context, l *primitives.Lock, opts ...primitives.Option) error {
				got, err := l.Acquire(ctx, opts...)
				*hold = got
				return err
			}
			require.NoError(t, take(&a, ctx, x.rw.Reader(), opts...))
			step(count("read", id(a), 2), func() error { return take(&in, a.Context(), x.rw.Reader()) })
			step(count("read", id(a), 1), func() error { return a.Release(ctx) })
			step(none, func() error { return in.Release(ctx) })
			require.NoError(t, take(&w, ctx, x.rw.Writer(), opts...))
			step(count("write", id(w)+":write", 2), func() error { return take(&again, w.Context(), x.rw.Writer()) })
			both := count("write", id(w)+":write", 2)
			both[id(w)] = "1"
			step(both, func() error { return take(&in, context.WithoutCancel(w.Context()), x.rw.Reader()) })
			both[id(w)+":write"] = "1"
			step(both, func() error { return again.Release(ctx) })
			step(count("read", id(w), 1), func() error { return w.Release(ctx) })
			step(none, func() error { return in.Release(ctx) })
		}
		requireClean(t, s, x.name)
	})
}

// A copy of any command that is executed after all has been given back takes nothing.
func TestRWLockLateCopies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		x := onRWNamed(t, s, p.Client(t), redistest.Name(t))
		p.Record()
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			for _, l := range []*primitives.Lock{x.rw.Reader(), x.rw.Writer()} {
				hold := acquire(t, t.Context(), l, opts...)
				in := acquire(t, hold.Context(), l)
				require.NoError(t, in.Extend(t.Context(), time.Minute))
				reading := acquire(t, in.Context(), x.rw.Reader())
				release(t, hold)
				release(t, reading)
				adopted, err := l.Adopt(t.Context(), hold.ID())
				require.NoError(t, err)
				release(t, adopted)
				require.ErrorIs(t, in.Release(t.Context()), primitives.ErrLost)
				reader := acquire(t, t.Context(), newClient(t, s.Client(t)).RWLock(x.name).Reader())
				_, err = x.rw.Writer().Acquire(t.Context(), primitives.WithWait(20*time.Millisecond))
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				release(t, reader)
			}
		}
		var sent [][]any
		for _, c := range p.Commands() {
			if strings.HasPrefix(c.Args[0], "eval") {
				args := make([]any, len(c.Args))
				for i, a := range c.Args {
					args[i] = a
				}
				sent = append(sent, args)
			}
		}
		require.Greater(t, len(sent), 20)
		forgets := time.Now().Add(5 * time.Second) // long before the requests are forgotten
		for range scaled(s, 10) {
			for _, i := range rand.Perm(len(sent)) {
				if time.Now().After(forgets) {
					break
				}
				_ = x.rdb.Do(t.Context(), sent[i]...).Err()
				left, err := x.rdb.Exists(t.Context(), x.name, "redlatch_rwlock_claim:{"+x.name+"}").Result()
				require.NoError(t, err)
				require.Zero(t, left, "%v", sent[i])
			}
		}
		require.Empty(t, x.state(t))
	})
}

// 16 clients, 100 sections each, every fourth a writer's: writers are alone, and none is lost.
func TestRWLockExcludes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		times := scaled(s, 100)
		n, written := 0, 0 // guarded by the lock alone
		var inside, together, most atomic.Int64
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
								t.Error("a writer is not alone")
							}
							n++
							inside.Add(-1)
							return nil
						})
					} else {
						err = rw.Reader().Do(t.Context(), func(context.Context) error {
							inside.Add(1)
							most.Store(max(most.Load(), together.Add(1)))
							_ = n
							time.Sleep(time.Millisecond)
							together.Add(-1)
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
		require.Greater(t, most.Load(), int64(1), "readers were inside together")
		requireClean(t, s, name)
	})
}

// Readers that come one after another, always some inside, keep no writer out.
func TestRWLockWriterIsNotStarved(t *testing.T) {
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
		redistest.WaitFor(t, soon, func() bool { return reads.Load() > 12 }, "readers are busy")
		writer := newClient(t, s.Client(t)).RWLock(name).Writer()
		for range 5 {
			began, before := time.Now(), reads.Load()
			hold := acquire(t, t.Context(), writer, primitives.WithWait(soon))
			t.Logf("in after %v, %d readers before it", time.Since(began), reads.Load()-before)
			release(t, hold)
			before = reads.Load()
			redistest.WaitFor(t, soon, func() bool { return reads.Load() > before+12 }, "readers go on")
		}
		cancel()
		wg.Wait()
		requireClean(t, s, name)
	})
}

// Twenty readers behind a writer are in within a second of its release, wherever they wait, and whether it goes on reading or not.
func TestRWLockWakesAllReaders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, downgrade := range []bool{false, true} {
			x := onRW(t, s)
			w := acquire(t, t.Context(), x.rw.Writer())
			if downgrade {
				acquire(t, w.Context(), x.rw.Reader())
			}
			var waiting []<-chan result
			for range 4 {
				other := x.other(t)
				for range 5 {
					waiting = append(waiting, start(func() (*primitives.Hold, error) { return other.Reader().Acquire(t.Context()) }))
				}
			}
			x.awaitWaiter(t)
			time.Sleep(100 * time.Millisecond)
			released := time.Now()
			release(t, w)
			for _, c := range waiting {
				got := await(t, c)
				require.NoError(t, got.err)
				require.Less(t, got.at.Sub(released), time.Second)
			}
		}
	})
}

// Without a single message, whoever waits is in within the slow poll.
func TestRWLockNeedsNoMessages(t *testing.T) {
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
			var waiting []<-chan result
			waiting = append(waiting, start(func() (*primitives.Hold, error) { return tt.then.Acquire(t.Context()) }))
			x.awaitWaiter(t)
			released := time.Now()
			release(t, hold)
			for _, c := range waiting {
				got := await(t, c)
				require.NoError(t, got.err)
				require.Less(t, got.at.Sub(released), slowPoll)
				release(t, got.hold)
			}
		}
	})
}

// C5: acquisitions that are cancelled at any instant leave nothing, claims included.
func TestRWLockCancelled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		c := newClient(t, s.Client(t))
		rounds, patience := scaled(s, 2000)/20, 4*time.Millisecond
		if s.Mini() != nil {
			patience *= 20
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
					ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(rand.ExpFloat64()*float64(patience)), errTest)
					hold, err := l.Acquire(ctx)
					if err == nil {
						got.Add(1)
						err = hold.Release(ctx)
					} else {
						assert.ErrorIs(t, err, errTest)
						assert.ErrorIs(t, err, primitives.ErrNotAcquired)
						err = nil
					}
					assert.NoError(t, err)
					cancel()
				}
			})
		}
		wg.Wait()
		t.Logf("%d of %d were granted", got.Load(), 20*rounds)
		redistest.WaitFor(t, 2*time.Second, func() bool { return len(leftovers(t, s, name)) == 0 }, "no key and no channel is left")
		require.NoError(t, c.Close(t.Context()))
	})
}

func TestRWLockInfo(t *testing.T) {
	inBubble(t, func(t *testing.T, x *rwTest) {
		ctx := t.Context()
		info := func(l *primitives.Lock, want primitives.Info) {
			t.Helper()
			got, err := l.Info(ctx)
			require.NoError(t, err)
			slices.SortFunc(got.Holders, func(a, b primitives.Holder) int { return strings.Compare(a.ID, b.ID) })
			require.Equal(t, want, got)
		}
		noReader, noWriter := primitives.Info{Name: "n", Kind: "reader"}, primitives.Info{Name: "n", Kind: "writer"}
		info(x.rw.Reader(), noReader)
		info(x.rw.Writer(), noWriter)
		a := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(10*time.Second))
		b := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(20*time.Second))
		in := acquire(t, a.Context(), x.rw.Reader(), primitives.WithLease(15*time.Second))
		info(x.rw.Reader(), primitives.Info{Name: "n", Kind: "reader", TTL: 20 * time.Second, Holders: []primitives.Holder{
			{ID: a.ID(), Count: 2, TTL: 15 * time.Second}, {ID: b.ID(), Count: 1, TTL: 20 * time.Second},
		}})
		info(x.rw.Writer(), noWriter)
		for _, h := range []*primitives.Hold{a, b, in} {
			release(t, h)
		}
		w := acquire(t, ctx, x.rw.Writer(), primitives.WithLease(time.Minute))
		info(x.rw.Reader(), noReader)
		info(x.rw.Writer(), primitives.Info{Name: "n", Kind: "writer", TTL: time.Minute, Holders: []primitives.Holder{{ID: w.ID(), Count: 1, TTL: time.Minute}}})
		r := acquire(t, w.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
		info(x.rw.Reader(), primitives.Info{Name: "n", Kind: "reader", TTL: 10 * time.Second, Holders: []primitives.Holder{{ID: r.ID(), Count: 1, TTL: 10 * time.Second}}})
		require.Nil(t, x.rw.Reader().HoldFrom(w.Context()))
		require.Nil(t, x.rw.Writer().HoldFrom(ctx))
		require.Same(t, w, x.rw.Writer().HoldFrom(r.Context()))
		require.Same(t, r, x.rw.Reader().HoldFrom(r.Context()))
		require.Same(t, x.rw.Reader(), x.rw.Reader())
		require.Equal(t, []string{"n", "n", "n"}, []string{x.rw.Name(), r.Name(), w.Name()})
		require.Zero(t, r.Token())
	})
}

// Siblings under a reader need not take turns; under a writer, writers do.
func TestRWLockSiblings(t *testing.T) {
	eachRW(t, func(t *testing.T, x *rwTest) {
		r := acquire(t, t.Context(), x.rw.Reader())
		siblings := []*primitives.Hold{acquire(t, r.Context(), x.rw.Reader()), acquire(t, r.Context(), x.rw.Reader())}
		require.Equal(t, "3", fields(t, x.s, x.name)[r.ID()])
		release(t, r)
		release(t, siblings[0])
		release(t, siblings[1])
		w := acquire(t, t.Context(), x.rw.Writer())
		first := acquire(t, w.Context(), x.rw.Writer())
		_, err := x.rw.Writer().TryAcquire(w.Context())
		require.ErrorIs(t, err, primitives.ErrNotAcquired)
		for range 2 {
			release(t, acquire(t, first.Context(), x.rw.Reader()))
		}
		_, err = x.rw.Reader().Acquire(w.Context(), primitives.WithNonReentrant())
		require.ErrorIs(t, err, primitives.ErrDeadlock)
		release(t, first)
		release(t, w)
		requireClean(t, x.s, x.name)
	})
}

func TestRWLockNames(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, form := range []string{"a{%s}b", "%s}", "{%s", "%s:write", "\xff\x00 %s"} {
			x := onRWNamed(t, s, s.Client(t), fmt.Sprintf(form, redistest.Name(t)))
			r := acquire(t, t.Context(), x.rw.Reader())
			b := acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(10*time.Second))
			x.requireState(t, with(reads(r.ID(), 1), reads(b.ID(), 1)))
			release(t, r)
			x.requireLives(t, x.name, 10*time.Second)
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

func TestRWLockOtherKeys(t *testing.T) {
	eachRW(t, func(t *testing.T, x *rwTest) {
		ctx := t.Context()
		require.NoError(t, x.rdb.Set(ctx, x.name, "mine", 0).Err())
		for _, l := range []*primitives.Lock{x.rw.Reader(), x.rw.Writer()} {
			for _, call := range []func() error{
				func() error { _, err := l.Acquire(ctx); return err },
				func() error { _, err := l.Acquire(ctx, primitives.WithOwner("o")); return err },
				func() error { _, err := l.Info(ctx); return err },
				func() error { _, err := l.ForceRelease(ctx); return err },
				func() error { _, err := l.Adopt(ctx, "o"); return err },
				func() error { return l.ReleaseID(ctx, "o") },
			} {
				err := call()
				require.ErrorContains(t, err, "WRONGTYPE")
				require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			}
			for _, id := range []string{"", "mode", "x:write"} {
				_, err := l.Acquire(ctx, primitives.WithOwner(id))
				require.ErrorIs(t, err, primitives.ErrInvalid)
				require.ErrorIs(t, l.ReleaseID(ctx, id), primitives.ErrInvalid)
			}
		}
		require.Equal(t, "mine", x.rdb.Get(ctx, x.name).Val())
		_, err := x.c.RWLock("").Reader().Acquire(ctx)
		require.ErrorIs(t, err, primitives.ErrInvalid)
	})
}

func TestRWLockInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	c := newClient(t, cluster.ClusterClient(t))
	for _, name := range []string{redistest.Name(t), "{" + redistest.Name(t) + "}x"} {
		rw := c.RWLock(name)
		a, b := acquire(t, t.Context(), rw.Reader()), acquire(t, t.Context(), rw.Reader(), primitives.WithLease(time.Minute))
		waiting := start(func() (*primitives.Hold, error) {
			return newClient(t, cluster.ClusterClient(t)).RWLock(name).Writer().Acquire(t.Context())
		})
		release(t, b)
		require.NoError(t, a.Extend(t.Context(), time.Minute))
		time.Sleep(50 * time.Millisecond)
		release(t, a)
		got := await(t, waiting)
		require.NoError(t, got.err)
		release(t, acquire(t, got.hold.Context(), newClient(t, cluster.ClusterClient(t)).RWLock(name).Reader(), primitives.WithOwner(got.hold.ID())))
		release(t, got.hold)
	}
	for _, name := range []string{"{}x", "a{b", "a}b"} {
		for _, l := range []*primitives.Lock{c.RWLock(name).Reader(), c.RWLock(name).Writer()} {
			_, err := l.Acquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrInvalid, name)
		}
	}
}

// A full server refuses new holds at once, and lets go of what is held.
func TestRWLockFullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	x := onRW(t, s)
	ctx := t.Context()
	lock := func(suffix string) *primitives.RWLock { return x.c.RWLock(x.name + suffix) }
	renewed := primitives.WithWatchdog(time.Second)
	a := acquire(t, ctx, x.rw.Reader(), renewed)
	in := acquire(t, a.Context(), x.rw.Reader(), renewed)
	short := acquire(t, ctx, x.rw.Reader(), primitives.WithLease(time.Minute))
	one, two := acquire(t, ctx, lock("-o").Reader(), primitives.WithOwner("o")), acquire(t, ctx, lock("-o").Reader(), primitives.WithOwner("o"))
	w := acquire(t, ctx, lock("-w").Writer(), renewed)
	v := acquire(t, w.Context(), lock("-w").Writer(), renewed)
	r := acquire(t, context.WithoutCancel(w.Context()), lock("-w").Reader(), renewed)
	acquire(t, ctx, lock("-f").Reader())
	acquire(t, ctx, lock("-g").Writer())
	require.NoError(t, x.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, l := range []*primitives.Lock{lock("-new").Reader(), lock("-new").Writer(), x.rw.Reader(), x.rw.Writer()} {
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("p")}} {
			_, err := l.Acquire(ctx, opts...)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		}
	}
	_, err := x.rw.Reader().Acquire(a.Context())
	require.ErrorContains(t, err, "OOM")
	require.NoError(t, a.Extend(ctx, 2*time.Second))
	time.Sleep(2500 * time.Millisecond)
	for _, h := range []*primitives.Hold{a, in, w, v, r} {
		require.NoError(t, h.Check(ctx), "renewed")
	}
	for _, h := range []*primitives.Hold{a, in, short, one, two, w, v, r} {
		release(t, h)
	}
	for _, l := range []*primitives.Lock{lock("-f").Reader(), lock("-g").Writer()} {
		held, err := l.ForceRelease(ctx)
		require.NoError(t, err)
		require.True(t, held)
	}
	require.NoError(t, x.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	requireClean(t, s, x.name)
}

// What the release will need is found out before anything is written.
func TestRWLockACL(t *testing.T) {
	s := redistest.Fresh(t)
	admin := s.Client(t)
	name := redistest.Name(t)
	all := "~" + name + " ~{" + name + "}:* ~redisson_unlock_latch:{" + name + "}:* ~redisson_rwlock:{" + name + "} ~redlatch_rwlock_claim:{" + name + "} "
	for _, tt := range []struct {
		name, rules string
		ok          bool
	}{
		{"enough", all + "&redisson_rwlock:{" + name + "}", true},
		{"no channel", "~*", false},
		{"no publish", "~* &* -publish", false},
		{"no keys of holds", strings.Replace(all, "~{"+name+"}:* ", "", 1) + "&*", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []any{"acl", "setuser", tt.name, "on", ">pw", "+@all", "resetchannels", "resetkeys"}
			for rule := range strings.FieldsSeq(tt.rules) {
				args = append(args, rule)
			}
			args[2] = "u" + strconv.Itoa(len(tt.name))
			require.NoError(t, admin.Do(t.Context(), args...).Err())
			rw := newClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = args[2].(string), "pw" })).RWLock(name)
			for _, l := range []*primitives.Lock{rw.Reader(), rw.Writer()} {
				for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
					hold, err := l.Acquire(t.Context(), opts...)
					if tt.ok {
						require.NoError(t, err)
						release(t, hold)
						continue
					}
					require.Error(t, err)
					require.True(t, strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "No permissions"), err)
					require.Empty(t, fields(t, s, name))
				}
			}
		})
	}
	requireClean(t, s, name)
}

// A reader's release among ten thousand costs no more than among ten, and little more when it was among the longest-lived.
func TestRWLockManyReaders(t *testing.T) {
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	n := 10000
	if testing.Short() {
		n = 2000
	}
	type cost struct {
		time     time.Duration
		commands int64
	}
	perRelease := func(readers int, others, lease time.Duration, leavers int) cost {
		x := onRW(t, s)
		holds := make([]*primitives.Hold, leavers)
		for i := range holds {
			holds[i] = acquire(t, t.Context(), x.rw.Reader(), primitives.WithLease(time.Hour))
		}
		// The others, as Redisson would have written them; and all that live equally long do so to the millisecond.
		now := time.Now()
		pipe := rdb.Pipeline()
		for i := range readers {
			id := x.foreign(i).id
			pipe.HSet(t.Context(), x.name, id, 1)
			pipe.Set(t.Context(), x.timeoutKey(id, 1), "1", 0)
			pipe.PExpireAt(t.Context(), x.timeoutKey(id, 1), now.Add(others))
		}
		for _, hold := range holds {
			pipe.PExpireAt(t.Context(), x.timeoutKey(hold.ID(), 1), now.Add(lease))
		}
		pipe.PExpireAt(t.Context(), x.name, now.Add(max(others, lease)))
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		for _, hold := range holds {
			release(t, hold)
		}
		n := time.Duration(len(holds))
		return cost{usec(t, rdb, "evalsha") / n, redistest.Commands(t, s).Total() / int64(n)}
	}
	few := perRelease(10, 2*time.Minute, time.Minute, 50)
	for _, tt := range []struct {
		name          string
		others, lease time.Duration
		leavers       int
		bound         int64 // commands of a release
	}{
		{"leaves before the others", 2 * time.Minute, time.Minute, 50, 15},
		{"leaves with the others", 2 * time.Minute, 2 * time.Minute, 50, 50},
		{"has outlived the others", time.Minute, 2 * time.Minute, 1, int64(n) + 200},
	} {
		many := perRelease(n, tt.others, tt.lease, tt.leavers)
		t.Logf("%s: %v and %d commands a release among 10, %v and %d among %d", tt.name, few.time, few.commands, many.time, many.commands, n)
		require.Less(t, many.commands, tt.bound, tt.name)
	}
}

// usec is the server's time in a command since its statistics were reset.
func usec(t testing.TB, rdb *redis.Client, command string) time.Duration {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, line, ok := strings.Cut(stats, "cmdstat_"+command+":")
	require.True(t, ok)
	_, figure, _ := strings.Cut(line, "usec=")
	figure, _, _ = strings.Cut(figure, ",")
	n, err := strconv.Atoi(figure)
	require.NoError(t, err)
	return time.Duration(n) * time.Microsecond
}

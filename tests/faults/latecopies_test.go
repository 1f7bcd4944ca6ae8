package faults

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Copies that come minutes late: a kernel goes on sending what was written to a connection that was
// closed, the last time after 102 s. See doc/decisions/late-copies.md.

// copyAge is how old the copies in these tests are. Requests are remembered for 3 minutes.
const copyAge = 170 * time.Second

// copyTest is a name on a server, and a client whose commands are recorded.
type copyTest struct {
	*testing.T
	c       *primitives.Client
	p       *redistest.Proxy
	name    string
	lock    fixture.Handle // for rows that need the same handle twice
	holds   []*primitives.Hold
	options []primitives.Option
}

func (x *copyTest) ok(err error) {
	x.Helper()
	require.NoError(x, err)
}

func (x *copyTest) hold(l fixture.Handle, opts ...primitives.Option) *primitives.Hold {
	x.Helper()
	hold := fixture.Acquire(x, context.Background(), l, append(slices.Clone(x.options), opts...)...)
	x.holds = append(x.holds, hold)
	return hold
}

func (x *copyTest) latch() *primitives.CountDownLatch { return x.c.CountDownLatch(x.name) }
func (x *copyTest) sem() *primitives.Semaphore        { return x.c.Semaphore(x.name) }
func (x *copyTest) permits() *primitives.PermitExpirableSemaphore {
	return x.c.PermitExpirableSemaphore(x.name)
}

// lateCopy is a command whose copies come late: before it, the command, and what follows it.
type lateCopy struct {
	name              string
	before, do, after func(x *copyTest)
}

// lateCopies lists everything that counts, or that a copy could take or give back once more.
func lateCopies() (list []lateCopy) {
	ctx, nothing := context.Background(), func(*copyTest) {}
	owner := primitives.WithOwner("o")
	add := func(name string, before, do, after func(x *copyTest)) {
		list = append(list, lateCopy{name, before, do, after})
	}
	add("latch: init", nothing,
		func(x *copyTest) { x.ok(fixture.ErrOf(x.latch().Init(ctx, 3))) },
		func(x *copyTest) { x.ok(fixture.ErrOf(x.latch().Delete(ctx))) })
	add("latch: count down",
		func(x *copyTest) { x.ok(fixture.ErrOf(x.latch().Init(ctx, 3))) },
		func(x *copyTest) { x.ok(x.latch().CountDown(ctx)) }, nothing)
	add("latch: delete",
		func(x *copyTest) { x.ok(fixture.ErrOf(x.latch().Init(ctx, 3))) },
		func(x *copyTest) { x.ok(fixture.ErrOf(x.latch().Delete(ctx))) },
		func(x *copyTest) { x.ok(fixture.ErrOf(x.latch().Init(ctx, 2))) })
	for kind, open := range map[string]func(x *copyTest) fixture.Countable{
		"semaphore": func(x *copyTest) fixture.Countable { return x.sem() },
		"permits":   func(x *copyTest) fixture.Countable { return x.permits() },
	} {
		set := func(x *copyTest) { x.ok(fixture.ErrOf(open(x).Init(ctx, 5))) }
		add(kind+": init", nothing, set, func(x *copyTest) { x.ok(fixture.ErrOf(open(x).Delete(ctx))) })
		add(kind+": add", set, func(x *copyTest) { x.ok(open(x).Add(ctx, 2)) }, nothing)
		add(kind+": delete", set, func(x *copyTest) { x.ok(fixture.ErrOf(open(x).Delete(ctx))) }, set)
	}
	add("semaphore: drain",
		func(x *copyTest) { x.ok(fixture.ErrOf(x.sem().Init(ctx, 5))) },
		func(x *copyTest) { x.ok(fixture.ErrOf(x.sem().Drain(ctx))) },
		func(x *copyTest) { x.ok(x.sem().Add(ctx, 2)) })
	add("permits: resize",
		func(x *copyTest) { x.ok(fixture.ErrOf(x.permits().Init(ctx, 5))) },
		func(x *copyTest) { x.ok(x.permits().Resize(ctx, 3)) },
		func(x *copyTest) { x.ok(x.permits().Resize(ctx, 7)) })
	add("permits: release by id",
		func(x *copyTest) { x.ok(fixture.ErrOf(x.permits().Init(ctx, 5))); x.hold(x.permits()) },
		func(x *copyTest) { x.ok(x.permits().ReleaseID(ctx, x.holds[0].ID())) },
		func(x *copyTest) { x.hold(x.permits()) })
	for _, kind := range kinds.Locks() {
		open := func(x *copyTest) *primitives.Lock { return kind.Lock(x.c, x.name) }
		take := func(x *copyTest) { x.hold(open(x)) }
		shared := func(x *copyTest) { x.hold(open(x), owner) }
		twice := func(x *copyTest) { shared(x); shared(x); shared(x) }
		add(kind.Name+": force release", take,
			func(x *copyTest) { x.ok(fixture.ErrOf(open(x).ForceRelease(ctx))) }, take)
		add(kind.Name+": release by id", twice,
			func(x *copyTest) { x.ok(open(x).ReleaseID(ctx, "o")) }, nothing)
		add(kind.Name+": release of an owner's count", twice, func(x *copyTest) { fixture.Release(x, x.holds[0]) }, nothing)
		add(kind.Name+": acquisition of an owner's count, in doubt", shared,
			func(x *copyTest) { x.p.DropReplies(1, fixture.Script); shared(x) },
			func(x *copyTest) { fixture.Release(x, x.holds[1]) })
		if kind.Name != "reader" {
			continue // their last release frees the lock, whatever count a copy has set
		}
		add(kind.Name+": nested acquisition and release, in doubt",
			func(x *copyTest) { take(x) },
			func(x *copyTest) {
				x.p.DropReplies(1, fixture.Script)
				fixture.Release(x, fixture.Acquire(x, x.holds[0].Context(), open(x), x.options...))
			},
			func(x *copyTest) { fixture.Release(x, fixture.Acquire(x, x.holds[0].Context(), open(x), x.options...)) })
	}
	for _, kind := range append(kinds.Named(), kinds.Of("multi")) {
		add(kind.Name+": acquisition, in doubt",
			func(x *copyTest) { x.lock = kind.One(x, x.c, x.name) },
			func(x *copyTest) { x.p.DropReplies(1, fixture.Script); x.hold(x.lock) },
			func(x *copyTest) { fixture.Release(x, x.holds[0]) })
		if !kind.Pool {
			add(kind.Name+": acquisition, in doubt, nested in since",
				func(x *copyTest) { x.lock = kind.One(x, x.c, x.name) },
				func(x *copyTest) { x.p.DropReplies(1, fixture.Script); x.hold(x.lock) },
				func(x *copyTest) { fixture.Acquire(x, x.holds[0].Context(), x.lock, x.options...) })
		}
		add(kind.Name+": release, in doubt",
			func(x *copyTest) { x.lock = kind.One(x, x.c, x.name); x.hold(x.lock) },
			func(x *copyTest) { x.p.DropReplies(1, fixture.Script); fixture.Release(x, x.holds[0]) },
			func(x *copyTest) { x.hold(x.lock) })
		add(kind.Name+": rolled back acquisition, in doubt",
			func(x *copyTest) { x.lock = kind.One(x, x.c, x.name) },
			func(x *copyTest) {
				x.p.DropCommands(1000, fixture.Script)
				_, err := x.lock.TryAcquire(ctx, x.options...)
				require.Error(x, err)
			},
			func(x *copyTest) { fixture.Release(x, fixture.Acquire(x, ctx, x.lock, x.options...)) })
	}
	return list
}

// C16: copies of a command that are minutes late change nothing. Fake time in the embedded server,
// real time in the nightly run.
func TestC16CopiesOfThreeMinutesChangeNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range lateCopies() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redistest.RunBubble(t, "embedded", func(t *testing.T) { tt.run(t, redistest.Embedded(t)) })
			if redistest.Nightly() {
				t.Run("redis", func(t *testing.T) {
					t.Parallel()
					tt.run(t, redistest.Redis(t))
				})
			}
		})
	}
}

func (tt *lateCopy) run(t *testing.T, s *redistest.Server) {
	x := &copyTest{
		T: t, p: s.Proxy(t), name: redistest.Name(t), options: []primitives.Option{primitives.WithLease(time.Hour)},
	}
	x.c = fixture.NewClient(t, x.p.Client(t, fixture.FastRetries))
	rdb := s.Client(t)
	tt.before(x)
	x.p.Record()
	tt.do(x)
	copies := fixture.ScriptsOf(x.p)
	require.NotEmpty(t, copies)
	x.p.Heal()
	tt.after(x)
	time.Sleep(copyAge)
	before := valuesOf(t, rdb, s, x.name)
	for range 2 {
		fixture.Replay(t, rdb, copies)
		slices.Reverse(copies)
	}
	require.Equal(t, before, valuesOf(t, rdb, s, x.name))
	for _, hold := range x.holds {
		_ = hold.Release(context.Background())
	}
}

// valuesOf returns the keys of a name with their values, without the remembered requests.
func valuesOf(t testing.TB, rdb *redis.Client, s *redistest.Server, name string) map[string]any {
	ctx, values := context.Background(), map[string]any{}
	for _, key := range redistest.Keys(t, s, "*"+name+"*") {
		if strings.HasPrefix(key, "redlatch_client:") {
			continue
		}
		switch rdb.Type(ctx, key).Val() {
		case "hash":
			values[key] = rdb.HGetAll(ctx, key).Val()
		case "zset":
			values[key] = rdb.ZRange(ctx, key, 0, -1).Val()
		case "list":
			values[key] = rdb.LRange(ctx, key, 0, -1).Val()
		default:
			if !strings.HasPrefix(key, "redisson_unlock_latch:") {
				values[key] = rdb.Get(ctx, key).Val()
			}
		}
	}
	return values
}

// A semaphore is lost and made again while a permit is out. The new one stays as large as it was
// set.
func TestPermitsOfAnEarlierSemaphoreAreLost(t *testing.T) {
	t.Parallel()
	type env struct {
		t    *testing.T
		sem  *primitives.Semaphore
		rdb  *redis.Client
		name string
	}
	ctx := context.Background()
	setHere := func(e *env) { require.NoError(e.t, fixture.ErrOf(e.sem.Init(ctx, 2))) }
	addHere := func(e *env) { require.NoError(e.t, e.sem.Add(ctx, 2)) }
	setByJava := func(e *env) { require.NoError(e.t, e.rdb.SetNX(ctx, e.name, 2, 0).Err()) }
	deleteHere := func(e *env) { require.NoError(e.t, fixture.ErrOf(e.sem.Delete(ctx))) }
	deleteByJava := func(e *env) { require.NoError(e.t, e.rdb.Del(ctx, e.name).Err()) }
	lose := func(e *env) { // as a FLUSHALL
		for _, key := range e.rdb.Keys(ctx, "*"+e.name+"*").Val() {
			require.NoError(e.t, e.rdb.Del(ctx, key).Err())
		}
	}
	loseNoticed := func(e *env) { // another program deletes it, and an acquisition here finds that
		deleteByJava(e)
		require.ErrorIs(e.t, fixture.ErrOf(e.sem.TryAcquire(ctx)), primitives.ErrNotAcquired)
	}
	for _, tt := range []struct {
		name              string
		made, lost, again func(e *env)
		dayOld            bool // a permit may also be a day old, which costs two seconds for the pings of the day
	}{
		{"Delete, Init", setHere, deleteHere, setHere, true},
		{"Delete, Add", setHere, deleteHere, addHere, false},
		{"Delete, Init in Java", setHere, deleteHere, setByJava, false},
		{"made by Add, Delete, Init", addHere, deleteHere, setHere, false},
		{"made by Java, Delete, Init", setByJava, deleteHere, setHere, false},
		{"deleted by Java, Init", setHere, deleteByJava, setHere, false},
		{"made and deleted by Java, Init", setByJava, deleteByJava, setHere, false},
		{"deleted by Java and noticed, Init in Java", setHere, loseNoticed, setByJava, false},
		{"all keys lost, Init", setHere, lose, setHere, false},
		{"all keys lost, Init in Java", setHere, lose, setByJava, true},
	} {
		for _, held := range []string{
			"acquired", "handed off", "acquired a day ago", "the release is lost", "the reply to the release is lost",
		} {
			if held == "acquired a day ago" && !tt.dayOld {
				continue
			}
			fixture.RunEmbedded(t, tt.name+", "+held, func(t *testing.T, s *redistest.Server) {
				p := s.Proxy(t)
				c := fixture.NewClient(t, p.Client(t, fixture.FastRetries), primitives.WithClientName(""))
				e := &env{t: t, rdb: s.Client(t), name: redistest.Name(t)}
				e.sem = c.Semaphore(e.name)
				tt.made(e)
				hold := fixture.Acquire(t, ctx, e.sem)
				if held == "handed off" {
					rest := fixture.Acquire(t, ctx, e.sem)
					waiting := fixture.StartAcquire(ctx, e.sem)
					fixture.AwaitWaiters(t, c, 1)
					fixture.Release(t, hold)
					hold = fixture.AwaitHold(t, waiting)
					fixture.Release(t, rest)
				}
				tt.lost(e)
				tt.again(e)
				switch held {
				case "acquired a day ago":
					time.Sleep(25 * time.Hour) // Redis has forgotten the acquisition
				case "the release is lost":
					p.DropCommands(1, fixture.Script)
				case "the reply to the release is lost":
					p.DropReplies(1, fixture.Script)
				}
				if err := hold.Release(ctx); strings.HasPrefix(tt.name, "all keys lost") && strings.HasSuffix(held, "is lost") {
					require.NoError(t, err, "the copy that was not answered may have released it")
				} else {
					require.ErrorIs(t, err, primitives.ErrLost)
				}
				require.Equal(t, "2", e.rdb.Get(ctx, e.name).Val())
				// The new one works.
				first, second := fixture.Acquire(t, ctx, e.sem), fixture.Acquire(t, ctx, e.sem)
				require.ErrorIs(t, fixture.ErrOf(e.sem.TryAcquire(ctx)), primitives.ErrNotAcquired)
				fixture.Release(t, first, second)
				require.Equal(t, "2", e.rdb.Get(ctx, e.name).Val())
				deleteHere(e)
				time.Sleep(3*time.Minute + time.Second)
				require.Empty(t, redistest.Keys(t, s, "*"+e.name+"*"))
			})
		}
	}
}

// A semaphore of Java gets no further key. The epoch of one with a TTL goes with it, a day later at
// most, and not before its permits.
func TestEpochLastsAsLongAsItsSemaphore(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, rdb, name := fixture.NewClient(t, s.Client(t)), s.Client(t), redistest.Name(t)
		sem, epoch := c.Semaphore(name), "redisson_unlock_latch:{"+name+"}:epoch"
		require.NoError(t, rdb.Set(t.Context(), name, 1, 0).Err())
		fixture.Release(t, fixture.Acquire(t, t.Context(), sem))
		require.Zero(t, rdb.Exists(t.Context(), epoch).Val())
		require.NoError(t, rdb.Del(t.Context(), name).Err())

		fixture.InitPool(t, sem, 1)
		hold := fixture.Acquire(t, t.Context(), sem)
		require.Equal(t, time.Duration(-1), rdb.PTTL(t.Context(), epoch).Val(), "as the semaphore")
		fixture.Release(t, hold)
		require.NoError(t, rdb.Expire(t.Context(), name, time.Hour).Err())
		fixture.Release(t, fixture.Acquire(t, t.Context(), sem))
		require.InDelta(t, 25*time.Hour, rdb.PTTL(t.Context(), epoch).Val(), float64(time.Minute))
		require.NoError(t, rdb.Persist(t.Context(), name).Err())
		fixture.Release(t, fixture.Acquire(t, t.Context(), sem))
		require.Equal(t, time.Duration(-1), rdb.PTTL(t.Context(), epoch).Val())
	})
}

// copiesTime is how long Redis may remember a request.
const copiesTime = 3 * time.Minute

// The bar of keys: acquisitions of each kind, contended, many of them canceled, and all released; a
// million in the nightly run. Every key that was not there before is gone when no copy can come any
// more: its TTL says that, and the nightly run waits for it.
func TestNothingStaysOfAcquisitions(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.All() {
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			if opts != nil && kind.Pool {
				continue
			}
			t.Run(fmt.Sprint(kind.Name, " shared: ", opts != nil), func(t *testing.T) {
				t.Parallel()
				s := redistest.Fresh(t)
				rdb := s.Client(t)
				clients := []*primitives.Client{fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))}
				handles := []fixture.Handle{kind.One(t, clients[0], "x"), kind.One(t, clients[1], "x")}
				fixture.Release(t, fixture.Acquire(t, t.Context(), handles[0], opts...))
				n := redistest.Sized(s, redistest.Scaled(s, 1000), 1_000_000)
				before := slices.DeleteFunc(rdb.Keys(t.Context(), "*").Val(), func(key string) bool {
					return rdb.PTTL(t.Context(), key).Val() >= 0 // of this acquisition, and expires too
				})
				began := time.Now()
				var granted, canceled atomic.Int64
				done := make(chan error, 10)
				for i := range cap(done) {
					go func() {
						var err error
						for j := 0; j < n/cap(done) && err == nil; j++ {
							ctx, cancel := context.WithTimeout(t.Context(), fixture.Soon)
							if j%3 == 0 { // some of them in vain
								cancel()
								ctx, cancel = context.WithTimeout(t.Context(), time.Duration(j%20)*100*time.Microsecond)
							}
							var hold *primitives.Hold
							switch hold, err = handles[i%2].Acquire(ctx, opts...); {
							case err == nil:
								granted.Add(1)
								err = hold.Release(t.Context())
							case j%3 == 0:
								canceled.Add(1)
								err = nil
							}
							cancel()
						}
						done <- err
					}()
				}
				for range cap(done) {
					require.NoError(t, <-done)
				}
				for _, c := range clients { // waits for the rollbacks
					require.NoError(t, c.Close(t.Context()))
				}
				took := time.Since(began)
				require.Positive(t, canceled.Load())
				stay := requireExpiring(t, rdb, before)
				t.Logf("%d granted and %d canceled in %v, and %d keys that expire", granted.Load(), canceled.Load(),
					took.Round(time.Millisecond), stay)
				if redistest.Nightly() {
					time.Sleep(copiesTime)
					require.ElementsMatch(t, before, rdb.Keys(t.Context(), "*").Val())
				}
			})
		}
	}
}

// requireExpiring checks that all keys but those before expire within the time for copies, and
// returns how many they are.
func requireExpiring(t *testing.T, rdb *redis.Client, before []string) (n int) {
	t.Helper()
	for cursor := uint64(0); ; {
		keys, next, err := rdb.Scan(t.Context(), cursor, "*", 1000).Result()
		require.NoError(t, err)
		keys = slices.DeleteFunc(keys, func(key string) bool { return slices.Contains(before, key) })
		ttls := make([]*redis.DurationCmd, len(keys))
		_, err = rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for i, key := range keys {
				ttls[i] = p.PTTL(t.Context(), key)
			}
			return nil
		})
		require.NoError(t, err)
		for i, key := range keys {
			if ttl := ttls[i].Val(); ttl != -2 { // it has expired since
				require.LessOrEqual(t, ttl, copiesTime, key)
				require.GreaterOrEqual(t, ttl, time.Duration(0), key)
				n++
			}
		}
		if cursor = next; cursor == 0 {
			return n
		}
	}
}

// Redis forgets clients that no longer wait for a fair lock, even while others do.
func TestClientsThatNoLongerWaitAreForgotten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		clients := "redlatch_lock_clients:{" + name + "}"
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock(name))
		waits := fixture.StartAcquire(t.Context(), fixture.NewClient(t, s.Client(t)).FairLock(name))
		redistest.WaitFor(t, fixture.Soon, func() bool { return rdb.LLen(t.Context(), fairQueueOf(name)).Val() == 1 },
			"it waits")
		const gone = 20
		for range gone {
			l := fixture.NewClient(t, s.Client(t)).FairLock(name)
			require.ErrorIs(t, fixture.ErrOf(l.Acquire(t.Context(), primitives.WithWait(time.Millisecond))),
				primitives.ErrNotAcquired)
		}
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return rdb.LLen(t.Context(), fairQueueOf(name)).Val() == 1
		}, "they have left")
		// Their last heartbeats were 11 s ago. The waiter's own is a second old at most.
		id := rdb.LIndex(t.Context(), fairQueueOf(name), 0).Val()
		waiter := rdb.HGet(t.Context(), "redlatch_lock_waiters:{"+name+"}", id).Val()
		life, _, _ := strings.Cut(waiter, " ")
		for field := range rdb.HGetAll(t.Context(), clients).Val() {
			if len(field) == len(life) && field != life {
				rdb.HIncrBy(t.Context(), clients, field, -11_000)
			}
		}
		redistest.WaitFor(t, fixture.Soon, func() bool { return rdb.HLen(t.Context(), clients).Val() < 10 },
			"they are forgotten")
		require.True(t, rdb.HExists(t.Context(), clients, life).Val())
		require.Equal(t, life, rdb.HGet(t.Context(), clients, "id "+idOfWaiter(rdb, name)).Val())
		fixture.Release(t, hold)
		fixture.Release(t, fixture.AwaitHold(t, waits))
		fixture.RequireClean(t, s, name)
	})
}

// A client with a longer waiter timeout is not forgotten before that has passed.
func TestClientsAreNotForgottenBeforeTheirWaiters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock(name))
		p := s.Proxy(t)
		silent := fixture.StartAcquire(t.Context(), fixture.NewClient(t, p.Client(t)).FairLock(name),
			primitives.WithWaiterTimeout(time.Hour))
		redistest.WaitFor(t, fixture.Soon, func() bool { return rdb.LLen(t.Context(), fairQueueOf(name)).Val() == 1 },
			"it waits")
		fixture.AwaitWaiter(t, s, name)
		p.BlackHole(true)
		head := rdb.LIndex(t.Context(), fairQueueOf(name), 0).Val()
		entry := rdb.HGet(t.Context(), "redlatch_lock_waiters:{"+name+"}", head).Val()
		life, _, _ := strings.Cut(entry, " ")
		clients := "redlatch_lock_clients:{" + name + "}"
		rdb.HIncrBy(t.Context(), clients, life, -30*60_000)
		waits := fixture.StartAcquire(t.Context(), fixture.NewClient(t, s.Client(t)).FairLock(name))
		redistest.WaitFor(t, fixture.Soon, func() bool {
			swept, _, _ := strings.Cut(rdb.HGet(t.Context(), clients, "swept").Val(), " ")
			return swept != "" && rdb.LLen(t.Context(), fairQueueOf(name)).Val() == 2
		}, "the second waiter has looked")
		require.True(t, rdb.HExists(t.Context(), clients, life).Val())
		require.Equal(t, head, rdb.LIndex(t.Context(), fairQueueOf(name), 0).Val(), "it keeps its place")
		p.Heal()
		fixture.Release(t, hold)
		fixture.Release(t, fixture.AwaitHold(t, silent))
		fixture.Release(t, fixture.AwaitHold(t, waits))
	})
}

// fairQueueOf is the key of a fair lock's queue.
func fairQueueOf(name string) string { return "redisson_lock_queue:{" + name + "}" }

// idOfWaiter is the client id of the first waiter.
func idOfWaiter(rdb *redis.Client, name string) string {
	id, _, _ := strings.Cut(rdb.LIndex(context.Background(), fairQueueOf(name), 0).Val(), ":")
	return id
}

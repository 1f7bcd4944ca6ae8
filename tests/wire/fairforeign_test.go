package wire

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// foreignValue is a string that another program stores under a key of the fair lock.
const foreignValue = "not ours"

// fairKeys returns the keys of a fair lock by their purpose.
func fairKeys(name string) map[string]string {
	return map[string]string{
		"lock":       name,
		"queue":      "redisson_lock_queue:{" + name + "}",
		"deadlines":  "redisson_lock_timeout:{" + name + "}",
		"waiters":    "redlatch_lock_waiters:{" + name + "}",
		"heartbeats": "redlatch_lock_clients:{" + name + "}",
	}
}

// eachFairKey runs f on both servers for each key of a fair lock.
func eachFairKey(t *testing.T, f func(t *testing.T, x *foreignKey)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what := range fairKeys("") {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				c := fixture.NewClient(t, s.Client(t))
				f(t, &foreignKey{
					s: s, rdb: s.Client(t), c: c, l: c.FairLock(name), name: name,
					what: what, key: fairKeys(name)[what],
				})
			})
		}
	})
}

// foreignKey is the fixture of a test in which one key of a fair lock holds a foreign string.
type foreignKey struct {
	s    *redistest.Server
	rdb  *redis.Client
	c    *primitives.Client
	l    *primitives.Lock
	name string
	what string // the purpose of the key
	key  string
}

// overwrite replaces the key by the foreign string.
func (x *foreignKey) overwrite(t *testing.T) {
	require.NoError(t, x.rdb.Set(context.Background(), x.key, foreignValue, 0).Err())
}

// requireIntact checks that the foreign string is still there, without a TTL.
func (x *foreignKey) requireIntact(t *testing.T) {
	t.Helper()
	require.Equal(t, foreignValue, x.rdb.Get(context.Background(), x.key).Val())
	require.Equal(t, time.Duration(-1), x.rdb.PTTL(context.Background(), x.key).Val(), "it has no TTL")
}

// requireFree checks that the lock hash is gone, unless the foreign string is there.
func (x *foreignKey) requireFree(t *testing.T) {
	t.Helper()
	if x.what != "lock" {
		require.Zero(t, x.rdb.Exists(context.Background(), x.name).Val(), "the lock is free")
	}
}

// requireNoWaiters waits until no entry of a waiter is left under the other keys.
func (x *foreignKey) requireNoWaiters(t *testing.T) {
	t.Helper()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		left := int64(0)
		for what, key := range fairKeys(x.name) {
			if what != "lock" && what != "heartbeats" && what != x.what {
				left += x.rdb.Exists(context.Background(), key).Val()
			}
		}
		return left == 0
	}, "all waiters have left the queue")
}

// requireWrongType checks that err is Redis's WRONGTYPE error, and not ErrNotAcquired.
func requireWrongType(t *testing.T, err error) {
	t.Helper()
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
}

// requireReleaseFails checks the error of a hold's release. If the lock's own key was overwritten,
// it is lost.
func (x *foreignKey) requireReleaseFails(t *testing.T, err error) {
	t.Helper()
	if x.what == "lock" {
		require.ErrorIs(t, err, primitives.ErrLost)
		return
	}
	requireWrongType(t, err)
}

// Acquiring a fair lock fails with WRONGTYPE if one of its keys holds a string. It changes nothing.
func TestFairLockAcquireMeetsForeignKey(t *testing.T) {
	t.Parallel()
	eachFairKey(t, func(t *testing.T, x *foreignKey) {
		x.overwrite(t)
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			_, err := x.l.Acquire(t.Context(), opts...)
			requireWrongType(t, err)
			_, err = x.l.TryAcquire(t.Context(), opts...)
			requireWrongType(t, err)
		}
		x.requireIntact(t)
		fixture.RequireClean(t, x.s, x.name, x.key)
		require.NoError(t, x.rdb.Del(t.Context(), x.key).Err())
		fixture.Release(t, fixture.Acquire(t, t.Context(), x.l))
		fixture.RequireClean(t, x.s, x.name)
	})
}

// An acquisition that has to wait does not queue if one of the keys holds a string.
func TestFairLockWaiterMeetsForeignKeyBeforeItJoins(t *testing.T) {
	t.Parallel()
	eachFairKey(t, func(t *testing.T, x *foreignKey) {
		for _, others := range []bool{false, true} { // an empty queue, and one with a waiter of another client
			hold := fixture.Acquire(t, t.Context(), x.l)
			ctx, cancel := context.WithCancel(t.Context())
			if others {
				other := fixture.NewClient(t, x.s.Client(t)).FairLock(x.name)
				fixture.StartAcquire(ctx, other)
				fixture.AwaitFair(t, x.l, 1)
			}
			x.overwrite(t)
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
				_, err := x.l.Acquire(t.Context(), opts...)
				requireWrongType(t, err)
			}
			x.requireIntact(t)
			cancel()
			_ = hold.Release(t.Context())
			x.requireFree(t)
			x.requireNoWaiters(t)
			x.requireIntact(t)
			require.NoError(t, x.rdb.Del(t.Context(), x.key, fairKeys(x.name)["heartbeats"]).Err())
			fixture.RequireClean(t, x.s, x.name)
		}
	})
}

// A release frees the lock and returns WRONGTYPE if one of the keys holds a string. The string
// stays.
func TestFairLockReleaseMeetsForeignKey(t *testing.T) {
	t.Parallel()
	eachFairKey(t, func(t *testing.T, x *foreignKey) {
		for call, release := range map[string]func(hold *primitives.Hold) error{
			"Release":   func(hold *primitives.Hold) error { return hold.Release(t.Context()) },
			"ReleaseID": func(hold *primitives.Hold) error { return x.l.ReleaseID(t.Context(), hold.ID()) },
			"ForceRelease": func(*primitives.Hold) error {
				_, err := x.l.ForceRelease(t.Context())
				return err
			},
		} {
			hold := fixture.Acquire(t, t.Context(), x.l)
			x.overwrite(t)
			err := release(hold)
			if call == "Release" {
				x.requireReleaseFails(t, err)
			} else {
				requireWrongType(t, err)
			}
			x.requireFree(t)
			x.requireIntact(t)
			_ = hold.Release(t.Context())
			x.requireIntact(t)
			require.NoError(t, x.rdb.Del(t.Context(), x.key).Err())
			fixture.RequireClean(t, x.s, x.name)
		}
	})
}

// A release that cannot hand off because a key holds a string frees the lock. The string stays.
func TestFairLockHandoffMeetsForeignKey(t *testing.T) {
	t.Parallel()
	eachFairKey(t, func(t *testing.T, x *foreignKey) {
		hold := fixture.Acquire(t, t.Context(), x.l)
		waiting := fixture.StartAcquire(t.Context(), fixture.NewClient(t, x.s.Client(t)).FairLock(x.name))
		fixture.AwaitFair(t, x.l, 1)
		x.overwrite(t)
		x.requireReleaseFails(t, hold.Release(t.Context()))
		x.requireFree(t)
		requireWrongType(t, fixture.Await(t, waiting).Err)
		x.requireNoWaiters(t)
		x.requireIntact(t)
	})
}

// Waiters return WRONGTYPE and leave the queue when one of the keys becomes a string.
func TestFairLockWaitersEndWhenAKeyBecomesForeign(t *testing.T) {
	t.Parallel()
	eachFairKey(t, func(t *testing.T, x *foreignKey) {
		hold := fixture.Acquire(t, t.Context(), x.l)
		var waiting []<-chan fixture.Result
		for i := range 10 {
			waiting = append(waiting, fixture.StartAcquire(t.Context(), x.l))
			fixture.AwaitFair(t, x.l, i+1)
		}
		x.overwrite(t)
		for _, w := range waiting {
			requireWrongType(t, fixture.Await(t, w).Err)
		}
		x.requireIntact(t)
		_ = hold.Release(t.Context())
		x.requireFree(t)
		x.requireNoWaiters(t)
		x.requireIntact(t)
	})
}

// Waiters return WRONGTYPE at the next heartbeat of their client, within a second.
func TestFairLockForeignKeyEndsWaitersInASecond(t *testing.T) {
	t.Parallel()
	for what, key := range fairKeys("l") {
		fixture.RunEmbedded(t, what, func(t *testing.T, s *redistest.Server) {
			l := fixture.NewClient(t, s.Client(t)).FairLock("l")
			fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).FairLock("l"))
			var waiting []<-chan fixture.Result
			for i := range 10 {
				waiting = append(waiting, fixture.StartAcquire(t.Context(), l))
				fixture.AwaitFair(t, l, i+1)
			}
			require.NoError(t, s.Client(t).Set(t.Context(), key, foreignValue, 0).Err())
			began := time.Now()
			for _, w := range waiting {
				requireWrongType(t, (<-w).Err)
			}
			require.LessOrEqual(t, time.Since(began), time.Second+10*time.Millisecond)
		})
	}
}

// A refresh that comes after the last waiter has left writes nothing if a key holds a string.
func TestFairLockLateRefreshMeetsForeignKey(t *testing.T) {
	t.Parallel()
	eachFairKey(t, func(t *testing.T, x *foreignKey) {
		x.overwrite(t)
		run := scripts.NewRunner(x.rdb, 0)
		defer run.Close()
		keys := fairKeys(x.name)
		_, err := scripts.FairLockRefresh{
			Keys: &scripts.Keys{
				Main: x.name, Channel: "c:{" + x.name + "}", SharedCounts: "redlatch_shared_counts:{" + x.name + "}",
				KindKeys: &scripts.KindKeys{
					Queue: keys["queue"], Deadlines: keys["deadlines"],
					Waiters: keys["waiters"], Clients: keys["heartbeats"],
				},
			},
			Client: "life", LongestTimeout: 10 * time.Second, IDs: []string{"life:1"},
		}.Do(t.Context(), run.Sender())
		requireWrongType(t, err)
		x.requireIntact(t)
		fixture.RequireClean(t, x.s, x.name, x.key)
	})
}

// A newcomer's score is not below that of a waiter with a longer timeout, nor below a score that a
// client wrote that does not know of the field "reach", before the next refresh and after it. A
// newcomer with a longer timeout than all others has all its time.
func TestFairLockNewcomerHasTheHighestScore(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	q := fixture.NewRawQueue(t, s, 1) // its timeout is 60 s
	for _, timeout := range []int{3000, 120000, 500, 60000} {
		q.JoinWith(timeout)
		q.RequireTailHighest()
		q.Heartbeat()
		q.RequireTailHighest()
	}
	now := float64(s.Client(t).Time(t.Context()).Val().UnixMilli())
	require.Greater(t, q.Rdb.ZScore(t.Context(), q.Deadlines(), q.ID(3)).Val(), now+100000)

	const beyond = 500000
	foreign := redis.Z{Score: now + beyond, Member: q.ID(q.Last - 1)}
	require.NoError(t, q.Rdb.ZAdd(t.Context(), q.Deadlines(), foreign).Err())
	q.Heartbeat()
	q.JoinWith(10000)
	q.RequireTailHighest()
}

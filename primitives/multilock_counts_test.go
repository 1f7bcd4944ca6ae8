package primitives_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The tests in this file limit the commands of multi locks, whose members one command may acquire.

// multiWays are multi locks of both kinds: acquired as a whole, and one member after another.
var multiWays = []struct {
	name    string
	members func(c *primitives.Client, name string) []*primitives.Lock
	whole   bool
}{
	{"plain locks", func(c *primitives.Client, name string) []*primitives.Lock { return kinds.Members(c, name, 3) }, true},
	{"one plain lock", func(c *primitives.Client, name string) []*primitives.Lock {
		return kinds.Members(c, name, 1)
	}, true},
	{"a fenced lock", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.FencedLock(name+"-fenced"))
	}, false},
	{"a lock with a lease of its own", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.Lock(name+"-lease", primitives.WithLease(time.Minute)))
	}, false},
	{"a lock that polls", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.Lock(name+"-polls", primitives.WithPolling(time.Millisecond, time.Second)))
	}, false},
	{"a name with a comma", func(c *primitives.Client, name string) []*primitives.Lock {
		return append(kinds.Members(c, name, 2), c.Lock(name+"-,"))
	}, false},
}

// One command acquires all members, and one releases them, with and without contention.
func TestCountsMultiLock(t *testing.T) {
	for _, way := range multiWays {
		t.Run(way.name, func(t *testing.T) {
			s := redistest.Fresh(t)
			c := NewClient(t, s.Client(t))
			locks := way.members(c, "l")
			l := primitives.NewMultiLock(locks)
			pair := func() { Release(t, Acquire(t, t.Context(), l)) }
			pair() // loads the scripts
			want := 2 * len(locks)
			if way.whole {
				want = 2
			}
			require.InDelta(t, 10*want, sent(t, s, func() {
				for range 10 {
					pair()
				}
			}), 0)
		})
	}
}

// The exact costs of the usual case: three free names. Inside the scripts: EXISTS, and for each name HSET and PEXPIRE;
// then EXISTS, and for each name HDEL and PUBLISH.
func TestCountsMultiLockOfThree(t *testing.T) {
	s := redistest.Fresh(t)
	c := NewClient(t, s.Client(t))
	l := primitives.NewMultiLock(kinds.Members(c, "l", 3))
	pair := func() { // without the fixture, which allocates, too
		hold, err := l.Acquire(t.Context())
		if err == nil {
			err = hold.Release(t.Context())
		}
		require.NoError(t, err)
	}
	pair()
	require.EqualValues(t, 1+6+1+6, total(insideScripts(t, s, pair)))
	if !RaceEnabled {
		require.LessOrEqual(t, leastAllocs(100, pair), 54.0)
	}
}

// A multi lock of many members costs as many renewals as one of a single member.
func TestClockMultiLockIsRenewedByOneCommand(t *testing.T) {
	t.Parallel()
	var renewals [2]int
	for i, n := range []int{1, 50} {
		synctest.Test(t, func(t *testing.T) {
			p := redistest.Embedded(t).Proxy(t)
			l := primitives.NewMultiLock(kinds.Members(NewClient(t, p.Client(t), primitives.WithClientName("")), "l", n))
			hold := Acquire(t, t.Context(), l)
			time.Sleep(5 * time.Second) // in the middle between two renewals
			p.Record()
			time.Sleep(time.Minute)
			renewals[i] = len(ScriptsOf(p))
			require.NoError(t, hold.Check(t.Context()))
			Release(t, hold)
		})
	}
	require.Equal(t, renewals[0], renewals[1])
	require.InDelta(t, 6, renewals[0], 1)
}

// The release of another member than the busy one wakes no waiter.
func TestCountsMultiLockWaitsForTheBusyMember(t *testing.T) {
	s := redistest.Fresh(t)
	c, rival := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
	names := kinds.Members(rival, "l", 3)
	busy := Acquire(t, t.Context(), names[1])
	waiting := StartAcquire(t.Context(), primitives.NewMultiLock(kinds.Members(c, "l", 3)))
	AwaitWaiters(t, c, 1)
	for i := range 3 {
		AwaitWaiter(t, s, names[i].Name())
	}
	time.Sleep(50 * time.Millisecond)
	Release(t, Acquire(t, t.Context(), names[0])) // loads the script
	const n = 50
	require.LessOrEqual(t, sent(t, s, func() {
		for range n {
			Release(t, Acquire(t, t.Context(), names[0]))
			Release(t, Acquire(t, t.Context(), names[2]))
		}
	}), float64(4*n+3), "the waiter polls once a second")
	Release(t, busy)
	Release(t, AwaitHold(t, waiting))
}

// On a cluster, members of one slot are acquired by one command, and others by one each.
func TestMultiLockOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	name := redistest.Name(t)
	for _, tt := range []struct {
		name  string
		names []string
		want  int64
	}{
		{"one slot", []string{"{" + name + "}a", "{" + name + "}b", "{" + name + "}c"}, 2},
		{"several slots", []string{name + "a", name + "b", name + "c"}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := CountingHook{Only: []string{"eval", "evalsha"}}
			c := NewClient(t, cluster.ClusterClient(t, func(o *redis.ClusterOptions) {
				o.NewClient = func(opt *redis.Options) *redis.Client {
					rdb := redis.NewClient(opt)
					rdb.AddHook(&sent)
					return rdb
				}
			}))
			var locks []*primitives.Lock
			for _, n := range tt.names {
				locks = append(locks, c.Lock(n))
			}
			l := primitives.NewMultiLock(locks)
			Release(t, Acquire(t, t.Context(), l)) // loads the scripts
			sent.N.Store(0)
			hold := Acquire(t, t.Context(), l)
			rival := NewClient(t, cluster.ClusterClient(t)).Lock(tt.names[2])
			require.ErrorIs(t, ErrOf(rival.TryAcquire(t.Context())), primitives.ErrNotAcquired)
			Release(t, hold)
			require.Equal(t, tt.want, sent.N.Load())
		})
	}
}

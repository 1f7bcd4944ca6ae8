package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// acquire acquires and, when t ends, releases.
func acquire(t *testing.T, l *primitives.Lock) *primitives.Hold {
	t.Helper()
	hold, err := l.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = hold.Release(context.Background()) })
	return hold
}

func client(t *testing.T, rdb redis.UniversalClient, opts ...primitives.ClientOption) *primitives.Client {
	t.Helper()
	c, err := primitives.New(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// waits starts an acquisition that waits until t ends.
func waits(t *testing.T, l *primitives.Lock) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = l.Acquire(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// lookUntil looks until cond is true of a lock of that name.
func lookUntil(t *testing.T, s *Source, name string, cond func(*Lock) bool) *Lock {
	t.Helper()
	var found *Lock
	redistest.WaitFor(t, 10*time.Second, func() bool {
		snap, err := s.Look(t.Context())
		require.NoError(t, err)
		for i := range snap.Held {
			if l := &snap.Held[i]; l.Name == name && cond(l) {
				found = l
				return true
			}
		}
		return false
	}, "no such lock: "+name)
	return found
}

func TestSnapshotsShowWhatIsHeld(t *testing.T) {
	t.Parallel()
	kinds := func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Name(t) + "[x]:"
		c := client(t, rdb, primitives.WithPrefix(prefix), primitives.WithClientName("me"))
		other := client(t, rdb, primitives.WithPrefix(prefix), primitives.WithClientName("waiter"))
		holds := map[string]*primitives.Hold{
			"plain": acquire(t, c.Lock("plain")), "fenced": acquire(t, c.FencedLock("fenced")),
			"fair": acquire(t, c.FairLock("fair")),
			"read": acquire(t, c.RWLock("read").Reader()), "write": acquire(t, c.RWLock("write").Writer()),
		}
		second := acquire(t, other.RWLock("read").Reader())
		for _, l := range []*primitives.Lock{
			other.Lock("plain"), other.FencedLock("fenced"), other.FairLock("fair"),
			other.RWLock("read").Writer(), other.RWLock("write").Reader(),
		} {
			waits(t, l)
			waits(t, l)
		}
		require.NoError(t, rdb.HSet(t.Context(), prefix+"no lock", "field", "value").Err())
		t.Cleanup(func() { rdb.Del(context.Background(), prefix+"no lock") })

		for range 3 { // more than listen on the common channel
			waits(t, client(t, rdb, primitives.WithPrefix(prefix)).Lock("plain"))
		}
		s := NewSource(rdb, prefix, "*")
		lookUntil(t, s, "plain", func(l *Lock) bool { return l.Waiting == 4 })
		fair := lookUntil(t, s, "fair", func(l *Lock) bool { return len(l.Waiters) == 2 && l.Holders[0].Client == "me" })
		require.Equal(t, 2, fair.Waiting, "each waiter stands in the queue")
		named := lookUntil(t, s, "write", func(l *Lock) bool { return len(l.Clients) > 0 && l.Clients[0].Client != "" })
		require.Equal(t, []Waiter{{"waiter", other.ID()}}, named.Clients, "a client that waits says so")
		require.Equal(t, Waiter{"waiter", fair.Waiters[0]}, lookUntil(t, s, "fair", func(l *Lock) bool {
			return l.Clients[0].Client != ""
		}).Clients[0])
		for _, name := range []string{"fenced", "read", "write"} {
			l := lookUntil(t, s, name, func(l *Lock) bool { return l.Waiting > 0 })
			require.Equal(t, 1, l.Waiting, "%s: a client counts once", name)
			h := l.holder(holds[name].ID())
			require.NotNil(t, h, name)
			require.Equal(t, "me", h.Client)
			require.Equal(t, 1, h.Count)
			require.InDelta(t, 25*time.Second, time.Duration(h.TTL), float64(10*time.Second))
			require.Equal(t, name, l.Kind)
		}
		require.NotNil(t, lookUntil(t, s, "read", func(*Lock) bool { return true }).holder(second.ID()))
		require.Equal(t, holds["fenced"].Token(), lookUntil(t, s, "fenced", func(*Lock) bool { return true }).Token)
		snap, err := s.Look(t.Context())
		require.NoError(t, err)
		require.Len(t, snap.Held, 5)
		require.True(t, snap.Whole)
		only, err := NewSource(rdb, prefix, "f*").Look(t.Context())
		require.NoError(t, err)
		require.Len(t, only.Held, 2)
	}
	t.Run("one server", func(t *testing.T) { kinds(t, redistest.Redis(t).Client(t)) })
	t.Run("cluster", func(t *testing.T) { kinds(t, redistest.Cluster(t).ClusterClient(t)) })
}

// However many keys there are, a look costs Redis a bounded number of commands, and goes on where
// the last one stopped.
func TestLookIsBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	rdb := server.Client(t)
	const keys = 60_000
	script := `for i = 1, ARGV[1] do redis.call('set', 'k' .. i, 1) end
		for i = 1, ARGV[2] do redis.call('hset', 'h' .. i, 'a', 'b') end
		return 1`
	require.NoError(t, rdb.Eval(t.Context(), script, nil, keys, 100).Err())
	held := acquire(t, client(t, rdb).Lock("held"))
	s := NewSource(rdb, "", "*")
	found, passes := 0, 0
	for look := 0; passes < 2; look++ {
		before := redistest.Commands(t, server)
		snap, err := s.Look(t.Context())
		require.NoError(t, err)
		calls := redistest.Commands(t, server).Since(before)
		require.LessOrEqual(t, calls["scan"], int64(maxPages))
		require.GreaterOrEqual(t, snap.Keys, int64(keys+101))
		require.False(t, snap.Whole)
		if len(snap.Held) > 0 {
			found++
			require.Equal(t, held.ID(), snap.Held[0].Holders[0].ID)
		} else {
			require.Zero(t, found, "once found, a lock is shown by each look")
		}
		if snap.Visited == 1 {
			passes++
		}
		require.Less(t, look, 10)
	}
	require.Positive(t, found)
}

// While the server is away, each line says so. Afterwards the locks are shown again. A server that
// is silent holds up a look for as long as the timeout, but not the lines.
func TestLinesGoOnThroughAnOutage(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		timeout   time.Duration
		fail, end func(*redistest.Server) error
	}{
		"killed": {time.Second, (*redistest.Server).Kill, (*redistest.Server).Restart},
		"silent": {time.Minute, (*redistest.Server).Pause, (*redistest.Server).Resume},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testOutage(t, tt.timeout, tt.fail, tt.end)
		})
	}
}

func testOutage(t *testing.T, timeout time.Duration, fail, end func(*redistest.Server) error) {
	server := redistest.Fresh(t)
	o := options(server.Addr())
	o.ReadTimeout = timeout
	rdb := redis.NewClient(o)
	defer func() { _ = rdb.Close() }()
	lines, out := io.Pipe()
	said := make(chan string, 10)
	note := func(event, text string) { said <- event + ": " + text }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Redis: rdb, Pattern: "*", Timeout: timeout, Out: out, Note: note})
		_ = out.Close()
	}()
	in := json.NewDecoder(lines)
	next := func(cond func(map[string]any) bool) time.Time {
		t.Helper()
		for i := 0; ; i++ {
			var l map[string]any
			require.NoError(t, in.Decode(&l))
			for _, field := range []string{"at", "held", "waiting", "acquired_s", "lost_s"} {
				require.Contains(t, l, field)
			}
			if cond(l) {
				at, err := time.Parse(time.RFC3339Nano, l["at"].(string))
				require.NoError(t, err)
				return at
			}
			require.Less(t, i, 10, fmt.Sprint(l))
		}
	}
	answered := func(l map[string]any) bool { return l["error"] == nil }
	next(answered)
	require.NoError(t, fail(server))
	next(func(l map[string]any) bool { return l["error"] != nil })
	require.Contains(t, <-said, "silent: no answer from Redis, trying again")
	require.NoError(t, end(server))
	again := next(answered)
	require.Equal(t, "answering: Redis answers again", <-said)
	require.Greater(t, next(answered).Sub(again), lookEvery/2, "two looks at once would give no rates")
	acquire(t, client(t, server.Client(t)).Lock("back"))
	next(func(l map[string]any) bool { return len(l["held"].([]any)) == 1 })
	cancel()
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	require.NoError(t, <-ended)
}

// What may not be read is said, and no error.
func TestDeniedHashes(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	admin := server.Client(t)
	acquire(t, client(t, admin).Lock("secret"))
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "reader", "on", ">p",
		"~orders:*", "~redisson_*", "+@read", "+@connection", "+evalsha", "+eval").Err())
	rdb := server.Client(t, func(o *redis.Options) { o.Username, o.Password = "reader", "p" })
	snap, err := NewSource(rdb, "", "*").Look(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, snap.Denied)
	require.Empty(t, snap.Held)
}

// fill makes n locks whose names begin with a text, each with a holder of its own.
func fill(t *testing.T, rdb redis.UniversalClient, prefix string, n int) {
	t.Helper()
	const script = `for i = 1, ARGV[2] do
		local key = string.format('%s%05d', ARGV[1], i)
		redis.call('hset', key, '0a1b2c3d-0000-0000-0000-000000000000:' .. i, 1)
		redis.call('pexpire', key, 3600000)
	end
	return 1`
	require.NoError(t, rdb.Eval(t.Context(), script, nil, prefix, n).Err())
}

// fromClients are the commands that a look sends. The others in INFO commandstats are called by
// scripts.
var fromClients = []string{"eval", "evalsha", "scan", "dbsize", "pubsub|numsub", "pubsub|shardnumsub"}

// A look at 10,000 locks sends fewer than 100 commands, and looks begin a second apart. Redis
// counts them.
func TestLooksAtManyLocksSendFewCommands(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	rdb := server.Client(t)
	fill(t, rdb, "lock:", maxHeld)
	proxy := server.Proxy(t)
	proxy.Record()
	s := NewSource(proxy.Client(t), "", "*")
	look := func() *Snapshot {
		t.Helper()
		before, sent := redistest.Commands(t, server), len(proxy.Commands())
		snap, err := s.Look(t.Context())
		require.NoError(t, err)
		executed := redistest.Commands(t, server).Since(before)
		var calls int64
		for _, name := range fromClients {
			calls += executed[name]
		}
		inConnections := 0
		for _, c := range proxy.Commands()[sent:] {
			if slices.Contains([]string{"hello", "client"}, strings.ToLower(c.Args[0])) {
				inConnections++
			}
		}
		require.Equal(t, len(proxy.Commands())-sent-inConnections, int(calls), "the client sends nothing else")
		require.Less(t, calls, int64(100))
		require.LessOrEqual(t, executed["evalsha"]+executed["eval"], int64(lockBatches+clientBatches+1))
		return snap
	}
	redistest.WaitFor(t, time.Minute, func() bool { return len(look().Held) == maxHeld }, "all are found")

	const detail, other = "lock:04711", "lock:09999"
	s.Detail(detail)
	holders := func(snap *Snapshot, name string) int {
		for i := range snap.Held {
			if snap.Held[i].Name == name {
				return len(snap.Held[i].Holders)
			}
		}
		return 0
	}
	for i := range 4 {
		for _, name := range []string{detail, other} {
			require.NoError(t, rdb.HSet(t.Context(), name, fmt.Sprint("0a1b2c3d-0000-0000-0000-00000000000", i, ":1"), 1).Err())
		}
		snap := look()
		require.Equal(t, i+2, holders(snap, detail), "each look reads what somebody looks at in detail")
		known := len(snap.Held)
		require.Equal(t, maxHeld, known)
		require.False(t, snap.Cut)
	}
	look()
	require.Equal(t, 5, holders(look(), other), "two looks read everything")

	require.NoError(t, rdb.Del(t.Context(), detail, other).Err())
	look()
	look()
	known := len(look().Held)
	require.Equal(t, maxHeld-2, known)
	fill(t, rdb, "more:", 3)
	redistest.WaitFor(t, time.Minute, func() bool { return look().Cut }, "more are held than are known")
}

// A batch holds the server no longer for locks with many waiters than for plain ones.
func TestBatchesAreBoundedByWork(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	rdb := server.Client(t)
	const script = `for i = 1, 40 do
		local key = string.format('fair:%03d', i)
		redis.call('hset', key, '0a1b2c3d-0000-0000-0000-000000000000:' .. i, 1)
		redis.call('pexpire', key, 3600000)
		for k = 1, 200 do
			redis.call('rpush', 'redisson_lock_queue:{' .. key .. '}', '0a1b2c3d-0000-0000-0000-000000000000:' .. k)
		end
		key = string.format('read:%03d', i)
		redis.call('hset', key, 'mode', 'read')
		for k = 1, 50 do
			redis.call('hset', key, '0a1b2c3d-0000-0000-0000-000000000000:' .. k, 30)
			for n = 1, 30 do
				redis.call('set', '{' .. key .. '}:0a1b2c3d-0000-0000-0000-000000000000:' .. k ..
					':rwlock_timeout:' .. n, 1, 'px', 3600000)
			end
		end
		redis.call('pexpire', key, 3600000)
	end
	return 1`
	require.NoError(t, rdb.Eval(t.Context(), script, nil).Err())
	s := NewSource(rdb, "", "*")
	seen := map[string]int{}
	redistest.WaitFor(t, time.Minute, func() bool {
		before := redistest.Commands(t, server)
		snap, err := s.Look(t.Context())
		require.NoError(t, err)
		calls := redistest.Commands(t, server).Since(before)
		batches := calls["evalsha"] + calls["eval"]
		require.LessOrEqual(t, batches, int64(lockBatches+clientBatches+2))
		const ofOneLock = 2 + 50*maxLeases
		require.LessOrEqual(t, calls["pttl"]+calls["lrange"]+calls["llen"]+calls["hscan"], batches*(batchWork+ofOneLock))
		for i := range snap.Held {
			l := &snap.Held[i]
			seen[l.Name] = max(len(l.Waiters), len(l.Holders))
		}
		return len(seen) == 80
	}, "all are read")
	require.Equal(t, maxWaiters, seen["fair:040"])
	require.Equal(t, 50, seen["read:001"])
}

// A lock that its holder has released within its minimum hold is marked, and so is what keeps it.
func TestSnapshotsMarkTheRestOfAMinimumHold(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	c, name := client(t, rdb), redistest.Name(t)
	hold := acquire(t, c.Lock(name, primitives.WithMinHold(time.Minute)))
	s := NewSource(rdb, "", name)
	lookUntil(t, s, name, func(l *Lock) bool { return !l.MinHold && !l.Holders[0].kept })
	require.NoError(t, hold.Release(t.Context()))
	rest := lookUntil(t, s, name, func(l *Lock) bool { return l.MinHold && l.Holders[0].kept })
	require.Equal(t, hold.ID(), rest.Holders[0].ID)
	_, err := c.Lock(name).ForceRelease(t.Context())
	require.NoError(t, err)
}

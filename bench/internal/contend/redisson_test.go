package contend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

func openRedisson(t *testing.T) *redissonRemote {
	t.Helper()
	remote, err := OpenRedisson(t.Context(), io.Discard)
	if errors.Is(err, redisson.ErrMissing) {
		redistest.Missing(t, redistest.NeedRedisson, err.Error())
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, remote.Close()) })
	r := remote.(*redissonRemote)
	r.warmUp = 50 * time.Millisecond
	return r
}

// TestRedisson runs all subtests in one Java process, as it starts slowly.
func TestRedisson(t *testing.T) {
	server := redistest.Fresh(t)
	remote := openRedisson(t)
	require.Regexp(t, `^4\.`, remote.Version())
	t.Run("runs every kind of workload", func(t *testing.T) { testRedissonWorkloads(t, server, remote) })
	t.Run("counts its own DELs", func(t *testing.T) { testRedissonUnseen(t, server, remote) })
	t.Run("refuses unix sockets", func(t *testing.T) {
		_, err := remote.Open(t.Context(), Target{Network: "unix", Addr: "/nowhere"}, Workload{})
		require.ErrorContains(t, err, "unix")
	})
	t.Run("restarts after a failed run", func(t *testing.T) { testRedissonRestarts(t, server, remote) })
}

func tcp(server *redistest.Server) Target { return Target{Network: "tcp", Addr: server.Addr()} }

type redissonCase struct {
	name  string
	w     Workload
	check func(t *testing.T, rdb *redis.Client, w Workload, r Result)
}

func redissonCases() []redissonCase {
	return []redissonCase{
		{
			"section", Workload{Kind: Section, Primitive: Lock, Keys: 1, Clients: 2, Goroutines: 2},
			func(t *testing.T, _ *redis.Client, _ Workload, r Result) {
				require.Positive(t, r.HandOffs)
				require.Empty(t, r.HandOffTimes)
			},
		},
		{
			"keys", Workload{Kind: Section, Primitive: Lock, Keys: 4, Clients: 2, Goroutines: 2},
			func(t *testing.T, _ *redis.Client, _ Workload, r Result) {
				require.Zero(t, r.AllHandOffs)
			},
		},
		{
			"turns",
			Workload{
				Kind: Section, Primitive: Lock, Keys: 1, Clients: 2, Goroutines: 1,
				Turns: true, Inside: time.Millisecond,
			},
			func(t *testing.T, _ *redis.Client, _ Workload, r Result) {
				require.Len(t, r.HandOffTimes, int(r.HandOffs))
				require.InDelta(t, r.Ops, r.HandOffs, 1)
			},
		},
		{
			"fair", Workload{Kind: Section, Primitive: Fair, Keys: 1, Clients: 1, Goroutines: 5, Queued: true},
			func(t *testing.T, _ *redis.Client, _ Workload, r Result) {
				require.Positive(t, r.HandOffs)
			},
		},
		{
			"rw", Workload{Kind: Section, Primitive: RW, Keys: 1, Clients: 2, Goroutines: 2, Reads: 50},
			func(t *testing.T, _ *redis.Client, _ Workload, r Result) {
				require.Positive(t, r.Reads)
				require.Less(t, r.Reads, r.Ops)
			},
		},
		{
			"semaphore",
			Workload{Kind: Section, Primitive: Semaphore, Keys: 1, Clients: 2, Goroutines: 2, Permits: 3}, nil,
		},
		{
			"permits",
			Workload{Kind: Section, Primitive: Permits, Keys: 1, Clients: 2, Goroutines: 2, Permits: 3}, nil,
		},
		{
			"crowd", Workload{Kind: Crowd, Primitive: Lock, Keys: 1, Clients: 2, Goroutines: 3},
			func(t *testing.T, _ *redis.Client, w Workload, r Result) {
				require.Equal(t, []int64{1, 1, 1, 1, 1, 1}, r.PerWorker)
				require.Equal(t, w.Duration, r.Elapsed)
				require.Positive(t, r.Drain)
			},
		},
		{
			"holds",
			Workload{Kind: Holds, Primitive: Lock, Keys: 20, Clients: 1, Goroutines: 4, TTL: 3 * time.Second},
			func(t *testing.T, rdb *redis.Client, w Workload, _ Result) {
				for i := range w.Keys {
					ttl := rdb.PTTL(t.Context(), fmt.Sprintf("%s:%d", w.Name, i)).Val()
					require.Positive(t, ttl)
					require.LessOrEqual(t, ttl, w.TTL)
				}
			},
		},
	}
}

func testRedissonWorkloads(t *testing.T, server *redistest.Server, remote *redissonRemote) {
	rdb := server.Client(t)
	for _, tt := range redissonCases() {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.w
			w.ID, w.Name, w.Duration = tt.name, redistest.Name(t), 200*time.Millisecond
			session, err := remote.Open(t.Context(), tcp(server), w)
			require.NoError(t, err)
			r, err := session.Run(t.Context(), w)
			require.NoError(t, err)
			// The first runs of a Java process can be slow: repeat a section until it is busy.
			for range 20 {
				if w.Kind != Section || r.HandOffs > 4 || w.Keys > 1 && r.Ops > 4 {
					break
				}
				r, err = session.Run(t.Context(), w)
				require.NoError(t, err)
			}
			require.LessOrEqual(t, r.Ops, r.AllOps)
			require.Len(t, r.Waits, int(r.Ops+r.Stuck))
			require.Zero(t, r.Overlaps)
			require.Zero(t, r.Lost)
			if tt.check != nil {
				tt.check(t, rdb, w, r)
			}
			require.NoError(t, session.Close())
			if w.Primitive != Semaphore && w.Primitive != Permits {
				require.Empty(t, rdb.Keys(t.Context(), w.Name+"*").Val(), "keys left behind")
			}
		})
	}
}

// testRedissonUnseen counts the DELs of an unlock without waiters: one by the script, and one by
// the client.
func testRedissonUnseen(t *testing.T, server *redistest.Server, remote *redissonRemote) {
	for _, tt := range []struct {
		primitive Primitive
		byScript  int64 // DELs per unlock
	}{{Lock, 1}, {Fair, 1}, {RW, 1}, {Permits, 0}} {
		t.Run(string(tt.primitive), func(t *testing.T) {
			w := Workload{
				ID: t.Name(), Name: redistest.Name(t), Kind: Section, Primitive: tt.primitive,
				Keys: 1, Clients: 1, Goroutines: 1, Permits: 1, Duration: 100 * time.Millisecond,
			}
			remote.warm[warmUpKey{w.ID, w.Primitive}] = true // skip the warm-up: its DELs would count too
			before := redistest.Commands(t, server)
			session, err := remote.Open(t.Context(), tcp(server), w)
			require.NoError(t, err)
			r, err := session.Run(t.Context(), w)
			require.NoError(t, err)
			require.NoError(t, session.Close())
			redistest.WaitFor(t, 5*time.Second, func() bool {
				return redistest.Commands(t, server).Since(before)["del"] == tt.byScript*r.AllOps+r.Unseen
			}, "all DELs counted")
		})
	}
}

// testRedissonRestarts cancels a run, which kills Java. The next session starts a new process.
func testRedissonRestarts(t *testing.T, server *redistest.Server, remote *redissonRemote) {
	w := Workload{
		ID: "restart", Name: "restart", Kind: Section, Primitive: Lock, Keys: 1, Clients: 1, Goroutines: 1,
		Duration: 50 * time.Millisecond,
	}
	session, err := remote.Open(t.Context(), tcp(server), w)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = session.Run(ctx, w)
	require.ErrorIs(t, err, context.Canceled)
	<-remote.driver.Done()
	require.NoError(t, session.Close())

	session, err = remote.Open(t.Context(), tcp(server), w)
	require.NoError(t, err)
	_, err = session.Run(t.Context(), w)
	require.NoError(t, err)
	require.NoError(t, session.Close())
}

func TestOpenRedissonFailsWithoutJava(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := OpenRedisson(t.Context(), io.Discard)
	require.ErrorIs(t, err, redisson.ErrMissing)
}

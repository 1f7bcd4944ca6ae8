package primitives_test

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// FuzzPayloads publishes arbitrary payloads on every channel of a primitive that is held and waited
// for, and on the holder's own channels. The hold must survive, each message may cost only a few
// commands, and the waiter must get the lock after the release.
func FuzzPayloads(f *testing.F) {
	s := redistest.Fresh(f)
	admin := s.Client(f)
	for kind := range byte(len(kinds.Mutexes())) {
		for _, payload := range []string{
			"0", "1", "2", "", "-1", "99999999999999999999", "id 1 1000", " 1 1", "x  99", "\x00\xff",
			"lock\nx\n6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9:1", "permits\nx\n,,,", "\n\n", strings.Repeat("7", 300),
		} {
			f.Add(kind, payload)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, payload string) {
		targets := kinds.Mutexes()
		target := targets[int(kind)%len(targets)]
		ctx := t.Context()
		require.NoError(t, admin.FlushAll(ctx).Err())
		rdb := s.Client(t)
		var sent fixture.CountingHook
		rdb.AddHook(&sent)
		holder, waiter := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, rdb)
		hold := fixture.Acquire(t, ctx, target.One(t, holder, "x"))
		waiting := fixture.StartAcquire(ctx, target.Open(waiter, "x"))
		fixture.AwaitWaiter(t, s, "{x}")
		channels := append(redistest.Channels(t, s), target.Channel("x"), target.Channel("x")+":"+payload)
		before := sent.N.Load()
		const times = 20
		for range times {
			for _, channel := range channels {
				require.NoError(t, admin.Publish(ctx, channel, payload).Err())
			}
			notice(t, holder, payload)
			notice(t, waiter, payload)
		}
		fixture.RequireLive(t, hold.Context())
		fixture.Release(t, hold)
		fixture.Release(t, fixture.AwaitHold(t, waiting))
		if n := sent.N.Load() - before; n > 3*times*int64(len(channels))+20 {
			t.Fatalf("%d commands", n)
		}
		fixture.CloseNow(waiter)
		fixture.CloseNow(holder)
		for _, key := range redistest.Keys(t, s, "*") {
			known := strings.HasPrefix(key, "redisson_unlock_latch:") || strings.HasPrefix(key, "redlatch_client:") ||
				slices.Contains(target.Stays("x"), key)
			require.True(t, known, "%q is left", key)
		}
	})
}

// Forged notices cost a client no more memory than their own length, a few times over, and a flood
// of them no more than a few.
func TestForgedNoticesCostLittleMemory(t *testing.T) {
	s := redistest.Miniredis(t)
	c := fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), c.Lock("l"))
	var ids strings.Builder
	for i := range 16_000 {
		ids.WriteString(strconv.FormatInt(int64(i), 36) + ",")
	}
	// A closed client starts no goroutine that reads notices. They pile up, as in a flood that is
	// faster than the reader.
	for name, payload := range map[string]string{"short": "lock\nl\n1", "long": "permits\nl\n" + ids.String()} {
		closed := fixture.NewClient(t, s.Client(t))
		fixture.CloseNow(closed)
		for range 20_000 {
			notice(t, closed, payload)
		}
		n, bytes := unreadNotices(t, closed)
		require.NotZero(t, n, name)
		require.LessOrEqual(t, n, 10_000, name)
		require.LessOrEqual(t, bytes, 1<<20, name)
	}
	for name, payload := range map[string]string{
		"many ids":                "permits\nl\n" + ids.String(),
		"many ids of a long name": "permits\n" + strings.Repeat("l", 64<<10) + "\n" + ids.String(),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			notices := 1_000
			if redistest.Full() {
				notices = 5_000
			}
			for range notices {
				notice(t, c, payload)
			}
			time.Sleep(100 * time.Millisecond) // for the goroutine that reads them
			runtime.ReadMemStats(&after)
			t.Log(after.TotalAlloc-before.TotalAlloc, "bytes")
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(notices)*(512<<20)/5_000)
		})
	}
	fixture.RequireLive(t, hold.Context())
	fixture.Release(t, hold)
}

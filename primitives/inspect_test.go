package primitives_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestInspectTellsTheKindFromTheKeys looks at names of every kind, and at names with nothing of ours.
func TestInspectTellsTheKindFromTheKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t) + ":"
		rdb := s.Client(t)
		c := NewClient(t, s.Client(t), primitives.WithPrefix(prefix))
		ctx := t.Context()
		inspect := func(name string) primitives.Info {
			t.Helper()
			info, err := c.Inspect(ctx, name)
			require.NoError(t, err)
			require.Equal(t, name, info.Name)
			return info
		}
		plain := Acquire(t, ctx, c.Lock("plain"))
		require.Equal(t, "lock", inspect("plain").Kind)
		require.Equal(t, plain.ID(), inspect("plain").Holders[0].ID)
		Release(t, plain)
		require.Empty(t, inspect("plain").Kind)

		fenced := Acquire(t, ctx, c.FencedLock("fenced"))
		require.Equal(t, "fenced", inspect("fenced").Kind)
		require.EqualValues(t, 1, inspect("fenced").Token)
		info, err := c.FencedLock("fenced").Info(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, info.Token)
		for listed, err := range c.Locks(ctx, "fenced") {
			require.NoError(t, err)
			require.EqualValues(t, 1, listed.Token)
		}
		Release(t, fenced)
		require.Equal(t, primitives.Info{Name: "fenced", Kind: "fenced", Token: 1}, inspect("fenced"))

		Acquire(t, ctx, c.RWLock("rw").Reader())
		require.Equal(t, "reader", inspect("rw").Kind)
		require.NoError(t, rdb.HSet(ctx, prefix+"endless", "mode", "write", "anna:write", 1).Err())
		require.Empty(t, inspect("endless").Kind, "without expiry it is not ours, but it may be a lock")

		fair := Acquire(t, ctx, c.FairLock("fair"))
		waiting := Start(func() (*primitives.Hold, error) { return c.FairLock("fair").Acquire(ctx) })
		redistest.WaitFor(t, Soon, func() bool { return len(inspect("fair").Waiters) == 1 }, "the waiter is in the queue")
		require.Equal(t, "fair", inspect("fair").Kind)
		Release(t, fair)
		Release(t, AwaitHold(t, waiting))

		_, err = c.PermitExpirableSemaphore("permits").Init(ctx, 3)
		require.NoError(t, err)
		require.Equal(t,
			primitives.Info{Name: "permits", Kind: "integer", TTL: -1, Permits: 3, Available: 3}, inspect("permits"))
		permit := Acquire(t, ctx, c.PermitExpirableSemaphore("permits"))
		found := inspect("permits")
		require.Equal(t, "permits", found.Kind)
		require.Equal(t, []int{3, 2}, []int{found.Permits, found.Available})
		require.Equal(t, permit.ID(), found.Holders[0].ID)

		for _, text := range []string{"7", "-7"} {
			require.NoError(t, rdb.Set(ctx, prefix+"number", text, time.Hour).Err())
			require.Equal(t, "integer", inspect("number").Kind, "%q", text)
		}
		for _, text := range []string{"", "7.5", "seven", "7 of 9", strings.Repeat("9", 40)} {
			require.NoError(t, rdb.Set(ctx, prefix+"number", text, time.Hour).Err())
			RequireForeign(t, ErrOf(c.Inspect(ctx, "number")), "a string")
		}
		require.NoError(t, rdb.HSet(ctx, prefix+"hash", "field", 1).Err())
		require.NoError(t, rdb.RPush(ctx, prefix+"list", 1).Err())
		require.NoError(t, rdb.HSet(ctx, prefix+"user", "name", "ann", "age", 7).Err())
		for _, name := range []string{"hash", "nothing"} {
			require.Equal(t, primitives.Info{Name: name}, inspect(name), name)
		}
		RequireForeign(t, ErrOf(c.Inspect(ctx, "list")), "a list")
		RequireForeign(t, ErrOf(c.Inspect(ctx, "user")), "a hash with 2 fields")
		_, err = c.Inspect(ctx, "")
		require.ErrorIs(t, err, primitives.ErrInvalid)
	})
}

// TestNumbersLeavesOutWhatBelongsToLocks lists the numbers of users only.
func TestNumbersLeavesOutWhatBelongsToLocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		c := NewClient(t, s.Client(t))
		ctx := t.Context()
		Acquire(t, ctx, c.FencedLock(name+"fenced"))
		Acquire(t, ctx, c.RWLock(name+"rw").Reader())
		_, err := c.Semaphore(name+"semaphore").Init(ctx, 2)
		require.NoError(t, err)
		Acquire(t, ctx, c.Semaphore(name+"semaphore"))
		_, err = c.CountDownLatch(name+"latch").Init(ctx, 5)
		require.NoError(t, err)
		_, err = c.PermitExpirableSemaphore(name+"permits").Init(ctx, 3)
		require.NoError(t, err)
		Acquire(t, ctx, c.PermitExpirableSemaphore(name+"permits"))
		require.NoError(t, s.Client(t).Set(ctx, name+"text", "x", 0).Err())
		found := map[string]string{}
		for info, err := range c.Numbers(ctx, "*"+name+"*") {
			require.NoError(t, err)
			found[info.Name] = info.Kind
		}
		require.Equal(t, map[string]string{
			name + "semaphore": "integer", name + "latch": "integer", name + "permits": "permits",
		}, found)
	})
	number := redistest.Name(t)
	require.NoError(t, redistest.Redis(t).Client(t).Set(t.Context(), number, 1, time.Hour).Err())
	for what, fail := range map[string]func(cut *redistest.Proxy){
		"the scan": func(cut *redistest.Proxy) { cut.BlackHole(true) },
		"a number": func(cut *redistest.Proxy) { cut.DropReplies(100, Script) },
	} {
		t.Run(what+" fails", func(t *testing.T) {
			cut := redistest.Redis(t).Proxy(t)
			c := NewClient(t, cut.Client(t), primitives.WithCommandTimeout(time.Second))
			fail(cut)
			errs := 0
			for info, err := range c.Numbers(t.Context(), number+"*") {
				require.Error(t, err)
				require.Zero(t, info)
				errs++
			}
			require.Equal(t, 1, errs)
		})
	}
}

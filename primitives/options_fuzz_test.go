package primitives_test

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// FuzzDurations passes arbitrary durations to each option. A duration is accepted only if the
// contract allows it (C20). Otherwise nothing is sent. No lock is ever without a TTL.
func FuzzDurations(f *testing.F) {
	s := redistest.Fresh(f)
	admin := s.Client(f)
	rdb := s.Client(f)
	var sent fixture.CountingHook
	rdb.AddHook(&sent)
	for _, d := range []int64{
		0, 1, -1, 999_999, 1_000_000, 1_000_001, int64(time.Second),
		int64(fixture.LongestDuration), int64(fixture.LongestDuration) + 1, math.MaxInt64, math.MinInt64,
	} {
		for option := range byte(11) {
			f.Add(option, d, int64(time.Second))
			f.Add(option, int64(time.Millisecond), d)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, first, second int64) {
		d, d2 := time.Duration(first), time.Duration(second)
		sendable := func(d time.Duration) bool { return d >= time.Millisecond && d <= fixture.LongestDuration }
		ctx := t.Context()
		require.NoError(t, admin.FlushAll(ctx).Err())
		var option primitives.Option
		valid := sendable(d)
		switch which % 11 {
		case 0:
			option = primitives.WithLease(d)
		case 1:
			option = primitives.WithWatchdog(d)
		case 2:
			option = primitives.WithMaxHold(d)
		case 3:
			option = primitives.WithWaiterTimeout(d)
		case 4:
			option, valid = primitives.WithPolling(d, d2), sendable(d) && sendable(d2) && d <= d2
		case 5:
			option, valid = primitives.WithWait(d), d >= 0
		case 6:
			option, valid = primitives.WithCohort(d), d >= 0 && d <= fixture.LongestDuration
		case 7:
			c, err := primitives.New(rdb, primitives.WithSafetyMargin(d), primitives.WithCommandTimeout(d2))
			require.Equal(t, d < 0 || !sendable(d2), errors.Is(err, primitives.ErrInvalid), "%v, %v: %v", d, d2, err)
			if err == nil {
				fixture.CloseNow(c)
			}
			return
		case 8:
			n := int(first) // replicas
			_, err := primitives.New(rdb, primitives.WithReplicas(n, d2))
			wrong := n < 0 || d2 < 0 || d2 > fixture.LongestDuration || n > 0 && d2 < time.Millisecond
			require.Equal(t, wrong, errors.Is(err, primitives.ErrInvalid), "%v, %v: %v", n, d2, err)
			return
		case 9:
			c := fixture.NewClient(t, rdb)
			hold := fixture.Acquire(t, ctx, c.Lock("x"))
			err := hold.Extend(ctx, d)
			require.Equal(t, !valid, errors.Is(err, primitives.ErrInvalid), "%v: %v", d, err)
			ttl := admin.PTTL(ctx, "x").Val()
			require.True(t, ttl > 0 && (!valid || ttl > d-time.Minute), "%v", ttl)
			return
		case 10:
			option, valid = primitives.WithMinHold(d), d == 0 || sendable(d)
		}
		c := fixture.NewClient(t, rdb)
		for _, l := range []*primitives.Lock{c.Lock("x", option), c.FairLock("y", option), c.RWLock("z", option).Reader()} {
			before := sent.N.Load()
			hold, err := l.Acquire(ctx)
			if !valid {
				require.ErrorIs(t, err, primitives.ErrInvalid)
				require.Equal(t, before, sent.N.Load(), "nothing is sent")
				continue
			}
			late := errors.Is(err, primitives.ErrLost) || which%11 == 5 && errors.Is(err, primitives.ErrNotAcquired)
			if late { // the answer came after the lease, or after the wait
				continue
			}
			require.NoError(t, err)
			require.NotEqual(t, time.Duration(-1), admin.PTTL(ctx, l.Name()).Val(), "no ttl")
			if err := hold.Release(ctx); err != nil {
				require.ErrorIs(t, err, primitives.ErrLost)
				require.Less(t, d, time.Minute)
			}
		}
	})
}

var (
	modelUUID   = regexp.MustCompile(`\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z`)
	modelPermit = regexp.MustCompile(`\A[0-9a-fA-F]{32}\z`)
)

// FuzzIDs gives owner ids, client ids and lists of permits of any content. Exactly the documented
// ones are refused, and nothing is sent for those. An id is used as given.
func FuzzIDs(f *testing.F) {
	s := redistest.Fresh(f)
	admin := s.Client(f)
	rdb := s.Client(f)
	var sent fixture.CountingHook
	rdb.AddHook(&sent)
	permit := strings.Repeat("0123456789abcdef", 2)
	for _, id := range []string{
		"", "mode", "me", ":write", "me:write", "me:write ", "MODE", "a,b", ",", "\x00\xff\n",
		"6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9",
		"6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9:1", "6F1ED002-AB5F-4A5C-9B3A-A0A9A9A9A9A9",
		"6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9\n",
		permit, permit + ",", permit + "," + permit, strings.ToUpper(permit) + "," + permit, permit + ", " + permit,
		permit + "0",
		strings.Repeat(permit+",", 3) + "x", "ключ", strings.Repeat("i", 1<<16),
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		ctx := t.Context()
		require.NoError(t, admin.FlushAll(ctx).Err())
		client, err := primitives.New(rdb, primitives.WithClientID(id))
		require.Equal(t, !modelUUID.MatchString(id), errors.Is(err, primitives.ErrInvalid), "%v", err)
		if err == nil {
			fixture.CloseNow(client)
		}
		c := fixture.NewClient(t, rdb)
		refuses := func(wrong bool, call func() error, otherwise error) {
			t.Helper()
			before := sent.N.Load()
			err := call()
			if wrong {
				require.ErrorIs(t, err, primitives.ErrInvalid)
				require.Equal(t, before, sent.N.Load(), "nothing is sent")
			} else {
				require.ErrorIs(t, err, otherwise)
			}
		}
		badOwner := id == "" || id == "mode" || strings.HasSuffix(id, ":write")
		for _, l := range []*primitives.Lock{c.Lock("l"), c.FairLock("f"), c.RWLock("r").Reader(), c.RWLock("w").Writer()} {
			refuses(badOwner, func() error { return l.ReleaseID(ctx, id) }, primitives.ErrNotHeld)
			refuses(badOwner, func() error { return fixture.ErrOf(l.Adopt(ctx, id)) }, primitives.ErrNotHeld)
			refuses(badOwner, func() error {
				hold, err := l.Acquire(ctx, primitives.WithOwner(id))
				if err != nil {
					return err
				}
				require.Equal(t, id, hold.ID())
				require.Equal(t, id, fixture.InfoOf(t, l).Holders[0].ID)
				require.NoError(t, l.ReleaseID(ctx, id))
				require.Zero(t, admin.Exists(ctx, l.Name()).Val())
				return hold.Release(ctx)
			}, primitives.ErrLost)
		}
		p := c.PermitExpirableSemaphore("p")
		badPermits := slices.ContainsFunc(strings.Split(id, ","),
			func(id string) bool { return !modelPermit.MatchString(id) })
		refuses(badPermits, func() error { return p.ReleaseID(ctx, id) }, primitives.ErrNotHeld)
		refuses(badPermits, func() error { return fixture.ErrOf(p.Adopt(ctx, id)) }, primitives.ErrNotHeld)
	})
}

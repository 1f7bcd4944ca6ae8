package primitives_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// inspected is the result of Inspect for a name, without ids and times.
type inspected struct {
	kind               string
	holders, waiters   int
	token              int64
	permits, available int
}

// inspectCases put something at x.Name. Each has a name of its own.
var inspectCases = []struct {
	name    string
	put     func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) // the holder, if there is one
	want    inspected
	foreign string // unless "", the error says that the name has this
}{
	{"nothing", func(*testing.T, *fixture.LockTest) (*primitives.Hold, error) { return nil, nil }, inspected{}, ""},
	{"a lock", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return x.L.Acquire(t.Context())
	}, inspected{kind: "lock", holders: 1}, ""},
	{"a released lock", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return nil, x.L.Do(t.Context(), func(context.Context) error { return nil })
	}, inspected{}, ""},
	{"a fenced lock", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return x.C.FencedLock(x.Name).Acquire(t.Context())
	}, inspected{kind: "fenced", holders: 1, token: 1}, ""},
	{"a released fenced lock", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return nil, x.C.FencedLock(x.Name).Do(t.Context(), func(context.Context) error { return nil })
	}, inspected{kind: "fenced", token: 1}, ""},
	{"a reader", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return x.C.RWLock(x.Name).Reader().Acquire(t.Context())
	}, inspected{kind: "reader", holders: 1}, ""},
	{"a fair lock with a waiter", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		l := x.C.FairLock(x.Name)
		hold, err := l.Acquire(t.Context())
		fixture.StartAcquire(t.Context(), l)
		fixture.AwaitFair(t, l, 1)
		return hold, err
	}, inspected{kind: "fair", holders: 1, waiters: 1}, ""},
	{"permits", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		permits := x.C.PermitExpirableSemaphore(x.Name)
		fixture.InitPool(t, permits, 3)
		return permits.Acquire(t.Context())
	}, inspected{kind: "permits", holders: 1, permits: 3, available: 2}, ""},
	{"permits, none acquired", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return nil, fixture.ErrOf(x.C.PermitExpirableSemaphore(x.Name).Init(t.Context(), 3))
	}, inspected{kind: "integer", permits: 3, available: 3}, ""},
	{"a number", setText("7"), inspected{kind: "integer", permits: 7, available: 7}, ""},
	{"a number below 0", setText("-7"), inspected{kind: "integer", permits: -7, available: -7}, ""},
	{"a writer without expiry, which may be ours", setFields("mode", "write", "anna:write", 1), inspected{}, ""},
	{"a hash with one field", setFields("field", 1), inspected{}, ""},
	{"a hash with two fields", setFields("name", "ann", "age", 7), inspected{}, "a hash with 2 fields"},
	{"no text", setText(""), inspected{}, "a string"},
	{"a fraction", setText("7.5"), inspected{}, "a string"},
	{"a word", setText("seven"), inspected{}, "a string"},
	{"a number in a text", setText("7 of 9"), inspected{}, "a string"},
	{"a number with too many digits", setText(strings.Repeat("9", 40)), inspected{}, "a string"},
	{"a list", func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return nil, x.Rdb.RPush(t.Context(), x.Name, 1).Err()
	}, inspected{}, "a list"},
}

func setText(text string) func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
	return func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return nil, x.Rdb.Set(t.Context(), x.Name, text, time.Hour).Err()
	}
}

func setFields(fields ...any) func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
	return func(t *testing.T, x *fixture.LockTest) (*primitives.Hold, error) {
		return nil, x.Rdb.HSet(t.Context(), x.Name, fields...).Err()
	}
}

func TestInspectFindsTheKindByTheKeys(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, tt := range inspectCases {
			t.Run(tt.name, func(t *testing.T) {
				x := fixture.OnLock(t, s)
				hold, err := tt.put(t, x)
				require.NoError(t, err)
				info, err := x.C.Inspect(t.Context(), x.Name)
				if tt.foreign != "" {
					fixture.RequireForeign(t, err, tt.foreign)
					return
				}
				require.NoError(t, err)
				require.Equal(t, x.Name, info.Name)
				require.Equal(t, tt.want, inspected{
					info.Kind, len(info.Holders), len(info.Waiters), info.Token, info.Permits, info.Available,
				})
				if hold != nil {
					require.Equal(t, hold.ID(), info.Holders[0].ID)
				}
			})
		}
	})
}

// Inspect takes names as all calls do: without the prefix of the client, and not empty.
func TestInspectOfANameWithAPrefix(t *testing.T) {
	t.Parallel()
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t), primitives.WithPrefix("app:"))
	hold := fixture.Acquire(t, t.Context(), c.Lock("l"))
	info, err := c.Inspect(t.Context(), "l")
	require.NoError(t, err)
	require.Equal(t, []string{"l", hold.ID()}, []string{info.Name, info.Holders[0].ID})
	require.ErrorIs(t, fixture.ErrOf(c.Inspect(t.Context(), "")), primitives.ErrInvalid)
}

// TestNumbersLeavesOutWhatBelongsToLocks lists the numbers of users only.
func TestNumbersLeavesOutWhatBelongsToLocks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		c := fixture.NewClient(t, s.Client(t))
		ctx := t.Context()
		fixture.Acquire(t, ctx, c.FencedLock(name+"fenced"))
		fixture.Acquire(t, ctx, c.RWLock(name+"rw").Reader())
		require.NoError(t, fixture.ErrOf(c.Semaphore(name+"semaphore").Init(ctx, 2)))
		fixture.Acquire(t, ctx, c.Semaphore(name+"semaphore"))
		require.NoError(t, fixture.ErrOf(c.CountDownLatch(name+"latch").Init(ctx, 5)))
		require.NoError(t, fixture.ErrOf(c.PermitExpirableSemaphore(name+"permits").Init(ctx, 3)))
		fixture.Acquire(t, ctx, c.PermitExpirableSemaphore(name+"permits"))
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
		"a number": func(cut *redistest.Proxy) { cut.DropReplies(100, fixture.Script) },
	} {
		t.Run(what+" fails", func(t *testing.T) {
			cut := redistest.Redis(t).Proxy(t)
			c := fixture.NewClient(t, cut.Client(t), primitives.WithCommandTimeout(time.Second))
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

package scripts

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func value(v any) Reply { return Reply{Value: v} }

// What each form of a reply means. Token text is of any size: Lua's numbers end at 2^53.
func TestReplies(t *testing.T) {
	acquired := func(v any) (any, error) {
		got, _, err := readAcquired(value(v), nil)
		got.Reply = Reply{}
		return got, err
	}
	released := func(v any) (any, error) {
		got, _, err := readReleased(value(v), nil)
		got.Reply = Reply{}
		return got, err
	}
	fair := func(v any) (any, error) {
		got, err := readFairReleased(value(v), nil)
		got.Reply = Reply{}
		return got, err
	}
	permits := func(v any) (any, error) {
		got, err := readPermits(value(v), nil)
		got.Reply = Reply{}
		return got, err
	}
	ids := func(v any) (any, error) {
		got, err := readIDs(value(v), nil)
		got.Reply = Reply{}
		return got, err
	}
	list := func(elements ...any) []any { return elements }
	for _, tt := range []struct {
		what  string
		read  func(any) (any, error)
		reply any
		want  any
	}{
		{"granted", acquired, int64(0), Acquired{Granted: true}},
		{"granted with a token", acquired, "9007199254740993", Acquired{Granted: true, Token: 9007199254740993}},
		{"granted, held already", acquired, list("in", int64(2)), Acquired{Granted: true}},
		{"busy", acquired, list(int64(30), "a:1"), Acquired{PTTL: 30, Holder: "a:1"}},
		{"busy, no holder", acquired, list(int64(-1)), Acquired{PTTL: -1}},
		{"a late copy", acquired, "over", Acquired{Refusal: Over}},
		{"a second count", acquired, "again", Acquired{Refusal: Again}},
		{"no hold to nest under", acquired, "lost", Acquired{Refusal: Lost}},

		{"nothing held", released, int64(0), Released{Heard: -1}},
		{"the semaphore is gone", released, int64(-1), Released{Gone: true, Heard: -2}},
		{"released, heard by 3", released, int64(4), Released{Held: true, Heard: 3}},
		{"handed off", released, list(int64(0)), Released{Held: true, HandedOff: true}},
		{"handed off, 2 permits left", released, list(int64(2)), Released{Held: true, HandedOff: true, Left: 2}},
		{
			"handed off with a token", released, list("9007199254740993"),
			Released{Held: true, HandedOff: true, Token: 9007199254740993},
		},

		{"nothing held", fair, int64(0), FairReleased{}},
		{"released", fair, int64(1), FairReleased{Held: true}},
		{"granted to a waiter here", fair, "payload", FairReleased{Held: true, Grant: "payload"}},

		{"granted", permits, list(int64(1), int64(4), int64(7)), Acquired{Granted: true, Left: 4, Token: 7, PTTL: -2}},
		{"granted, with leases", permits, list(int64(1), int64(4)), Acquired{Granted: true, Left: 4, PTTL: -2}},
		{"too few", permits, list(int64(0), int64(4)), Acquired{Left: 4, PTTL: -2}},
		{"too few, a lease ends soon", permits, list(int64(0), int64(4), int64(9)), Acquired{Left: 4, PTTL: 9}},
		{"no number", permits, list(int64(0)), Acquired{Refusal: Unset, PTTL: -2}},
		{"a late copy", permits, "over", Acquired{Refusal: Over, PTTL: -2}},

		{"nobody held", ids, int64(0), IDs{}},
		{"two held", ids, list("a", "b"), IDs{Found: true, IDs: []string{"a", "b"}}},
	} {
		got, err := tt.read(tt.reply)
		require.NoError(t, err, tt.what)
		require.Equal(t, tt.want, got, "%T: %s", tt.want, tt.what)
	}
}

// A reply of any other form fails, with an unknown outcome. It is never a grant.
func TestRepliesThatNoScriptReturns(t *testing.T) {
	outcome := func(t require.TestingT, err error) bool {
		if err != nil {
			require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		}
		return err != nil
	}
	scalar := rapid.OneOf(
		rapid.Just[any](nil), rapid.Map(rapid.Int64(), func(n int64) any { return n }),
		rapid.Map(rapid.SampledFrom([]string{"", "over", "in", "x", "-1", "1e3"}), func(s string) any { return s }),
		rapid.Just[any](1.5), rapid.Just[any](true),
	)
	for _, v := range []any{nil, int64(1), int64(-1), "", "x", "-1", 1.5, []any{}, []any{"x"}, []any{int64(1), int64(2)}} {
		_, _, err := readAcquired(value(v), nil)
		require.True(t, outcome(t, err), fmt.Sprint(v))
	}
	anything := rapid.OneOf(scalar, rapid.Map(rapid.SliceOfN(scalar, 0, 4), func(list []any) any { return list }))
	rapid.Check(t, func(t *rapid.T) {
		v := anything.Draw(t, "reply")
		list, isList := v.([]any)
		if got, _, err := readAcquired(value(v), nil); !outcome(t, err) && got.Granted {
			require.True(t, v == int64(0) || got.Token > 0 || isList && list[0] == "in", fmt.Sprint(v))
		} else if err != nil {
			require.False(t, got.Granted)
		}
		if got, err := readPermits(value(v), nil); !outcome(t, err) && got.Granted {
			require.Len(t, list[:2], 2)
			require.Equal(t, int64(1), list[0])
		}
		if _, _, err := readReleased(value(v), nil); !outcome(t, err) && isList {
			require.NotEmpty(t, list)
		}
		_, err := readIDs(value(v), nil)
		outcome(t, err)
		_, err = readFairReleased(value(v), nil)
		outcome(t, err)
		_, err = readNumber(value(v), nil)
		require.Equal(t, outcome(t, err), func() bool { _, ok := v.(int64); return !ok }())
	})
}

// A key that must be there is never sent as an empty name.
func TestCallWithoutOneOfItsKeysPanics(t *testing.T) {
	require.PanicsWithValue(t, "scripts: lock/release without one of its keys", func() {
		_, _ = Sender{}.send(t.Context(), lockRelease, []any{"a", nil, "c"}, 2, nil, 0)
	})
}

// Plain commands are not retried.
func TestCommands(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		key := redistest.Name(t)
		w.p.DropReplies(1, redistest.Named("set"))
		_, err := w.r.Commands(t.Context(), []any{"set", key, "v", "px", 60_000})
		require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		set := []any{"set", key, "v", "px", 60_000}
		values, err := w.r.Commands(t.Context(), set, []any{"get", key}, []any{"get", key + "-"})
		require.NoError(t, err)
		require.Equal(t, []any{"OK", "v", nil}, values)
		values, err = w.r.Commands(t.Context(), []any{"get", key})
		require.NoError(t, err)
		require.Equal(t, []any{"v"}, values)
		_, err = w.r.Commands(t.Context(), []any{"hkeys", key})
		require.Equal(t, failure.Executed, failure.Of(err).Outcome)
		w.r.Close()
		require.ErrorIs(t, errOf(w.r.Commands(t.Context(), []any{"get", key})), failure.ErrClosed)
	}, longTimeouts)
}

// Commands returns when its context ends. Its attempt ends with the command timeout.
func TestCommandsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, fastRetries), 0)
		require.NoError(t, errOf(r.Commands(t.Context(), []any{"get", "k"})))
		p.BlackHole(true)
		const limit = 20 * time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(limit, cancel)
		began := time.Now()
		_, err := r.Commands(ctx, []any{"get", "k"})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		require.Equal(t, limit, time.Since(began))
		r.Close()
		require.LessOrEqual(t, time.Since(began), r.Timeout()+closeReserve, "it is not repeated")
	})
}

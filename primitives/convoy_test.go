package primitives_test

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

var readScript = scripts.Load("rwlock/read_acquire")

// convoyed matches commands that acquire for several readers.
func convoyed(args []string) bool {
	if !script(args) || args[1] != readScript.SHA() {
		return false
	}
	keys, err := strconv.Atoi(args[2])
	return err == nil && keys > 5
}

// onConvoy has readers of one client wait behind another's writer.
func onConvoy(t testing.TB, s *redistest.Server, via *redis.Client, n int) (x *rwTest, w *primitives.Hold, cancels []context.CancelFunc, waiting []<-chan result) {
	t.Helper()
	x = onRWNamed(t, s, via, redistest.Name(t))
	w = acquire(t, t.Context(), x.other(t).Writer())
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		cancels = append(cancels, cancel)
		waiting = append(waiting, start(func() (*primitives.Hold, error) { return x.rw.Reader().Acquire(ctx) }))
		awaitRoom(t, i+1)
	}
	x.awaitWaiter(t)
	return x, w, cancels, waiting
}

// TestConvoy: who waits here to read comes in with the first of them, by one command.
func TestConvoy(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		const n = 20
		x, w, _, waiting := onConvoy(t, s, p.Client(t), n)
		p.Record()
		release(t, w)
		for _, c := range waiting {
			got := await(t, c)
			require.NoError(t, got.err)
			require.NoError(t, got.hold.Check(t.Context()))
			defer release(t, got.hold)
		}
		in := fields(t, s, x.name)
		require.Len(t, in, 1+n) // and the mode
		acquiring := slices.DeleteFunc(p.Commands(), func(c redistest.Command) bool {
			return !script(c.Args) || c.Args[1] != readScript.SHA()
		})
		require.LessOrEqual(t, len(acquiring), 3, "one, and what a look or a confirmed subscription may add")
	})
}

// TestConvoyLostReplies: all of a convoy hold once, whatever of it is not answered.
func TestConvoyLostReplies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, lost := range []int{1, 3, 4, 6} { // of four attempts
			p := s.Proxy(t)
			const n = 8
			x, w, _, waiting := onConvoy(t, s, p.Client(t, quick), n)
			p.DropReplies(lost, convoyed)
			release(t, w)
			var holds []*primitives.Hold
			for _, c := range waiting {
				got := await(t, c)
				require.NoError(t, got.err)
				holds = append(holds, got.hold)
			}
			p.Heal()
			in := fields(t, s, x.name)
			require.Equal(t, "read", in["mode"])
			for _, hold := range holds {
				require.Equal(t, "1", in[hold.ID()])
				release(t, hold)
			}
			requireClean(t, s, x.name)
		}
	})
}

// TestConvoyGivenUp: who gives up while another acquires for it has nothing when it is back.
func TestConvoyGivenUp(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		const n = 8
		x, w, cancels, waiting := onConvoy(t, s, p.Client(t), n)
		answer := p.HoldReplies(convoyed)
		release(t, w)
		redistest.WaitFor(t, soon, func() bool { return p.Held() > 0 }, "the convoy is under way")
		for i := range n / 2 {
			cancels[2*i+1]()
			require.ErrorIs(t, await(t, waiting[2*i+1]).err, context.Canceled)
		}
		answer()
		for i := range n / 2 {
			got := await(t, waiting[2*i])
			require.NoError(t, got.err)
			defer release(t, got.hold)
		}
		require.Len(t, fields(t, s, x.name), 1+n/2)
	})
}

// TestConvoyUnknown: who gives up when nobody could say any more what came of its convoy has nothing either.
func TestConvoyUnknown(t *testing.T) {
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	const n = 8
	x, w, cancels, waiting := onConvoy(t, s, p.Client(t), n)
	p.DropReplies(100, convoyed)
	release(t, w)
	redistest.WaitFor(t, soon, func() bool { return len(fields(t, s, x.name)) == 1+n }, "the convoy is in")
	p.Refuse(true)
	p.Reset() // from here on nothing is executed
	for _, cancel := range cancels[1:] {
		cancel()
	}
	p.Heal()
	for _, c := range waiting[1:] {
		require.ErrorIs(t, await(t, c).err, context.Canceled)
	}
	got := await(t, waiting[0])
	require.NoError(t, got.err)
	redistest.WaitFor(t, soon, func() bool { return len(fields(t, s, x.name)) == 2 }, "the others are out")
	release(t, got.hold)
	requireClean(t, s, x.name)
}

// TestConvoyModel has readers with companions, writers, and copies of all their commands come in any order: whoever was given back never holds again,
// and nobody reads beside a writer.
func TestConvoyModel(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t).Client(t)
	ctx := context.Background()
	ids := []string{"a", "b", "c", "d", "e"}
	run := func(s *scripts.Script, id string, more []string, args ...any) any {
		keys := append([]string{"h", "news", "memory:" + id, "claim", "shared"}, more...)
		answer, err := rdb.Eval(ctx, s.Text(), keys, args...).Result()
		require.NoError(t, err)
		return answer
	}
	read, unread := readScript, scripts.Load("rwlock/read_release")
	write, unwrite := scripts.Load("rwlock/write_acquire"), scripts.Load("rwlock/write_release")
	rapid.Check(t, func(t *rapid.T) {
		rdb.FlushAll(ctx)
		given := map[string]bool{}
		for range rapid.IntRange(5, 40).Draw(t, "commands") {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			before := rdb.HGetAll(ctx, "h").Val()
			switch rapid.SampledFrom([]string{"read", "read", "unread", "write", "unwrite"}).Draw(t, "command") {
			case "read":
				args, memories, others := []any{id, 60000, "publish", 0, 0, 0}, []string(nil), []string(nil)
				for _, other := range ids {
					if other != id && rapid.Bool().Draw(t, "along") {
						args, memories, others = append(args, other, 50000), append(memories, "memory:"+other), append(others, other)
					}
				}
				answer := run(read, id, memories, args...)
				after := rdb.HGetAll(ctx, "h").Val()
				in, granted := answer.([]any)
				if !granted || in[0] != "in" {
					if answer == int64(0) {
						require.Empty(t, others)
						require.Contains(t, after, id)
					} else {
						require.Equal(t, before, after, "refused: %v", answer)
					}
					break
				}
				require.Contains(t, after, id)
				require.Len(t, in, 1+len(others))
				for i, other := range others {
					require.Equal(t, in[i+1] == int64(1), after[other] == "1", other)
				}
			case "unread":
				run(unread, id, nil, id, "publish", 60000, 0, 0)
				given[id] = true
			case "write": // writers have ids of their own
				run(write, id+"w", nil, id+"w", 60000, "publish", 0, 0, 0)
			case "unwrite":
				run(unwrite, id+"w", nil, id+"w", "publish", 60000, 0, 0, 60000)
				given[id+"w:write"] = true
			}
			held := rdb.HGetAll(ctx, "h").Val()
			for field := range held {
				require.False(t, given[field], "%s was given back", field)
			}
			if held["mode"] == "write" {
				require.Len(t, held, 2)
			}
		}
	})
}

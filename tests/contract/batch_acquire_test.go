package contract

import (
	"context"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

var readScript = scripts.Load("rwlock/read_acquire")

// reads matches commands that acquire for one reader or several.
func reads(args []string) bool { return fixture.Script(args) && args[1] == readScript.SHA() }

// batched matches commands that acquire for several readers.
func batched(args []string) bool {
	if !reads(args) {
		return false
	}
	keys, err := strconv.Atoi(args[2])
	return err == nil && keys > 6
}

// readBatch is the fixture of the batch tests: readers of one client that wait for a writer of
// another.
type readBatch struct {
	*fixture.RWTest
	writer  *primitives.Hold
	cancels []context.CancelFunc    // of the readers
	waiting []<-chan fixture.Result // of the readers, in order of arrival
}

// onReadBatch starts n readers on a client that connects through via, and waits until all are
// queued.
func onReadBatch(t testing.TB, s *redistest.Server, via *redis.Client, n int) *readBatch {
	t.Helper()
	x := &readBatch{RWTest: fixture.OnRWNamed(t, s, via, redistest.Name(t))}
	x.writer = fixture.Acquire(t, t.Context(), x.Other(t).Writer())
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		x.cancels = append(x.cancels, cancel)
		x.waiting = append(x.waiting, fixture.StartAcquire(ctx, x.RW.Reader()))
		fixture.AwaitWaiters(t, x.C, i+1)
	}
	x.AwaitWaiter(t)
	return x
}

// The waiting readers of a client acquire together, by one command.
func TestBatchAcquireTakesOneCommand(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		const n = 20
		x := onReadBatch(t, s, p.Client(t), n)
		p.Record()
		fixture.Release(t, x.writer)
		for _, c := range x.waiting {
			got := fixture.AwaitHold(t, c)
			require.NoError(t, got.Check(t.Context()))
			defer fixture.Release(t, got)
		}
		require.Len(t, fixture.Fields(t, s, x.Name), 1+n) // one of the fields is the mode
		acquiring := slices.DeleteFunc(p.Commands(), func(c redistest.Command) bool {
			return !fixture.Script(c.Args) || c.Args[1] != readScript.SHA()
		})
		require.LessOrEqual(t, len(acquiring), 3, "one, and two that a slow poll and a confirmed subscription may cause")
	})
}

// Each reader of a batch holds once, however many replies to the batch are lost.
func TestBatchAcquireSurvivesLostReplies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, lost := range []int{1, 3, 4, 6} { // the client makes four attempts
			p := s.Proxy(t)
			const n = 8
			x := onReadBatch(t, s, p.Client(t, fixture.FastRetries), n)
			p.DropReplies(lost, batched)
			fixture.Release(t, x.writer)
			var holds []*primitives.Hold
			for _, c := range x.waiting {
				got := fixture.AwaitHold(t, c)
				holds = append(holds, got)
			}
			p.Heal()
			counts := fixture.Fields(t, s, x.Name)
			require.Equal(t, "read", counts["mode"])
			for _, hold := range holds {
				require.Equal(t, "1", counts[hold.ID()])
				fixture.Release(t, hold)
			}
			fixture.RequireClean(t, s, x.Name)
		}
	})
}

// Readers are cancelled while the batch that acquires for them is under way. The client releases
// their counts when the answer comes.
func TestBatchAcquireReleasesCancelledReaders(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		const n = 8
		x := onReadBatch(t, s, p.Client(t), n)
		answer := p.HoldReplies(batched)
		fixture.Release(t, x.writer)
		redistest.WaitFor(t, fixture.Soon, func() bool { return p.Held() > 0 }, "the batch is under way")
		for i := range n / 2 {
			x.cancels[2*i+1]()
			require.ErrorIs(t, fixture.Await(t, x.waiting[2*i+1]).Err, context.Canceled)
		}
		answer()
		for i := range n / 2 {
			got := fixture.AwaitHold(t, x.waiting[2*i])
			defer fixture.Release(t, got)
		}
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, s, x.Name)) == 1+n/2 },
			"the others are released")
	})
}

// Readers are cancelled after the batch that acquired for them got no answer and the connection
// broke. The client rolls them back once it can reach Redis again.
func TestBatchAcquireOfUnknownOutcomeIsRolledBack(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	const n = 8
	x := onReadBatch(t, s, p.Client(t), n)
	p.DropReplies(100, reads) // including those to readers that retry on their own after the batch
	fixture.Release(t, x.writer)
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, s, x.Name)) == 1+n },
		"all readers hold in Redis")
	p.Cut() // from here on Redis executes nothing
	for _, cancel := range x.cancels[1:] {
		cancel()
	}
	p.Heal()
	for _, c := range x.waiting[1:] {
		require.ErrorIs(t, fixture.Await(t, c).Err, context.Canceled)
	}
	got := fixture.AwaitHold(t, x.waiting[0])
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Fields(t, s, x.Name)) == 2 },
		"the others are rolled back")
	fixture.Release(t, got)
	fixture.RequireClean(t, s, x.Name)
}

// Reads that acquire for other readers too, writes, releases and copies of all of them run in any
// order. A released id never holds again, and no reader holds beside a writer.
func TestBatchAcquireModel(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t).Client(t)
	ctx := context.Background()
	ids := []string{"a", "b", "c", "d", "e"}
	run := func(s *scripts.Script, id string, more []string, args ...any) any {
		keys := append([]string{"h", "channel", "memory:" + id, "claim", "shared", "turns"}, more...)
		answer, err := rdb.Eval(ctx, s.Text(), keys, args...).Result()
		require.NoError(t, err)
		return answer
	}
	read, unread := readScript, scripts.Load("rwlock/read_release")
	write, unwrite := scripts.Load("rwlock/write_acquire"), scripts.Load("rwlock/write_release")
	rapid.Check(t, func(t *rapid.T) {
		rdb.FlushAll(ctx)
		released := map[string]bool{}
		for range rapid.IntRange(5, 40).Draw(t, "commands") {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			before := rdb.HGetAll(ctx, "h").Val()
			switch rapid.SampledFrom([]string{"read", "read", "unread", "write", "unwrite"}).Draw(t, "command") {
			case "read":
				args := []any{id, 60000, "publish", 0, 0, 0, "client", 0}
				var memories, others []string
				for _, other := range ids {
					if other != id && rapid.Bool().Draw(t, "include") {
						args = append(args, other, 50000)
						memories, others = append(memories, "memory:"+other), append(others, other)
					}
				}
				answer := run(read, id, memories, args...)
				after := rdb.HGetAll(ctx, "h").Val()
				// A batch is answered by "in" and, for each other reader, whether it holds. A
				// single reader is answered by 0.
				granted, ok := answer.([]any)
				if !ok || granted[0] != "in" {
					if answer == int64(0) {
						require.Empty(t, others)
						require.Contains(t, after, id)
					} else {
						require.Equal(t, before, after, "refused: %v", answer)
					}
					break
				}
				require.Contains(t, after, id)
				require.Len(t, granted, 1+len(others))
				for i, other := range others {
					require.Equal(t, granted[i+1] == int64(1), after[other] == "1", other)
				}
			case "unread":
				run(unread, id, nil, id, "publish", 60000, 0, 0, "")
				released[id] = true
			case "write": // an id is a reader's or a writer's, never both
				run(write, id+"w", nil, id+"w", 60000, "publish", 0, 0, 0)
			case "unwrite":
				run(unwrite, id+"w", nil, id+"w", "publish", 60000, 0, 0, 60000, "")
				released[id+"w:write"] = true
			}
			held := rdb.HGetAll(ctx, "h").Val()
			for field := range held {
				require.False(t, released[field], "%s holds after its release", field)
			}
			if held["mode"] == "write" {
				require.Len(t, held, 2)
			}
		}
	})
}

package wire

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// handoffKind describes how the scripts of one kind acquire, release and hand off. The ids are
// private: each belongs to one acquisition.
type handoffKind struct {
	kind        string
	keys        []string // "#" stands for the key that remembers the request
	setup       func(rdb *redis.Client)
	acquire     *scripts.Script
	release     *scripts.Script
	acquireArgs func(id string) []any
	// next is the waiter to hand off to; "": none. memory is how long to remember the release, in
	// ms.
	releaseArgs func(id, next string, memory int) []any
	// forgetful: a release is remembered only if copies of the acquisition may come after it. A
	// copy of the release then finds nothing to release.
	forgetful bool
	holders   func(rdb *redis.Client, ids []string) []string
	permits   int                         // the most holders at once
	available func(rdb *redis.Client) int // permits in the pool; -1: the kind has no pool
}

// tokens is how many fencing tokens an id reserves: some reserve a block, as holders within a
// cohort do.
func tokens(id string) int {
	if id == "" {
		return 0
	}
	return 1 + 2*int(id[0]%2)
}

// padded returns an id of the length that permit ids have on the wire.
func padded(id string) string { return id + strings.Repeat("-", 16-len(id)) }

// handoffKinds lists the kinds whose release can hand off.
func handoffKinds() []handoffKind {
	ctx := context.Background()
	fields := func(suffix string) func(*redis.Client, []string) []string {
		return func(rdb *redis.Client, _ []string) (held []string) {
			for field := range rdb.HGetAll(ctx, "h").Val() {
				if id, ok := strings.CutSuffix(field, suffix); ok && field != "mode" {
					held = append(held, id)
				}
			}
			return held
		}
	}
	noPool := func(*redis.Client) int { return -1 }
	pool := func(rdb *redis.Client) int { n, _ := rdb.Get(ctx, "h").Int(); return n }
	fill := func(rdb *redis.Client) { rdb.Set(ctx, "h", 2, 0) }
	// handTo appends the arguments that name the waiter to hand off to, if there is one.
	handTo := func(args []any, next string, more ...any) []any {
		if next == "" {
			return args
		}
		return append(args, more...)
	}
	mutex := func(kind string, keys ...string) handoffKind {
		tokens := func(id string) int {
			isFenced := len(keys) > 0
			if !isFenced {
				return 0
			}
			return tokens(id)
		}
		return handoffKind{
			kind: kind, keys: append([]string{"h", "channel", "#", "line"}, keys...), permits: 1, forgetful: true,
			acquire: scripts.Load("lock/acquire"), release: scripts.Load("lock/release"),
			available: noPool, holders: fields(""),
			acquireArgs: func(id string) []any { return []any{id, 60000, "publish", tokens(id)} },
			releaseArgs: func(id, next string, memory int) []any {
				return handTo([]any{id, "publish", memory, ""}, next, next, 50000, tokens(next))
			},
		}
	}
	return []handoffKind{
		mutex("lock"), mutex("fenced", "token"),
		{
			kind: "writer", keys: []string{"h", "channel", "#", "claim", "shared", "turns"}, permits: 1,
			acquire: scripts.Load("rwlock/write_acquire"), release: scripts.Load("rwlock/write_release"),
			available: noPool, holders: fields(":write"),
			acquireArgs: func(id string) []any { return []any{id, 60000, "publish", 0, 0, 0} },
			releaseArgs: func(id, next string, memory int) []any {
				return handTo([]any{id, "publish", memory, 0, 0, 60000, ""}, next, next, 50000)
			},
		},
		{
			kind: "semaphore", keys: []string{"h", "channel", "#", "epoch"}, permits: 2, setup: fill,
			acquire: scripts.Load("semaphore/acquire"), release: scripts.Load("semaphore/release"), available: pool,
			acquireArgs: func(string) []any { return []any{"publish", 60000, 1} },
			releaseArgs: func(_, next string, memory int) []any {
				return handTo([]any{"publish", memory, 1, 1, 0}, next, 1, 60000)
			},
			holders: func(rdb *redis.Client, ids []string) (held []string) {
				for _, id := range ids {
					if rdb.Get(ctx, "memory:"+id).Val() == "1 0" {
						held = append(held, id)
					}
				}
				return held
			},
		},
		{
			kind: "permits", keys: []string{"h", "channel", "#", "leases"}, permits: 2, setup: fill,
			acquire: scripts.Load("permitsemaphore/acquire"), release: scripts.Load("permitsemaphore/release"),
			available:   pool,
			acquireArgs: func(id string) []any { return []any{"publish", 10, padded(id), 60000} },
			releaseArgs: func(id, next string, memory int) []any {
				args := []any{"publish", memory, padded(id), 0}
				if next == "" {
					return args
				}
				return append(args, padded(next), 50000)
			},
			holders: func(rdb *redis.Client, _ []string) (held []string) {
				for _, id := range rdb.ZRange(ctx, "leases", 0, -1).Val() {
					held = append(held, strings.TrimRight(id, "-"))
				}
				return held
			},
		},
	}
}

// send runs a script with the keys that the library passes: the memory of id, and that of next.
func (k *handoffKind) send(rdb *redis.Client, s *scripts.Script, id, next string, args []any) (any, error) {
	keys := append([]string(nil), k.keys...)
	memory := func(id string) string { return "memory:" + id }
	keys[2] = memory(id)
	if (k.kind == "lock" || k.kind == "fenced") && s == k.release {
		keys = append([]string{"h", "channel", keys[2], "shared"}, keys[3:]...) // the line, and a token
		if next == "" {
			keys = keys[:5] // without a successor the next key is the mark of clients that poll
		}
	}
	if next != "" {
		at := len(keys)
		if k.kind == "fenced" {
			at = 5
		}
		keys = append(keys[:at], append([]string{memory(next)}, keys[at:]...)...)
	}
	return rdb.Eval(context.Background(), s.Text(), keys, args...).Result()
}

// The outcomes of a release.
const (
	notHeld   = ""
	freed     = "freed"
	handedOff = "handed off"
)

// releaseOutcome interprets the answer to a release.
func releaseOutcome(answer any) string {
	switch n := answer.(type) {
	case []any:
		return handedOff
	case int64:
		if n > 0 {
			return freed
		}
	}
	return notHeld
}

// Acquisitions, releases with a handoff, and copies of both run in any order. A released id never
// holds again, there are never too many holders, and the number of permits stays the same.
//
// Copies of an acquisition come after its release only if the client is in doubt about an attempt,
// and a client hands off only to waiters that have not ended. Copies of a handoff come at any time.
func TestHandoffModel(t *testing.T) {
	t.Parallel()
	server := redistest.Embedded(t)
	rdb := server.Client(t)
	for _, kind := range handoffKinds() {
		t.Run(kind.kind, func(t *testing.T) {
			ids := []string{"a", "b", "c", "d", "e"}
			rapid.Check(t, func(t *rapid.T) {
				rdb.FlushAll(context.Background())
				if kind.setup != nil {
					kind.setup(rdb)
				}
				doubtful := map[string]bool{}
				for _, id := range ids {
					doubtful[id] = !kind.forgetful || rapid.Bool().Draw(t, id+" in doubt")
				}
				released := map[string]bool{}
				outcomes := map[string]string{} // of the first release of an id
				token := int64(0)
				for range rapid.IntRange(5, 40).Draw(t, "commands") {
					id := rapid.SampledFrom(ids).Draw(t, "id")
					if rapid.Bool().Draw(t, "acquire") {
						if released[id] && !doubtful[id] {
							continue
						}
						require.NoError(t, fixture.ErrOf(kind.send(rdb, kind.acquire, id, "", kind.acquireArgs(id))))
					} else {
						next := rapid.SampledFrom(append(ids, "")).Draw(t, "next")
						if next == id || (released[next] && !doubtful[next] && !released[id]) {
							continue
						}
						memory := 0
						if doubtful[id] {
							memory = 60000
						}
						answer, err := kind.send(rdb, kind.release, id, next, kind.releaseArgs(id, next, memory))
						require.NoError(t, err)
						outcome, first := releaseOutcome(answer), outcomes[id]
						if released[id] && kind.forgetful {
							require.Equal(t, notHeld, outcome)
						} else if released[id] {
							require.Equal(t, first == notHeld, outcome == notHeld, "the first outcome was %q", first)
						} else {
							outcomes[id] = outcome
						}
						released[id] = true
						if tokens, ok := answer.([]any); ok && kind.kind == "fenced" {
							last, err := strconv.ParseInt(tokens[0].(string), 10, 64)
							require.NoError(t, err)
							require.GreaterOrEqual(t, last, token)
							token = last
						}
						if outcome == handedOff {
							require.Contains(t, kind.holders(rdb, ids), next)
						}
					}
					holders := kind.holders(rdb, ids)
					require.LessOrEqual(t, len(holders), kind.permits)
					for _, holder := range holders {
						require.False(t, released[holder], "%s holds after its release", holder)
					}
					if available := kind.available(rdb); available >= 0 {
						require.Equal(t, kind.permits, available+len(holders))
					}
				}
			})
		})
	}
}

// Releases hand off to waiters of the same client in their order of arrival. Each handoff takes one
// command. A turn of a client lasts for 10 ms, so the commands are counted in fake time.
func TestReleaseHandsOffInOrder(t *testing.T) {
	const waiters = 12 // fewer than a client hands off to in one turn
	type acquire func(context.Context) (*primitives.Hold, error)
	ofLock := func(l *primitives.Lock) acquire {
		return func(ctx context.Context) (*primitives.Hold, error) { return l.Acquire(ctx) }
	}
	for _, kind := range []struct {
		name string
		of   func(t *testing.T, c *primitives.Client, name string) (acquire, error)
	}{
		{"lock", func(_ *testing.T, c *primitives.Client, name string) (acquire, error) {
			return ofLock(c.Lock(name)), nil
		}},
		{"fenced", func(_ *testing.T, c *primitives.Client, name string) (acquire, error) {
			return ofLock(c.FencedLock(name)), nil
		}},
		{"writer", func(_ *testing.T, c *primitives.Client, name string) (acquire, error) {
			return ofLock(c.RWLock(name).Writer()), nil
		}},
		{"semaphore", func(t *testing.T, c *primitives.Client, name string) (acquire, error) {
			p := c.Semaphore(name)
			_, err := p.Init(t.Context(), 1)
			return func(ctx context.Context) (*primitives.Hold, error) { return p.Acquire(ctx) }, err
		}},
		{"permits", func(t *testing.T, c *primitives.Client, name string) (acquire, error) {
			p := c.PermitExpirableSemaphore(name)
			_, err := p.Init(t.Context(), 1)
			return func(ctx context.Context) (*primitives.Hold, error) { return p.Acquire(ctx) }, err
		}},
	} {
		run := func(t *testing.T, s *redistest.Server, settle func()) (commands int64) {
			c := fixture.NewClient(t, s.Client(t))
			acquire, err := kind.of(t, c, "l")
			require.NoError(t, err)
			hold, err := acquire(t.Context())
			require.NoError(t, err)
			fixture.Release(t, hold) // loads the scripts
			hold, err = acquire(t.Context())
			require.NoError(t, err)

			var order []int // guarded by the lock
			tokens := []int64{hold.Token()}
			var wg sync.WaitGroup
			for i := range waiters {
				wg.Go(func() {
					hold, err := acquire(t.Context())
					if !assert.NoError(t, err) {
						return
					}
					order, tokens = append(order, i), append(tokens, hold.Token())
					assert.NoError(t, hold.Release(t.Context()))
				})
				fixture.AwaitWaiters(t, c, i+1)
			}
			settle()
			before := redistest.Commands(t, s)
			fixture.Release(t, hold)
			wg.Wait()
			calls := redistest.Commands(t, s).Since(before)
			require.Len(t, order, waiters)
			require.IsIncreasing(t, order)
			if kind.name == "fenced" {
				require.IsIncreasing(t, tokens)
			}
			fixture.RequireClean(t, s, "{l}", "redisson_lock_token:{l}")
			return calls["evalsha"] + calls["eval"]
		}
		t.Run(kind.name+"/redis", func(t *testing.T) { run(t, redistest.Fresh(t), func() {}) })
		redistest.RunBubble(t, kind.name+"/fake time", func(t *testing.T) {
			betweenPolls := func() { time.Sleep(2500 * time.Millisecond) }
			require.LessOrEqual(t, run(t, redistest.Embedded(t), betweenPolls), int64(waiters+3))
		})
	}
}

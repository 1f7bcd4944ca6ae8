package primitives_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// handing is how one kind's scripts take, give and hand on, for ids that belong to one acquisition alone.
type handing struct {
	kind    string
	keys    []string // #: the memory
	setup   func(rdb *redis.Client)
	take    *scripts.Script
	give    *scripts.Script
	taking  func(id string) []any
	giving  func(id, heir string) []any
	shelved bool // memories are numbers in sets
	holders func(rdb *redis.Client, ids []string) []string
	places  int
	free    func(rdb *redis.Client) int // -1: the kind does not count
}

// number is that of an id's acquisition.
func number(id string) int {
	if id == "" {
		return 0
	}
	return int(id[0])
}

// wide is an id of the length that a permit has on the wire.
func wide(id string) string { return id + strings.Repeat("-", 16-len(id)) }

func handings() []handing {
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
	uncounted := func(*redis.Client) int { return -1 }
	pool := func(rdb *redis.Client) int { n, _ := rdb.Get(ctx, "h").Int(); return n }
	fill := func(rdb *redis.Client) { rdb.Set(ctx, "h", 2, 0) }
	heirs := func(args []any, heir string, more ...any) []any {
		if heir == "" {
			return args
		}
		return append(args, more...)
	}
	mutex := func(kind string, keys ...string) handing {
		return handing{
			kind: kind, keys: append([]string{"h", "news", "#"}, keys...), places: 1, shelved: true,
			take: scripts.Load("lock/acquire"), give: scripts.Load("lock/release"), free: uncounted, holders: fields(""),
			taking: func(id string) []any { return []any{id, 60000, "publish", number(id)} },
			giving: func(id, heir string) []any {
				return heirs([]any{id, "publish", 60000, number(id)}, heir, heir, 50000, number(heir))
			},
		}
	}
	return []handing{
		mutex("lock"), mutex("fenced", "token"),
		{
			kind: "writer", keys: []string{"h", "news", "#", "claim", "shared"}, places: 1,
			take: scripts.Load("rwlock/write_acquire"), give: scripts.Load("rwlock/write_release"), free: uncounted, holders: fields(":write"),
			taking: func(id string) []any { return []any{id, 60000, "publish", 0, 0, 0} },
			giving: func(id, heir string) []any { return heirs([]any{id, "publish", 60000, 0, 0, 60000}, heir, heir, 50000) },
		},
		{
			kind: "semaphore", keys: []string{"h", "news", "#"}, places: 2, setup: fill,
			take: scripts.Load("semaphore/acquire"), give: scripts.Load("semaphore/release"), free: pool,
			taking: func(string) []any { return []any{"publish", 60000, 1} },
			giving: func(_, heir string) []any { return heirs([]any{"publish", 60000, 1, 1}, heir, 1, 60000) },
			holders: func(rdb *redis.Client, ids []string) (held []string) {
				for _, id := range ids {
					if rdb.Get(ctx, "memory:"+id).Val() == "1" {
						held = append(held, id)
					}
				}
				return held
			},
		},
		{
			kind: "permits", keys: []string{"h", "news", "#", "leases"}, places: 2, setup: fill,
			take: scripts.Load("permitsemaphore/acquire"), give: scripts.Load("permitsemaphore/release"), free: pool,
			taking: func(id string) []any { return []any{"publish", 10, wide(id), 60000} },
			giving: func(id, heir string) []any {
				return heirs([]any{"publish", 60000, wide(id), 0}, heir, wide(heir), 50000)
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

// send runs a script as the library does: with the memory of id, and that of its heir in its place.
func (k *handing) send(rdb *redis.Client, s *scripts.Script, id, heir string, args []any) (any, error) {
	keys := append([]string(nil), k.keys...)
	memory := func(id string) string {
		if k.shelved {
			return "shelf:" + strconv.Itoa(number(id)/2)
		}
		return "memory:" + id
	}
	keys[2] = memory(id)
	if k.shelved && s == k.give {
		keys = append([]string{"h", "news", keys[2], "shared"}, keys[3:]...) // the token comes last
	}
	if heir != "" {
		at := len(keys)
		if k.kind == "fenced" {
			at = 4
		}
		keys = append(keys[:at], append([]string{memory(heir)}, keys[at:]...)...)
	}
	return rdb.Eval(context.Background(), s.Text(), keys, args...).Result()
}

// handed is what an answer to a release says: "" nothing was held, "heir", or "free".
func handed(answer any) string {
	switch n := answer.(type) {
	case []any:
		return "heir"
	case int64:
		if n > 0 {
			return "free"
		}
	}
	return ""
}

// TestHandOverModel has commands, and copies of them, come in any order: whoever was given back never holds again, no more hold than may, and no
// permit is lost or made.
func TestHandOverModel(t *testing.T) {
	t.Parallel()
	server := redistest.Embedded(t)
	rdb := server.Client(t)
	for _, kind := range handings() {
		t.Run(kind.kind, func(t *testing.T) {
			ids := []string{"a", "b", "c", "d", "e"}
			rapid.Check(t, func(t *rapid.T) {
				rdb.FlushAll(context.Background())
				if kind.setup != nil {
					kind.setup(rdb)
				}
				given := map[string]bool{}
				answers := map[string]string{}
				token := int64(0)
				for range rapid.IntRange(5, 40).Draw(t, "commands") {
					id := rapid.SampledFrom(ids).Draw(t, "id")
					if rapid.Bool().Draw(t, "take") {
						_, err := kind.send(rdb, kind.take, id, "", kind.taking(id))
						require.NoError(t, err)
					} else {
						heir := rapid.SampledFrom(append(ids, "")).Draw(t, "heir")
						if heir == id {
							continue
						}
						answer, err := kind.send(rdb, kind.give, id, heir, kind.giving(id, heir))
						require.NoError(t, err)
						got, before := handed(answer), answers[id]
						if given[id] {
							require.Equal(t, before == "", got == "", "the first answer was %q", before)
						} else {
							answers[id] = got
						}
						given[id] = true
						if tokens, ok := answer.([]any); ok && kind.kind == "fenced" {
							require.GreaterOrEqual(t, tokens[0], token)
							token = tokens[0].(int64)
						}
						if got == "heir" {
							require.Contains(t, kind.holders(rdb, ids), heir)
						}
					}
					holders := kind.holders(rdb, ids)
					require.LessOrEqual(t, len(holders), kind.places)
					for _, holder := range holders {
						require.False(t, given[holder], "%s was given back", holder)
					}
					if free := kind.free(rdb); free >= 0 {
						require.Equal(t, kind.places, free+len(holders))
					}
				}
			})
		})
	}
}

// TestHandOver has the releases of one client hand on to those that wait there: in order of arrival, at a command each.
func TestHandOver(t *testing.T) {
	type acquire func(context.Context) (*primitives.Hold, error)
	ofLock := func(l *primitives.Lock) acquire {
		return func(ctx context.Context) (*primitives.Hold, error) { return l.Acquire(ctx) }
	}
	for _, kind := range []struct {
		name string
		of   func(c *primitives.Client, name string) (acquire, error)
	}{
		{"lock", func(c *primitives.Client, name string) (acquire, error) { return ofLock(c.Lock(name)), nil }},
		{"fenced", func(c *primitives.Client, name string) (acquire, error) { return ofLock(c.FencedLock(name)), nil }},
		{"writer", func(c *primitives.Client, name string) (acquire, error) { return ofLock(c.RWLock(name).Writer()), nil }},
		{"semaphore", func(c *primitives.Client, name string) (acquire, error) {
			p := c.Semaphore(name)
			_, err := p.Init(t.Context(), 1)
			return func(ctx context.Context) (*primitives.Hold, error) { return p.Acquire(ctx) }, err
		}},
		{"permits", func(c *primitives.Client, name string) (acquire, error) {
			p := c.PermitExpirableSemaphore(name)
			_, err := p.Init(t.Context(), 1)
			return func(ctx context.Context) (*primitives.Hold, error) { return p.Acquire(ctx) }, err
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			s := redistest.Fresh(t)
			c := newClient(t, s.Client(t))
			acquire, err := kind.of(c, "l")
			require.NoError(t, err)
			hold, err := acquire(t.Context())
			require.NoError(t, err)

			const waiters = 12
			var order []int // what the lock guards
			tokens := []int64{hold.Token()}
			var wg sync.WaitGroup
			for i := range waiters {
				wg.Go(func() {
					hold, err := acquire(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					order, tokens = append(order, i), append(tokens, hold.Token())
					if err := hold.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
				awaitRoom(t, i+1)
			}
			redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) > 0 }, "they listen")
			before := redistest.Commands(t, s)
			release(t, hold)
			wg.Wait()
			sent := redistest.Commands(t, s).Since(before)["evalsha"]
			require.Len(t, order, waiters)
			require.IsIncreasing(t, order)
			if kind.name == "fenced" {
				require.IsIncreasing(t, tokens)
			}
			// A turn that lasts too long on a busy machine ends by a release and an acquisition.
			require.LessOrEqual(t, sent, int64(waiters+8))
			requireClean(t, s, "news")
		})
	}
}

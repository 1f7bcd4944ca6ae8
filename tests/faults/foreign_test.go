package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// foreignData is what other programs may keep under a lock's name. What says it to the caller.
var foreignData = []struct {
	name, what string
	command    []any // without the key; its first argument comes before the key
}{
	{"two fields", "a hash with 2 fields", []any{"hset", "me", "1", "age", "7"}},
	{"counts of several owners", "a hash with 3 fields", []any{"hset", "me", "1", "you", "2", "they", "3"}},
	{"text", "a hash with 1 field", []any{"hset", "me", "Ann"}},
	{"empty text", "a hash with 1 field", []any{"hset", "me", ""}},
	{"zero", "a hash with 1 field", []any{"hset", "me", "0"}},
	{"negative", "a hash with 1 field", []any{"hset", "me", "-1"}},
	{"fraction", "a hash with 1 field", []any{"hset", "me", "1.5"}},
	{"more than 2^53", "a hash with 1 field", []any{"hset", "me", "9223372036854775807"}},
	{"a mode only", "a hash with 1 field", []any{"hset", "mode", "dark"}},
	{"a mode of its own", "a hash with 2 fields", []any{"hset", "mode", "dark", "me", "1"}},
	{"mode read and text", "a hash with 3 fields", []any{"hset", "mode", "read", "me", "1", "name", "Ann"}},
	{"mode write and text", "a hash with 3 fields", []any{"hset", "mode", "write", "me:write", "1", "name", "Ann"}},
	{"list", "", []any{"rpush", "me"}},
	{"set", "", []any{"sadd", "me"}},
	{"string", "", []any{"set", "me"}},
}

// lockCalls are the calls that look at a lock's key. The ids are fields of the foreign hashes.
func lockCalls(l *primitives.Lock) map[string]func(ctx context.Context) error {
	owner := primitives.WithOwner("me")
	return map[string]func(ctx context.Context) error{
		"acquire":            func(ctx context.Context) error { return fixture.ErrOf(l.Acquire(ctx)) },
		"try":                func(ctx context.Context) error { return fixture.ErrOf(l.TryAcquire(ctx)) },
		"acquire with owner": func(ctx context.Context) error { return fixture.ErrOf(l.Acquire(ctx, owner)) },
		"adopt":              func(ctx context.Context) error { return fixture.ErrOf(l.Adopt(ctx, "me")) },
		"release id":         func(ctx context.Context) error { return l.ReleaseID(ctx, "me") },
		"force":              func(ctx context.Context) error { return fixture.ErrOf(l.ForceRelease(ctx)) },
		"info":               func(ctx context.Context) error { return fixture.ErrOf(l.Info(ctx)) },
		"locker": func(ctx context.Context) (err error) {
			defer func() { err = recover().(error) }()
			l.Locker(ctx).Lock()
			return nil
		},
	}
}

// locksOf returns a lock of each kind.
func locksOf(c *primitives.Client, name string) map[string]*primitives.Lock {
	locks := map[string]*primitives.Lock{
		"cohort": c.Lock(name, primitives.WithCohort(time.Second)),
		"multi":  primitives.NewMultiLock([]*primitives.Lock{c.Lock(name), c.Lock(name + "2")}),
	}
	for _, k := range kinds.Locks() {
		locks[k.Name] = k.Lock(c, name)
	}
	return locks
}

// content returns what is at a key, with its TTL.
func content(t testing.TB, s *redistest.Server, rdb *redis.Client, key string) string {
	t.Helper()
	ctx := t.Context()
	if s.Mini() == nil {
		return fmt.Sprint(rdb.PTTL(ctx, key).Val(), rdb.Dump(ctx, key).Val())
	}
	return fmt.Sprint(rdb.PTTL(ctx, key).Val(), rdb.Type(ctx, key).Val(), rdb.HGetAll(ctx, key).Val(),
		rdb.LRange(ctx, key, 0, -1).Val(), rdb.SMembers(ctx, key).Val(), rdb.Get(ctx, key).Val())
}

// C15: data of another program under a lock's name is no lock. Each call says at once what it is,
// and changes nothing.
func TestC15ForeignData(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		c := fixture.NewClient(t, s.Client(t))
		for _, data := range foreignData {
			t.Run(data.name, func(t *testing.T) {
				name := redistest.Name(t)
				command := append([]any{data.command[0], name}, data.command[1:]...)
				require.NoError(t, rdb.Do(t.Context(), command...).Err())
				before := content(t, s, rdb, name)
				for kind, l := range locksOf(c, name) {
					for call, do := range lockCalls(l) {
						if kind == "multi" && !strings.Contains("acquire try locker", call) {
							continue // unsupported, or the other member is not held
						}
						err := do(t.Context())
						require.ErrorIs(t, err, primitives.ErrForeign, "%s: %s", kind, call)
						fixture.RequireForeign(t, err, data.what)
						require.Equal(t, before, content(t, s, rdb, name), "%s: %s", kind, call)
					}
				}
				fixture.RequireForeign(t, fixture.ErrOf(c.Inspect(t.Context(), name)), data.what)
				require.NoError(t, rdb.Del(t.Context(), name).Err())
				fixture.RequireClean(t, s, name)
			})
		}
	})
}

// Redis is not unavailable if it has said what the key holds, even if it did so only to the second
// attempt.
func TestForeignDataAfterALostReply(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, p := redistest.Name(t), s.Proxy(t)
		c := fixture.NewClient(t, p.Client(t, fixture.FastRetries))
		require.NoError(t, s.Client(t).HSet(t.Context(), name, "name", "Ann", "age", 7).Err())
		for kind, l := range locksOf(c, name) {
			p.DropReplies(1, fixture.Script)
			err := fixture.ErrOf(l.TryAcquire(t.Context()))
			p.Heal()
			fixture.RequireForeign(t, err, "a hash with 2 fields")
			require.ErrorContains(t, err, "the key holds a hash", kind)
			require.NotContains(t, err.Error(), "unavailable", kind)
		}
	})
}

// The error says what the key holds, and what to do.
func TestForeignDataText(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	require.NoError(t, s.Client(t).HSet(t.Context(), name, "name", "Ann", "age", 7).Err())
	err := fixture.ErrOf(fixture.NewClient(t, s.Client(t)).Lock(name).Acquire(t.Context()))
	require.EqualError(t, err, fmt.Sprintf(
		"redlatch: acquire lock %q: the key holds a hash with 2 fields that is no lock; use another name", name))
}

// A lock of another kind is held. But only its own kind may free it by force, and says who holds
// it.
func TestForceReleaseAndInfoOfAnotherKind(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, name := fixture.NewClient(t, s.Client(t)), redistest.Name(t)
		rw, ctx := c.RWLock(name), t.Context()
		for _, l := range []*primitives.Lock{rw.Reader(), rw.Writer()} {
			hold := fixture.Acquire(t, ctx, l)
			for _, other := range []*primitives.Lock{c.Lock(name), c.FencedLock(name), c.FairLock(name)} {
				require.ErrorIs(t, fixture.ErrOf(other.TryAcquire(ctx)), primitives.ErrNotAcquired)
				require.ErrorIs(t, other.ReleaseID(ctx, hold.ID()), primitives.ErrNotHeld)
				fixture.RequireForeign(t, fixture.ErrOf(other.ForceRelease(ctx)), "a read-write lock")
				fixture.RequireForeign(t, fixture.ErrOf(other.Info(ctx)), "a read-write lock")
			}
			require.NoError(t, hold.Check(ctx))
			fixture.Release(t, hold)
		}
		hold := fixture.Acquire(t, ctx, c.Lock(name))
		for _, l := range []*primitives.Lock{rw.Reader(), rw.Writer()} {
			require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(ctx)), primitives.ErrNotAcquired)
			fixture.RequireForeign(t, l.ReleaseID(ctx, hold.ID()), "no read-write lock")
			fixture.RequireForeign(t, fixture.ErrOf(l.ForceRelease(ctx)), "no read-write lock")
			fixture.RequireForeign(t, fixture.ErrOf(l.Info(ctx)), "no read-write lock")
		}
		require.NoError(t, hold.Check(ctx))
		fixture.Release(t, hold)
		fixture.RequireClean(t, s, name)
	})
}

// A lock whose key was replaced by foreign data is lost. Check, renewal and release change nothing.
func TestForeignDataInThePlaceOfAHold(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, c := s.Client(t), fixture.NewClient(t, s.Client(t))
		for _, owner := range []string{"", "me"} {
			for kind, l := range locksOf(c, redistest.Name(t)) {
				if kind == "multi" {
					continue
				}
				var opts []primitives.Option
				if owner != "" {
					opts = append(opts, primitives.WithOwner(owner))
				}
				hold := fixture.Acquire(t, t.Context(), l, opts...)
				name := l.Name()
				require.NoError(t, rdb.Del(t.Context(), name).Err())
				require.NoError(t, rdb.HSet(t.Context(), name, "me", "x", "me:write", "y", "mode", "read").Err())
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost, "%s %s", kind, owner)
				require.Equal(t, map[string]string{"me": "x", "me:write": "y", "mode": "read"}, fixture.Fields(t, s, name))
				require.EqualValues(t, -1, rdb.PTTL(t.Context(), name).Val())
				require.NoError(t, rdb.Del(t.Context(), name).Err())
			}
		}
	})
}

// A hold whose key was overwritten by another type is lost, whichever call finds that.
func TestAnotherTypeInThePlaceOfAHold(t *testing.T) {
	t.Parallel()
	release := func(_ fixture.Handle, hold *primitives.Hold) error { return hold.Release(context.Background()) }
	for call, f := range map[string]func(h fixture.Handle, hold *primitives.Hold) error{
		"check":   func(_ fixture.Handle, hold *primitives.Hold) error { return hold.Check(t.Context()) },
		"release": release,
		"nest": func(h fixture.Handle,
			hold *primitives.Hold) error {
			return fixture.ErrOf(h.Acquire(hold.Context()))
		},
		"release of a nested hold": release,
	} {
		for _, k := range kinds.All() {
			for _, owner := range []primitives.Option{{}, primitives.WithOwner("o")} {
				s := redistest.Redis(t)
				rdb, name := s.Client(t), redistest.Name(t)
				h := k.One(t, fixture.NewClient(t, rdb), name)
				if k.Pool && strings.Contains(call, "nest") || k.Name == "semaphore" && call == "check" {
					continue
				}
				outer := fixture.Acquire(t, t.Context(), h, owner)
				hold := outer
				if strings.Contains(call, "nested") {
					hold = fixture.Acquire(t, outer.Context(), h)
				}
				names := []string{name}
				if k.Joint() {
					names = k.MemberNames(name)
				}
				for _, key := range names {
					require.NoError(t, rdb.Del(t.Context(), key).Err())
					require.NoError(t, rdb.LPush(t.Context(), key, "x").Err())
				}
				require.ErrorIs(t, f(h, hold), primitives.ErrLost, "%s %s", k.Name, call)
				if k.Leased {
					fixture.RequireEnds(t, outer.Context(), primitives.ErrLost)
				}
				require.NoError(t, rdb.Del(t.Context(), names...).Err())
			}
		}
	}
}

// Waiters return at once when the key comes to hold foreign data.
func TestForeignDataEndsTheWaiting(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb, c := s.Client(t), fixture.NewClient(t, s.Client(t))
	for _, kind := range kinds.Locks() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			l := kind.Lock(c, name)
			hold := fixture.Acquire(t, t.Context(), kind.Rival(c, name))
			waiting := fixture.StartAcquire(t.Context(), l)
			time.Sleep(20 * time.Millisecond)
			require.NoError(t, rdb.HSet(t.Context(), name, "name", "Ann").Err())
			fixture.RequireForeign(t, fixture.Await(t, waiting).Err, "that is no lock")
			_ = hold.Release(t.Context())
			require.NoError(t, rdb.Del(t.Context(), name).Err())
		})
	}
}

// A hash with a million fields costs no more than a small one.
func TestForeignDataIsNotReadWhole(t *testing.T) {
	s := redistest.Fresh(t)
	rdb, c := s.Client(t), fixture.NewClient(t, s.Client(t))
	worked := func() (d time.Duration) { // the server's processor time, which does not grow while others use it
		info, err := rdb.InfoMap(t.Context(), "cpu").Result()
		require.NoError(t, err)
		for _, part := range []string{"used_cpu_user", "used_cpu_sys"} {
			part, err := time.ParseDuration(info["CPU"][part] + "s")
			require.NoError(t, err)
			d += part
		}
		return d
	}
	n := redistest.Sized(s, redistest.Scaled(s, 200_000), 1_000_000)
	for name, more := range map[string]string{"counts": "", "mode": "write", "reading": "read", "dark": "dark"} {
		const part = 20_000 // a script that takes longer than 5 s makes the server refuse others
		for first := 1; first <= n; first += part {
			require.NoError(t, rdb.Eval(t.Context(), `
				for i = ARGV[1], ARGV[2] do redis.call('hset', KEYS[1], 'field' .. i, ARGV[3] == '' and i or 'text') end
				if ARGV[3] ~= '' then redis.call('hset', KEYS[1], 'mode', ARGV[3]) end
				return redis.call('hset', KEYS[1], 'me', '1')`, []string{name}, first, min(first+part-1, n), more).Err())
		}
		for kind, l := range locksOf(c, name) {
			for call, do := range lockCalls(l) {
				if kind == "multi" {
					continue
				}
				_ = do(t.Context()) // loads the script
				before := worked()
				fixture.RequireForeign(t, do(t.Context()), "fields that is no lock")
				require.Less(t, worked()-before, 30*time.Millisecond, "%s %s: %s", name, kind, call)
			}
		}
		before := worked()
		fixture.RequireForeign(t, fixture.ErrOf(c.Inspect(t.Context(), name)), "fields that is no lock")
		for info, err := range c.Locks(t.Context(), "*") {
			require.NoError(t, err)
			require.Fail(t, "not a lock", "%+v", info)
		}
		require.Less(t, worked()-before, 30*time.Millisecond, "%s: inspect, and look for locks", name)
	}
}

// A string that is no number is no semaphore and no latch. TestForeignKeys has all calls.
func TestForeignStringText(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, c, name := s.Client(t), fixture.NewClient(t, s.Client(t)), redistest.Name(t)
		require.NoError(t, rdb.Set(t.Context(), name, "text", 0).Err())
		for call, err := range map[string]error{
			"semaphore": fixture.ErrOf(c.Semaphore(name).Acquire(t.Context())),
			"add":       c.Semaphore(name).Add(t.Context(), 1),
			"permits":   fixture.ErrOf(c.PermitExpirableSemaphore(name).Acquire(t.Context())),
			"delete":    fixture.ErrOf(c.PermitExpirableSemaphore(name).Delete(t.Context())),
			"latch":     fixture.ErrOf(c.CountDownLatch(name).Delete(t.Context())),
		} {
			fixture.RequireForeign(t, err,
				fmt.Sprintf("%q: the key holds a string that is not an integer; use another name", name))
			require.Equal(t, "text", rdb.Get(t.Context(), name).Val(), call)
		}
	})
}

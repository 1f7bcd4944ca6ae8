package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// requireRefused checks that a call failed at once, with an error of Redis of this form, and that
// the client sent few commands.
func requireRefused(t *testing.T, err error, form string, began time.Time, sent int64) {
	t.Helper()
	var reply redis.Error
	require.ErrorAs(t, err, &reply)
	require.Regexp(t, form, reply.Error())
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	require.ErrorAs(t, err, new(*primitives.Error))
	require.Less(t, time.Since(began), fixture.SlowPoll)
	require.Less(t, sent, int64(20))
}

// Users that lack one key or channel of a primitive: either the acquisition fails with Redis's own
// error and leaves nothing, or the primitive works and can be released. An adoption that fails
// leaves the former holder.
func TestUserWithoutOneKeyOrChannel(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	for _, kind := range kinds.Named() {
		t.Run(kind.Name, func(t *testing.T) {
			model := modelOf(kind.Name, "x")
			keys := slices.Concat(model.keys, []string{model.requests + "*"})
			if kind.Name == "reader" || kind.Name == "writer" {
				keys = append(keys, "{x}:*") // the readers' leases
			}
			var rules [][]string
			for _, key := range slices.Concat(keys, model.channels) {
				rules = append(rules, []string{"~" + key})
			}
			for _, channel := range model.channels {
				rules = append(rules, []string{"&" + channel, "&" + channel + ":*"})
			}
			refused := 0
			for missing := range len(rules) + 1 {
				require.NoError(t, admin.FlushAll(t.Context()).Err())
				all := kind.Open(fixture.NewClient(t, admin), "x")
				if p, ok := all.(kinds.Pool); ok {
					require.NoError(t, p.Add(t.Context(), 1))
				}
				args := []any{"acl", "setuser", redistest.Name(t), "on", ">pw", "+@all", "resetkeys", "resetchannels"}
				for i, rule := range rules {
					for _, part := range rule {
						if i != missing {
							args = append(args, part)
						}
					}
				}
				require.NoError(t, admin.Do(t.Context(), args...).Err())
				rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = args[2].(string), "pw" })
				var sent fixture.CountingHook
				rdb.AddHook(&sent)
				h := kind.Open(fixture.NewClient(t, rdb, primitives.WithClientName("")), "x")
				for _, opts := range [][]primitives.Option{nil, {primitives.WithWait(0)}, {primitives.WithOwner("o")}} {
					began, before := time.Now(), sent.N.Load()
					hold, err := h.Acquire(t.Context(), opts...)
					if err == nil {
						require.NoError(t, hold.Release(t.Context()), "without %v", rules[min(missing, len(rules)-1)])
					} else {
						refused++
						require.Less(t, missing, len(rules), err)
						requireRefused(t, err, "NOPERM", began, sent.N.Load()-before)
					}
				}
				former := fixture.Acquire(t, t.Context(), all, primitives.WithWait(0)) // nobody holds it
				takeable, ok := h.(kinds.Takeable)
				if !ok {
					fixture.Release(t, former)
					continue
				}
				adopted, err := takeable.Adopt(t.Context(), former.ID())
				if err == nil {
					require.NoError(t, adopted.Release(t.Context()), "without %v", rules[min(missing, len(rules)-1)])
				} else {
					require.ErrorAs(t, err, new(redis.Error))
					fixture.Release(t, former)
				}
			}
			require.GreaterOrEqual(t, refused, 6)
		})
	}
}

// A call of a user that may not publish changes nothing. Otherwise waiters of Redisson would not
// wake up, and a call that is repeated once the user may publish would count twice.
func TestCallThatMayNotPublishChangesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	s.SetUser(t, "mute", "on", ">"+redistest.Password, "+@all", "~*", "resetchannels")
	rdb := s.Client(t)
	c, mute := fixture.NewClient(t, rdb), fixture.NewClient(t, s.As("mute").Client(t))
	ctx := t.Context()
	calls := map[string]func() error{}
	for _, k := range kinds.Leased() {
		hold := fixture.Acquire(t, ctx, k.Some(t, c, k.Name, 2))
		calls[k.Name+": release by id"] = func() error { return k.Takeable(mute, k.Name).ReleaseID(ctx, hold.ID()) }
		calls[k.Name+": adopt"] = func() error { return fixture.ErrOf(k.Takeable(mute, k.Name).Adopt(ctx, hold.ID())) }
		if !k.Pool {
			calls[k.Name+": force"] = func() error { return fixture.ErrOf(k.Lock(mute, k.Name).ForceRelease(ctx)) }
		}
	}
	for _, k := range kinds.Pools() {
		k.Some(t, c, k.Name, 2)
		calls[k.Name+": add"] = func() error { return k.OpenPool(mute, k.Name).Add(ctx, 1) }
		calls[k.Name+": init"] = func() error { return fixture.ErrOf(k.OpenPool(mute, k.Name+" unset").Init(ctx, 1)) }
	}
	calls["permits: resize"] = func() error { return mute.PermitExpirableSemaphore("permits").Resize(ctx, 5) }
	require.NoError(t, fixture.ErrOf(c.CountDownLatch("latch").Init(ctx, 1)))
	latch := mute.CountDownLatch("latch")
	calls["latch: count down"] = func() error { return latch.CountDown(ctx) }
	calls["latch: delete"] = func() error { return fixture.ErrOf(latch.Delete(ctx)) }
	calls["latch: init"] = func() error { return fixture.ErrOf(mute.CountDownLatch("latch unset").Init(ctx, 1)) }

	state := func() map[string]string {
		values := map[string]string{}
		for _, key := range rdb.Keys(ctx, "*").Val() {
			isOfAClient := strings.HasPrefix(key, "redlatch_client:") || strings.HasSuffix(key, "}:client")
			if !isOfAClient { // a client writes what it holds when it has held for a while
				values[key] = rdb.Dump(ctx, key).Val()
			}
		}
		return values
	}
	before := state()
	for name, call := range calls {
		err := call()
		require.Equal(t, before, state(), name)
		require.ErrorContains(t, err, "NOPERM this user may not publish", name)
	}
}

// A client that cannot log in gets Redis's refusal from the first call of every method, at once.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "bob", "on", ">right", "+@all", "~*", "&*").Err())
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "off", "off", ">right", "+@all", "~*", "&*").Err())
	require.NoError(t, admin.Do(t.Context(), "acl", "setuser", "default", "resetpass", ">right").Err())
	// Redis answers NOAUTH only to commands of up to 10 words.
	for _, tt := range []struct{ name, user, password, refusal string }{
		{"wrong password", "bob", "wrong", "^WRONGPASS"},
		{"no such user", "nobody", "right", "^WRONGPASS"},
		{"user that is off", "off", "right", "^WRONGPASS"},
		{"no password", "", "", "^(NOAUTH|ERR Protocol error: unauthenticated)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rdb := s.Client(t, func(o *redis.Options) { o.Username, o.Password = tt.user, tt.password })
			var sent fixture.CountingHook
			rdb.AddHook(&sent)
			c := fixture.NewClient(t, rdb)
			for _, open := range strangeKinds()[:ofOneName()] {
				for _, op := range strangeOps {
					session := &session{c: c, p: open(c, "x"), name: "x", ctx: t.Context()}
					began, before := time.Now(), sent.N.Load()
					err := session.do(op.call)
					if errors.Is(err, errNoSuchCall) || op.name == "locker" {
						continue
					}
					if op.name == "wait" && errors.Is(err, context.DeadlineExceeded) {
						continue // the test gives it a millisecond only
					}
					requireRefused(t, err, tt.refusal, began, sent.N.Load()-before)
					require.NotContains(t, err.Error(), "wrong\"", "no password in an error")
				}
			}
		})
	}
	right := s.Client(t, func(o *redis.Options) { o.Password = "right" })
	require.Zero(t, right.DBSize(t.Context()).Val(), "nothing is left")
}

// A Redis whose snapshots fail refuses all writes until one succeeds. That is a temporary refusal
// for waiters of all kinds, whether or not they write while they wait.
func TestWaitersRideOutFailingSnapshots(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--save", "3600 1")
	admin := s.Client(t)
	dir := admin.ConfigGet(t.Context(), "dir").Val()["dir"]
	obstacle := filepath.Join(dir, "dump.rdb") // Redis cannot rename a file to a folder
	awaitSnapshot := func(status string) {
		require.NoError(t, admin.BgSave(t.Context()).Err())
		redistest.WaitFor(t, 10*time.Second, func() bool {
			info := admin.Info(t.Context(), "persistence").Val()
			return strings.Contains(info, "rdb_bgsave_in_progress:0") &&
				strings.Contains(info, "rdb_last_bgsave_status:"+status)
		}, "snapshot: "+status)
	}
	holder, waiter := fixture.NewClient(t, admin), fixture.NewClient(t, s.Client(t))
	var holds []*primitives.Hold
	results := map[string]chan error{}
	for _, k := range kinds.All() {
		l := k.Rival(holder, k.Name)
		if p, ok := l.(kinds.Pool); ok {
			require.NoError(t, p.Add(t.Context(), 1))
		}
		holds = append(holds, fixture.Acquire(t, t.Context(), l))
		result := make(chan error, 1)
		results[k.Name] = result
		go func() {
			hold, err := k.Open(waiter, k.Name).Acquire(t.Context(), primitives.WithWait(time.Minute))
			if err == nil {
				err = hold.Release(t.Context())
			}
			result <- err
		}()
	}
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, os.Mkdir(obstacle, 0o700))
	awaitSnapshot("err")
	require.ErrorContains(t, admin.Set(t.Context(), "x", "y", 0).Err(), "MISCONF")
	time.Sleep(2500 * time.Millisecond) // waiters poll once a second
	for kind, result := range results {
		require.Empty(t, result, kind)
	}
	require.NoError(t, os.Remove(obstacle))
	awaitSnapshot("ok")
	fixture.Release(t, holds...)
	for kind, result := range results {
		require.NoError(t, <-result, kind)
	}
}

// C7: an acquisition rides out refusals that will pass while its wait lasts. A try has no wait: it
// repeats its command once, and says what Redis has answered.
func TestC7TryEndsWithTheAnswer(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
		"NOREPLICAS Not enough good replicas to write.",
		"READONLY You can't write against a read only replica.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"LOADING Redis is loading the dataset in memory",
		"CLUSTERDOWN The cluster is down",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"TRYAGAIN Multiple keys request during rehashing of slot",
		"ERR max number of clients reached",
	} {
		redistest.RunBubble(t, refusal, func(t *testing.T) {
			const timeout = 5 * time.Second
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: refusing(refusal)})
			t.Cleanup(func() { _ = rdb.Close() })
			c := fixture.NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
			for kind, call := range acquisitions(c, "name") {
				if kind == "latch" {
					continue
				}
				began := time.Now()
				err := call(context.Background(), primitives.WithWait(0))
				requireRefusedForNow(t, err, refusal, kind)
				assert.Less(t, time.Since(began), 200*time.Millisecond, kind)
			}
			began := time.Now()
			require.False(t, c.Lock("name").Locker(t.Context()).TryLock())
			assert.Less(t, time.Since(began), 200*time.Millisecond, "TryLock")

			began = time.Now()
			_, err := c.Lock("name").Acquire(context.Background())
			requireRefusedForNow(t, err, refusal, "Acquire")
			assert.GreaterOrEqual(t, time.Since(began), timeout*9/10, "a call without a wait rides it out")
		})
	}
}

func requireRefusedForNow(t *testing.T, err error, refusal, what string) {
	t.Helper()
	require.ErrorIs(t, err, primitives.ErrUnavailable, what)
	require.NotErrorIs(t, err, primitives.ErrNotAcquired, what)
	require.NotErrorIs(t, err, primitives.ErrOutcomeUnknown, what)
	require.ErrorContains(t, err, refusal, what)
}

// The same on a real server, for tries that nest in a hold, too.
func TestC7TryEndsWithTheAnswerOfARealServer(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c, admin := fixture.NewClient(t, s.Client(t)), s.Client(t)
	type tried struct {
		kind string
		h    kinds.Handle
		ctx  context.Context
	}
	var tries []tried
	for _, k := range kinds.All() {
		tries = append(tries, tried{k.Name, k.One(t, c, redistest.Name(t)+k.Name), t.Context()})
		if k.Leased && !k.Pool {
			outer := fixture.Acquire(t, t.Context(), k.Open(c, redistest.Name(t)+"outer"+k.Name))
			tries = append(tries, tried{"nested " + k.Name, k.Open(c, redistest.Name(t)+"outer"+k.Name), outer.Context()})
		}
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	for _, try := range tries {
		began := time.Now()
		_, err := try.h.TryAcquire(try.ctx)
		requireRefusedForNow(t, err, "NOREPLICAS", try.kind)
		assert.Less(t, time.Since(began), time.Second, try.kind)
	}
	require.NoError(t, admin.ConfigSet(t.Context(), "min-replicas-to-write", "0").Err())
	for _, try := range tries {
		hold, err := try.h.TryAcquire(try.ctx)
		require.NoError(t, err, try.kind)
		fixture.Release(t, hold)
	}
}

// C7: an administrator has renamed commands. Whatever a kind needs, it either works and can be
// released, or the first call fails at once, with the name of the command, and leaves nothing.
func TestServerWithoutACommand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		gone  []string
		fails []string // kinds; "all" is all of them
		named string   // in the error; "": the first of gone
	}{
		{[]string{"EVALSHA"}, []string{"all"}, ""},
		{[]string{"EVAL"}, nil, ""},
		{[]string{"EVAL", "EVALSHA"}, []string{"all"}, "EVALSHA"},
		{[]string{"EVAL", "SCRIPT"}, []string{"all"}, "EVAL"},
		{[]string{"SCRIPT", "WAIT", "TIME"}, []string{"permits"}, "TIME"},
		{[]string{"PUBLISH"}, []string{"all"}, ""},
		{[]string{"SUBSCRIBE"}, nil, ""},
		{[]string{"HSET"}, []string{"lock", "fair", "fenced", "reader", "writer", "multi", "red"}, ""},
		{[]string{"PEXPIRE"}, []string{"lock", "fair", "fenced", "reader", "writer", "multi", "red"}, ""},
		{[]string{"PTTL"}, []string{"permits"}, ""},
		{[]string{"EXISTS"}, []string{"lock", "fair", "fenced", "reader", "writer", "multi", "red", "permits"}, ""},
		{[]string{"DECRBY"}, []string{"semaphore", "permits"}, ""},
		{[]string{"ZADD"}, []string{"permits"}, ""},
		{[]string{"INCRBY"}, nil, ""},
		{[]string{"SET"}, nil, ""},
	} {
		t.Run(strings.Join(tt.gone, "+"), func(t *testing.T) {
			t.Parallel()
			var args []string
			for _, command := range tt.gone {
				args = append(args, "--rename-command", command, "")
			}
			s := redistest.Fresh(t, args...)
			admin := s.Client(t)
			c := fixture.NewClient(t, s.Client(t), primitives.WithClientName(""))
			for _, k := range kinds.All() {
				name := "name-" + k.Name
				began := time.Now()
				err := useOnce(t, k, c, name)
				what := fmt.Sprintf("%s without %s: %v", k.Name, tt.gone, err)
				if err == nil {
					assert.False(t, slices.Contains(tt.fails, "all") || slices.Contains(tt.fails, k.Name), what)
					continue
				}
				command := tt.named
				if command == "" {
					command = tt.gone[0]
				}
				require.ErrorIs(t, err, primitives.ErrUnsupported, what)
				require.NotErrorIs(t, err, primitives.ErrNotAcquired, what)
				assert.ErrorContains(t, err, "this server has no ", what)
				assert.ErrorContains(t, err, command, what)
				assert.Less(t, time.Since(began), 3*time.Second, what)
				assert.Empty(t, admin.Keys(t.Context(), name+"*").Val(), what)
			}
		})
	}
}

// useOnce makes a kind's number, acquires it, and releases it.
func useOnce(t *testing.T, k kinds.Kind, c *primitives.Client, name string) error {
	h := k.Open(c, name)
	if pool, ok := h.(kinds.Pool); ok {
		if _, err := pool.Init(t.Context(), 1); err != nil {
			return err
		}
		defer func() { _, _ = pool.Delete(t.Context()) }()
	}
	hold, err := h.Acquire(t.Context())
	if err != nil {
		return err
	}
	return hold.Release(t.Context())
}

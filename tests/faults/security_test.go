package faults

import (
	"context"
	"crypto/x509"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
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

// threats are the threats of doc/security.md that are shown here. Others are shown by the tests
// that the page names.
var threats = []struct {
	name string
	show func(t *testing.T, s *redistest.Server)
}{
	{"another application on the same server", otherApplication},
	{"a script that does not end", endlessScript},
	{"forged messages of releases", forgedReleases},
	{"a forged grant of a fair lock", forgedGrant},
	{"the key of a held lock is changed", changedKey},
	{"a fencing counter is changed", changedCounter},
	{"an entry in the queue of a fair lock is forged", forgedQueue},
	{"a remembered request is forged", forgedRequest},
	{"the name of a client is forged or read", forgedClientName},
	{"somebody subscribes to our channels", eavesdropper},
	{"an id is known", knownID},
	{"a captured command is sent again", replayedCommand},
	{"an administrator's command", administrator},
	{"an untrusted network", untrustedNetwork},
	{"a secret in a log, an event or an error", leakedSecret},
}

func TestThreats(t *testing.T) {
	t.Parallel()
	for _, threat := range threats {
		t.Run(threat.name, func(t *testing.T) {
			t.Parallel()
			threat.show(t, redistest.Fresh(t))
		})
	}
}

// application returns s for clients with the rights of doc/operations.md, but for another prefix of
// names.
func application(t testing.TB, s *redistest.Server, prefix string) *redistest.Server {
	t.Helper()
	rules := redistest.DocumentedRules(t, "locks")[0]
	for i := range rules {
		rules[i] = strings.ReplaceAll(rules[i], fixture.Permitted, prefix)
	}
	s.SetUser(t, "of-"+prefix, rules...)
	return s.As("of-" + prefix)
}

func otherApplication(t *testing.T, s *redistest.Server) {
	ours, theirs := fixture.LeastRights(t, s), application(t, s, "invoices:")
	watchdog := primitives.WithWatchdog(fixture.RenewedTTL)
	c := fixture.NewClient(t, ours.Client(t))
	hold := fixture.Acquire(t, t.Context(), c.FencedLock("orders:1"), watchdog)
	// A name that contains the prefix of the other application.
	strange := fixture.Acquire(t, t.Context(), c.Lock("orders:invoices:1"), watchdog)

	rdb := theirs.Client(t)
	other := fixture.NewClient(t, rdb)
	for _, k := range kinds.Locks() {
		kind, open := k.Name, k.Lock
		require.ErrorContains(t, fixture.ErrOf(open(other, "orders:1").TryAcquire(t.Context())), "NOPERM", kind)
		require.ErrorContains(t, fixture.ErrOf(open(other, "orders:1").ForceRelease(t.Context())), "NOPERM", kind)
	}
	require.ErrorContains(t, other.Lock("orders:1").ReleaseID(t.Context(), hold.ID()), "NOPERM")
	for _, command := range []string{
		"get orders:1", "hgetall orders:1", "type orders:1", "pttl orders:1", "del orders:1", "set orders:1 x",
		"hset orders:1 x 1", "pexpire orders:1 1", "set redisson_lock_token:{orders:1} 0",
		"set redisson_unlock_latch:{orders:1}:x 1", "rpush redisson_lock_queue:{orders:1} x",
		"del redisson_unlock_latch:{orders:invoices:1}:x",
		"del redisson_lock_queue:orders:{invoices:1}", "set redlatch_client:{0} x",
		"publish redisson_lock__channel:{orders:1} 0", "subscribe redisson_lock__channel:{orders:1}",
		"psubscribe *", "psubscribe redisson_lock__channel:{orders:*", "pubsub channels",
		"eval return(redis.call('del','orders:1')) 0", "eval return(redis.call('publish','redlatch_holder:{0}','x')) 0",
		"scan 0", "keys *", "randomkey", "dbsize", "rename invoices:1 orders:1", "copy orders:1 invoices:1",
		"object freq orders:1", "client list", "client kill type normal", "client pause 1000", "client tracking on bcast",
		"config get *", "config set maxmemory 1", "flushall", "flushdb", "swapdb 0 1", "monitor", "slowlog get",
		"script flush", "script kill", "shutdown", "acl list", "info", "select 1",
	} {
		args := []any{}
		for word := range strings.FieldsSeq(command) {
			args = append(args, word)
		}
		err := rdb.Do(t.Context(), args...).Err()
		require.Error(t, err, command)
		require.Regexp(t, deniedError, err.Error(), command)
	}
	fixture.AwaitRenewal(t, 1, hold, strange)
	own := fixture.Acquire(t, t.Context(), other.Lock("invoices:1"))
	fixture.Release(t, own, hold, strange)
}

func endlessScript(t *testing.T, s *redistest.Server) {
	admin := s.Client(t)
	require.NoError(t, admin.ConfigSet(t.Context(), "busy-reply-threshold", "100").Err())
	c := fixture.NewClient(t, fixture.LeastRights(t, s).Client(t))
	hold := fixture.Acquire(t, t.Context(), c.Lock("orders:1"), primitives.WithWatchdog(fixture.RenewedTTL))
	rdb := application(t, s, "invoices:").Client(t, fixture.NoRetries)
	ended := fixture.Go(func() error { return rdb.Eval(t.Context(), "while true do end", nil).Err() })
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return redis.HasErrorPrefix(admin.Get(t.Context(), "x").Err(), "BUSY")
	}, "Redis is busy")
	waiting := fixture.StartAcquire(t.Context(), c.Lock("orders:2"), primitives.WithWait(fixture.Soon))
	require.NoError(t, admin.ScriptKill(t.Context()).Err())
	require.Error(t, <-ended)
	fixture.Release(t, fixture.AwaitHold(t, waiting))
	fixture.AwaitRenewal(t, 1, hold)
	fixture.Release(t, hold)
}

func forgedReleases(t *testing.T, s *redistest.Server) {
	rdb := s.Client(t)
	p := s.Proxy(t)
	near, far := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, p.Client(t), primitives.WithClientName(""))
	fixture.InitPool(t, near.Semaphore("semaphore"), 1)
	fixture.InitPool(t, near.PermitExpirableSemaphore("permits"), 1)
	for name, tt := range map[string]struct {
		open             func(c *primitives.Client, name string) fixture.Handle
		channel, payload string
	}{
		"lock": {
			func(c *primitives.Client, name string) fixture.Handle { return c.Lock(name) }, "redisson_lock__channel:{lock}", "0",
		},
		"writer": {
			func(c *primitives.Client, name string) fixture.Handle { return c.RWLock(name).Writer() },
			"redisson_rwlock:{writer}", "1",
		},
		"semaphore": {
			func(c *primitives.Client, name string) fixture.Handle { return c.Semaphore(name) }, "redisson_sc:{semaphore}", "99",
		},
		"permits": {
			func(c *primitives.Client, name string) fixture.Handle { return c.PermitExpirableSemaphore(name) },
			"redisson_sc:{permits}", "99",
		},
	} {
		hold := fixture.Acquire(t, t.Context(), tt.open(near, name))
		waiting := fixture.StartAcquire(t.Context(), tt.open(far, name))
		fixture.AwaitWaiter(t, s, name)
		flood := func(n int) {
			pipe := rdb.Pipeline()
			for range n {
				pipe.Publish(t.Context(), tt.channel, tt.payload)
			}
			require.NoError(t, fixture.ErrOf(pipe.Exec(t.Context())))
		}
		// While one attempt is under way, messages cause no second one. Its caller may have sent it,
		// and then leaves it to another goroutine, which sends it once more.
		deliver := p.HoldReplies(fixture.Script)
		p.Record()
		flood(1000)
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ScriptsOf(p)) > 0 }, "an attempt")
		flood(1000)
		require.LessOrEqual(t, len(fixture.ScriptsOf(p)), 2, name)
		deliver()

		for _, flooding := range []struct{ times, messages int }{{1, 20_000}, {1000, 1}} {
			p.Record()
			began := time.Now()
			for range flooding.times {
				flood(flooding.messages)
			}
			messages, attempts := flooding.times*flooding.messages, len(fixture.ScriptsOf(p))
			t.Logf("%s: %d messages in %v cause %d attempts", name, messages, time.Since(began), attempts)
			require.LessOrEqual(t, attempts, messages)
		}
		require.Empty(t, waiting, "it is still held")
		fixture.Release(t, hold)
		fixture.Release(t, fixture.AwaitHold(t, waiting))
	}
}

func forgedGrant(t *testing.T, s *redistest.Server) {
	rdb := s.Client(t)
	near, far := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), near.FairLock("l"))
	waiting := fixture.StartAcquire(t.Context(), far.FairLock("l"))
	fixture.AwaitFair(t, far.FairLock("l"), 1)
	// Somebody who may not read our keys can learn the channel, and guess the id and when the
	// waiter joined.
	channel := fixture.GrantChannel(t, s, "l")
	id := fixture.FairWaiters(t, far.FairLock("l"))[0]
	entry := rdb.HGet(t.Context(), "redlatch_lock_waiters:{l}", id).Val()
	stay := entry[strings.LastIndexByte(entry, ' ')+1:]
	joined, random := stay[:len(stay)-16], stay[len(stay)-16:]
	other := strings.Map(func(r rune) rune { return '0' + (r-'0'+1)%10 }, random)
	for _, guess := range []string{joined, joined + other, other, ""} {
		require.NoError(t, rdb.Publish(t.Context(), channel, id+" "+guess+" 30000").Err())
		time.Sleep(20 * time.Millisecond)
		require.Empty(t, waiting, "not even who knows when the waiter joined gets it in")
	}
	require.NoError(t, hold.Check(t.Context()))
	// Who may read the keys knows all.
	require.NoError(t, rdb.Publish(t.Context(), channel, id+" "+stay+" 30000").Err())
	two := fixture.AwaitHold(t, waiting)
	require.ErrorIs(t, two.Check(t.Context()), primitives.ErrLost)
	fixture.Release(t, hold)
}

func changedKey(t *testing.T, s *redistest.Server) {
	rdb := s.Client(t)
	for name, tt := range map[string]struct {
		change func(ctx context.Context, name string) error
		lost   bool
	}{
		"deleted":      {func(ctx context.Context, name string) error { return rdb.Del(ctx, name).Err() }, true},
		"another type": {func(ctx context.Context, name string) error { return rdb.Set(ctx, name, "x", 0).Err() }, true},
		"another id": {func(ctx context.Context, name string) error {
			_, err := rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Del(ctx, name)
				p.HSet(ctx, name, "somebody", 1)
				return nil
			})
			return err
		}, true},
		"ends soon": {func(ctx context.Context, name string) error {
			return rdb.PExpire(ctx, name, time.Millisecond).Err()
		}, true},
		"never ends": {func(ctx context.Context, name string) error { return rdb.Persist(ctx, name).Err() }, false},
		"a second id": {func(ctx context.Context, name string) error {
			return rdb.HSet(ctx, name, "somebody", 1).Err()
		}, false},
		"another count": {func(ctx context.Context, name string) error {
			return rdb.HSet(ctx, name, rdb.HKeys(ctx, name).Val()[0], 99).Err()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, key := t.Context(), redistest.Name(t)
			c := fixture.NewClient(t, s.Client(t))
			renewed := fixture.Acquire(t, ctx, c.FencedLock(key), primitives.WithWatchdog(fixture.ShortLease))
			began := time.Now()
			require.NoError(t, tt.change(ctx, key))
			if !tt.lost {
				fixture.AwaitRenewal(t, 2, renewed)
				require.Positive(t, rdb.PTTL(ctx, key).Val(), "the renewal has set the TTL again")
				fixture.Release(t, renewed)
				return
			}
			// The holder learns of it at the next renewal, after a third of the TTL.
			fixture.RequireEnds(t, renewed.Context(), primitives.ErrLost)
			t.Logf("the holder learns of it after %v; the TTL is %v", time.Since(began), fixture.ShortLease)
			require.ErrorIs(t, renewed.Release(ctx), primitives.ErrLost)
			require.NoError(t, rdb.Del(ctx, key).Err())
			// Until then somebody else may hold it too. The tokens order their writes.
			next := fixture.Acquire(t, ctx, fixture.NewClient(t, s.Client(t)).FencedLock(key), primitives.WithLease(time.Minute))
			require.Greater(t, next.Token(), renewed.Token())
			// Check asks at once, and a release changes nothing of the next holder's.
			require.NoError(t, rdb.Del(ctx, key).Err())
			require.ErrorIs(t, next.Check(ctx), primitives.ErrLost)
		})
	}
}

func changedCounter(t *testing.T, s *redistest.Server) {
	rdb := s.Client(t)
	l := fixture.NewClient(t, s.Client(t)).FencedLock("l")
	for range 3 {
		fixture.Release(t, fixture.Acquire(t, t.Context(), l))
	}
	for value, want := range map[string]string{"x": "not an integer", "9223372036854775807": "overflow"} {
		require.NoError(t, rdb.Set(t.Context(), "redisson_lock_token:{l}", value, 0).Err())
		require.ErrorContains(t, fixture.ErrOf(l.Acquire(t.Context())), want)
		require.Zero(t, rdb.Exists(t.Context(), "l").Val(), "nothing is held")
	}
	require.NoError(t, rdb.Set(t.Context(), "redisson_lock_token:{l}", "0", 0).Err())
	hold := fixture.Acquire(t, t.Context(), l)
	require.Equal(t, int64(1), hold.Token(), "a token that the store has seen: it rejects the writes")
	fixture.Release(t, hold)
}

func forgedQueue(t *testing.T, s *redistest.Server) {
	ctx, rdb := t.Context(), s.Client(t)
	far := time.Now().Add(24 * time.Hour).UnixMilli()
	require.NoError(t, rdb.RPush(ctx, "redisson_lock_queue:{l}", "nobody").Err())
	require.NoError(t, rdb.ZAdd(ctx, "redisson_lock_timeout:{l}", redis.Z{Score: float64(far), Member: "nobody"}).Err())
	l := fixture.NewClient(t, s.Client(t)).FairLock("l")
	require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(ctx)), primitives.ErrNotAcquired, "the entry is before us")
	waiting := fixture.StartAcquire(ctx, l)
	fixture.AwaitFair(t, l, 2)
	redistest.WaitFor(t, fixture.Soon, func() bool {
		limit := time.Now().Add(5 * time.Minute).UnixMilli()
		return rdb.ZScore(ctx, "redisson_lock_timeout:{l}", "nobody").Val() <= float64(limit)
	}, "it costs five minutes at most")
	require.Empty(t, waiting)
	require.NoError(t, fixture.ErrOf(l.ForceRelease(ctx)))
	require.NoError(t, rdb.Del(ctx, "redisson_lock_queue:{l}", "redisson_lock_timeout:{l}").Err()) // the repair
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

func forgedRequest(t *testing.T, s *redistest.Server) {
	ctx, rdb := t.Context(), s.Client(t)
	c := fixture.NewClient(t, s.Client(t))
	l := c.Lock("l")
	first := fixture.Acquire(t, ctx, l)
	fixture.Release(t, first)
	id, number, _ := strings.Cut(first.ID(), ":")
	var n int
	require.NoError(t, fixture.ErrOf(fmt.Sscan(number, &n)))
	require.NoError(t, rdb.Set(ctx, fmt.Sprintf("redisson_unlock_latch:{l}:%s:%d", id, n+1), "1", time.Minute).Err())
	require.ErrorIs(t, fixture.ErrOf(l.Acquire(ctx)), primitives.ErrReleased, "it looks as if it was released before")
	require.Zero(t, rdb.Exists(ctx, "l").Val())
	fixture.Release(t, fixture.Acquire(t, ctx, l))
}

func forgedClientName(t *testing.T, s *redistest.Server) {
	ctx, rdb := t.Context(), s.Client(t)
	shown, hidden := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t), primitives.WithClientName(""))
	hold, other := fixture.Acquire(t, ctx, shown.Lock("shown")), fixture.Acquire(t, ctx, hidden.Lock("hidden"))
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ClientNames(t, s)) == 1 }, "the name is written")
	require.Regexp(t, `^.+:\d+$`, fixture.ClientNames(t, s)[0], "the host's name and the process's number")
	key := redistest.Keys(t, s, "redlatch_client:*")[0]
	require.NoError(t, rdb.Set(ctx, key, "forged \x1b[2J", 0).Err())
	info := fixture.InfoOf(t, hidden.Lock("shown"))
	require.Equal(t, "forged \x1b[2J", info.Holders[0].Client, "a name proves nothing, and is shown as it is")
	require.NoError(t, hold.Check(ctx))
	fixture.Release(t, hold, other)
}

func eavesdropper(t *testing.T, s *redistest.Server) {
	sub := s.Client(t).PSubscribe(t.Context(), "*")
	defer sub.Close()
	require.NoError(t, fixture.ErrOf(sub.Receive(t.Context())))
	one, two := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), one.Lock("secret"))
	waiting := fixture.StartAcquire(t.Context(), two.Lock("secret"))
	fixture.AwaitWaiter(t, s, "secret")
	fixture.Release(t, hold)
	for {
		message, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err, "names are seen")
		if strings.Contains(message.Channel, "{secret}") {
			break // what comes before is a request for the lock, which names its holder
		}
	}
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

func knownID(t *testing.T, s *redistest.Server) {
	ctx := t.Context()
	one, two := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, ctx, one.FencedLock("l"))
	id := fixture.Fields(t, s, "l")
	require.Len(t, id, 1)
	require.Contains(t, id, hold.ID(), "a reader of the key knows the id")
	require.NoError(t, two.FencedLock("l").ReleaseID(ctx, hold.ID()))
	require.ErrorIs(t, hold.Check(ctx), primitives.ErrLost)
	next := fixture.Acquire(t, ctx, two.FencedLock("l"))
	require.Greater(t, next.Token(), hold.Token())
	fixture.Release(t, next)
}

func replayedCommand(t *testing.T, s *redistest.Server) {
	ctx, rdb := t.Context(), s.Client(t)
	p := s.Proxy(t)
	l := fixture.NewClient(t, p.Client(t)).Lock("l")
	fixture.Release(t, fixture.Acquire(t, ctx, l)) // loads the scripts
	p.Record()
	fixture.Release(t, fixture.Acquire(t, ctx, l))
	captured := fixture.ScriptsOf(p)
	require.Len(t, captured, 2)
	replay := func(i int) any {
		args := []any{}
		for _, arg := range captured[i].Args {
			args = append(args, arg)
		}
		answer, err := rdb.Do(ctx, args...).Result()
		require.NoError(t, err)
		return answer
	}
	next := fixture.Acquire(t, ctx, fixture.NewClient(t, s.Client(t)).Lock("l"))
	require.IsType(t, []any{}, replay(0), "refused: the lock is held")
	require.Zero(t, replay(1), "the id holds nothing")
	require.NoError(t, next.Check(ctx))
	fixture.Release(t, next)
	// A free lock can be taken by anybody who may write its key, by any command.
	require.Zero(t, replay(0), "acquired")
	require.Positive(t, rdb.PTTL(ctx, "l").Val(), "until the TTL ends")
}

func administrator(t *testing.T, s *redistest.Server) {
	ctx, admin := t.Context(), s.Client(t)
	one, two := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, ctx, one.Lock("l"), primitives.WithWatchdog(fixture.RenewedTTL))
	for _, command := range [][]any{
		{"script", "flush"}, {"client", "kill", "type", "normal", "skipme", "yes"}, {"client", "kill", "type", "pubsub"},
		{"client", "pause", "300"},
	} {
		waiting := fixture.StartAcquire(ctx, two.Lock("l"), primitives.WithWait(fixture.Soon))
		fixture.AwaitWaiters(t, two, 1)
		require.NoError(t, admin.Do(ctx, command...).Err())
		fixture.AwaitRenewal(t, 1, hold)
		fixture.Release(t, hold)
		hold = fixture.AwaitHold(t, waiting)
		one, two = two, one
		fixture.Release(t, hold)
		hold = fixture.Acquire(t, ctx, one.Lock("l"), primitives.WithWatchdog(fixture.RenewedTTL))
	}
	require.NoError(t, admin.ConfigSet(ctx, "maxmemory", "1").Err()) // full, with noeviction
	require.ErrorContains(t, fixture.ErrOf(two.Lock("free").Acquire(ctx)), "OOM")
	fixture.AwaitRenewal(t, 1, hold)
	require.NoError(t, admin.FlushAll(ctx).Err())
	fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
}

func untrustedNetwork(t *testing.T, _ *redistest.Server) {
	s, overTLS := redistest.FreshTLS(t)
	require.NoError(t, s.Client(t, overTLS).Ping(t.Context()).Err())
	rdb := s.Client(t, overTLS, fixture.NoRetries, func(o *redis.Options) {
		o.TLSConfig = o.TLSConfig.Clone()
		o.TLSConfig.RootCAs = x509.NewCertPool()
		o.Password, o.DialerRetries = "hush", 1
	})
	_, err := fixture.NewClient(t, rdb).Lock("l").Acquire(t.Context())
	require.ErrorContains(t, err, "certificate", "a server that another authority has certified")
	require.Zero(t, s.Client(t).Exists(t.Context(), "l").Val())
}

// secrets are in the credentials of leakedSecret.
const secretPassword, secretUser = "hush-hush-password", "hush-hush-user"

func leakedSecret(t *testing.T, s *redistest.Server) {
	var log fixture.LogBuffer
	var events fixture.Recorder
	locked := redistest.Fresh(t)
	locked.SetUser(t, "default", ">another")
	limited := s.As(secretUser)
	s.SetUser(t, secretUser, "reset", "on", ">"+secretPassword, "+ping")
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	seen := ""
	for name, o := range map[string]*redis.Options{
		"out of reach":   {Addr: "127.0.0.1:1"},
		"wrong password": locked.Options(),
		"refused":        limited.Options(),
	} {
		o.Username, o.Password = secretUser, secretPassword
		o.MaxRetries, o.DialerRetries = -1, 1
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		c := fixture.NewClient(t, rdb, primitives.WithLogger(logger), events.Option(),
			primitives.WithCommandTimeout(2*time.Second))
		for _, k := range kinds.Locks() {
			kind, open := k.Name, k.Lock
			_, err := open(c, "l").Acquire(t.Context(), primitives.WithWait(50*time.Millisecond))
			require.Error(t, err, name+kind)
			_, infoErr := open(c, "l").Info(t.Context())
			seen += fmt.Sprintf("%v %+v %#v %v\n", err, err, err, infoErr)
		}
		seen += fmt.Sprint(fixture.ErrOf(c.Semaphore("s").Init(t.Context(), 1)), c.CountDownLatch("l").Wait(t.Context()))
		fixture.CloseNow(c)
	}
	for _, e := range events.All(primitives.EventNotAcquired) {
		seen += fmt.Sprintf("%+v %v", e, e.Err)
	}
	require.NotEmpty(t, seen)
	require.NotContains(t, seen+log.String(), secretPassword)
}

// Each threat of doc/security.md names tests that exist, and each test of threats is named there.
func TestThreatsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../doc/security.md")
	require.NoError(t, err)
	exists := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := os.ReadFile(path)
		for _, f := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(file, -1) {
			exists[string(f[1])] = true
		}
		return err
	}))
	for _, threat := range threats {
		exists["TestThreats/"+strings.ReplaceAll(threat.name, " ", "_")] = true
	}
	named := map[string]bool{}
	for _, section := range strings.Split(string(page), "\n### ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		_, tests, found := strings.Cut(text, "\n- **Tests:**")
		require.True(t, found, title)
		tests, _, _ = strings.Cut(tests, "\n#")
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(tests, -1)
		require.NotEmpty(t, names, title)
		for _, name := range names {
			require.True(t, exists[name[1]], "%s: there is no %s", title, name[1])
			named[name[1]] = true
		}
	}
	for _, threat := range threats {
		require.True(t, named["TestThreats/"+strings.ReplaceAll(threat.name, " ", "_")], threat.name)
	}
}

package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/presence"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// inventory is a prefix under which there is something of every kind, and what redlatch shows of
// it.
type inventory struct {
	s           *redistest.Server
	prefix      string
	held        map[string]*primitives.Hold // by name
	stopWaiting func()                      // ends the waiters for the plain and the fair lock
	locks       []fields                    // in the order of ls
	numbers     []fields
}

// eachInventory runs f on each server.
func eachInventory(t *testing.T, f func(t *testing.T, x *inventory)) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { f(t, newInventory(t, s, redistest.Name(t)+":")) })
}

func newInventory(t *testing.T, s *redistest.Server, prefix string) *inventory {
	ctx := t.Context()
	c := client(t, s, primitives.WithPrefix(prefix), primitives.WithClientName("me"))
	x := &inventory{s: s, prefix: prefix, held: map[string]*primitives.Hold{}}
	permits := c.PermitExpirableSemaphore("permits")
	fixture.InitPool(t, permits, 3)
	for i, p := range []interface {
		acquirer
		Name() string
	}{
		c.Lock("lock"), c.FairLock("fair"), c.FencedLock("fenced"), c.RWLock("read").Reader(), c.RWLock("write").Writer(),
		permits,
	} {
		hold, err := p.Acquire(ctx, primitives.WithWatchdog(time.Duration(31+i)*time.Second))
		require.NoError(t, err)
		x.held[p.Name()] = hold
	}
	fixture.InitPool(t, c.Semaphore("semaphore"), 4)
	require.NoError(t, fixture.ErrOf(c.CountDownLatch("latch").Init(ctx, 5)))
	rdb := s.Client(t)
	require.NoError(t, rdb.Set(ctx, prefix+"text", "12 apples", 0).Err())
	require.NoError(t, rdb.HSet(ctx, prefix+"hash", "field", "value").Err())
	waiting, cancel := context.WithCancel(ctx)
	x.stopWaiting = cancel
	waiter := client(t, s, primitives.WithPrefix(prefix), primitives.WithClientName("waiter"))
	for _, p := range []acquirer{waiter.Lock("lock"), waiter.FairLock("fair")} {
		go func() { _, _ = p.Acquire(waiting) }()
	}
	fixture.AwaitWaiter(t, s, prefix+"lock")
	var fair primitives.Info
	redistest.WaitFor(t, soon, func() (ok bool) {
		var err error
		fair, err = c.FairLock("fair").Info(ctx)
		told, unknown := waiter.Waiting(ctx)
		isTold := unknown == nil && len(told["lock"]) == 1 && len(told["fair"]) == 1
		return err == nil && isTold && len(fair.Waiters) == 1 && fair.Holders[0].Held > 0 && heldForAWhile(ctx, c, "fenced")
	}, "the waiter is in the queue, and the clients have written their names")
	x.locks = []fields{
		{
			"name": "lock", "kind": "lock", "ttl_ms": "*", "holders": "*",
			"waiting": []fields{{"client": "waiter", "id": waiter.ID()}},
		},
		{
			"name": "fair", "kind": "fair", "ttl_ms": "*", "holders": "*", "waiters": fair.Waiters,
			"waiting": []fields{{"client": "waiter", "id": fair.Waiters[0]}},
		},
		{"name": "fenced", "kind": "fenced", "ttl_ms": "*", "holders": "*", "token": 1},
		{"name": "read", "kind": "read", "ttl_ms": "*", "holders": "*"},
		{"name": "write", "kind": "write", "ttl_ms": "*", "holders": "*"},
	}
	x.numbers = []fields{
		{"name": "permits", "kind": "permits", "ttl_ms": "*", "holders": "*", "permits": 3, "available": 2},
		{"name": "latch", "kind": "integer", "ttl_ms": -1, "permits": 5, "available": 5},
		{"name": "semaphore", "kind": "integer", "ttl_ms": -1, "permits": 4, "available": 4},
	}
	return x
}

// heldForAWhile reports whether the client of a lock says for how long it has held it.
func heldForAWhile(ctx context.Context, c *primitives.Client, name string) bool {
	info, err := c.FencedLock(name).Info(ctx)
	return err == nil && info.Holders[0].Held > 0
}

// all returns the locks and the numbers.
func (x *inventory) all() []fields { return slices.Concat(x.locks, x.numbers) }

// json runs a command with --json, which must succeed.
func (x *inventory) json(t *testing.T, verbs string, args ...string) (stdout string) {
	t.Helper()
	stdout, stderr := exitsOn(t, 0, x.s, verbs, append([]string{"--prefix", x.prefix, "--json"}, args...)...)
	require.Empty(t, stderr)
	return stdout
}

func TestLsShowsEveryKind(t *testing.T) {
	eachInventory(t, func(t *testing.T, x *inventory) {
		stdout := x.json(t, "ls")
		requireJSON(t, stdout, x.locks...)
		for i, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
			requireHolders(t, line, "me", x.held[x.locks[i]["name"].(string)].ID())
		}
		requireJSON(t, x.json(t, "ls", "--all"), x.all()...)
		requireJSON(t, x.json(t, "ls", "f*"), x.locks[1:3]...)
		for kind, want := range map[string][]fields{
			"lock": x.locks[:1], "fair": x.locks[1:2], "fenced": x.locks[2:3], "read": x.locks[3:4], "write": x.locks[4:5],
			"permits": x.numbers, "semaphore": x.numbers[1:], "latch": x.numbers[1:], "integer": x.numbers[1:],
		} {
			requireJSON(t, x.json(t, "ls", "--kind", kind), want...)
		}
		_, stdout, _ = on(t, x.s, "ls", "--prefix", x.prefix, "f*")
		require.Regexp(t, `^NAME +KIND +CLIENT +HOLDER +COUNT +TTL +HELD +WAITING\n`+
			`fair +fair +me +\S+:\d+ +1 +\d+s +\S+s +1: waiter\nfenced +fenced +me +\S+:\d+ +1 +\d+s +\S+s +-\n$`, stdout)
	})
}

func TestInspectShowsEveryKind(t *testing.T) {
	eachInventory(t, func(t *testing.T, x *inventory) {
		for _, want := range x.all() {
			name, kind := want["name"].(string), want["kind"].(string)
			requireJSON(t, x.json(t, "inspect", name), want)
			requireJSON(t, x.json(t, "inspect", "--kind", kind, name), want)
			stdout, _ := exitsOn(t, 0, x.s, "inspect", "--prefix", x.prefix, name)
			require.Contains(t, stdout, "kind ")
			if want["waiting"] != nil {
				require.Regexp(t, `holder +me \(\S+:\d+\), count 1, ttl \d+s, held \S+s\nwait\S+( 1)? +waiter \(\S+\)\n$`, stdout)
			}
		}
		// The user knows what a number is.
		requireJSON(t, x.json(t, "inspect", "--kind", "latch", "latch"),
			fields{"name": "latch", "kind": "latch", "ttl_ms": -1, "count": 5})
		requireJSON(t, x.json(t, "inspect", "--kind", "semaphore", "semaphore"),
			fields{"name": "semaphore", "kind": "semaphore", "ttl_ms": -1, "permits": 4, "available": 4})
		for _, name := range []string{"nothing", "text", "hash"} {
			stdout, stderr := exitsOn(t, exitFailed, x.s, "inspect", "--prefix", x.prefix, "--json", name)
			require.Empty(t, stdout)
			require.Contains(t, stderr, `"code":1`)
		}
		// A fencing counter outlives its holds.
		require.NoError(t, x.held["fenced"].Release(t.Context()))
		requireJSON(t, x.json(t, "inspect", "fenced"),
			fields{"name": "fenced", "kind": "fenced", "holders": []any{}, "token": 1})
	})
}

// A number is shown as what it is known to be: nobody knows how many permits a semaphore has in
// all.
func TestInspectOfANumber(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	require.NoError(t, s.Client(t).Set(t.Context(), "name", 2, 0).Err())
	for flag, want := range map[string]string{
		"": "number     2", "--kind=semaphore": "available  2", "--kind=permits": "available  2 of 2",
	} {
		stdout, _ := exitsOn(t, 0, s, strings.TrimSpace("inspect "+flag), "name")
		require.Contains(t, strings.Split(stdout, "\n"), want)
	}
}

// A key that holds data of another program: every command says what it is, and changes nothing.
func TestDataOfAnotherProgram(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb := s.Client(t)
	for _, data := range []struct {
		what    string
		command []any // without the key; its first argument comes before the key
	}{
		{"a hash with 2 fields that is no lock", []any{"hset", "name", "Ann", "age", "7"}},
		{"a hash with 1 field that is no lock", []any{"hset", "name", "Ann"}},
		{"a list", []any{"rpush", "x"}},
		{"a string", []any{"set", "text"}},
	} {
		t.Run(data.what, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			require.NoError(t, rdb.Do(t.Context(), append([]any{data.command[0], name}, data.command[1:]...)...).Err())
			before := rdb.Dump(t.Context(), name).Val()
			for _, c := range []struct {
				code  int
				verbs string
				args  []string
			}{
				{2, "run", []string{name, "--", "true"}},
				{2, "run --kind fair", []string{name, "--", "true"}},
				{2, "run --kind write", []string{name, "--", "true"}},
				{2, "acquire", []string{name}},
				{2, "acquire --kind fair", []string{name}},
				{2, "acquire --kind read", []string{name}},
				{1, "inspect", []string{name}},
				{1, "inspect --kind lock", []string{name}},
				{1, "inspect --kind fenced", []string{name}},
				{1, "release", []string{name, "age"}},
				{1, "release --kind lock", []string{name, "age"}},
				{1, "release --kind read", []string{name, "age"}},
				{1, "release --kind permits", []string{name, "age"}},
				{1, "force-release --yes", []string{name}},
				{1, "force-release --yes --kind lock", []string{name}},
				{1, "force-release --yes --kind fair", []string{name}},
				{1, "force-release --yes --kind read", []string{name}},
				{1, "force-release --yes --kind permits", []string{name}},
				{1, "semaphore delete --yes", []string{name}},
				{1, "permits delete --yes", []string{name}},
				{1, "latch delete --yes", []string{name}},
				{1, "semaphore init", []string{name, "3"}},
				{1, "semaphore add", []string{name, "3"}},
				{1, "semaphore drain", []string{name}},
				{1, "semaphore info", []string{name}},
				{1, "permits init", []string{name, "3"}},
				{1, "permits add", []string{name, "3"}},
				{1, "permits resize", []string{name, "3"}},
				{1, "permits info", []string{name}},
				{1, "latch init", []string{name, "3"}},
				{1, "latch count", []string{name}},
				{1, "latch count-down", []string{name}},
				{1, "latch wait", []string{name}},
				{1, "latch wait -w 50ms", []string{name}},
			} {
				asNumber := slices.ContainsFunc(numberKinds, func(kind string) bool { return strings.Contains(c.verbs, kind) })
				code, stdout, stderr := on(t, s, c.verbs, c.args...)
				require.Equal(t, c.code, code, "%s: %s", c.verbs, stderr)
				require.Empty(t, stdout)
				if finds := slices.Contains([]string{"inspect", "release", "force-release --yes"}, c.verbs); finds ||
					strings.HasPrefix(data.what, "a hash") && !asNumber {
					require.Contains(t, stderr, data.what, c.verbs)
				} // else Redis says that the key has another type
				if verb, _, _ := strings.Cut(c.verbs, " "); strings.HasSuffix(verb, "release") {
					require.Contains(t, stderr, "redlatch: "+strings.ReplaceAll(verb, "-", " ")+" ", "not: inspect")
				}
				require.NotRegexp(t, " (reader|writer) ", stderr, "kinds are named as in flags")
				require.Equal(t, before, rdb.Dump(t.Context(), name).Val(), c.verbs)
			}
			stdout, _ := exitsOn(t, 0, s, "ls --all", name)
			require.Empty(t, stdout)
		})
	}
}

// A hash without expiry that looks like a lock is in nobody's list, but others wait for it, so it
// is named, and --kind lock frees it.
func TestAHashWithoutExpiryIsNamed(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	require.NoError(t, s.Client(t).HSet(t.Context(), name, "visits", "7").Err())
	for _, c := range []struct {
		verbs string
		args  []string
	}{
		{"inspect", []string{name}}, {"release", []string{name, "visits"}}, {"force-release --yes", []string{name}},
	} {
		_, stderr := exitsOn(t, exitFailed, s, c.verbs, c.args...)
		require.Contains(t, stderr, "the key holds a hash without expiry", c.verbs)
	}
	_, stderr := exitsOn(t, exitFailed, s, "inspect --kind read", name)
	require.NotContains(t, stderr, "expiry")
	exitsOn(t, 0, s, "force-release --yes --kind lock", name)
	require.NoError(t, s.Client(t).HSet(t.Context(), name, "mode", "write", "anna:write", "1").Err())
	_, stderr = exitsOn(t, exitFailed, s, "inspect", name)
	require.Contains(t, stderr, "to treat it as a lock: --kind write")
}

// A client that waits says so, whatever it waits for, until it waits no longer.
func TestWaitersOfEachKind(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	prefix := redistest.Name(t) + ":"
	busy := client(t, s, primitives.WithPrefix(prefix))
	waiter := client(t, s, primitives.WithPrefix(prefix), primitives.WithClientName("waiter"))
	for kind, open := range map[string]func(c *primitives.Client) acquirer{
		kindLock:      func(c *primitives.Client) acquirer { return c.Lock("lock") },
		kindFair:      func(c *primitives.Client) acquirer { return c.FairLock("fair") },
		kindFenced:    func(c *primitives.Client) acquirer { return c.FencedLock("fenced") },
		kindRead:      func(c *primitives.Client) acquirer { return c.RWLock("read").Reader() },
		kindWrite:     func(c *primitives.Client) acquirer { return c.RWLock("write").Writer() },
		kindSemaphore: func(c *primitives.Client) acquirer { return c.Semaphore("semaphore") },
		kindPermits:   func(c *primitives.Client) acquirer { return c.PermitExpirableSemaphore("permits") },
	} {
		held := open(busy)
		switch kind {
		case kindRead:
			held = busy.RWLock("read").Writer() // which keeps readers waiting
		case kindSemaphore:
			fixture.InitPool(t, busy.Semaphore("semaphore"), 1)
		case kindPermits:
			fixture.InitPool(t, busy.PermitExpirableSemaphore("permits"), 1)
		}
		fixture.Acquire(t, t.Context(), held)
		for _, options := range [][]primitives.Option{nil, {primitives.WithPolling(time.Millisecond, time.Second)}} {
			ctx, giveUp := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = open(waiter).Acquire(ctx, options...)
			}()
			waits := func() bool {
				stdout, _ := exitsOn(t, 0, s, "inspect --json", "--prefix", prefix, kind)
				return strings.Contains(stdout, `"waiting":[{"client":"waiter",`)
			}
			redistest.WaitFor(t, soon, waits, "inspect shows who waits: "+kind)
			_, stdout, _ := on(t, s, "ls --all", "--prefix", prefix, kind)
			require.Regexp(t, " 1: waiter\n$", stdout)
			giveUp()
			<-gone
			redistest.WaitFor(t, soon, func() bool { return !waits() }, "nobody waits: "+kind)
		}
	}
	require.NoError(t, fixture.ErrOf(busy.CountDownLatch("latch").Init(t.Context(), 1)))
	go func() { _ = waiter.CountDownLatch("latch").Wait(t.Context()) }()
	redistest.WaitFor(t, soon, func() bool {
		_, stdout, _ := on(t, s, "inspect --kind latch --json", "--prefix", prefix, "latch")
		return strings.Contains(stdout, `"waiting":[{"client":"waiter","id":"`+waiter.ID()+`"}]`)
	}, "inspect shows who waits for a latch")
}

// busyKind is a kind that has to wait for a hold of that kind.
func busyKind(kind string) string {
	if kind == kindRead {
		return kindWrite
	}
	return kind
}

// The rest of a minimum hold keeps the name of its client, which may have ended, and is marked.
func TestMinimumHoldIsMarked(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, kind := range []string{kindLock, kindFair, kindFenced, kindRead, kindWrite, kindPermits} {
		for _, took := range []string{"0", "0.3"} { // the client may not have written its name by then
			name := redistest.Name(t) + kind + took
			if kind == kindPermits {
				fixture.InitPool(t, client(t, s).PermitExpirableSemaphore(name), 1)
			}
			exitsOn(t, 0, s, "run --min-hold 1m --kind "+kind, name, "--", "sleep", took)
			_, stdout, _ := on(t, s, "ls --all --json", name)
			var e entry
			require.NoError(t, json.Unmarshal([]byte(stdout), &e), stdout)
			require.True(t, e.MinHold, stdout)
			require.Equal(t, presence.DefaultName(), e.Holders[0].Client)
			require.Nil(t, e.Holders[0].Held)
			_, stdout, _ = on(t, s, "ls --all", name)
			require.Regexp(t, " min hold +-\n", stdout)
			_, stdout, _ = on(t, s, "inspect", name)
			require.Contains(t, stdout, "it stays taken for the rest of its minimum hold")
			_, stderr := exitsOn(t, exitNotAcquired, s, "run -n --kind "+busyKind(kind), name, "--", "true")
			require.Contains(t, stderr, "for the rest of its minimum hold")
		}
	}
}

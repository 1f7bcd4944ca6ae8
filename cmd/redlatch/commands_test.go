package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// client returns a client of the library on s. What it holds is left when the test ends.
func client(t testing.TB, s *redistest.Server, opts ...primitives.ClientOption) *primitives.Client {
	c, err := primitives.New(s.Client(t), opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ctx)
	})
	return c
}

// on runs a command on s: the verbs, the flag --redis, then args.
func on(t testing.TB, s *redistest.Server, verbs string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	all := append(strings.Fields(verbs), append([]string{"--redis", "redis://" + s.Addr()}, args...)...)
	return redlatch(t.Context(), all...)
}

// requireJSON compares lines of JSON field by field. A wanted string "*" matches anything.
func requireJSON(t testing.TB, output string, want ...map[string]any) {
	t.Helper()
	lines := strings.SplitAfter(output, "\n")
	require.Empty(t, lines[len(lines)-1], "ends with a newline")
	require.Len(t, lines, len(want)+1, output)
	for i, w := range want {
		var got, wanted map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &got), lines[i])
		text, err := json.Marshal(w)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &wanted))
		for field, value := range wanted {
			if value == "*" && got[field] != nil {
				wanted[field] = got[field]
			}
		}
		require.Equal(t, wanted, got)
	}
}

type fields = map[string]any

// holderOf is the JSON of a holder with a TTL that the test does not know exactly.
func requireHolders(t testing.TB, line string, client string, ids ...string) {
	t.Helper()
	var e entry
	require.NoError(t, json.Unmarshal([]byte(line), &e))
	require.Len(t, e.Holders, len(ids))
	for _, h := range e.Holders {
		require.Contains(t, ids, h.ID)
		require.Equal(t, 1, h.Count)
		require.Equal(t, client, h.Client)
		require.InDelta(t, 30_000, h.TTL, 10_000)
	}
}

func TestLsAndInspectShowEveryKind(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		prefix := redistest.Name(t) + ":"
		c := client(t, s, primitives.WithPrefix(prefix), primitives.WithClientName("me"))
		ctx := t.Context()
		held := map[string]*primitives.Hold{}
		acquire := func(name string, p acquirer, opts ...primitives.Option) {
			hold, err := p.Acquire(ctx, opts...)
			require.NoError(t, err)
			held[name] = hold
		}
		acquire("lock", c.Lock("lock"), primitives.WithWatchdog(31*time.Second))
		acquire("fair", c.FairLock("fair"), primitives.WithWatchdog(32*time.Second))
		acquire("fenced", c.FencedLock("fenced"), primitives.WithWatchdog(33*time.Second))
		acquire("read", c.RWLock("read").Reader(), primitives.WithWatchdog(34*time.Second))
		acquire("write", c.RWLock("write").Writer(), primitives.WithWatchdog(35*time.Second))
		_, err := c.PermitExpirableSemaphore("permits").Init(ctx, 3)
		require.NoError(t, err)
		acquire("permits", c.PermitExpirableSemaphore("permits"), primitives.WithWatchdog(36*time.Second))
		_, err = c.Semaphore("semaphore").Init(ctx, 4)
		require.NoError(t, err)
		_, err = c.CountDownLatch("latch").Init(ctx, 5)
		require.NoError(t, err)
		rdb := s.Client(t)
		require.NoError(t, rdb.Set(ctx, prefix+"text", "12 apples", 0).Err())
		require.NoError(t, rdb.HSet(ctx, prefix+"hash", "field", "value").Err())
		go func() { _, _ = c.FairLock("fair").Acquire(ctx) }() // a waiter
		redistest.WaitFor(t, 5*time.Second, func() bool {
			info, err := c.FairLock("fair").Info(ctx)
			named := rdb.Keys(ctx, "redlatch_client:*").Val()
			return err == nil && len(info.Waiters) == 1 && len(named) > 0 && info.Holders[0].Client == "me"
		}, "the waiter is in the queue, and the client has written its name")
		fair, err := c.FairLock("fair").Info(ctx)
		require.NoError(t, err)

		want := []fields{
			{"name": "lock", "kind": "lock", "ttl_ms": "*", "holders": "*"},
			{"name": "fair", "kind": "fair", "ttl_ms": "*", "holders": "*", "waiters": fair.Waiters},
			{"name": "fenced", "kind": "fenced", "ttl_ms": "*", "holders": "*", "token": 1},
			{"name": "read", "kind": "read", "ttl_ms": "*", "holders": "*"},
			{"name": "write", "kind": "write", "ttl_ms": "*", "holders": "*"},
		}
		flags := []string{"--prefix", prefix, "--json"}
		code, stdout, stderr := on(t, s, "ls", flags...)
		require.Zero(t, code, stderr)
		require.Empty(t, stderr)
		requireJSON(t, stdout, want...)
		for i, line := range strings.Split(strings.TrimSpace(stdout), "\n") {
			requireHolders(t, line, "me", held[want[i]["name"].(string)].ID())
		}

		numbers := []fields{
			{"name": "permits", "kind": "permits", "ttl_ms": "*", "holders": "*", "permits": 3, "available": 2},
			{"name": "latch", "kind": "integer", "ttl_ms": -1, "permits": 5, "available": 5},
			{"name": "semaphore", "kind": "integer", "ttl_ms": -1, "permits": 4, "available": 4},
		}
		_, stdout, _ = on(t, s, "ls", append(flags, "--all")...)
		requireJSON(t, stdout, append(append([]fields{}, want...), numbers...)...)
		for kind, names := range map[string][]fields{
			"lock": want[:1], "fair": want[1:2], "fenced": want[2:3], "read": want[3:4], "write": want[4:5],
			"permits": numbers, "semaphore": numbers[1:], "latch": numbers[1:], "integer": numbers[1:],
		} {
			_, stdout, _ = on(t, s, "ls", append(flags, "--kind", kind)...)
			requireJSON(t, stdout, names...)
		}
		_, stdout, _ = on(t, s, "ls", append(flags, "f*")...)
		requireJSON(t, stdout, want[1:3]...)
		_, stdout, _ = on(t, s, "ls", "--prefix", prefix, "f*")
		require.Regexp(t, `^NAME +KIND +HOLDER +CLIENT +COUNT +TTL +WAITERS\n`+
			`fair +fair +\S+:\d+ +me +1 +\d+s +1\nfenced +fenced +\S+:\d+ +me +1 +\d+s +-\n$`, stdout)

		for _, w := range append(append([]fields{}, want...), numbers...) {
			name := w["name"].(string)
			code, stdout, _ = on(t, s, "inspect", append(flags, name)...)
			require.Zero(t, code)
			requireJSON(t, stdout, w)
			kind := w["kind"].(string)
			code, stdout, stderr = on(t, s, "inspect", append(flags, "--kind", kind, name)...)
			require.Zero(t, code, stderr)
			requireJSON(t, stdout, w)
			switch name {
			case "latch":
				kind, w = "latch", fields{"name": "latch", "kind": "latch", "ttl_ms": -1, "count": 5}
			case "semaphore":
				w["kind"], kind = "semaphore", "semaphore"
			}
			code, stdout, _ = on(t, s, "inspect", append(flags, "--kind", kind, name)...)
			require.Zero(t, code)
			requireJSON(t, stdout, w)
			code, stdout, _ = on(t, s, "inspect", "--prefix", prefix, name)
			require.Zero(t, code)
			require.Contains(t, stdout, "kind ")
		}
		for _, name := range []string{"nothing", "text", "hash"} {
			code, stdout, stderr = on(t, s, "inspect", append(flags, name)...)
			require.Equal(t, exitFailed, code, name)
			require.Empty(t, stdout)
			require.Contains(t, stderr, `"code":1`)
		}
		// A fencing counter outlives its holds.
		require.NoError(t, held["fenced"].Release(ctx))
		code, stdout, _ = on(t, s, "inspect", append(flags, "fenced")...)
		require.Zero(t, code)
		requireJSON(t, stdout, fields{"name": "fenced", "kind": "fenced", "holders": []any{}, "token": 1})
	})
}

func TestReleaseAndForceRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range heldKinds {
			for _, force := range []bool{false, true} {
				for _, given := range []bool{false, true} {
					name := redistest.Name(t)
					x := &session{client: client(t, s)}
					if kind == kindPermits {
						_, err := x.client.PermitExpirableSemaphore(name).Init(t.Context(), 2)
						require.NoError(t, err)
					}
					hold, err := x.acquirer(kind, name).Acquire(t.Context())
					require.NoError(t, err)
					args := []string{"--json", name, hold.ID()}
					verb, want := "release", fields{"name": name, "kind": kind, "released": true, "id": hold.ID()}
					if force {
						verb, args = "force-release", []string{"--json", "--yes", name}
						delete(want, "id")
					}
					if given {
						args = append([]string{"--kind", kind}, args...)
					} else if kind == kindFair {
						want["kind"] = kindLock // without waiters the keys are a plain lock's
					}
					code, stdout, stderr := on(t, s, verb, args...)
					require.Zero(t, code, stderr)
					requireJSON(t, stdout, want)
					require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
					code, stdout, stderr = on(t, s, verb, args...)
					require.Equal(t, exitFailed, code, "%s %s: %s", verb, kind, stderr)
					require.Empty(t, stdout)
				}
			}
		}
		// An id that no holder can have holds nothing either.
		for _, kind := range heldKinds {
			for _, id := range []string{"nobody", "mode", "x:write"} {
				code, _, stderr := on(t, s, "release --kind "+kind, redistest.Name(t), id)
				require.Equal(t, exitFailed, code, "%s %s: %s", kind, id, stderr)
				require.Contains(t, stderr, fmt.Sprintf("not held by %q", id))
			}
		}
		// Without --yes there must be somebody to ask.
		code, _, stderr := on(t, s, "force-release", "name")
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "--yes")
		// Nobody is known to hold a number.
		name := redistest.Name(t)
		_, err := client(t, s).Semaphore(name).Init(t.Context(), 1)
		require.NoError(t, err)
		code, _, _ = on(t, s, "force-release", "--yes", name)
		require.Equal(t, exitFailed, code)
	})
}

// Each line is a command, its exit code, and its JSON.
func TestVerbsOfNumbers(t *testing.T) {
	t.Parallel()
	type step struct {
		verb, n string
		code    int
		want    fields // without name and kind; nil: no output
	}
	for kind, steps := range map[string][]step{
		kindSemaphore: {
			{"info", "", 1, nil},
			{"delete --yes", "", 1, nil},
			{"init", "-1", 2, nil},
			{"init", "x", 2, nil},
			{"init", "", 2, nil},
			{"init", "3", 0, fields{"created": true, "permits": 3, "available": 3}},
			{"init", "5", 1, fields{"created": false}},
			{"info", "", 0, fields{"permits": 3, "available": 3}},
			{"add", "2", 0, fields{}},
			{"add", "-1", 0, fields{}},
			{"drain", "", 0, fields{"drained": 4}},
			{"info", "", 0, fields{"permits": 0, "available": 0}},
			{"init", "5", 1, fields{"created": false}},
			{"delete --yes", "", 0, fields{"deleted": true}},
			{"init", "0", 0, fields{"created": true, "permits": 0, "available": 0}},
			{"resize", "1", 2, nil},
			{"", "", 2, nil},
		},
		kindPermits: {
			{"info", "", 1, nil},
			{"delete --yes", "", 1, nil},
			{"init", "3", 0, fields{"created": true, "permits": 3, "available": 3}},
			{"init", "3", 1, fields{"created": false}},
			{"add", "2", 0, fields{}},
			{"resize", "7", 0, fields{"permits": 7}},
			{"info", "", 0, fields{"permits": 7, "available": 7}},
			{"resize", "-7", 2, nil},
			{"delete --yes", "", 0, fields{"deleted": true}},
		},
		kindLatch: {
			{"count", "", 0, fields{"count": 0}},
			{"wait", "", 0, fields{"count": 0}},
			{"delete --yes", "", 1, nil},
			{"init", "0", 2, nil},
			{"init", "4", 0, fields{"created": true, "count": 4}},
			{"init", "4", 1, fields{"created": false}},
			{"count", "", 0, fields{"count": 4}},
			{"count-down", "", 0, fields{"count": 3}},
			{"count-down", "2", 0, fields{"count": 1}},
			{"count-down", "0", 2, nil},
			{"wait --wait 0s", "", exitNotAcquired, nil},
			{"wait -w 50ms", "", exitNotAcquired, nil},
			{"wait -w -1s", "", 2, nil},
			{"count-down", "1000000000", 0, fields{"count": 0}}, // at once
			{"wait", "", 0, fields{"count": 0}},
			{"init", "1", 0, fields{"created": true, "count": 1}},
			{"delete --yes", "", 0, fields{"deleted": true}},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				for i, step := range steps {
					args := []string{"--json", name}
					if step.n != "" {
						args = append(args, step.n)
					}
					code, stdout, stderr := on(t, s, kind+" "+step.verb, args...)
					require.Equal(t, step.code, code, "%d. %s: %s", i+1, step.verb, stderr)
					if step.want == nil {
						require.Empty(t, stdout)
					} else {
						step.want["name"], step.want["kind"] = name, kind
						requireJSON(t, stdout, step.want)
					}
					if count, ok := step.want["count"]; ok && count == 0 && step.verb != "count-down" {
						require.Contains(t, stderr, "there is no latch") // or it has opened
					} else if code == 0 {
						require.Empty(t, stderr)
					} else {
						require.Contains(t, stderr, `{"error":`)
					}
				}
			})
		})
	}
}

func TestLatchWaitsUntilItOpens(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	latch := client(t, s).CountDownLatch(name)
	_, err := latch.Init(t.Context(), 1)
	require.NoError(t, err)
	done := make(chan int, 1)
	go func() {
		code, _, _ := on(t, s, "latch wait", "-w", "1m", name)
		done <- code
	}()
	redistest.WaitFor(t, 10*time.Second, func() bool {
		return strings.Contains(strings.Join(redistest.Channels(t, s), " "), name)
	}, "it waits")
	require.NoError(t, latch.CountDown(t.Context()))
	require.Zero(t, <-done)
}

// A name that was mistyped is no failure, but the user is told.
func TestAMissingLatchIsMentioned(t *testing.T) {
	t.Parallel()
	for _, verbs := range []string{
		"latch wait", "latch wait -w 1s", "latch wait -w 0s", "latch count", "latch count-down",
	} {
		code, _, stderr := on(t, redistest.Miniredis(t), verbs, "typo")
		require.Zero(t, code, verbs)
		require.Contains(t, stderr, `there is no latch "typo"`, verbs)
	}
}

func TestLatchThatDoesNotOpenIsNamedOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	_, err := client(t, s).CountDownLatch(name).Init(t.Context(), 1)
	require.NoError(t, err)
	for _, wait := range []string{"0s", "50ms"} {
		code, _, stderr := on(t, s, "latch wait", "-w", wait, name)
		require.Equal(t, exitNotAcquired, code)
		require.Contains(t, stderr, fmt.Sprintf("latch %q is not open after %s", name, wait))
		require.Equal(t, 1, strings.Count(stderr, name), stderr)
	}
}

// Contradictions and nonsense exit with 2, before Redis is asked.
func TestBadUse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nonsense"},
		{"ls", "--nonsense"},
		{"ls", "a", "b"},
		{"ls", "--kind", "reader"},
		{"inspect"},
		{"inspect", "a", "b"},
		{"inspect", "--kind", "reader", "a"},
		{"release", "name"},
		{"release", "--kind", "semaphore", "name", "id"},
		{"force-release"},
		{"force-release", "name"}, // needs --yes where it cannot ask
		{"semaphore", "delete", "name"},
		{"permits", "delete", "name"},
		{"latch", "delete", "name"},
		{"acquire"},
		{"acquire", "a", "b"},
		{"acquire", "-n", "-w", "1s", "name"},
		{"acquire", "--kind", "semaphore", "name"},
		{"acquire", "--kind", "latch", "name"},
		{"acquire", "--lease", "0s", "name"},
		{"acquire", "--permits", "2", "name"},
		{"acquire", "--kind", "permits", "--permits", "0", "name"},
		{"acquire", "-w", "-1s", "name"},
		{"run", "-w", "-1s", "name", "--", "true"},
		{"run", "--", "true"},
		{"run"},
		{"run", "name"},
		{"run", "name", "--"},
		{"run", "name", "true"},
		{"run", "name", "-n", "--", "true"},
		{"run", "-n", "-w", "1s", "name", "--", "true"},
		{"run", "--lease", "1s", "--watchdog", "1s", "name", "--", "true"},
		{"run", "--lease", "0s", "name", "--", "true"},
		{"run", "--lease", "-1s", "name", "--", "true"},
		{"run", "--lease", "soon", "name", "--", "true"},
		{"run", "--watchdog", "0s", "name", "--", "true"},
		{"run", "--max-hold", "-1s", "name", "--", "true"},
		{"run", "--min-hold", "-1s", "name", "--", "true"},
		{"run", "--min-hold", "0s", "name", "--", "true"},
		{"run", "--min-hold", "1s", "--kind", "semaphore", "name", "--", "true"},
		{"run", "--max-hold", "1s", "--kind", "semaphore", "name", "--", "true"},
		{"run", "--lease", "1s", "--kind", "semaphore", "name", "--", "true"},
		{"run", "--watchdog", "1s", "--kind", "semaphore", "name", "--", "true"},
		{"run", "--min-hold", "2s", "--lease", "1s", "name", "--", "true"},
		{"run", "--min-hold", "2s", "--max-hold", "1s", "name", "--", "true"},
		{"run", "--grace", "-1s", "name", "--", "true"},
		{"run", "--kind", "latch", "name", "--", "true"},
		{"run", "--kind", "semaphore", "--permits", "0", "name", "--", "true"},
		{"run", "--permits", "2", "name", "--", "true"},
		{"semaphore"},
		{"semaphore", "nonsense"},
		{"semaphore", "init", "name"},
		{"semaphore", "init", "name", "1.5"},
		{"latch", "wait", "name", "1"},
		{"completion"},
		{"completion", "tcsh"},
		{"completion", "bash", "zsh"},
		{"version", "now"},
		{"demo", "--json"},
		{"ls", "--cluster", "--sentinel-master", "m"},
		{"ls", "--sentinel-master", ""},
		{"ls", "--redis", "http://localhost"},
		{"ls", "--redis", "redis://localhost/-1"},
		{"ls", "--redis", "redis://localhost:65536"},
		{"ls", "--redis", "unix:///s?db=-1"},
		{"ls", "--redis", "unix:///s", "--cluster"},
		{"ls", "--redis", "redis://localhost:1", "--redis", "rediss://localhost:2"},
		{"ls", "--redis", "redis://:a@localhost:1", "--redis", "redis://:b@localhost:2"},
		{"ls", "--redis", "redis://localhost:1", "--redis", "redis://:a@localhost:2"},
		{"ls", "--redis", "redis://a:a@localhost:1", "--redis", "redis://b:a@localhost:2"},
		{"ls", "--redis", "redis://localhost:1", "--redis", "redis://localhost:2/1", "--sentinel-master", "m"},
		{"ls", "--redis", "redis://localhost/1", "--cluster"},
		{"ls", "--redis", "redis://localhost", "--tls-ca", "/dev/null"},
		{"ls", "--redis", "rediss://localhost", "--tls-ca", "/dev/null"},
		{"ls", "--redis", "rediss://localhost", "--tls-ca", "/no/such/file"},
		{"ls", "--redis", "rediss://localhost", "--tls-cert", "/dev/null"},
		{"ls", "--timeout", "-1s"},
		{"ls", "--timeout", "soon"},
		{"doctor", "--timeout", "0s"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := redlatch(t.Context(), args...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.True(t, strings.HasPrefix(stderr, "redlatch: ") || strings.HasPrefix(stderr, "{"), stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		})
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"run", "--", "true"}, "NAME is missing: redlatch run NAME -- true"},
		{[]string{"run", "-nw", "1s", "name", "--", "true"}, "--nonblock and --wait exclude each other"},
		{[]string{"run", "--lease", "-1s", "name", "--", "true"}, "--lease -1s: at least 1ms"},
		{[]string{"run", "--lease", "5", "name", "--", "true"}, `invalid value "5" for --lease: time: missing unit`},
		{[]string{"run", "-w", "x", "name", "--", "true"}, `invalid value "x" for -w: time: invalid duration "x"`},
		{[]string{"run", "--kind", "fair", "--permits", "2", "name", "--", "true"}, "only with --kind semaphore or permits"},
		{[]string{"ls", "--kind", "reader"}, `--kind "reader": must be one of lock, fair`},
		{[]string{"semaphore", "init", "name", "x"}, `N is not a whole number: "x"`},
		{[]string{"completion", "bash", "zsh"}, `unexpected argument "zsh"`},
		{[]string{"run", "--max-hold", "0s", "--min-hold", "1s", "name", "--", "true"}, "--max-hold 0s: at least 1ms"},
	} {
		_, _, stderr := redlatch(t.Context(), tt.args...)
		require.Contains(t, stderr, tt.want)
	}
	// Names, ids and numbers that the library refuses, whether Redis is there or not.
	there := "redis://" + redistest.Miniredis(t).Addr()
	for _, args := range [][]string{
		{"run", "", "--", "true"},
		{"run", "--kind", "semaphore", "--permits", "3000000000", "name", "--", "true"},
		{"acquire", "-n", ""},
		{"acquire", "--lease", "2000000h", "name"},
		{"force-release", "--yes", ""},
		{"semaphore", "init", "name", "-1"},
		{"semaphore", "delete", "--yes", ""},
		{"permits", "resize", "name", "-1"},
		{"latch", "init", "name", "0"},
		{"latch", "count-down", "name", "0"},
		{"inspect", ""},
		{"inspect", "--kind", "lock", ""},
		{"release", "--kind", "lock", "name", ""},
		{"release", "--kind", "permits", "", "x"},
		{"latch", "count", ""},
		{"latch", "wait", "-w", "-1s", "name"},
	} {
		for _, url := range []string{there, unreachable} {
			code, _, stderr := redlatch(t.Context(), append([]string{args[0], "--redis", url}, args[1:]...)...)
			require.Equal(t, exitUsage, code, "%q: %s", args, stderr)
		}
	}
}

// A number is shown as what it is known to be: nobody knows how many permits a semaphore has in all.
func TestInspectOfANumber(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	require.NoError(t, s.Client(t).Set(t.Context(), "name", 2, 0).Err())
	for flag, want := range map[string]string{
		"": "number     2", "--kind=semaphore": "available  2", "--kind=permits": "available  2 of 2",
	} {
		code, stdout, stderr := on(t, s, strings.TrimSpace("inspect "+flag), "name")
		require.Zero(t, code, stderr)
		require.Contains(t, strings.Split(stdout, "\n"), want)
	}
}

// Where Redis is out of reach, or refuses, each command exits with 3 and says why, as JSON if asked.
func TestUnreachableRedis(t *testing.T) {
	t.Parallel()
	locked := redistest.Miniredis(t)
	locked.Mini().RequireAuth("secret")
	limited := redistest.Fresh(t)
	require.NoError(t, limited.Client(t).Do(t.Context(), "acl", "setuser", "nobody", "on", ">hush", "+ping").Err())
	for name, tt := range map[string]struct{ url, want string }{
		"refused":        {"redis://127.0.0.1:1", "refused"},
		"no password":    {"redis://" + locked.Addr(), "NOAUTH"},
		"wrong password": {"redis://:hush@" + locked.Addr(), "WRONGPASS"},
		"no permission":  {"redis://nobody:hush@" + limited.Addr(), "NOPERM"},
		"no such socket": {"unix:///no/such/socket", "no such file"},
		"TLS":            {"rediss://" + locked.Addr(), "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{
				{"ls"}, {"ls", "--all"}, {"inspect", "name"},
				{"release", "name", "id"}, {"release", "--kind", "lock", "name", "id"},
				{"force-release", "--yes", "name"}, {"semaphore", "init", "name", "1"}, {"permits", "info", "name"},
				{"latch", "wait", "name"}, {"latch", "count", "name"},
				{"run", "name", "--", "true"}, {"run", "-n", "name", "--", "true"}, {"acquire", "name"},
			} {
				verbs := 1
				if args[0] == "semaphore" || args[0] == "permits" || args[0] == "latch" {
					verbs = 2
				}
				all := append(append([]string{}, args[:verbs]...), "--json", "--redis", tt.url, "--timeout", "3s")
				code, stdout, stderr := redlatch(t.Context(), append(all, args[verbs:]...)...)
				require.Equal(t, exitUnreachable, code, "%q: %s", args, stderr)
				require.Empty(t, stdout)
				require.NotContains(t, stderr, "hush")
				var e struct {
					Error string
					Code  int
				}
				require.NoError(t, json.Unmarshal([]byte(stderr), &e), stderr)
				require.Equal(t, exitUnreachable, e.Code)
				require.Contains(t, e.Error, tt.want)
			}
		})
	}
}

// fullDisk is a standard output that takes nothing.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// Output that cannot be written is a failure, and none of Redis.
func TestOutputThatIsLostIsAFailure(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	hold, err := client(t, s).Lock(name).Acquire(t.Context())
	require.NoError(t, err)
	for _, command := range []string{
		"ls", "ls --json", "inspect " + name, "inspect --json " + name, "latch count " + name + "-latch",
		"acquire " + name + "-other", "doctor", "doctor --json", "release " + name + " " + hold.ID(), "acl", "version",
		"completion bash", "ls --help",
	} {
		args := strings.Fields(command)
		verbs := 1
		if args[0] == "latch" || args[0] == "completion" {
			verbs = 2
		}
		args = slices.Insert(args, verbs, "--redis", "redis://"+s.Addr())
		var stderr bytes.Buffer
		code := run(t.Context(), append([]string{"redlatch"}, args...), fullDisk{}, &stderr)
		require.Equal(t, exitFailed, code, "%s: %s", command, &stderr)
		require.Contains(t, stderr.String(), "cannot write the output: write /dev/stdout: no space left on device", command)
	}
	code, _, _ := on(t, s, "inspect", name+"-other")
	require.Equal(t, exitFailed, code, "an id that nobody has learned holds nothing")
}

// The connection is what the flags say: the URL from the environment, several URLs, Sentinel, a cluster.
func TestConnections(t *testing.T) {
	type options struct {
		*redis.Options
		cluster *redis.ClusterOptions
	}
	for name, tt := range map[string]struct {
		env  string
		args []string
		want func(t *testing.T, o options)
	}{
		"default": {"", nil, func(t *testing.T, o options) { require.Equal(t, "localhost:6379", o.Addr) }},
		"environment": {"redis://u:p@host:1/2", nil, func(t *testing.T, o options) {
			require.Equal(t, []any{"host:1", "u", "p", 2}, []any{o.Addr, o.Username, o.Password, o.DB})
		}},
		"flag before environment": {"redis://host:1", []string{"--redis", "redis://other:2"}, func(t *testing.T, o options) {
			require.Equal(t, "other:2", o.Addr)
		}},
		"password with a comma": {"", []string{"--redis", "redis://:a,b@host:1"}, func(t *testing.T, o options) {
			require.Equal(t, "a,b", o.Password)
		}},
		"socket": {"", []string{"--redis", "unix:///tmp/s?db=3"}, func(t *testing.T, o options) {
			require.Equal(t, []any{"unix", "/tmp/s", 3}, []any{o.Network, o.Addr, o.DB})
		}},
		"TLS": {"", []string{"--redis", "rediss://host:1"}, func(t *testing.T, o options) {
			require.Equal(t, "host", o.TLSConfig.ServerName)
		}},
		"timeout": {"", []string{"--timeout", "1s"}, func(t *testing.T, o options) {
			require.Equal(t, time.Second, o.ReadTimeout)
		}},
		"cluster": {"", []string{"--cluster", "--redis", "redis://u:p@host:1"}, func(t *testing.T, o options) {
			require.Equal(t, []any{[]string{"host:1"}, "u", "p"}, []any{o.cluster.Addrs, o.cluster.Username, o.cluster.Password})
		}},
		"seeds": {"", []string{"--redis", "redis://a:1", "--redis", "redis://b:2"}, func(t *testing.T, o options) {
			require.Equal(t, []string{"a:1", "b:2"}, o.cluster.Addrs)
		}},
		"sentinel": {"", []string{"--sentinel-master", "m", "--redis", "redis://:p@a:1", "--redis", "redis://b:2"},
			func(t *testing.T, o options) {
				require.Equal(t, []any{"FailoverClient", "p"}, []any{o.Addr, o.Password})
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(urlVariable, tt.env)
			var got options
			var out bytes.Buffer
			root := app(nil, &out, &out)
			test := testCommand(func(rdb redis.UniversalClient) {
				switch c := rdb.(type) {
				case *redis.Client:
					got.Options = c.Options()
				case *redis.ClusterClient:
					got.cluster = c.Options()
				}
			})
			test.DisableSliceFlagSeparator = true // as app sets it
			root.Commands = append(root.Commands, test)
			require.NoError(t, root.Run(t.Context(), append([]string{"redlatch", "test"}, tt.args...)))
			tt.want(t, got)
		})
	}
}

// The commands work on a cluster, and behind Sentinels.
func TestClusterAndSentinel(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t)
	name := redistest.Name(t)
	seed := "redis://" + cluster.Nodes()[0].Addr()
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"semaphore", "init", "--cluster", "--redis", seed, name, "2"}, 0},
		{[]string{"ls", "--all", "--cluster", "--redis", seed, name}, 0},
		{[]string{"inspect", "--cluster", "--redis", seed, name}, 0},
		{[]string{"semaphore", "delete", "--yes", "--cluster", "--redis", seed, name}, 0},
		{[]string{"run", "--cluster", "--redis", seed, name, "--", "true"}, 0},
		{[]string{"inspect", "--cluster", "--redis", seed, "a{b"}, 1},
		{[]string{"run", "--cluster", "--redis", seed, "a{b", "--", "true"}, exitUsage},
	} {
		code, _, stderr := redlatch(t.Context(), tt.args...)
		require.Equal(t, tt.code, code, "%q: %s", tt.args, stderr)
	}
	// The slot of this name is 8620, which the second of the three masters serves.
	code, _, stderr := redlatch(t.Context(), "acquire", "-n", "--timeout", "300ms", "--redis", seed, "bb")
	require.Equal(t, exitUnreachable, code, stderr)
	require.Contains(t, stderr, "this is a server of a cluster: use --cluster")
	sentinel := redistest.Sentinel(t).Options()
	code, _, stderr = redlatch(t.Context(), "run", "--redis", "redis://"+sentinel.SentinelAddrs[0],
		"--sentinel-master", sentinel.MasterName, name, "--", "true")
	require.Zero(t, code, stderr)
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
			code, stdout, _ := on(t, s, "ls --all", name)
			require.Zero(t, code)
			require.Empty(t, stdout)
		})
	}
}

// A hash without expiry that looks like a lock is in nobody's list, but others wait for it. So it is named, and
// --kind lock frees it.
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
		code, _, stderr := on(t, s, c.verbs, c.args...)
		require.Equal(t, exitFailed, code, stderr)
		require.Contains(t, stderr, "the key holds a hash without expiry", c.verbs)
	}
	code, _, stderr := on(t, s, "inspect --kind read", name)
	require.Equal(t, exitFailed, code, stderr)
	require.NotContains(t, stderr, "expiry")
	code, _, stderr = on(t, s, "force-release --yes --kind lock", name)
	require.Zero(t, code, stderr)
	require.NoError(t, s.Client(t).HSet(t.Context(), name, "mode", "write", "anna:write", "1").Err())
	code, _, stderr = on(t, s, "inspect", name)
	require.Equal(t, exitFailed, code, stderr)
	require.Contains(t, stderr, "to treat it as a lock: --kind write")
}

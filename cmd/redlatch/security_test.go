package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/watch"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// hostile is text that would clear the screen and set the title of a terminal.
const hostile = "\x1b[2J\x1b]0;owned\a\u009b2J\u202e"

// Names, ids, names of clients and errors are other people's. People read them on a terminal.
func TestOutputCannotControlTheTerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	ctx := t.Context()
	c := client(t, s, primitives.WithClientName("me"+hostile))
	hold, err := c.FairLock("name" + hostile).Acquire(ctx)
	require.NoError(t, err)
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { _, _ = c.FairLock("name"+hostile).Acquire(waiting, primitives.WithOwner("waiter"+hostile)) }()
	owned, err := c.Lock("owned"+hostile).Acquire(ctx, primitives.WithOwner("id"+hostile))
	require.NoError(t, err)
	require.NoError(t, fixture.ErrOf(c.PermitExpirableSemaphore("permits"+hostile).Init(ctx, 2)))
	redistest.WaitFor(t, soon, func() bool {
		info, err := c.FairLock("name" + hostile).Info(ctx)
		return err == nil && len(info.Waiters) == 1 && info.Holders[0].Client != ""
	}, "it is held and waited for, by a client with a name")
	for _, args := range [][]string{
		{"ls", "--all"}, {"inspect", "name" + hostile}, {"inspect", "--kind", "fair", "name" + hostile},
		{"inspect", "nothing" + hostile}, {"inspect", "--kind", "permits", "name" + hostile},
		{"permits", "info", "permits" + hostile}, {"release", "name" + hostile, "nobody" + hostile},
		{"run", "-n", "name" + hostile, "--", "true"}, {"ls", "--kind", hostile}, {hostile},
	} {
		verbs := 1
		if args[0] == "permits" {
			verbs = 2
		}
		all := append([]string{}, args[:verbs]...)
		if args[0] != hostile {
			all = append(all, "--redis", "redis://"+s.Addr())
		}
		_, stdout, stderr := redlatch(ctx, append(all, args[verbs:]...)...)
		require.NotEmpty(t, stdout+stderr, "%q", args)
		requireHarmless(t, stdout+stderr, strings.Count(stdout+stderr, "\n"))
	}
	_, stdout, _ := on(t, s, "ls", "--all")
	require.Equal(t, 3+1, strings.Count(stdout, "\n"), "a line for each, and the heading")
	require.NoError(t, hold.Release(ctx))
	require.NoError(t, owned.Release(ctx))

	// A hostile server.
	addr := answering(t, "-ERR "+strings.ReplaceAll(hostile, "\n", "")+"\r\n")
	for _, verb := range []string{"ls", "doctor"} {
		_, stdout, stderr := redlatch(ctx, verb, "--redis", "redis://"+addr, "--timeout", "2s")
		require.Contains(t, stdout+stderr, "owned", verb)
		requireHarmless(t, stdout+stderr, strings.Count(stdout+stderr, "\n"))
	}
}

// operatorTest runs redlatch as the operators of doc/operations.md, on a server with something of
// every kind.
type operatorTest struct {
	*inventory
	all string // what an administrator sees
}

func newOperatorTest(t *testing.T) *operatorTest {
	s := redistest.Fresh(t)
	x := &operatorTest{inventory: newInventory(t, s, "")}
	s.SetUser(t, "admin", "reset", "on", ">"+redistest.Password, "allkeys", "allchannels", "+@all")
	redistest.WaitFor(t, soon, func() bool {
		_, all, _ := on(t, s, "ls", "--all", "--json")
		held := strings.Count(all, `"held_ms"`)
		return held > 0 && held == strings.Count(all, `"client":"me"`)
	}, "the client has told since when it has each hold")
	x.all = x.reads(t, "admin")
	return x
}

// as runs a command as a user. It replaces what changes from look to look.
func (x *operatorTest) as(t *testing.T, user, verbs string, args ...string) (code int, output string) {
	url := "redis://" + user + ":" + redistest.Password + "@" + x.s.Addr()
	all := slices.Concat(strings.Fields(verbs), []string{"--redis", url}, args)
	code, stdout, stderr := redlatch(t.Context(), all...)
	return code, ttls.ReplaceAllString(stdout, "TTL") + stderr
}

// reads returns what a user sees.
func (x *operatorTest) reads(t *testing.T, user string) (report string) {
	for _, args := range [][]string{
		{"ls", "--all"}, {"ls", "--json"}, {"inspect", "permits"}, {"inspect", "fair"},
		{"inspect", "--kind", "read", "read"}, {"inspect", "--kind", "write", "write"},
		{"inspect", "--kind", "lock", "lock"}, {"permits info", "nothing"},
	} {
		code, output := x.as(t, user, args[0], args[1:]...)
		lines := strings.Split(output, "\n")
		slices.Sort(lines) // holders renew at different times, and ls sorts by TTL
		report += fmt.Sprintln(args, code, lines)
	}
	rdb := x.s.As(user).Client(t)
	defer rdb.Close()
	snap, err := watch.NewSource(rdb, "", "*").Look(t.Context())
	if err != nil {
		return report + err.Error()
	}
	snap.At = time.Time{}
	text, err := json.Marshal(snap)
	require.NoError(t, err)
	return report + ttls.ReplaceAllString(string(text), "TTL")
}

// ttls matches what changes from look to look.
var ttls = regexp.MustCompile(`\d+(\.\d+)?m?s\b|"(ttl|held)_ms":\d+| {2,}`)

func TestViewerReadsEverythingAndChangesNothing(t *testing.T) {
	t.Parallel()
	x := newOperatorTest(t)
	rules := redistest.DocumentedRules(t, "viewer")[0]
	x.s.SetUser(t, "viewer", rules...)
	require.Equal(t, x.all, x.reads(t, "viewer"))
	for i, rule := range rules {
		// EVAL and SCRIPT LOAD are needed once in the life of a server.
		if rule[0] != '+' || rule == "+eval" || rule == "+script|load" {
			continue
		}
		x.s.SetUser(t, "less", slices.Delete(slices.Clone(rules), i, i+1)...)
		require.NotEqual(t, x.all, x.reads(t, "less"), "without "+rule)
	}
	for _, args := range [][]string{
		{"force-release", "--yes", "lock"}, {"run", "x", "--", "true"}, {"semaphore add", "semaphore", "1"},
	} {
		code, output := x.as(t, "viewer", args[0], args[1:]...)
		require.Equal(t, exitUnreachable, code, output)
	}
	require.Equal(t, x.all, x.reads(t, "admin"))
}

func TestOncallReadsEverythingAndRepairs(t *testing.T) {
	t.Parallel()
	x := newOperatorTest(t)
	for _, rules := range append([][]string{rulesOf(t, "oncall")}, redistest.DocumentedRules(t, "oncall")...) {
		x.s.SetUser(t, "oncall", rules...)
	}
	require.Equal(t, x.all, x.reads(t, "oncall"))
	x.stopWaiting()
	for _, args := range [][]string{
		{"force-release", "--yes", "lock"}, {"force-release", "--yes", "fair"}, {"force-release", "--yes", "fenced"},
		{"force-release", "--yes", "read"}, {"force-release", "--yes", "write"}, {"force-release", "--yes", "permits"},
		{"semaphore info", "semaphore"}, {"semaphore add", "semaphore", "1"}, {"semaphore drain", "semaphore"},
		{"semaphore delete", "--yes", "semaphore"}, {"permits add", "permits", "1"}, {"permits resize", "permits", "2"},
		{"permits info", "permits"}, {"permits delete", "--yes", "permits"},
		{"latch count", "latch"}, {"latch count-down", "latch", "5"}, {"latch init", "latch", "2"},
		{"latch count-down", "latch", "2"}, {"latch wait", "latch"},
		{"run", "x", "--", "true"}, {"run", "--kind", "fair", "x", "--", "true"},
	} {
		code, output := x.as(t, "oncall", args[0], args[1:]...)
		require.Zero(t, code, "%q: %s", args, output)
	}
}

// answering starts a server that gives every command the same answer, and returns its address.
func answering(t testing.TB, answer string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				buf := make([]byte, 64<<10)
				for {
					n, err := conn.Read(buf)
					if err != nil {
						return
					}
					for range commandStart.FindAll(buf[:n], -1) {
						if _, err := fmt.Fprint(conn, answer); err != nil {
							return
						}
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// commandStart matches the header of a command.
var commandStart = regexp.MustCompile(`(?m)^\*\d+\r$`)

// No output shows a password, whether Redis refuses it, is out of reach, or the URL is none.
// Passwords contain characters that end the password for a parser of URLs.
func TestPasswordsAreNotShown(t *testing.T) {
	locked := redistest.Fresh(t)
	locked.SetUser(t, "limited", "reset", "on", ">hush-hush", "+ping")
	locked.SetUser(t, "default", ">another")
	const out = "127.0.0.1:1"
	for name, url := range map[string]string{
		"out of reach":    "redis://:hush-hush@" + out,
		"wrong password":  "redis://:hush-hush@" + locked.Addr(),
		"wrong user":      "redis://limited:hush-hush-hush@" + locked.Addr(),
		"refused":         "redis://limited:hush-hush@" + locked.Addr(),
		"slash":           "redis://:hush/hush@" + out,
		"hash":            "redis://:hush#hush@" + out,
		"hash and digits": "redis://:1#hush@" + out,
		"question mark":   "redis://:hush?hush@" + out,
		"percent":         "redis://:hu%sh@" + out,
		"digits, slash":   "redis://:1/hush@" + out,
		"space":           "redis://:hush hush@" + out,
		"at sign":         "redis://:hush@hush@hush:x",
		"no scheme":       ":hush@" + out,
		"no host":         "redis://:hush",
		"another scheme":  "hush://:hush@" + out,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(urlVariable, url)
			commands := [][]string{
				{"--help"}, {"run", "--help"}, {"ls"}, {"run", "name", "--", "true"}, {"inspect", "--json", "name"},
				{"doctor", "--timeout", "1s"}, {"ls", "--cluster"}, {"ls", "--sentinel-master", "m"},
				{"ls", "--redis", url}, {"demo", "--redis", url},
			}
			if name != "refused" { // torture tries for half a minute
				commands = append(commands, []string{"torture", "--redis", url, "--duration", "1s"})
			}
			var running sync.WaitGroup // some wait for a server in vain
			for _, args := range commands {
				running.Go(func() {
					_, stdout, stderr := redlatch(t.Context(), args...)
					assert.NotContains(t, stdout+stderr, "hush", "%q", args)
					assert.NotContains(t, stdout+stderr, "hu%", "%q", args)
				})
			}
			running.Wait()
		})
	}
}

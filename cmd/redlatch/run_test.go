//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// run exits as the command does, and leaves nothing in Redis.
func TestRunExitsAsItsCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	notExecutable := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(notExecutable, []byte("data"), 0o600))
	badFormat := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(badFormat, []byte("data"), 0o700))
	for name, tt := range map[string]struct {
		command []string
		want    int
	}{
		"success":        {childArgs(t, "exit", "0"), 0},
		"failure":        {childArgs(t, "exit", "7"), 7},
		"exit code 75":   {childArgs(t, "exit", "75"), 75},
		"SIGKILL":        {childArgs(t, "die", "9"), 128 + 9},
		"SIGTERM":        {childArgs(t, "die", "15"), 128 + 15},
		"not found":      {[]string{"--", "redlatch-no-such-command"}, exitNotFound},
		"no such file":   {[]string{"--", "/no/such/file"}, exitNotFound},
		"not executable": {[]string{"--", notExecutable}, exitNotExecutable},
		"a directory":    {[]string{"--", t.TempDir()}, exitNotExecutable},
		"bad format":     {[]string{"--", badFormat}, exitNotExecutable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := redistest.Name(t)
			p := start(t, "redis://"+s.Addr(), append([]string{"run", "--json", lock}, tt.command...)...)
			require.Equal(t, tt.want, p.wait(), p.errs)
			require.Empty(t, p.rest())
			require.Empty(t, redistest.Keys(t, s, "*"+lock+"*"))
			if tt.want == exitNotFound || tt.want == exitNotExecutable {
				requireError(t, p.errs.String(), tt.want)
			} else {
				require.Empty(t, p.errs.String())
			}
		})
	}
}

// requireError checks the error that --json prints.
func requireError(t testing.TB, stderr string, code int) {
	t.Helper()
	var e struct {
		Error string
		Code  int
	}
	require.NoError(t, json.Unmarshal([]byte(stderr), &e), stderr)
	require.Equal(t, code, e.Code, stderr)
	require.NotEmpty(t, e.Error)
}

// The command sees what is held, and it is held while it runs.
func TestRunPassesTheHoldToTheCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, kind := range runKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			c := client(t, s)
			switch kind {
			case kindSemaphore:
				fixture.InitPool(t, c.Semaphore(name), 2)
			case kindPermits:
				fixture.InitPool(t, c.PermitExpirableSemaphore(name), 2)
			}
			args := []string{"run", "--kind", kind}
			if kind == kindSemaphore || kind == kindPermits {
				args = append(args, "--permits", "2")
			}
			p := start(t, "redis://"+s.Addr(), append(append(args, name), childArgs(t, "env")...)...)
			var env map[string]string
			require.NoError(t, json.Unmarshal([]byte(p.line()), &env))
			require.Zero(t, p.wait(), p.errs)
			for _, own := range []string{"REDLATCH_REQUIRE", "REDLATCH_FULL", "REDLATCH_NIGHTLY"} {
				delete(env, own) // the test's
			}
			want := map[string]string{"REDLATCH_NAME": name, "REDLATCH_KIND": kind, "REDLATCH_ID": env["REDLATCH_ID"]}
			switch kind {
			case kindFenced:
				want["REDLATCH_TOKEN"] = "1"
				require.NotEmpty(t, env["REDLATCH_ID"])
			case kindSemaphore:
				require.Empty(t, env["REDLATCH_ID"])
			case kindPermits:
				require.Regexp(t, `^[0-9a-f]{32},[0-9a-f]{32}$`, env["REDLATCH_ID"])
			default:
				require.Regexp(t, `^[0-9a-f-]{36}:\d+$`, env["REDLATCH_ID"])
			}
			require.Equal(t, want, env)
			switch kind {
			case kindSemaphore:
				info, err := c.Semaphore(name).Info(t.Context())
				require.NoError(t, err)
				require.Equal(t, 2, info.Available)
			default:
				info, err := c.Inspect(t.Context(), name)
				require.NoError(t, err)
				require.Empty(t, info.Holders)
			}
		})
	}
}

// While somebody else holds the name, run exits with 75: at once, or when the wait is over.
func TestRunGivesUpWhenItMay(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, kind := range runKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			c := client(t, s)
			if kind == kindRead { // readers exclude writers only
				fixture.Acquire(t, t.Context(), c.RWLock(name).Writer())
			} else if lock := (&session{client: c}).lock(kind, name); lock != nil {
				fixture.Acquire(t, t.Context(), lock)
			}
			spellings := [][]string{{"-n"}, {"-w", "50ms"}}
			if kind == kindLock {
				spellings = append(spellings, []string{"--nonblock"}, []string{"-w", "0s"}, []string{"--wait=50ms"})
			}
			for _, flags := range spellings {
				args := append(append([]string{"run", "--json", "--kind", kind}, flags...), name)
				began := time.Now()
				p := start(t, "redis://"+s.Addr(), append(args, childArgs(t, "exit", "0")...)...)
				require.Equal(t, exitNotAcquired, p.wait(), p.errs)
				requireError(t, p.errs.String(), exitNotAcquired)
				require.Less(t, time.Since(began), soon/2)
			}
		})
	}
}

// A job that ends within its minimum hold runs once, however often it is started. run does not
// wait, and the name is free when the minimum is over.
func TestRunKeepsTheMinimumHold(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	redistest.Together(t, func(run redistest.Run) {
		for _, kind := range []string{kindLock, kindFair, kindFenced, kindWrite, kindPermits} {
			run(kind, func(t *testing.T) {
				long, short := redistest.Name(t)+"-long", redistest.Name(t)+"-short"
				if kind == kindPermits {
					for _, name := range []string{long, short} {
						fixture.InitPool(t, client(t, s).PermitExpirableSemaphore(name), 1)
					}
				}
				run := func(name, status string, flags ...string) int {
					args := append(append([]string{"run", "--kind", kind}, flags...), name)
					p := start(t, "redis://"+s.Addr(), append(args, childArgs(t, "exit", status)...)...)
					return p.wait()
				}
				require.Equal(t, 7, run(long, "7", "--min-hold", "1h", "-n"), "a job that fails keeps it, too")
				require.Equal(t, exitNotAcquired, run(long, "0", "-n"))

				began := time.Now()
				const d = 4 * time.Second
				require.Zero(t, run(short, "0", "--min-hold", d.String(), "-n"))
				require.Zero(t, run(short, "0"))
				require.Greater(t, time.Since(began), d, "it has waited for the end of the minimum")
			})
		}
	})
}

var forwarded = []syscall.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	p := start(t, "redis://"+s.Addr(), append([]string{"run", name}, childArgs(t, "listen", "6")...)...)
	require.Equal(t, "ready", p.line())
	for _, sig := range forwarded {
		p.signal(sig)
		require.Equal(t, sig.String(), p.line())
	}
	require.Equal(t, 9, p.wait(), p.errs)
	require.Empty(t, redistest.Keys(t, s, "*"+name+"*"))
}

// Under nohup, and in the background of a script, run and CMD ignore what they were started to
// ignore. Other signals have their usual effect.
func TestRunLeavesIgnoredSignalsIgnored(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	ignored := []syscall.Signal{syscall.SIGHUP, syscall.SIGINT}
	args := []string{"ignored"}
	for _, sig := range ignored {
		args = append(args, strconv.Itoa(int(sig)))
	}
	cmd := redistest.IgnoringSignals(t, self(t), append([]string{"run", name}, childArgs(t, args...)...)...)
	p := startCommand(t, cmd, environment("redis://"+s.Addr()))
	for _, sig := range ignored {
		require.Equal(t, sig.String()+" true", p.line(), "CMD ignores it")
	}
	require.Equal(t, "ready", p.line())
	for _, sig := range ignored {
		p.signal(sig)
	}
	p.signal(syscall.SIGUSR1)
	require.Equal(t, syscall.SIGUSR1.String(), p.line(), "the first signal that reaches CMD")
	require.Equal(t, 9, p.wait(), p.errs)
}

// Under nohup, a signal that ends a wait is one that redlatch was not started to ignore.
func TestIgnoredSignalsDoNotEndAWait(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for what, command := range map[string][]string{
		"run":     append([]string{"run", "NAME"}, childArgs(t, "exit", "0")...),
		"acquire": {"acquire", "NAME"},
		"latch":   {"latch", "wait", "NAME"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			proxy := s.Proxy(t)
			t.Cleanup(proxy.HoldReplies(func([]string) bool { return true }))
			args := append([]string{"--timeout", "1h"}, command...)
			p := startCommand(t, redistest.IgnoringSignals(t, self(t), args...), environment("redis://"+proxy.Addr()))
			redistest.WaitFor(t, soon, func() bool { return proxy.Held() > 0 }, "it waits for an answer")
			p.signal(syscall.SIGHUP)
			p.signal(syscall.SIGINT)
			p.signal(syscall.SIGTERM)
			require.Equal(t, 128+int(syscall.SIGTERM), p.wait(), p.errs)
		})
	}
}

// The tests of signals pass under nohup, too.
func TestSignalsOfTestsThatIgnoreThem(t *testing.T) {
	t.Parallel()
	redistest.PassIgnoringSignals(t,
		"^TestRunPassesSignalsOn$|^TestRunOnATerminal$|^TestSignalEndsACommandOnASilentServer$/^(ls|run)_")
}

// When CMD has exited and run has said that Redis does not answer the release, a signal ends it.
func TestSignalEndsAReleaseWithoutAnswer(t *testing.T) {
	t.Parallel()
	proxy := redistest.Redis(t).Proxy(t)
	p := start(t, "redis://"+proxy.Addr(), append([]string{"run", redistest.Name(t)}, childArgs(t, "listen", "1")...)...)
	require.Equal(t, "ready", p.line())
	proxy.BlackHole(true)
	p.signal(syscall.SIGUSR1)
	p.line()
	redistest.WaitFor(t, soon, func() bool { return strings.Contains(p.errs.String(), "does not answer") }, "it says so")
	p.signal(syscall.SIGTERM)
	require.Equal(t, -1, p.wait(), "by the signal")
}

// A signal that comes twice, as from timeout(1), ends neither the release of a hold nor the
// clean-up of a wait.
func TestSecondSignalDoesNotEndTheCleanUp(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for what, want := range map[string]int{"release": 9, "wait": 128 + int(syscall.SIGTERM)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for round := 0; ; round++ { // on a busy machine the second signal may come too late
				name := redistest.Name(t)
				queue := "redisson_lock_queue:{" + name + "}"
				proxy := s.Proxy(t)
				count := func(key string) int64 { return s.Client(t).Exists(t.Context(), key).Val() }
				kind, key := kindLock, name // the key goes when the clean-up begins
				if what == "wait" {
					kind, key = kindFair, queue
					fixture.Acquire(t, t.Context(), client(t, s).FairLock(name))
				}
				p := start(t, "redis://"+proxy.Addr(),
					append([]string{"run", "--kind", kind, name}, childArgs(t, "listen", "1")...)...)
				redistest.WaitFor(t, soon, func() bool { return count(key) == 1 }, "it holds or waits")
				if what == "release" {
					require.Equal(t, "ready", p.line())
				}
				answer := func() {}
				if round > 0 { // the first one loads the scripts
					answer = proxy.HoldReplies(redistest.Named("evalsha"))
				}
				began := time.Now()
				p.signal(syscall.SIGTERM)
				redistest.WaitFor(t, soon, func() bool { return count(key) == 0 }, "it cleans up")
				_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have exited
				inTime := time.Since(began) < repeatAfter
				answer()
				if code := p.wait(); round > 0 && inTime {
					require.Equal(t, want, code, p.errs)
					return
				}
			}
		})
	}
}

// A signal ends a wait, and nothing of it is left in Redis.
func TestSignalEndsAWait(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	cases := map[string]syscall.Signal{
		kindFair: syscall.SIGINT, kindFenced: syscall.SIGTERM, kindRead: syscall.SIGINT, kindWrite: syscall.SIGTERM,
		kindSemaphore: syscall.SIGINT, kindPermits: syscall.SIGINT,
	}
	for _, sig := range forwarded {
		for _, what := range []string{kindLock, kindLatch, "acquire"} {
			cases[what+" "+strconv.Itoa(int(sig))] = sig
		}
	}
	for name, sig := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind, _, _ := cutSpace(name)
			name := redistest.Name(t)
			c := client(t, s)
			args := append([]string{"run", "--kind", kind, name}, childArgs(t, "exit", "0")...)
			if kind == "acquire" {
				kind, args = kindLock, []string{"acquire", name}
			}
			switch lock := (&session{client: c}).lock(kind, name); {
			case kind == kindLatch:
				args = []string{"latch", "wait", "-w", "1m", name}
				require.NoError(t, fixture.ErrOf(c.CountDownLatch(name).Init(t.Context(), 1)))
			case kind == kindRead:
				lock = c.RWLock(name).Writer()
				fallthrough
			case lock != nil:
				fixture.Acquire(t, t.Context(), lock)
			}
			before := redistest.Keys(t, s, "*"+name+"*")
			p := start(t, "redis://"+s.Addr(), args...)
			redistest.WaitFor(t, soon, func() bool {
				for _, channel := range redistest.Channels(t, s) {
					if containsName(channel, name) {
						return true
					}
				}
				return false
			}, "it waits")
			p.signal(sig)
			require.Equal(t, 128+int(sig), p.wait(), p.errs)
			require.Empty(t, p.rest())
			for _, key := range redistest.Keys(t, s, "*"+name+"*") {
				if !remembersARequest(key) {
					require.Contains(t, before, key)
				}
			}
		})
	}
}

// A hold that was taken by force: SIGTERM at once, SIGKILL after the full grace, exit code 76.
func TestForcedLossEndsTheCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	redistest.Together(t, func(run redistest.Run) {
		for _, tt := range []struct {
			mode  string
			grace time.Duration
		}{{"term", time.Minute}, {"stubborn", time.Second}, {"parent", time.Second}} {
			run(tt.mode, func(t *testing.T) {
				name := redistest.Name(t)
				args := []string{"run", "--json", "--watchdog", "1s", "--grace", tt.grace.String(), name}
				p := start(t, "redis://"+s.Addr(), append(args, childArgs(t, tt.mode)...)...)
				p.line() // the command runs
				began := time.Now()
				exits(t, 0, "force-release", "--redis", "redis://"+s.Addr(), "--yes", name)
				require.Equal(t, exitLost, p.wait(), p.errs)
				requireError(t, p.errs.String(), exitLost)
				require.Regexp(t, `lost: (forced|gone): `, p.errs.String()) // a young hold is not told of the takeover
				if tt.mode != "term" {
					require.GreaterOrEqual(t, lastBeat(t, p.rest()).Sub(began), tt.grace*3/4, "the full grace, on a busy machine")
				}
				require.Empty(t, redistest.Keys(t, s, name))
			})
		}
	})
}

// A command that does not end in time is killed before somebody else can have the lock, however
// long the grace. The same holds for what it has left in its group.
func TestLossByTimeKillsBeforeTheNextHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	redistest.Together(t, func(run redistest.Run) {
		for name, tt := range map[string]struct {
			mode   string
			flags  []string
			cut    bool // from Redis
			reason primitives.LossReason
		}{
			"lease":             {"stubborn", []string{"--lease", "8s"}, false, primitives.LossLimit},
			"lease, grandchild": {"parent", []string{"--lease", "8s"}, false, primitives.LossLimit},
			"max hold":          {"stubborn", []string{"--max-hold", "8s"}, false, primitives.LossLimit},
			"permits":           {"stubborn", []string{"--kind", "permits", "--lease", "8s"}, false, primitives.LossLimit},
			"cut off":           {"stubborn", []string{"--watchdog", "3s", "--timeout", "2s"}, true, primitives.LossExpired},
		} {
			run(name, func(t *testing.T) {
				lock := redistest.Name(t)
				proxy := s.Proxy(t)
				c := client(t, s)
				next := func() (*primitives.Hold, error) { return c.Lock(lock).Acquire(t.Context()) }
				if tt.flags[1] == kindPermits {
					fixture.InitPool(t, c.PermitExpirableSemaphore(lock), 1)
					next = func() (*primitives.Hold, error) { return c.PermitExpirableSemaphore(lock).Acquire(t.Context()) }
				}
				args := append(append([]string{"run", "--grace", "1h"}, tt.flags...), lock)
				p := start(t, "redis://"+proxy.Addr(), append(args, childArgs(t, tt.mode)...)...)
				p.line() // the command runs
				if tt.cut {
					proxy.BlackHole(true)
				}
				_, err := next()
				acquired := time.Now()
				require.NoError(t, err)
				require.Equal(t, exitLost, p.wait(), p.errs)
				require.Contains(t, p.errs.String(), "lost: "+string(tt.reason)+": ")
				require.Less(t, lastBeat(t, p.rest()), acquired)
			})
		}
	})
}

// A command that ends on SIGTERM is told a tenth of the TTL before the key expires. The key is then
// removed, so that others need not wait for that.
func TestLossByTimeIsToldEarly(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	redistest.Together(t, func(run redistest.Run) {
		for name, flags := range map[string][]string{
			"lease":                         {"--lease", "10s"},
			"max hold shorter than lease":   {"--lease", "1h", "--max-hold", "10s"},
			"lease shorter than max hold":   {"--lease", "10s", "--max-hold", "1h"},
			"max hold shorter than its TTL": {"--max-hold", "10s"},
		} {
			run(name, func(t *testing.T) {
				name := redistest.Name(t)
				stalls := redistest.WatchStalls(t)
				args := append(append([]string{"run"}, flags...), name)
				p := start(t, "redis://"+s.Addr(), append(args, childArgs(t, "term")...)...)
				require.Equal(t, "ready", p.line())
				ttl := s.Client(t).PTTL(t.Context(), name).Val()
				asked := time.Now()
				expires := asked.Add(ttl)
				told := lastBeat(t, []string{p.line()})
				require.InDelta(t, 1, expires.Sub(told).Seconds(), 0.7+stalls.Since(asked.Add(-time.Second)).Seconds())
				require.Equal(t, exitLost, p.wait(), p.errs)
				require.Zero(t, s.Client(t).Exists(t.Context(), name).Val())
			})
		}
	})
}

// On a silent server, run does not wait for ever, and does not claim that somebody else holds the
// lock.
func TestRunOnASilentServer(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	proxy := s.Proxy(t)
	proxy.BlackHole(true)
	for _, args := range [][]string{{"run", "-n"}, {"run", "-w", "300ms"}, {"run"}} {
		p := start(t, "redis://"+proxy.Addr(),
			append(append(args, "--timeout", "500ms", redistest.Name(t)), childArgs(t, "exit", "0")...)...)
		require.Equal(t, exitUnreachable, p.wait(), p.errs)
	}
}

// Messages that nobody reads end neither redlatch, which would leave the lock to its lease, nor
// change how SIGPIPE ends its command.
func TestRunWhoseMessagesNobodyReads(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for command, want := range map[string]int{"exit 7": 7, "kill -PIPE $$": 128 + int(syscall.SIGPIPE)} {
		name := redistest.Name(t)
		read, write, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, read.Close())
		cmd := exec.CommandContext(t.Context(), self(t), "run", "-v", name, "--", "sh", "-c", command)
		cmd.Env = environment("redis://" + s.Addr())
		cmd.Stderr = write
		_ = cmd.Run()
		require.NoError(t, write.Close())
		require.Equal(t, want, cmd.ProcessState.ExitCode(), command)
		require.Zero(t, s.Client(t).Exists(t.Context(), name).Val(), command)
	}
}

// A signal ends a command whose Redis is silent, without waiting for --timeout.
func TestSignalEndsACommandOnASilentServer(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, args := range [][]string{
		append([]string{"run", "name"}, childArgs(t, "exit", "0")...),
		{"acquire", "name"}, {"latch", "wait", "name"}, {"ls"}, {"doctor"}, {"bench"},
	} {
		for _, sig := range forwarded {
			if sig != syscall.SIGINT && args[0] != "run" && args[0] != "acquire" {
				continue
			}
			t.Run(args[0]+" "+sig.String(), func(t *testing.T) {
				t.Parallel()
				proxy := s.Proxy(t)
				t.Cleanup(proxy.HoldReplies(func([]string) bool { return true }))
				p := start(t, "redis://"+proxy.Addr(), append([]string{"--timeout", "1h"}, args...)...)
				redistest.WaitFor(t, soon, func() bool { return proxy.Held() > 0 }, "it waits for an answer")
				p.signal(sig)
				require.Equal(t, 128+int(sig), p.wait(), p.errs)
			})
		}
	}
}

// A name in Redis that is no lock is bad use: waiting would not help.
func TestRunOnAKeyOfAnotherType(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	require.NoError(t, s.Client(t).Set(t.Context(), name, "text", 0).Err())
	p := start(t, "redis://"+s.Addr(), append([]string{"run", name}, childArgs(t, "exit", "0")...)...)
	require.Equal(t, exitUsage, p.wait(), p.errs)
	require.Equal(t, "text", s.Client(t).Get(t.Context(), name).Val())
}

// If redlatch is killed, nobody keeps the lock, so the command must not go on.
func TestKilledRedlatchTakesItsCommandAlong(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("needs Linux: elsewhere the kernel does not do it")
	}
	t.Parallel()
	s := redistest.Redis(t)
	p := start(t, "redis://"+s.Addr(), append([]string{"run", redistest.Name(t)}, childArgs(t, "stubborn")...)...)
	p.line()
	p.signal(syscall.SIGKILL)
	require.Equal(t, -1, p.wait())
	p.rest() // ends, because the command has closed its end
}

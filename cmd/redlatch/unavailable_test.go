//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// If Redis does not answer, run exits with 3, not with 75: also if it falls silent while run waits.
// Its end comes no later than a second after the wait.
func TestRunSaysThatRedisDoesNotAnswer(t *testing.T) {
	t.Parallel()
	silent := redistest.ServeSilence(t)
	s := redistest.Redis(t)
	p := s.Proxy(t)
	name := redistest.Name(t)
	fixture.Acquire(t, t.Context(), client(t, s).Lock(name))
	for what, tt := range map[string]struct {
		url   string
		fault func()
	}{
		"silent from the start": {silent, func() {}},
		"refused":               {"127.0.0.1:1", func() {}},
		"silent while it waits": {p.Addr(), func() { p.BlackHole(true) }},
	} {
		t.Run(what, func(t *testing.T) {
			began := time.Now()
			args := append([]string{"run", "--json", "-w", "1500ms", name}, childArgs(t, "exit", "0")...)
			run := start(t, "redis://"+tt.url, args...)
			time.AfterFunc(700*time.Millisecond, tt.fault)
			require.Equal(t, exitUnreachable, run.wait(), run.errs)
			requireError(t, run.errs.String(), exitUnreachable)
			require.Less(t, time.Since(began), soon)
		})
	}
}

// If Redis falls silent before the release, run says so, and ends 5 s later with the code of its
// command.
func TestRunEndsIfTheReleaseIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	redistest.Together(t, func(run redistest.Run) {
		for kind, want := range map[string]string{
			kindLock:      "may stay held until its lease ends",
			kindSemaphore: "its permits may stay taken",
		} {
			run(kind, func(t *testing.T) {
				p := s.Proxy(t)
				name := redistest.Name(t)
				fixture.InitPool(t, client(t, s).Semaphore(name+"-count"), 1)
				if kind == kindSemaphore {
					name += "-count"
				}
				args := append([]string{"run", "--kind", kind, name}, childArgs(t, "listen", "1")...)
				run := start(t, "redis://"+p.Addr(), args...)
				require.Equal(t, "ready", run.line())
				p.BlackHole(true)
				stalls, began := redistest.WatchStalls(t), time.Now()
				run.signal(syscall.SIGTERM)
				require.Equal(t, 9, run.wait(), run.errs)
				require.Less(t, time.Since(began), releaseTimeout+time.Second+stalls.Since(began))
				require.Contains(t, run.errs.String(), fmt.Sprintf("Redis does not answer the release of %q", name))
				require.Contains(t, run.errs.String(), want)
			})
		}
	})
}

// A command works although one seed of the cluster, or one Sentinel, hangs.
func TestHungSeedOrSentinelStopsNoCommand(t *testing.T) {
	t.Parallel()
	silent := redistest.ServeSilence(t)
	sentinels := redistest.Sentinel(t)
	for topology, tt := range map[string]struct {
		server *redistest.Server
		flags  []string
		times  int // go-redis asks the seeds in a random order
	}{
		"cluster":  {redistest.Cluster(t).Nodes()[0], []string{"--cluster"}, 4},
		"sentinel": {sentinels.Sentinels[0], []string{"--sentinel-master", sentinels.Options().MasterName}, 1},
	} {
		flags := append(tt.flags, "--redis", "redis://"+silent, "--redis", "redis://"+tt.server.Addr())
		for i := range tt.times {
			for _, command := range []string{"acquire --timeout 12s", "acquire --timeout 1h -w 12s", "inspect --timeout 12s"} {
				t.Run(fmt.Sprint(topology, " ", command, " ", i), func(t *testing.T) {
					t.Parallel()
					args := slices.Concat(strings.Fields(command), flags, []string{redistest.Name(t)})
					code, _, stderr := redlatch(t.Context(), args...)
					if strings.HasPrefix(command, "inspect") {
						require.Equal(t, exitFailed, code, stderr) // nothing is held
					} else {
						require.Zero(t, code, stderr)
					}
				})
			}
		}
	}
}

// A server that is not ready yet, as after a boot, is waited for as one that is held: for as long
// as the command waits.
func TestServerThatIsNotReadyIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script.",
	} {
		for _, command := range []string{"run -w 10s name -- true", "acquire -w 10s name", "latch wait name"} {
			t.Run(command, func(t *testing.T) {
				t.Parallel()
				s := redistest.Miniredis(t)
				var ready atomic.Bool
				s.Mini().Server().SetPreHook(func(peer *server.Peer, _ string, _ ...string) bool {
					if !ready.Load() {
						peer.WriteError(answer)
					}
					return !ready.Load()
				})
				began := time.Now()
				exitsOn(t, exitUnreachable, s, "acquire -n", "name")
				require.Less(t, time.Since(began), 3*time.Second, "not the whole command timeout")

				time.AfterFunc(time.Second, func() { ready.Store(true) }) // go-redis alone gives up sooner
				args := strings.Fields("--redis redis://" + s.Addr() + " " + command)
				exits(t, 0, args...)
			})
		}
	}
}

// A wait ends within a second after its limit, even if Redis answers no script, or only the first
// attempt.
func TestWaitEndsIfRedisIsSilent(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	c := client(t, s)
	fixture.Acquire(t, t.Context(), c.Lock(name))
	require.NoError(t, fixture.ErrOf(c.CountDownLatch(name+"-latch").Init(t.Context(), 1)))
	redistest.Together(t, func(run redistest.Run) {
		for _, tt := range []struct {
			verbs, on string
			wait      time.Duration
			answers   int64
		}{
			{"acquire", name, 0, 0},
			{"acquire", name, time.Second, 0},
			{"acquire", name, time.Second, 1},
			{"latch wait", name + "-latch", 0, 0},
			{"latch wait", name + "-latch", time.Second, 0},
		} {
			run(fmt.Sprint(tt.verbs, " ", tt.wait, " ", tt.answers), func(t *testing.T) {
				p := s.Proxy(t)
				var attempts atomic.Int64
				t.Cleanup(p.HoldReplies(func(args []string) bool {
					command := strings.ToLower(args[0])
					if !strings.HasPrefix(command, "eval") && command != "get" {
						return false
					}
					isAttempt := len(args) > 1 && args[1] == scripts.Load("lock/acquire").SHA()
					return !isAttempt || attempts.Add(1) > tt.answers
				}))
				args := append(strings.Fields(tt.verbs), "--json", "--redis", "redis://"+p.Addr(), "-w", tt.wait.String(), tt.on)
				stalls, began := redistest.WatchStalls(t), time.Now()
				code, _, stderr := redlatch(t.Context(), args...)
				require.Less(t, time.Since(began), tt.wait+time.Second+stalls.Since(began))
				require.Equal(t, exitUnreachable, code, stderr)
				requireError(t, stderr, exitUnreachable)
				require.Contains(t, stderr, "no answer for ")
			})
		}
	})
}

// Without --wait, a command whose Redis falls silent ends after one --timeout.
func TestCommandWithoutAWaitEndsAfterOneTimeout(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	scriptsOf := func(names ...string) redistest.Match {
		return func(args []string) bool {
			return slices.ContainsFunc(names, func(name string) bool {
				script := scripts.Load(name)
				return len(args) > 1 && (args[1] == script.SHA() || args[1] == script.Text())
			})
		}
	}
	redistest.Together(t, func(run redistest.Run) {
		for command, unanswered := range map[string]redistest.Match{
			"acquire":    scriptsOf("lock/acquire"),
			"acquire -n": scriptsOf("lock/acquire"),
			"latch wait": scriptsOf("latch/info"),
			"inspect":    scriptsOf("lock/info"), // they look for a hash without expiry
		} {
			run(command, func(t *testing.T) {
				p := s.Proxy(t)
				t.Cleanup(p.HoldReplies(unanswered))
				const timeout = 3 * time.Second
				stalls, began := redistest.WatchStalls(t), time.Now()
				args := append(strings.Fields(command), "--redis", "redis://"+p.Addr(), "--timeout", timeout.String())
				code, _, stderr := redlatch(t.Context(), append(args, redistest.Name(t))...)
				require.Less(t, time.Since(began), 2*timeout-500*time.Millisecond+stalls.Since(began))
				require.Equal(t, exitUnreachable, code, stderr)
				require.Contains(t, stderr, "Redis unavailable: no answer")
			})
		}
	})
}

// A wait in vain for a cluster that is down says what it answers.
func TestLatchWaitSaysWhatRedisAnswers(t *testing.T) {
	t.Parallel()
	const down = "CLUSTERDOWN The cluster is down"
	s := redistest.Miniredis(t)
	s.Mini().Server().SetPreHook(func(peer *server.Peer, command string, _ ...string) bool {
		isScript := strings.HasPrefix(strings.ToLower(command), "eval")
		if isScript {
			peer.WriteError(down)
		}
		return isScript
	})
	for _, flags := range []string{"-w 0s", "-w 300ms", "-w 3s --timeout 500ms", "--timeout 500ms"} {
		t.Run(flags, func(t *testing.T) {
			t.Parallel()
			_, stderr := exitsOn(t, exitUnreachable, s, "latch wait "+flags, "name")
			require.Contains(t, stderr, down)
		})
	}
}

// The message of exit code 75 names the holder and its client, whatever the kind; of a plain
// semaphore, how many permits are left.
func TestRefusalNamesTheHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	c := client(t, s, primitives.WithClientName("web-7"))
	for kind, held := range map[string]string{
		kindLock: kindLock, kindFair: kindFair, kindFenced: kindFenced, kindRead: kindWrite, kindWrite: kindRead,
		kindPermits: kindPermits, kindSemaphore: kindSemaphore,
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			x := &session{client: c}
			switch kind {
			case kindSemaphore:
				fixture.InitPool(t, c.Semaphore(name), 0)
			case kindPermits:
				fixture.InitPool(t, c.PermitExpirableSemaphore(name), 1)
			}
			want := "0 permits are free"
			if kind != kindSemaphore {
				hold := fixture.Acquire(t, t.Context(), x.acquirer(held, name))
				want = "held by " + hold.ID() + " of web-7 for another "
				redistest.WaitFor(t, soon, func() bool { // its name is announced in the background
					info, err := x.acquirer(held, name).Info(t.Context())
					return err == nil && len(info.Holders) == 1 && info.Holders[0].Client != ""
				}, "the holder has a name")
			}
			// The wait leaves a busy machine the time for the answer to the first attempt.
			for _, wait := range [][]string{{"-n"}, {"-w", "1s"}} {
				_, stderr := exitsOn(t, exitNotAcquired, s, "run --kind "+kind, append(wait, name, "--", "true")...)
				require.Contains(t, stderr, want)
			}
		})
	}
}

// A name that is held as another kind is refused, too. The message names that holder.
func TestRefusalNamesAHolderOfAnotherKind(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for kind, held := range map[string]string{
		kindRead: kindLock, kindWrite: kindFenced, kindLock: kindRead, kindFenced: kindWrite, kindFair: kindWrite,
	} {
		name := redistest.Name(t)
		hold := fixture.Acquire(t, t.Context(), (&session{client: client(t, s)}).lock(held, name))
		_, stderr := exitsOn(t, exitNotAcquired, s, "run --kind "+kind, "-n", name, "--", "true")
		require.Contains(t, stderr, "held by "+hold.ID())
		_, stderr = exitsOn(t, exitFailed, s, "inspect --kind "+kind, name)
		require.Contains(t, stderr, "inspect "+kind+" \""+name+"\": the key holds a ")
		fixture.Release(t, hold)
	}
}

// A pool that nobody has set up is a mistake more often than a busy one, so the message says what
// to do.
func TestRefusalOfAPoolWithoutACount(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, kind := range []string{kindSemaphore, kindPermits} {
		name := redistest.Name(t)
		_, stderr := exitsOn(t, exitNotAcquired, s, "run --kind "+kind, "-n", name, "--", "true")
		require.Contains(t, stderr, "it has no count yet; set it with: redlatch "+kind+" init NAME N")
	}
}

// With --json an error has the same text, but without the program's name.
func TestJSONErrorsDoNotNameTheProgram(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	_, stderr := exitsOn(t, exitUsage, s, "semaphore init --json", redistest.Name(t), "-1")
	require.Contains(t, stderr, `{"error":"init semaphore`)
}

func TestTextOfALatchThatStaysShut(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	exitsOn(t, 0, s, "latch init", name, "1")
	_, stderr := exitsOn(t, exitNotAcquired, s, "latch wait -w 50ms", name)
	require.Equal(t, fmt.Sprintf("redlatch: latch %q is not open after 50ms\n", name), stderr)
}

// A URL with the wrong scheme gets no answer, or an end of the connection: the message asks about
// TLS.
func TestMessageAboutTLS(t *testing.T) {
	t.Parallel()
	plain := redistest.Fresh(t)
	_, secure := redistest.FreshTLS(t)
	var o redis.Options
	secure(&o)
	for url, tt := range map[string]struct{ timeout, want string }{
		"rediss://" + plain.Addr(): {"1s", "no answer within 1s: does the server use TLS, as rediss:// says?"},
		"redis://" + o.Addr:        {"20s", "EOF: does the server expect TLS (rediss://)?"},
	} {
		_, stderr := exits(t, exitUnreachable, "ls", "--timeout", tt.timeout, "--redis", url)
		require.Contains(t, stderr, tt.want)
	}
}

// Sentinels may have a user and a password of their own.
func TestSentinelsWithAPassword(t *testing.T) {
	t.Parallel()
	servers := redistest.Sentinel(t)
	o := servers.Options()
	for _, sentinel := range servers.Sentinels {
		sentinel.SetUser(t, "watcher", "on", ">"+redistest.Password, "+@all", "&*")
		sentinel.SetUser(t, "default", "off")
	}
	env := environment("redis://" + o.SentinelAddrs[0])
	args := []string{"run", "--sentinel-master", o.MasterName, "x", "--", "true"}
	p := startIn(t, env, args...)
	require.Equal(t, exitUnreachable, p.wait(), p.errs)
	env = append(env, sentinelUserVariable+"=watcher", sentinelPasswordVariable+"="+redistest.Password)
	p = startIn(t, env, args...)
	require.Zero(t, p.wait(), p.errs)
}

package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// testCommand is a command that only connects.
func testCommand(f func(redis.UniversalClient)) *cli.Command {
	return &cli.Command{Name: "test", Action: func(_ context.Context, c *cli.Command) error {
		rdb, _, err := connect(c)
		if err == nil {
			f(rdb)
			_ = rdb.Close()
		}
		return err
	}}
}

// Every command has an example in its help, and the examples work.
func TestExamplesOfHelp(t *testing.T) {
	t.Parallel()
	root := app(nil, nil, nil)
	root.Writer = io.Discard
	require.NoError(t, root.Run(t.Context(), []string{"redlatch", "completion", "bash"})) // adds that command
	require.NoError(t, root.Walk(func(c *cli.Command) error {
		if c.Hidden {
			return nil
		}
		_, examples, found := strings.Cut(c.Description, "\nExample")
		require.True(t, found, "%s --help has no example", c.FullName())
		_, help, _ := redlatch(t.Context(), append(strings.Fields(c.FullName())[1:], "--help")...)
		require.Contains(t, help, "Example")
		for line := range strings.Lines(help) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), helpWidth+1, "%s --help: %s", c.FullName(), line)
		}
		t.Run(c.FullName(), func(t *testing.T) {
			t.Parallel()
			s := redistest.Miniredis(t)
			prepare(t, s, c.FullName())
			run := shell(t, s.Addr())
			for _, line := range strings.Split(strings.TrimSpace(examples), "\n")[1:] {
				if line = strings.TrimSpace(line); line == "" {
					break
				}
				code, output := run(line)
				require.Zero(t, code, "%s: %s", line, output)
				require.NotEmpty(t, output, line)
			}
		})
		return nil
	}))
}

// prepare makes what the examples of a command refer to.
func prepare(t *testing.T, s *redistest.Server, command string) {
	c := client(t, s)
	switch words := strings.Fields(command); {
	case command == "redlatch torture":
		redistest.NeedFull(t, "half a minute of faults")
		redistest.Require(t, redistest.NeedRedis)
	case slices.Contains([]string{"redlatch inspect", "redlatch ls", "redlatch ask"}, command):
		for _, lock := range []*primitives.Lock{c.Lock("orders:42"), c.FairLock("printer")} {
			fixture.Acquire(t, t.Context(), lock)
		}
	case strings.HasSuffix(command, "release"):
		_, err := c.Lock("orders:42").Acquire(t.Context(),
			primitives.WithOwner("0190b5a1-2f6e-4b1c-8a53-6f1f6d1e9c11:7"), primitives.WithLease(time.Hour))
		require.NoError(t, err)
	case len(words) == 3 && words[2] != "init" && words[2] != "wait":
		var err error
		switch words[1] {
		case kindSemaphore:
			_, err = c.Semaphore("workers").Init(t.Context(), 3)
		case kindPermits:
			_, err = c.PermitExpirableSemaphore("workers").Init(t.Context(), 3)
		case kindLatch:
			_, err = c.CountDownLatch("ready").Init(t.Context(), 3)
		}
		require.NoError(t, err)
	}
}

// The scripts of completion are valid, and offer commands and flags.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, _ := exits(t, 0, "completion", shell)
		require.Contains(t, script, "redlatch")
		if path, err := exec.LookPath(shell); err == nil {
			cmd := exec.CommandContext(t.Context(), path, "-n")
			cmd.Stdin = strings.NewReader(script)
			output, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", shell, output)
		}
	}
	_, stdout, _ := redlatch(t.Context(), "run", "--no", "--generate-shell-completion")
	require.Contains(t, stdout, "--nonblock")
	bash, err := exec.LookPath("bash")
	if err != nil {
		return
	}
	run := shell(t, redistest.Miniredis(t).Addr())
	_, script, _ := redlatch(t.Context(), "completion", "bash")
	for line, want := range map[string]string{
		"redlatch in":               "inspect",
		"redlatch semaphore dr":     "drain",
		"redlatch run --max":        "--max-hold",
		"redlatch ls --sentinel":    "--sentinel-master",
		"redlatch latch count-down": "count-down",
	} {
		words := "'" + strings.Join(strings.Fields(line), "' '") + "'"
		file := filepath.Join(t.TempDir(), "complete")
		require.NoError(t, os.WriteFile(file, []byte(script+"\nCOMP_WORDS=("+words+
			")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_redlatch_completion\necho \"${COMPREPLY[@]}\""), 0o600))
		code, output := run(bash + " --norc " + file)
		require.Zero(t, code, output)
		require.Equal(t, want, strings.TrimSpace(output), line)
	}
}

// The examples of the pages work, in their order. A number after # is the exit code. A text below a
// command is its output.
func TestExamplesOfThePages(t *testing.T) {
	t.Parallel()
	for page, sections := range map[string]map[string]func(*testing.T) (addr string){
		"cli.md":       {"": anyServer},
		"setup.md":     {"": func(t *testing.T) string { return redistest.Fresh(t).Addr() }},
		"../README.md": {"": anyServer},
		"runbooks.md": {
			"A lock that seems stuck":           withAHeldLock,
			"A semaphore that gives no permits": withoutPermits,
			"Many losses": func(t *testing.T) string {
				return redistest.Fresh(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru").Addr()
			},
			"Redis unreachable": func(*testing.T) string { return "127.0.0.1:1" },
			"A slow shard": func(t *testing.T) string {
				p := redistest.Fresh(t).Proxy(t)
				p.Delay(60 * time.Millisecond)
				return p.Addr()
			},
		},
	} {
		text, err := os.ReadFile("../../doc/" + page)
		require.NoError(t, err)
		for section, prepare := range sections {
			t.Run(page+"/"+section, func(t *testing.T) {
				t.Parallel()
				examples := string(text)
				if section != "" {
					_, examples, _ = strings.Cut(examples, "\n## "+section+"\n")
					examples, _, _ = strings.Cut(examples, "\n## ")
				}
				runExamples(t, examples, page == "runbooks.md", shell(t, prepare(t)))
			})
		}
	}
}

// anyServer returns an empty server.
func anyServer(t *testing.T) (addr string) { return redistest.Miniredis(t).Addr() }

// runExamples runs the shell blocks of a page. If compares is set, a text block has the output of
// the command before it. A number after # is the exit code, if it is not 0. The lines for go build
// programs, as other tests do.
func runExamples(t *testing.T, page string, compares bool, run func(line string) (code int, output string)) {
	blocks := regexp.MustCompile("(?s)```(sh|text)\n(.*?)```").FindAllStringSubmatch(page, -1)
	require.NotEmpty(t, blocks)
	output := ""
	for _, block := range blocks {
		if block[1] == "text" {
			if compares {
				requireOutput(t, block[2], output)
			}
			continue
		}
		for line := range strings.Lines(block[2]) {
			command, comment, _ := strings.Cut(strings.TrimSpace(line), " # ")
			if strings.HasPrefix(comment, "not in the test") || strings.HasPrefix(command, "go ") {
				continue
			}
			want, _ := strconv.Atoi(regexp.MustCompile(`^\d+`).FindString(comment))
			var code int
			code, output = run(command)
			require.Equal(t, want, code, "%s\n%s", command, output)
		}
	}
}

// requireOutput checks that output has the lines of a page, which differ in ids and numbers. "..."
// stands for any lines.
func requireOutput(t *testing.T, want, output string) {
	random := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}:\d+|[0-9a-f]{32}|\b\d+(\.\d+)?(µs|ms|s| s)\b| +`)
	plain := func(s string) []string {
		return strings.Split(strings.TrimSpace(random.ReplaceAllStringFunc(s, func(found string) string {
			if strings.TrimSpace(found) == "" {
				return " "
			}
			return "?"
		})), "\n")
	}
	got, skips := plain(output), false
	for _, line := range plain(want) {
		if line == "..." {
			skips = true
			continue
		}
		i := slices.Index(got, line)
		require.True(t, i == 0 || (skips && i > 0), "%q is not at its place in\n%s", line, output)
		got, skips = got[i+1:], false
	}
	require.True(t, skips || len(got) == 0, "the page lacks %q", got)
}

// withAHeldLock returns a server on which web-7 holds a lock, and web-8 waits for it.
func withAHeldLock(t *testing.T) string {
	s := redistest.Miniredis(t)
	lock := client(t, s, primitives.WithClientName("web-7:4711")).Lock("orders:42")
	fixture.Acquire(t, t.Context(), lock)
	waiter := client(t, s, primitives.WithClientName("web-8:4711")).Lock("orders:42")
	go func() { _, _ = waiter.Acquire(t.Context()) }()
	redistest.WaitFor(t, soon, func() bool {
		info, err := lock.Info(t.Context())
		return err == nil && info.Holders[0].Client != "" && len(redistest.Channels(t, s)) > 1
	}, "the holder's name is known, and the waiter listens")
	return s.Addr()
}

// withoutPermits returns a server with a semaphore that nobody can acquire, and permits that are
// held.
func withoutPermits(t *testing.T) string {
	s := redistest.Miniredis(t)
	c := client(t, s, primitives.WithClientName("web-7:4711"))
	fixture.InitPool(t, c.Semaphore("workers"), 0)
	slots := c.PermitExpirableSemaphore("slots")
	fixture.InitPool(t, slots, 2)
	fixture.Acquire(t, t.Context(), slots)
	redistest.WaitFor(t, soon, func() bool {
		info, err := slots.Info(t.Context())
		return err == nil && info.Holders[0].Client != ""
	}, "the holder's name is known")
	return s.Addr()
}

// shell returns a function that runs a line of shell, in which redlatch uses the server at addr.
// The default address is replaced by addr, and what would run for long is cut short. There is a
// script ship.sh.
func shell(t *testing.T, addr string) func(line string) (code int, output string) {
	bin := t.TempDir()
	path, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(path, filepath.Join(bin, "redlatch")))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "ship.sh"), []byte("#!/bin/sh\n"), 0o700))
	for name, text := range eventFiles {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o600))
	}
	adapt := strings.NewReplacer("localhost:6379", addr, "--seconds 10", "--seconds 0.3")
	return func(line string) (int, string) {
		line = adapt.Replace(line)
		if strings.Contains(line, "watch --http") { // it would not end, and the port may be taken
			line = "timeout -s INT 1 " + strings.Replace(line, ":8080", ":0", 1) + "; test $? = 124"
		} else if strings.Contains(line, "redlatch watch") && !strings.Contains(line, "|") {
			line += " | head -n 1" // otherwise it would not end
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Env = environment("redis://"+addr, "PATH="+bin+":"+os.Getenv("PATH"))
		cmd.Dir = bin
		output, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(output)
	}
}

// The parser's own text names a flag with one hyphen, which nobody has typed.
func TestUnknownFlagIsNamedAsItWasTyped(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--foo", "-x"} {
		_, stderr := exits(t, exitUsage, "run", flag, "x", "--", "true")
		require.Equal(t, "redlatch: no flag "+flag+" (see redlatch run --help)\n", stderr)
	}
}

// The commands of doc/rollout.md find the lock that the other side holds. A client holds it in the
// place of Java.
func TestCommandsOfTheRollout(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../doc/rollout.md")
	require.NoError(t, err)
	var lines []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for line := range strings.Lines(block[1]) {
			command, _, _ := strings.Cut(strings.TrimSpace(line), " # ")
			lines = append(lines, command)
		}
	}
	require.Len(t, lines, 4)
	s := redistest.Miniredis(t)
	run := shell(t, s.Addr())
	lock := client(t, s, primitives.WithPrefix("shop:")).Lock("migration-check")
	hold := fixture.Acquire(t, t.Context(), lock)

	code, output := run(lines[0])
	require.Zero(t, code, output)
	require.Contains(t, output, hold.ID())
	code, output = run(lines[1])
	require.Equal(t, exitNotAcquired, code, output)
	go func() {
		time.Sleep(300 * time.Millisecond)
		_ = hold.Release(t.Context())
	}()
	code, output = run(lines[2])
	require.Zero(t, code, output)
	require.NotEmpty(t, output, "the date")
	code, output = run(strings.Replace(lines[3], "sleep 60", "sleep 0", 1))
	require.Zero(t, code, output)
}

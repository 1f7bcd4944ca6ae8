//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// --busy-exit replaces the exit code only if somebody else has the name, and --quiet says nothing
// then.
func TestBusyExit(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	fixture.Acquire(t, t.Context(), client(t, s).Lock(name))
	silent := s.Proxy(t)
	silent.BlackHole(true)
	nobody := s.Proxy(t)
	nobody.Refuse(true)
	for _, command := range []string{"run", "acquire"} {
		for title, tt := range map[string]struct {
			url    string
			flags  string
			name   string
			want   int
			output bool // on standard error
		}{
			"without the flag":               {s.Addr(), "-n", name, exitNotAcquired, true},
			"at once":                        {s.Addr(), "-n -E 0", name, 0, true},
			"after a wait":                   {s.Addr(), "-w 50ms --busy-exit 42", name, 42, true},
			"quietly":                        {s.Addr(), "-nqE 0", name, 0, false},
			"quietly, with 75":               {s.Addr(), "-n --quiet --json", name, exitNotAcquired, false},
			"it has no count":                {s.Addr(), "-nqE 0 --kind permits", name + "-none", exitNotAcquired, true},
			"Redis is down":                  {nobody.Addr(), "-nqE 0", name, exitUnreachable, true},
			"Redis is silent":                {silent.Addr(), "-nqE 0 --timeout 300ms", name, exitUnreachable, true},
			"Redis is silent for a moment":   {silent.Addr(), "-nqE 0 --timeout 30ms", name, exitUnreachable, true},
			"Redis is silent during a wait":  {silent.Addr(), "-q -E 0 -w 30ms", name, exitUnreachable, true},
			"the name is that of other data": {s.Addr(), "-nqE 0 --kind semaphore", name, exitUsage, true},
			"a code that is too large":       {s.Addr(), "-n -E 256", name, exitUsage, true},
			"a code below 0":                 {s.Addr(), "-n --busy-exit=-1", name, exitUsage, true},
		} {
			isAcquireOfSemaphore := command == "acquire" && strings.Contains(tt.flags, "semaphore")
			if isAcquireOfSemaphore {
				continue // it has no id
			}
			t.Run(command+" "+title, func(t *testing.T) {
				t.Parallel()
				args := append(append([]string{command, "--redis", "redis://" + tt.url}, strings.Fields(tt.flags)...), tt.name)
				if command == "run" {
					args = append(args, "--", "true")
				}
				code, stdout, stderr := redlatch(t.Context(), args...)
				require.Equal(t, tt.want, code, stderr)
				require.Empty(t, stdout)
				require.Equal(t, tt.output, stderr != "", stderr)
			})
		}
	}
}

// elect ends as its command does, and with signals, which stop the command first. Nothing stays in
// Redis.
func TestElectEnds(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for name, tt := range map[string]struct {
		child  []string
		signal syscall.Signal
		want   int
	}{
		"the command succeeds": {childArgs(t, "exit", "0"), 0, 0},
		"the command fails":    {childArgs(t, "exit", "7"), 0, 7},
		"it cannot be found":   {[]string{"--", "/no/such/file"}, 0, exitNotFound},
		"SIGTERM":              {childArgs(t, "term"), syscall.SIGTERM, 128 + 15},
		"SIGINT":               {childArgs(t, "term"), syscall.SIGINT, 128 + 2},
		"SIGHUP":               {childArgs(t, "term"), syscall.SIGHUP, 128 + 1},
		"another signal":       {childArgs(t, "listen", "1"), syscall.SIGUSR1, 9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := redistest.Name(t)
			p := start(t, "redis://"+s.Addr(), append([]string{"elect", lock}, tt.child...)...)
			if tt.signal != 0 {
				require.Equal(t, "ready", p.line())
				p.signal(tt.signal)
			}
			require.Equal(t, tt.want, p.wait(), p.errs)
			leader, err := client(t, s).Election(lock).Leader(t.Context())
			require.NoError(t, err)
			require.Zero(t, leader)
		})
	}
}

// A second host leads when the first one has given the leadership back, or has lost it, with a
// greater token. A signal ends a host that only stands.
func TestElectHandsOver(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	lock := redistest.Name(t)
	host := func(args ...string) *program {
		return start(t, "redis://"+s.Addr(), append([]string{"elect", "-v", lock}, childArgs(t, args...)...)...)
	}
	rdb := s.Client(t)
	stands := func(which string) {
		t.Helper()
		redistest.WaitFor(t, soon, func() bool {
			return rdb.ZCard(t.Context(), "redisson_unlock_latch:{"+lock+"}:line").Val() > 0
		}, which+" stands")
	}
	first := host("term")
	require.Equal(t, "ready", first.line())
	second := host("term")
	stands("the second one")
	c := client(t, s)
	leads := func(p *program) func() bool {
		return func() bool { return strings.Contains(p.errs.String(), "leads") }
	}
	require.True(t, leads(first)())
	require.NoError(t, fixture.ErrOf(c.FencedLock(lock).ForceRelease(t.Context())))
	redistest.WaitFor(t, soon, leads(second), "the second one leads")
	require.Equal(t, "ready", second.line())
	redistest.WaitFor(t, soon, func() bool { return strings.Contains(first.errs.String(), "no longer leads") }, "stopped")
	require.Contains(t, first.errs.String(), "with token 1")
	require.Contains(t, second.errs.String(), "with token 2")
	stands("the first one")
	second.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, second.wait())
	_ = first.line() // when it was stopped
	require.Equal(t, "ready", first.line(), "it leads again")

	third := host("term")
	stands("the third one")
	third.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, third.wait())
	first.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, first.wait())
}

// A command that does not exist is near to one that does.
func TestUnknownCommands(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"rnu":                 `did you mean "run"?`,
		"insepct x":           `did you mean "inspect"?`,
		"help force-relaese":  `did you mean "force-release"?`,
		"help semaphore inti": `did you mean "init"?`,
		"semaphore inti x":    `did you mean "init"?`,
		"frobnicate":          "no command \"frobnicate\" (see",
	} {
		stdout, stderr := exits(t, exitUsage, strings.Fields(line)...)
		require.Empty(t, stdout, line)
		require.Contains(t, stderr, want, line)
	}
	for _, words := range []string{"run", "semaphore init", "latch", "elect"} {
		_, want, _ := redlatch(t.Context(), append(strings.Fields(words), "--help")...)
		help, _ := exits(t, 0, append([]string{"help"}, strings.Fields(words)...)...)
		require.Equal(t, want, help, words)
	}
}

// ask reaches a command that runs with --on-wanted, and only that: its group gets no signal. A
// waiter does, too.
func TestAskReachesTheCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for name, want := range map[string]func(t *testing.T, lock string){
		"somebody asks": func(t *testing.T, lock string) {
			stdout, _ := exitsOn(t, 0, s, "ask --json", lock)
			requireJSON(t, stdout, fields{"name": lock, "kind": "lock", "told": 1})
		},
		"somebody waits": func(t *testing.T, lock string) {
			c := client(t, s)
			waits := fixture.Start(func() (*primitives.Hold, error) { return c.Lock(lock).Acquire(t.Context()) })
			fixture.AwaitHold(t, waits)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := redistest.Name(t)
			p := start(t, "redis://"+s.Addr(),
				append([]string{"run", "--on-wanted", "usr1", lock}, childArgs(t, "listen", "1")...)...)
			require.Equal(t, "ready", p.line())
			want(t, lock)
			require.Equal(t, syscall.SIGUSR1.String(), p.line())
			require.Equal(t, 9, p.wait())
		})
	}
	exitsOn(t, exitFailed, s, "ask", redistest.Name(t))
	for _, args := range [][]string{
		{"run", "--on-wanted", "USR7", "x", "--", "true"}, {"ask", "--kind", "semaphore", "x"}, {"ask"},
	} {
		exits(t, exitUsage, args...)
	}
}

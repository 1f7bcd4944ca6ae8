package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/demo"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// asProgram runs the binary as redlatch, or as a command that redlatch runs, if it was started as
// such.
var asProgram func()

func TestMain(m *testing.M) {
	if asProgram != nil {
		asProgram() // the tests of run start this binary again
	}
	redis.SetLogger(discard{}) // as main does
	_ = os.Setenv(urlVariable, unreachable)
	os.Exit(redistest.Main(m))
}

// unreachable is the URL in the environment of all tests: none of them must use a server that it
// does not name.
const unreachable = "redis://127.0.0.1:1"

// redlatch runs the command line and returns its exit code and output.
func redlatch(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"redlatch"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestHelpNamesCommandsAndFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"demo", "version", "--help"}},
		{[]string{"--help"}, []string{"demo", "version"}},
		{[]string{"demo", "--help"}, []string{
			"--redis URL", "REDLATCH_REDIS", "--only SCENES", "--key-prefix", "check failed", "Scenes:",
		}},
		{[]string{"acquire", "orders:42", "--help"}, []string{"redlatch acquire - ", "--lease", "Examples:"}},
		{[]string{"run", "--help", "orders:42", "--", "true"}, []string{"redlatch run - ", "--grace", "Examples:"}},
		{[]string{"latch", "wait", "-h", "ready"}, []string{"redlatch latch wait - ", "--wait", "Example:"}},
		{[]string{"version"}, []string{"redlatch version", "go1."}},
		{[]string{"--version"}, []string{"redlatch version", "go1."}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			stdout, stderr := exits(t, 0, tt.args...)
			require.Empty(t, stderr)
			for _, want := range tt.want {
				require.Contains(t, stdout, want)
			}
		})
	}
}

// The demo takes none of the flags that all other commands share, and its help shows none of them.
func TestHelpOfTheDemo(t *testing.T) {
	_, stdout, _ := redlatch(t.Context(), "demo", "--help")
	require.NotContains(t, stdout, "--json")
	require.NotContains(t, stdout, "--cluster")
	_, stderr := exits(t, exitUsage, "demo", "--json")
	require.Contains(t, stderr, "demo has no flag --json")
}

func TestHelpListsTheScenes(t *testing.T) {
	_, stdout, _ := redlatch(t.Context(), "demo", "--help")
	stdout = strings.Join(strings.Fields(stdout), " ") // long lines are broken
	for _, sc := range demo.Scenes() {
		require.Contains(t, stdout, " "+sc.Name+" "+sc.Shows+" ")
	}
}

func TestHelpHidesThePassword(t *testing.T) {
	t.Setenv("REDLATCH_REDIS", "redis://:hush@localhost")
	_, stdout, _ := redlatch(t.Context(), "demo", "--help")
	require.NotContains(t, stdout, "hush")
}

// A command that cannot start prints the reason on one line and exits with 2.
func TestBadUsageExitsWithTwo(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"command":     {[]string{"dmeo"}, `no command "dmeo"`},
		"flag":        {[]string{"demo", "--olny=lock"}, "olny"},
		"global flag": {[]string{"--quick"}, "quick"},
		"argument":    {[]string{"demo", "lock"}, "takes no arguments"},
		"no value":    {[]string{"demo", "--redis"}, "redis"},
		"scene":       {[]string{"demo", "--only", "lock,fiar"}, `no scene "fiar"; scenes are cron, cutoff, lock, crash`},
		"prefix":      {[]string{"demo", "--key-prefix="}, "--key-prefix is empty"},
		"URL":         {[]string{"demo", "--redis", "localhost:6379"}, "--redis"},
		"secret URL":  {[]string{"demo", "--redis", "redis://:hush@local host"}, "--redis"},
		"no Redis":    {[]string{"demo", "--redis", "redis://127.0.0.1:1"}, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr := exits(t, exitUsage, tt.args...)
			require.Empty(t, stdout)
			require.Contains(t, stderr, tt.want)
			require.True(t, strings.HasPrefix(stderr, "redlatch: "), stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.NotContains(t, stderr, "hush")
		})
	}
}

// The error of a bad URL names where it came from.
func TestBadURLFromTheEnvironment(t *testing.T) {
	t.Setenv(urlVariable, "localhost:6379")
	_, stderr := exits(t, exitUsage, "ls")
	require.Contains(t, stderr, "$REDIS_URL: bad URL")
	_, stderr = exits(t, exitUsage, "ls", "--redis", "localhost:6379")
	require.Contains(t, stderr, "--redis: bad URL")
}

func TestRedisFromTheEnvironment(t *testing.T) {
	t.Setenv("REDLATCH_REDIS", unreachable)
	_, stderr := exits(t, exitUsage, "demo")
	require.Contains(t, stderr, "127.0.0.1:1")
}

// -w takes its value with a blank, with "=" and attached. The arguments of run's command stay as
// they are.
func TestWaitTakesItsValueInAnyWay(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	require.NoError(t, s.Client(t).HSet(t.Context(), "name", "somebody", 1).Err())
	for _, wait := range []string{"-w 20ms", "-w=20ms", "-w20ms", "-vw20ms", "-w.02s", "--wait 20ms"} {
		exitsOn(t, exitNotAcquired, s, "run", append(strings.Fields(wait), "name", "--", "true")...)
	}
	for args, want := range map[string]string{
		"-nw20ms name": "--nonblock and --wait exclude each other",
		"-w-1s name":   "--wait -1s is negative",
		"-w2x name":    `invalid value "2x" for -w: time: unknown unit "x"`,
	} {
		_, stderr := exitsOn(t, exitUsage, s, "acquire", strings.Fields(args)...)
		require.Contains(t, stderr, want)
	}
	command := strings.Fields("redlatch run -w 1s name -- cut -w1 -nw2")
	require.Equal(t, command, detachWait(command))
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
		{"watch", "--http", "127.0.0.1:0", "--once", "page.html"},
		{"watch", "--http", "nowhere:port"},
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
			stdout, stderr := exits(t, exitUsage, args...)
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
			exits(t, exitUsage, append([]string{args[0], "--redis", url}, args[1:]...)...)
		}
	}
}

// The command starts servers for torture with the package that our tests use, too. It links no
// library for tests.
func TestCommandLinksNoLibraryForTests(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, "github.com/redlatch/redlatch/primitives")
	for _, path := range packages {
		for _, library := range []string{
			"github.com/stretchr/testify", "go.uber.org/goleak", "pgregory.net/rapid", "go.yaml.in",
		} {
			require.False(t, strings.HasPrefix(path, library), path)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// asProgram runs the binary as redlatch, or as a command that redlatch runs, if it was started as such.
var asProgram func()

func TestMain(m *testing.M) {
	if asProgram != nil {
		asProgram() // the tests of run start this binary again
	}
	redis.SetLogger(discard{}) // as main does
	_ = os.Setenv(urlVariable, unreachable)
	os.Exit(redistest.Main(m))
}

// unreachable is the URL in the environment of all tests: none of them must use a server that it does not name.
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
			code, stdout, stderr := redlatch(t.Context(), tt.args...)
			require.Zero(t, code)
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
	code, _, stderr := redlatch(t.Context(), "demo", "--json")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "demo has no flag --json")
}

func TestHelpListsTheScenes(t *testing.T) {
	_, stdout, _ := redlatch(t.Context(), "demo", "--help")
	stdout = strings.Join(strings.Fields(stdout), " ") // long lines are broken
	for _, sc := range scenes() {
		require.Contains(t, stdout, " "+sc.name+" "+sc.shows+" ")
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
		"scene":       {[]string{"demo", "--only", "lock,fiar"}, `no scene "fiar"; scenes are lock, crash, cutoff, fair`},
		"prefix":      {[]string{"demo", "--key-prefix="}, "--key-prefix is empty"},
		"URL":         {[]string{"demo", "--redis", "localhost:6379"}, "--redis"},
		"secret URL":  {[]string{"demo", "--redis", "redis://:hush@local host"}, "--redis"},
		"no Redis":    {[]string{"demo", "--redis", "redis://127.0.0.1:1"}, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := redlatch(t.Context(), tt.args...)
			require.Equal(t, exitUsage, code)
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
	code, _, stderr := redlatch(t.Context(), "ls")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "$REDIS_URL: bad URL")
	code, _, stderr = redlatch(t.Context(), "ls", "--redis", "localhost:6379")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "--redis: bad URL")
}

func TestRedisFromTheEnvironment(t *testing.T) {
	t.Setenv("REDLATCH_REDIS", unreachable)
	code, _, stderr := redlatch(t.Context(), "demo")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "127.0.0.1:1")
}

// -w takes its value with a blank, with "=" and attached. The arguments of run's command stay as they are.
func TestWaitTakesItsValueInAnyWay(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	require.NoError(t, s.Client(t).HSet(t.Context(), "name", "somebody", 1).Err())
	for _, wait := range []string{"-w 20ms", "-w=20ms", "-w20ms", "-vw20ms", "-w.02s", "--wait 20ms"} {
		code, _, stderr := on(t, s, "run", append(strings.Fields(wait), "name", "--", "true")...)
		require.Equal(t, exitNotAcquired, code, "%s: %s", wait, stderr)
	}
	for args, want := range map[string]string{
		"-nw20ms name": "--nonblock and --wait exclude each other",
		"-w-1s name":   "--wait -1s is negative",
		"-w2x name":    `invalid value "2x" for -w: time: unknown unit "x"`,
	} {
		code, _, stderr := on(t, s, "acquire", strings.Fields(args)...)
		require.Equal(t, exitUsage, code, stderr)
		require.Contains(t, stderr, want)
	}
	command := strings.Fields("redlatch run -w 1s name -- cut -w1 -nw2")
	require.Equal(t, command, detachWait(command))
}

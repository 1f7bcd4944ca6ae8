package redistest

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestSharedRedisCannotBeStopped(t *testing.T) {
	s := Redis(t)
	require.Same(t, s, Redis(t))
	require.NotZero(t, s.Pid())
	for name, stop := range map[string]func() error{"pause": s.Pause, "kill": s.Kill, "restart": s.Restart} {
		require.ErrorContains(t, stop(), "shared", name)
	}
	s.Close()
	require.NoError(t, s.Client(t).Ping(t.Context()).Err(), "a shared server was closed")
}

func TestWaitsForServerHidesServerGoroutines(t *testing.T) {
	Redis(t)
	require.NoError(t, goleak.Find(goleak.IgnoreAnyFunction(WaitsForServer)))
	require.Error(t, goleak.Find(), "the server has no goroutine to ignore")
}

func TestFreshPassesArguments(t *testing.T) {
	s := Fresh(t, "--maxmemory", "5mb")
	require.Equal(t, "5242880", s.Client(t).ConfigGet(t.Context(), "maxmemory").Val()["maxmemory"])
	_, err := startServer("redis", Require(t, NeedRedis), t.TempDir(), []string{"--no-such-option", "1"})
	require.ErrorContains(t, err, "no-such-option", "the error lacks the output of the server")
}

func TestPauseAndResume(t *testing.T) {
	s := Fresh(t)
	rdb := s.Client(t, once, func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond })
	require.NoError(t, rdb.Ping(t.Context()).Err())
	require.NoError(t, s.Pause())
	require.ErrorContains(t, rdb.Ping(t.Context()).Err(), "i/o timeout")
	require.NoError(t, s.Resume())
	WaitFor(t, 5*time.Second, func() bool { return rdb.Ping(t.Context()).Err() == nil }, "the server answers")
}

func TestKillAndRestart(t *testing.T) {
	s := Fresh(t)
	rdb := s.Client(t, once, func(o *redis.Options) { o.DialerRetries = 1 })
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	pid := s.Pid()
	require.NoError(t, s.Pause(), "Kill must work on a paused server")
	require.NoError(t, s.Kill())
	require.NoError(t, s.Kill())
	require.Zero(t, s.Pid())
	require.Error(t, rdb.Ping(t.Context()).Err())
	require.ErrorIs(t, s.Pause(), errStopped)

	require.NoError(t, s.Restart())
	require.NotEqual(t, pid, s.Pid())
	require.Equal(t, redis.Nil, s.Client(t).Get(t.Context(), "k").Err(), "data must be lost without persistence")
}

func TestRestartWithPersistenceKeepsData(t *testing.T) {
	s := Fresh(t, "--appendonly", "yes", "--appendfsync", "always")
	require.NoError(t, s.Client(t).Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, s.Restart())
	require.Equal(t, "v", s.Client(t).Get(t.Context(), "k").Val())
}

// A start on a taken port fails, even though another server answers on the port.
func TestStartOnATakenPortFails(t *testing.T) {
	binary, other := Require(t, NeedRedis), Redis(t)
	_, port, _ := strings.Cut(other.addr, ":")
	dir := t.TempDir()
	s := &Server{name: "redis", addr: other.addr, proc: &process{
		binary: binary, dir: dir,
		args: []string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", ""},
	}}
	require.ErrorIs(t, s.start(), errPortTaken)
	require.Zero(t, s.Pid())
}

func TestMiniredisCannotBePaused(t *testing.T) {
	s := Miniredis(t)
	require.ErrorContains(t, s.Pause(), "not a process")
	require.Zero(t, s.Pid())
}

const envChild = "REDISTEST_CHILD"

// TestServerDiesWithTheTestBinary runs itself in a child process. The child starts
// a server and panics, so no cleanup stops the server. The server must die too.
func TestServerDiesWithTheTestBinary(t *testing.T) {
	if os.Getenv(envChild) != "" {
		_, _ = os.Stdout.WriteString("pid " + strconv.Itoa(Redis(t).Pid()) + "\n")
		panic("on purpose")
	}
	Require(t, NeedRedis)
	if killWithParent() == nil {
		t.Skip("needs Linux")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestServerDiesWithTheTestBinary$")
	cmd.Env = append(os.Environ(), envChild+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "on purpose")
	_, rest, _ := strings.Cut(string(out), "pid ")
	line, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(line)
	require.NoError(t, err, "%s", out)
	WaitFor(t, 10*time.Second, func() bool { return dead(pid) }, "the server of the child has exited")
}

// dead reports whether the process has exited. init may not have reaped it yet.
func dead(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z")
}

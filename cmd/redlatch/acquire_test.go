//go:build unix

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// What acquire prints gives the lock back.
func TestAcquireAndRelease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range heldKinds {
			name := redistest.Name(t)
			flags := []string{"--kind", kind}
			if kind == kindPermits {
				fixture.InitPool(t, client(t, s).PermitExpirableSemaphore(name), 2)
				flags = append(flags, "--permits", "2")
			}
			stdout, stderr := exitsOn(t, 0, s, "acquire", append(flags, "--json", name)...)
			require.Empty(t, stderr)
			var got struct {
				ID         string
				Token      int64
				ValidUntil time.Time `json:"valid_until"`
			}
			require.NoError(t, json.Unmarshal([]byte(stdout), &got), stdout)
			require.Equal(t, kind == kindFenced, strings.Contains(stdout, `"token":1`), stdout)
			require.WithinDuration(t, time.Now().Add(defaultTTL), got.ValidUntil, 5*time.Second)

			other := kind
			if kind == kindRead { // readers exclude writers only
				other = kindWrite
			}
			stdout, stderr = exitsOn(t, exitNotAcquired, s, "acquire", "-n", "--kind", other, name)
			require.Empty(t, stdout)
			for id := range strings.SplitSeq(got.ID, ",") {
				require.Contains(t, stderr, id)
			}
			exitsOn(t, 0, s, "release", name, got.ID)
			exitsOn(t, exitFailed, s, "release", "--kind", kind, name, got.ID)

			// Without --json the output is the id. The lock is left to its lease.
			stdout, _ = exitsOn(t, 0, s, "acquire", append(flags, "-n", "--lease", "300ms", name)...)
			require.Regexp(t, `^[0-9a-f-]{32,}(:\d+|,[0-9a-f]{32})\n$`, stdout)
			exitsOn(t, 0, s, "acquire", append(flags, "-w", "10s", name)...)
		}
	})
}

// A lock whose id nobody learns is released.
func TestAcquireThatCannotPrint(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	run := shell(t, s.Addr())
	rdb := s.Client(t)
	code, output := run("(sleep 0.2; redlatch acquire name) | true") // nobody reads the pipe any more
	require.Zero(t, code)
	require.Contains(t, output, "cannot print the id")
	require.Zero(t, rdb.Exists(t.Context(), "name").Val())
	if _, err := os.Stat("/dev/full"); err == nil {
		code, output = run("redlatch acquire name >/dev/full")
		require.Equal(t, exitFailed, code, output)
		require.Contains(t, output, "cannot print the id")
		require.Zero(t, rdb.Exists(t.Context(), "name").Val())
	}
}

// With --verbose, standard error says who holds the name while run waits, and when it is acquired
// and released.
func TestRunVerbose(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	for _, asJSON := range []bool{false, true} {
		name := redistest.Name(t)
		hold := fixture.Acquire(t, t.Context(), client(t, s).FencedLock(name))
		args := append([]string{"run", "-v", "--kind", "fenced", name}, childArgs(t, "exit", "0")...)
		if asJSON {
			args = append([]string{"run", "--json"}, args[1:]...)
		}
		p := start(t, "redis://"+s.Addr(), args...)
		redistest.WaitFor(t, soon, func() bool { return strings.Contains(p.errs.String(), "waiting") }, "it waits")
		fixture.Release(t, hold)
		require.Zero(t, p.wait(), p.errs)
		lines := strings.Split(strings.TrimSpace(p.errs.String()), "\n")
		require.Len(t, lines, 3)
		for i, want := range []string{
			`waiting for fenced "NAME", held by ` + hold.ID() + ` `, `acquired fenced "NAME" as `,
			`released fenced "NAME", held for `,
		} {
			line := lines[i]
			if asJSON {
				var note struct{ Event, Message string }
				require.NoError(t, json.Unmarshal([]byte(line), &note), line)
				require.Equal(t, []string{"waiting", "acquired", "released"}[i], note.Event)
				line = "redlatch: " + note.Message
			}
			require.True(t, strings.HasPrefix(line, "redlatch: "+strings.ReplaceAll(want, "NAME", name)), line)
		}
	}
	// A minimum hold, and a loss.
	name := redistest.Name(t)
	p := start(t, "redis://"+s.Addr(),
		append([]string{"run", "--verbose", "--min-hold", "1m", name}, childArgs(t, "exit", "0")...)...)
	require.Zero(t, p.wait())
	require.Regexp(t, `released lock ".*", which stays held for another 5\ds`, p.errs.String())
	p = start(t, "redis://"+s.Addr(),
		append([]string{"run", "-v", "--lease", "500ms", name + "-lost"}, childArgs(t, "stubborn")...)...)
	require.Equal(t, exitLost, p.wait())
	require.NotContains(t, p.errs.String(), "released")
}

// An answer that comes when the lease is over is no acquisition, and no loss: nothing has run.
func TestAnswerAfterTheLeaseIsNoAcquisition(t *testing.T) {
	t.Parallel()
	proxy := redistest.Redis(t).Proxy(t)
	proxy.Delay(200 * time.Millisecond)
	for _, args := range []string{
		"acquire --lease 100ms name", "run --lease 100ms name -- echo ran", "run --watchdog 100ms name -- echo ran",
	} {
		code, stdout, stderr := redlatch(t.Context(),
			append([]string{"--redis", "redis://" + proxy.Addr()}, strings.Fields(args)...)...)
		require.Equal(t, exitNotAcquired, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, `lock "name" was not acquired: its lease was over when Redis answered`)
	}
}

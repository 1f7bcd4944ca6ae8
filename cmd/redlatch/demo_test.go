package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/demo"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/locktest"
)

// Each scene passes its checks on both kinds of server and leaves no keys.
func TestScenesPassAndLeaveNoKeys(t *testing.T) {
	for _, sc := range demo.Scenes() {
		t.Run(sc.Name, func(t *testing.T) {
			if sc.Name == "red" {
				redistest.Alone(t) // its members have less time to answer than a busy machine may take
			} else {
				t.Parallel() // the scenes wait most of the time
			}
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				prefix := redistest.Name(t) + "." // no other test's prefix begins with it
				code, stdout, stderr := redlatch(t.Context(), "demo",
					"--redis", "redis://"+s.Addr(), "--only", sc.Name, "--key-prefix", prefix)
				require.Zero(t, code, stdout)
				require.Empty(t, stderr)
				require.Contains(t, stdout, s.Addr())
				require.Contains(t, stdout, "1. "+sc.Name+": ")
				require.Regexp(t, `All \d+ checks passed`, stdout)
				require.NotContains(t, stdout, "FAILED")
				require.Empty(t, redistest.Keys(t, s, "*"+prefix+"*"))
			})
		})
	}
}

// The names of clients have no prefix, so they are looked for on a server of their own.
func TestDemoLeavesNoNamesOfClients(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	code, stdout, _ := redlatch(t.Context(), "demo", "--redis", "redis://"+s.Addr(), "--only", "lock,crash")
	require.Zero(t, code, stdout)
	require.Empty(t, redistest.Keys(t, s, "*"))
}

// The demo without flags runs all scenes on a server inside the process, whatever REDIS_URL says.
func TestDemoWithoutFlags(t *testing.T) {
	t.Parallel()
	require.Equal(t, unreachable, os.Getenv(urlVariable))
	code, stdout, stderr := redlatch(t.Context(), "demo")
	require.Zero(t, code, stdout)
	require.Empty(t, stderr)
	for _, line := range []string{
		`^redlatch demo on a server inside this process`,
		`^1\. lock: `,
		`s  (anna|ben|cleo)/\d +holds it; waiting: (\S+/\d ?)+$`,
		`s  anna +dies`,
		`s  ben +holds it, \d.* after the crash$`,
		`s  anna +loses it: redlatch: lock "[^"]+" lost: expired: no answer from Redis for`,
		`^  SCENE +CHECK +MEASURED +WANTED$`,
		`^  lock +acquisitions +135 +135 +ok$`,
		`^  lock +overlaps +0 +0 +ok$`,
		`^  lock +lost updates +0 +0 +ok$`,
		`^  crash +time from the crash to the next holder +\S+ +at most 4s +ok$`,
		`^  cutoff +why the hold was lost +expired +expired +ok$`,
		`^  cutoff +time from the loss to the next holder +\S+ +more than 0s +ok$`,
		`s  all +served:  cleo/1 ben/1 anna/1 cleo/2 ben/2 anna/2 anna$`,
		`^  fair +served in the order of arrival +yes +yes +ok$`,
		`s  anna +resumes and writes; the error is: token 4 is older than 5$`,
		`^  fenced +tokens +\[1 2 3 4 5\] +increasing +ok$`,
		`^  rwlock +readers at once +3 +3 +ok$`,
		`^  rwlock +others can read after the downgrade +yes +yes +ok$`,
		`^  multi +acquisitions of both +30 +30 +ok$`,
		`^  multi +a refused attempt keeps no member +yes +yes +ok$`,
		`s  anna +holds it on all 3 servers, with a TTL of 800ms$`,
		`^  red +one server cut off: valid beyond its TTL +yes +yes +ok$`,
		`^  semaphore +acquisitions +48 +48 +ok$`,
		`^  permits +time from the crash to the next holder +\S+ +at most 3\.5s +ok$`,
		`^  latch +waiters that continued too early +0 +0 +ok$`,
		`^  striped +locks used by all customers +4 +4 +ok$`,
		`^All \d+ checks passed, in `,
	} {
		require.Regexp(t, `(?m)`+line, stdout)
	}
	require.NotContains(t, stdout, "only one server")
}

// The red scene needs three servers. If there is only one, the demo says so.
func TestRedSceneOnOneServer(t *testing.T) {
	redistest.Alone(t)
	s := locktest.NewServer(t)
	code, stdout, _ := redlatch(t.Context(), "demo", "--redis", "redis://"+s.Addr(), "--only", "red")
	require.Zero(t, code, stdout)
	require.Contains(t, stdout, "only one server: three key names replace three servers")
}

func TestInterruptedDemoFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := redlatch(ctx, "demo")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "redlatch: interrupted in scene lock\n", stderr)
}

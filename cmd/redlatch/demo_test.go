package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/locktest"
)

// Each scene passes its checks on both kinds of server and leaves no keys.
func TestScenesPassAndLeaveNoKeys(t *testing.T) {
	for _, sc := range scenes() {
		t.Run(sc.name, func(t *testing.T) {
			if sc.name == "red" {
				redistest.Alone(t) // its members have less time to answer than a busy machine may take
			} else {
				t.Parallel() // the scenes wait most of the time
			}
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				prefix := redistest.Name(t) + "." // no other test's prefix begins with it
				code, stdout, stderr := redlatch(t.Context(), "demo",
					"--redis", "redis://"+s.Addr(), "--only", sc.name, "--key-prefix", prefix)
				require.Zero(t, code, stdout)
				require.Empty(t, stderr)
				require.Contains(t, stdout, s.Addr())
				require.Contains(t, stdout, "1. "+sc.name+": ")
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
		`^  crash +time from the crash to the next holder +\S+ +at most 3s +ok$`,
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
		`^  permits +time from the crash to the next holder +\S+ +at most 2\.7s +ok$`,
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

func TestServersAreSeparateUnlessOneIsGiven(t *testing.T) {
	embedded, _, closeAll, err := servers(t.Context(), "")
	require.NoError(t, err)
	defer closeAll()
	require.Len(t, embedded, nodeCount)
	require.True(t, embedded.separate())
	one, _, closeAll, err := servers(t.Context(), "redis://"+locktest.NewServer(t).Addr())
	require.NoError(t, err)
	defer closeAll()
	require.Len(t, one, nodeCount)
	require.False(t, one.separate())
}

func TestOccupancyCountsViolations(t *testing.T) {
	o := occupancy{limit: 2}
	require.EqualValues(t, 1, o.enter())
	require.EqualValues(t, 2, o.enter())
	require.Zero(t, o.violations.Load())
	o.leave()
	require.EqualValues(t, 3, o.enter())
	require.Zero(t, o.violations.Load())
	require.EqualValues(t, 4, o.enter())
	require.EqualValues(t, 1, o.violations.Load())
	require.EqualValues(t, 3, o.peak.Load())
}

func TestStoreRejectsOldTokens(t *testing.T) {
	st := &store{}
	require.NoError(t, st.write(7, "seven"))
	require.NoError(t, st.write(7, "again"))
	require.EqualError(t, st.write(6, "six"), "token 6 is older than 7")
	require.Equal(t, "again", st.text)
	require.True(t, increasing([]int64{1, 2, 9}))
	require.False(t, increasing([]int64{1, 2, 2}))
}

func TestOnlyKeepsTheOrderGiven(t *testing.T) {
	selected, err := selectScenes("cutoff, lock")
	require.NoError(t, err)
	require.Equal(t, []string{"cutoff", "lock"}, []string{selected[0].name, selected[1].name})
}

// A failed check and a scene's error both fail the demo. The remaining scenes still run.
func TestFailedSceneDoesNotStopTheOthers(t *testing.T) {
	scenes := []scene{
		{"wrong", "a check fails", func(_ context.Context, s *stage) error { s.equal("overlaps", 1, 0); return nil }},
		{"broken", "the scene fails", func(context.Context, *stage) error { return errors.New("broken scene") }},
		{"right", "all checks pass", func(_ context.Context, s *stage) error { s.equal("overlaps", 0, 0); return nil }},
	}
	var out bytes.Buffer
	err := demo(t.Context(), newReport(&out), "", "x", scenes)
	require.EqualError(t, err, "2 of 3 checks failed")
	require.Regexp(t, `wrong +overlaps +1 +0 +FAILED`, out.String())
	require.Regexp(t, `broken +scene completed +no +yes +FAILED`, out.String())
	require.Contains(t, out.String(), "broken scene")
	require.Regexp(t, `right +overlaps +0 +0 +ok`, out.String())
}

func TestInterruptedDemoFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := redlatch(ctx, "demo")
	require.Equal(t, exitFailed, code)
	require.Equal(t, "redlatch: interrupted in scene lock\n", stderr)
}

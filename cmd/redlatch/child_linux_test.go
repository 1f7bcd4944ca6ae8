package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// adoptVariable makes the test binary the parent of its orphans, as process 1 of a container is.
const adoptVariable = "REDLATCH_TEST_ADOPTS"

func init() {
	if os.Getenv(adoptVariable) != "" {
		_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
}

// Orphans that are dead do not keep redlatch waiting until the grace period is over.
func TestLossDoesNotWaitForDeadOrphans(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	p := startIn(t, environment("redis://"+s.Addr(), adoptVariable+"=1"),
		"run", "--grace", "1h", "--watchdog", "1s", name, "--", "sh", "-c", "sleep 1000 & echo ready; wait")
	p.line()
	exitsOn(t, 0, s, "force-release --yes", name)
	require.Equal(t, exitLost, p.wait(), p.errs)
}

package torture

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// TestTorture lasts as long as durationVariable says, and until it has made leastOperations.
const (
	durationVariable = "REDLATCH_TORTURE"
	leastOperations  = 1000
)

// TestTorture breaks everything around the library for a while. Its seed is the time, so that each
// run tests something else: it is in the output, and repeats the run.
func TestTorture(t *testing.T) {
	redistest.NeedFull(t, "a minute of faults")
	redistest.Require(t, redistest.NeedRedis)
	t.Parallel()
	duration, err := time.ParseDuration(cmp.Or(os.Getenv(durationVariable), "20s"))
	require.NoError(t, err)
	timelines, err := os.MkdirTemp("", "redlatch-torture-") //nolint:usetesting // it stays if the test fails
	require.NoError(t, err)
	began := time.Now()
	r, err := Run(t.Context(), Config{
		Client: testClient, Seed: uint64(began.Unix()), Duration: 10 * duration, Timelines: timelines,
		// A busy machine may need longer.
		enough: func(r *Result) bool { return time.Since(began) > duration && r.Total() > leastOperations },
	})
	if r != nil {
		_ = r.Print(os.Stdout)
	}
	require.NoError(t, err)
	require.Empty(t, violationsOf(r), "timelines and logs are in %s", timelines)
	require.NoError(t, os.RemoveAll(timelines))
	require.Greater(t, r.Total(), leastOperations)
}

// violationsOf returns the violations as text.
func violationsOf(r *Result) (out []string) {
	for _, v := range r.Violations {
		out = append(out, v.Check+" "+v.Name+": "+v.Detail)
	}
	return out
}

// A violation comes with its timeline, the log of the round, and the seed.
func TestViolationIsExplained(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	r, err := Run(t.Context(), Config{
		Client: testClient, Seed: 7, Duration: 2 * time.Minute, Round: 2 * time.Second, Timelines: dir,
		Primitives: []string{"lock"}, Faults: []string{NoFaults}, TTL: 300 * time.Millisecond, Processes: 2, Sessions: 6,
		defect: "client clock in a script", drain: 4 * time.Second, single: true, pace: paceMixed,
		// A busy machine may need several rounds until two processes meet.
		until: []string{checkOrder},
	})
	require.NoError(t, err)
	found := slices.IndexFunc(r.Violations, func(v Violation) bool { return v.Check == checkOrder })
	require.GreaterOrEqual(t, found, 0, "%v", r.Violations)
	v := r.Violations[found]
	require.FileExists(t, v.Timeline)
	log, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("redlatch-torture-%d.log", v.Seed)))
	require.NoError(t, err)
	require.Contains(t, string(log), "acquire: ok")
	require.True(t, strings.HasPrefix(string(log), "violation: "), "%.200s", log)
}

func TestBadConfigurationIsRefused(t *testing.T) {
	for name, c := range map[string]Config{
		"fault":     {Faults: []string{"flood"}},
		"primitive": {Primitives: []string{"barrier"}},
		"topology":  {Topology: "ring"},
		"duration":  {Duration: -time.Second},
		"timelines": {Timelines: "run.go"},
	} {
		t.Run(name, func(t *testing.T) {
			c.Client = testClient
			_, err := Run(t.Context(), c)
			require.ErrorIs(t, err, ErrConfig)
		})
	}
}

// On servers of somebody else, faults that would disturb others are left out, and the result says
// so.
func TestGivenServer(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	r, err := Run(t.Context(), Config{
		Client: testClient, Seed: 1, Duration: 3 * time.Second, Endpoint: &Endpoint{Addrs: []string{s.Addr()}},
		Timelines: t.TempDir(), TTL: 600 * time.Millisecond, Processes: 2, Sessions: 4,
		Every: [2]time.Duration{100 * time.Millisecond, 200 * time.Millisecond},
	})
	require.NoError(t, err)
	require.Empty(t, violationsOf(r))
	require.Equal(t, []string{
		faultPause, faultMemory, faultRestart, faultDataLoss, faultFailover, faultSwitch, faultMigration,
	}, r.LeftOut)
	require.NotEmpty(t, r.Faults)
}

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/torture"
)

// theGuest is built once for all tests.
var theGuest = sync.OnceValues(func() (*guest, error) { return prepare(context.Background(), "..") })

func newGuest(t *testing.T) *guest {
	t.Helper()
	g, err := theGuest()
	require.NoError(t, err)
	return g
}

// The same seed gives the same round, and another one another round.
func TestSeedDecides(t *testing.T) {
	g := newGuest(t)
	hash := func(seed uint64) string {
		r := g.result(t.Context(), request{Plan: torture.MakePlan(seed)})
		require.Empty(t, r.Violations)
		require.NotZero(t, r.Operations)
		return r.Hash
	}
	for seed := range uint64(3) {
		require.Equal(t, hash(seed), hash(seed), seed)
	}
	require.NotEqual(t, hash(1), hash(2))
}

// A round without steps ends at once.
func TestEmptyPlan(t *testing.T) {
	g := newGuest(t)
	began := processorTime()
	r := g.result(t.Context(), request{Plan: &torture.Plan{
		Topology: torture.Single, Length: time.Second, TTL: time.Second, Names: 1, Primitives: []string{"lock"},
		Processes: []torture.PlannedProcess{{Sessions: [][]torture.Step{nil}}},
	}})
	require.Empty(t, r.Violations)
	t.Logf("%v of processor time", processorTime()-began)
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--seeds 5-1":          "want a range such as 1-500",
		"--seeds x":            "want a range such as 1-500",
		"--seed -1":            "a seed is a number",
		"--seed 1 --seeds 1-2": "exclude each other",
		"--cpu -1s":            "must not be negative",
		"--cpu x":              "invalid value",
		"--parallel 0":         "must be 1 or more",
		"--replay -1":          "must not be negative",
		"--library /no/such":   "no checkout of redlatch",
		"--html x":             "needs --seed or --shrink",
		"--nothing":            "not defined",
		"lock":                 "unexpected argument",
	} {
		t.Run(args, func(t *testing.T) {
			var out, errs bytes.Buffer
			require.Equal(t, exitUsage, run(t.Context(), strings.Fields(args), &out, &errs))
			require.Contains(t, errs.String(), want)
			require.Empty(t, out.String())
		})
	}
}

func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitClean, run(t.Context(), []string{"--help"}, &out, &errs))
	require.Contains(t, errs.String(), "--seeds 1-500")
}

// The replays of a seed are counted, and one that differs is a violation.
func TestReplays(t *testing.T) {
	r := &seeds{options: options{replay: 2}, guest: newGuest(t)}
	first := r.run(t.Context(), 1)
	r.repeat(t.Context(), 1, first)
	require.Equal(t, []int{1, 2, 2}, []int{r.replayed, r.replays, r.equal})
	require.Empty(t, first.Violations)
	first.Hash = "another"
	r.repeat(t.Context(), 1, first)
	require.Equal(t, []int{2, 4, 2}, []int{r.replayed, r.replays, r.equal})
	require.Equal(t, checkSame, first.Violations[0].Check)
}

// The runs that an interruption prevents are no runs with another hash.
func TestInterruptedReplays(t *testing.T) {
	r := &seeds{options: options{replay: 3}, guest: newGuest(t)}
	first := r.run(t.Context(), 1)
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	r.repeat(interrupted, 1, first)
	require.Equal(t, []int{1, 0, 0}, []int{r.replayed, r.replays, r.equal})
	require.Empty(t, first.Violations)
}

// The cache of compiled programs does not grow without a limit.
func TestOldProgramsLeaveTheCache(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "wazero"), 0o700))
	for i := range 5 {
		file := filepath.Join(dir, "wazero", strconv.Itoa(i))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		written := time.Unix(int64(1000+i), 0)
		require.NoError(t, os.Chtimes(file, written, written))
	}
	keepNewest(dir, 2)
	left, err := filepath.Glob(filepath.Join(dir, "wazero", "*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "wazero", "3"), filepath.Join(dir, "wazero", "4")}, left)
	keepNewest(filepath.Join(dir, "none"), 2)
}

// Only what is needed is left.
func TestReduce(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	reduce(len(all), func(leave []bool) bool {
		left := without(all, leave)
		if slices.Contains(left, 3) && slices.Contains(left, 8) {
			all = left
			return true
		}
		return false
	})
	require.Equal(t, []int{3, 8}, all)
}

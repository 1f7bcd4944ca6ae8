package demo

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestServersAreSeparateUnlessOneIsGiven(t *testing.T) {
	embedded, closeAll := servers(nil)
	defer closeAll()
	require.Len(t, embedded, nodeCount)
	require.True(t, embedded.separate())
	one, closeAll := servers(&redis.Options{})
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

func TestSelectKeepsTheOrderGiven(t *testing.T) {
	selected, err := Select("cutoff, lock")
	require.NoError(t, err)
	require.Equal(t, []string{"cutoff", "lock"}, []string{selected[0].Name, selected[1].Name})
}

// A failed check and a scene's error both fail the demo. The remaining scenes still run.
func TestFailedSceneDoesNotStopTheOthers(t *testing.T) {
	scenes := []Scene{
		{"wrong", "a check fails", func(_ context.Context, s *stage) error { s.equal("overlaps", 1, 0); return nil }},
		{"broken", "the scene fails", func(context.Context, *stage) error { return errors.New("broken scene") }},
		{"right", "all checks pass", func(_ context.Context, s *stage) error { s.equal("overlaps", 0, 0); return nil }},
	}
	var out bytes.Buffer
	err := Run(t.Context(), Config{Out: &out, Prefix: "x", Scenes: scenes})
	require.EqualError(t, err, "2 of 3 checks failed")
	require.Contains(t, out.String(), "\n  wrong: FAILED  overlaps: 1 (wanted: 0)\n")
	require.Contains(t, out.String(), "\n  broken: FAILED  scene completed: no (wanted: yes)\n")
	require.Contains(t, out.String(), "broken scene")
	require.Contains(t, out.String(), "\n  ok  overlaps: 0\n")
}

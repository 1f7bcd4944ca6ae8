package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func runApp(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var o strings.Builder
	err = app(&o).Run(t.Context(), append([]string{"behind"}, args...))
	return o.String(), err
}

func TestUsage(t *testing.T) {
	out, err := runApp(t, "--help")
	require.NoError(t, err)
	for _, want := range []string{"--job", "--round-trip", "--jobs", "--rounds"} {
		require.Contains(t, out, want)
	}
	for _, args := range [][]string{{"now"}, {"-job", "0s"}, {"-round-trip", "-1ms"}, {"-jobs", "0"}, {"-rounds", "0"}} {
		_, err := runApp(t, args...)
		require.Error(t, err, args)
	}
}

// A caller that waits for the release pays two round trips, and one that does not pays about one.
func TestReleaseInTheBackgroundSavesARoundTrip(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	out, err := runApp(t, "-jobs", "10", "-rounds", "3", "-round-trip", "20ms")
	require.NoError(t, err)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 4)
	var roundTrips []float64
	for _, row := range rows[1:] {
		fields := strings.Fields(row)
		figure, err := strconv.ParseFloat(fields[len(fields)-3], 64)
		require.NoError(t, err)
		roundTrips = append(roundTrips, figure)
	}
	require.GreaterOrEqual(t, roundTrips[0], 2.0)
	require.GreaterOrEqual(t, roundTrips[1], 1.0)
	require.Less(t, roundTrips[1], roundTrips[0])
	require.Less(t, roundTrips[2], roundTrips[1])
}

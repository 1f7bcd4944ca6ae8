package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
)

// All jobs run, and never more at a time than there are permits.
func TestRunningJobsStayWithinTheLimit(t *testing.T) {
	const limit, jobs = 3, 5
	var out lines.Lines
	require.NoError(t, run(t.Context(), &out, "", limit, jobs))
	running, done := 0, 0
	for _, line := range out.All() {
		if strings.Contains(line, "starts") {
			running++
		} else {
			running--
			done++
		}
		require.LessOrEqual(t, running, limit)
	}
	require.Zero(t, running)
	require.Equal(t, 2*jobs, done)
}

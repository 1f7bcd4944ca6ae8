package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
)

// All jobs are done, and never more at once than there are permits.
func TestAtMostAsManyAsPermits(t *testing.T) {
	const limit, jobs = 3, 5
	var out lines.Lines
	require.NoError(t, run(t.Context(), &out, "", limit, jobs))
	running, done := 0, 0
	for _, line := range out.All() {
		if strings.Contains(line, "begins") {
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

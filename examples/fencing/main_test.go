package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
)

func TestStoreRejectsTheSlowWriter(t *testing.T) {
	var out lines.Lines
	require.NoError(t, run(t.Context(), &out, ""))
	require.Equal(t, []string{
		"the slow writer holds the lock and is paused",
		"the quick writer holds the lock and writes: <nil>",
		"the slow writer resumes and writes: rejected: a newer holder has written",
		"the page contains: quick",
	}, out.All())
}

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
)

// The store keeps what the newer holder has written.
func TestTheSlowWriterIsRefused(t *testing.T) {
	var out lines.Lines
	require.NoError(t, run(t.Context(), &out, ""))
	require.Equal(t, []string{
		"the slow writer has the lock, and is paused",
		"the quick writer has the lock, and writes: <nil>",
		"the slow writer goes on, and writes: refused: a newer holder has written",
		"the page says: quick",
	}, out.All())
}

package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
)

// The first leader stops before the second one leads.
func TestOneLeaderAtATime(t *testing.T) {
	var out lines.Lines
	require.NoError(t, run(t.Context(), &out, ""))
	who := regexp.MustCompile(`process \d`)
	said := out.All()
	require.Len(t, said, 4)
	first, second := who.FindString(said[0]), who.FindString(said[2])
	require.Equal(t, []string{first + " leads", first + ` leads no more: redlatch: hold lock "leader": lost`, second + " leads", second + " leads no more: <nil>"}, said)
}

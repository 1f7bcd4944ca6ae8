package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/examples/internal/lines"
)

func TestFirstLeaderStopsBeforeTheSecondStarts(t *testing.T) {
	var out lines.Lines
	require.NoError(t, run(t.Context(), &out, ""))
	who := regexp.MustCompile(`process \d`)
	printed := out.All()
	require.Len(t, printed, 4)
	first, second := who.FindString(printed[0]), who.FindString(printed[2])
	require.Equal(t, []string{
		first + " leads",
		first + ` stops leading: redlatch: hold lock "leader": lost`,
		second + " leads",
		second + " stops leading: <nil>",
	}, printed)
}

package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func runApp(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var o strings.Builder
	err = app(&o, io.Discard).Run(t.Context(), append([]string{"failover"}, args...))
	return o.String(), err
}

func TestUsage(t *testing.T) {
	out, err := runApp(t, "--help")
	require.NoError(t, err)
	for _, want := range []string{"--rounds", "--parallel", "--delay"} {
		require.Contains(t, out, want)
	}
	for _, args := range [][]string{{"now"}, {"-rounds", "0"}, {"-delay", "fast"}, {"-delay", "-1ms"}} {
		_, err := runApp(t, args...)
		require.Error(t, err, args)
	}
}

// A lock that is acquired without confirmation cannot have arrived when the link is that slow.
func TestConfirmedLocksSurvive(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	out, err := runApp(t, "-rounds", "2", "-delay", "50ms")
	require.NoError(t, err)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 3)
	require.Equal(t, []string{"50ms", "no", "2", "2", "0"}, strings.Fields(rows[1])[:5])
	require.Equal(t, []string{"50ms", "1", "2", "0", "0"}, strings.Fields(rows[2])[:5])
}

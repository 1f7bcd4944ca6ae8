package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// soon bounds what is awaited. On a busy machine processes start slowly.
const soon = 20 * time.Second

func cutSpace(s string) (before, after string, found bool) { return strings.Cut(s, " ") }
func containsName(channel, name string) bool               { return strings.Contains(channel, "{"+name+"}") }

// remembersARequest reports whether key stops late copies of a command. It expires by itself.
func remembersARequest(key string) bool { return strings.HasPrefix(key, "redisson_unlock_latch:") }

// environment returns that of a redlatch that tests start.
func environment(url string, more ...string) []string {
	// The race detector would delay exits by a second.
	return append(append(os.Environ(), redlatchVariable+"=1", urlVariable+"="+url, "GORACE=atexit_sleep_ms=0"), more...)
}

// redlatchVariable makes the test binary run as redlatch.
const redlatchVariable = "REDLATCH_TEST_MAIN"

// client returns a client of the library on s. What it holds is left when the test ends.
func client(t testing.TB, s *redistest.Server, opts ...primitives.ClientOption) *primitives.Client {
	return fixture.NewClient(t, s.Client(t), opts...)
}

// on runs a command on s: the verbs, the flag --redis, then args.
func on(t testing.TB, s *redistest.Server, verbs string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	all := append(strings.Fields(verbs), append([]string{"--redis", "redis://" + s.Addr()}, args...)...)
	return redlatch(t.Context(), all...)
}

// exitsOn runs a command on s as on does, requires its exit code, and returns its output.
func exitsOn(t testing.TB, want int, s *redistest.Server, verbs string, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := on(t, s, verbs, args...)
	require.Equal(t, want, code, "%s %q\n%s\n%s", verbs, args, stdout, stderr)
	return stdout, stderr
}

// exits runs a command, requires its exit code, and returns its output.
func exits(t testing.TB, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := redlatch(t.Context(), args...)
	require.Equal(t, want, code, "%q\n%s\n%s", args, stdout, stderr)
	return stdout, stderr
}

// requireJSON compares lines of JSON field by field. A wanted string "*" matches anything.
func requireJSON(t testing.TB, output string, want ...map[string]any) {
	t.Helper()
	lines := strings.SplitAfter(output, "\n")
	require.Empty(t, lines[len(lines)-1], "ends with a newline")
	require.Len(t, lines, len(want)+1, output)
	for i, w := range want {
		var got, wanted map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &got), lines[i])
		text, err := json.Marshal(w)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &wanted))
		for field, value := range wanted {
			if value == "*" && got[field] != nil {
				wanted[field] = got[field]
			}
		}
		require.Equal(t, wanted, got)
	}
}

type fields = map[string]any

// holderOf is the JSON of a holder with a TTL that the test does not know exactly.
func requireHolders(t testing.TB, line string, client string, ids ...string) {
	t.Helper()
	var e entry
	require.NoError(t, json.Unmarshal([]byte(line), &e))
	require.Len(t, e.Holders, len(ids))
	for _, h := range e.Holders {
		require.Contains(t, ids, h.ID)
		require.Equal(t, 1, h.Count)
		require.Equal(t, client, h.Client)
		require.InDelta(t, 30_000, h.TTL, 10_000)
	}
}

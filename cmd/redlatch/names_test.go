package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Locks whose names are not UTF-8 are told apart everywhere, and can be released by what ls --json
// shows.
func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := client(t, s)
	ids := map[string]string{}
	names := []string{"\xff", "\xfe", "orders:\xc3\x28", "plain", "\ufffd"}
	for _, name := range names {
		hold := fixture.Acquire(t, t.Context(), c.Lock(name))
		ids[name] = hold.ID()
	}
	found := map[string]fields{}
	_, stdout, _ := on(t, s, "ls --json")
	for line := range strings.Lines(stdout) {
		var entry fields
		require.NoError(t, json.Unmarshal([]byte(line), &entry))
		name := entry["name"].(string)
		if coded, ok := entry["name_base64"].(string); ok {
			raw, err := base64.StdEncoding.DecodeString(coded)
			require.NoError(t, err)
			name = string(raw)
		}
		found[name] = entry
	}
	require.Len(t, found, len(names))
	require.NotContains(t, found["plain"], "name_base64")
	require.NotContains(t, found["\ufffd"], "name_base64", "it is UTF-8")

	_, table, _ := on(t, s, "ls")
	require.Contains(t, table, `"\xff" `)
	require.Contains(t, table, `"\xfe" `)

	for _, name := range names[:3] {
		coded := base64.StdEncoding.EncodeToString([]byte(name))
		stdout, _ := exitsOn(t, 0, s, "inspect --json --base64", coded)
		require.Contains(t, stdout, `"name_base64":"`+coded+`"`)
		require.Contains(t, stdout, ids[name])
	}
	coded := base64.StdEncoding.EncodeToString([]byte("\xff"))
	stdout, _ = exitsOn(t, 0, s, "release --json --base64", coded, ids["\xff"])
	require.Contains(t, stdout, `"name_base64":"`+coded+`"`)
	coded = base64.StdEncoding.EncodeToString([]byte("\xfe"))
	exitsOn(t, 0, s, "force-release --yes --base64", coded)
	for _, verb := range []string{"inspect", "force-release --yes"} {
		exitsOn(t, exitUsage, s, verb+" --base64", "no base64!")
	}
	info, err := c.Lock("orders:\xc3\x28").Info(t.Context())
	require.NoError(t, err)
	require.Len(t, info.Holders, 1, "the others stay")
}

// run -n and acquire -n end with Redis's refusal, at once.
func TestTriesOnAServerThatRefusesWrites(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--min-replicas-to-write", "1")
	for _, verb := range []string{"run -n", "acquire -n"} {
		args := []string{"x"}
		if verb == "run -n" {
			args = append(args, "--", "true")
		}
		_, stderr := exitsOn(t, exitUnreachable, s, verb+" --timeout 30s", args...)
		require.Contains(t, stderr, "NOREPLICAS")
		require.NotContains(t, stderr, "gave up after 30s")
	}
	lacking := redistest.Fresh(t, "--rename-command", "PUBLISH", "")
	_, stderr := exitsOn(t, exitUnreachable, lacking, "acquire", "x")
	require.Contains(t, stderr, "this server has no PUBLISH command")
}

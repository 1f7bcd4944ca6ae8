//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestTortureExitCodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"fault":              {[]string{"--faults", "flood"}, exitUsage, `no fault "flood"`},
		"primitive":          {[]string{"--primitives", "barrier"}, exitUsage, `no primitive "barrier"`},
		"topology":           {[]string{"--topology", "ring"}, exitUsage, `no topology "ring"`},
		"no time":            {[]string{"--minutes", "0"}, exitUsage, "a duration of 0s"},
		"two durations":      {[]string{"--minutes", "1", "--duration", "1m"}, exitUsage, "exclude each other"},
		"page":               {[]string{"--html", "/no/such/directory/page.html"}, exitUsage, "--html: open /no/such"},
		"argument":           {[]string{"lock"}, exitUsage, "unexpected argument"},
		"topology of others": {[]string{"--redis", defaultURL, "--topology", "cluster"}, exitUsage, "--topology"},
		"no address":         {[]string{"--cluster"}, exitUsage, "needs --redis"},
		"socket":             {[]string{"--redis", "unix:///tmp/none"}, exitUsage, "TCP"},
		"out of reach":       {[]string{"--redis", "redis://127.0.0.1:1"}, exitUnreachable, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := redlatch(t.Context(), append([]string{"torture"}, tt.args...)...)
			require.Equal(t, tt.code, code, stderr)
			require.Empty(t, stdout)
			require.Contains(t, stderr, tt.want)
		})
	}
}

// A run on a given server prints one JSON object, says which faults it left out, and writes a page.
func TestTortureJSON(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	page := filepath.Join(t.TempDir(), "page.html")
	p := start(t, "", "torture", "--json", "--duration", "2s", "--seed", "3", "--redis", "redis://"+s.Addr(),
		"--primitives", "lock,latch", "--timelines", t.TempDir(), "--html", page)
	var result struct {
		Seed       uint64         `json:"seed"`
		Operations map[string]int `json:"operations"`
		LeftOut    []string       `json:"left_out"`
		Violations []any          `json:"violations"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.line()), &result))
	require.Zero(t, p.wait())
	require.EqualValues(t, 3, result.Seed)
	require.Positive(t, result.Operations["lock"])
	require.Positive(t, result.Operations["latch"])
	require.Contains(t, result.LeftOut, "restart")
	require.NotNil(t, result.Violations)
	require.Empty(t, result.Violations)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), `<details id="round-3" open=""`)
	require.Contains(t, string(html), "client 0")
}

//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
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
		"no other build":     {[]string{"--other", "/no/such/redlatch"}, exitUsage, "--other: exec: "},
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
	for line := range strings.Lines(p.errs.String()) {
		require.Regexp(t, `^{"event":"progress","message":"\d+s: round \d+, .*"}\n$`, line)
	}
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), `<details id="round-3" open=""`)
	require.Contains(t, string(html), "client 0")
}

// Clients of two builds share names. Here the other build is the same program.
func TestTortureWithAnotherBuild(t *testing.T) {
	redistest.Alone(t) // its checks allow little for a busy machine
	s := redistest.Fresh(t)
	p := start(t, "", "torture", "--json", "--duration", "2s", "--seed", "3", "--redis", "redis://"+s.Addr(),
		"--primitives", "lock,rwlock", "--timelines", t.TempDir(), "--other", self(t))
	var result struct {
		Operations map[string]int `json:"operations"`
		Other      int            `json:"other_operations"`
		Violations []any          `json:"violations"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.line()), &result))
	require.Zero(t, p.wait())
	require.Empty(t, result.Violations)
	require.Positive(t, result.Other)
	require.Less(t, result.Other, result.Operations["lock"]+result.Operations["rwlock"])
}

// A program that is no other build of redlatch, or that speaks another protocol, is bad use.
func TestTortureNeedsABuildThatSpeaks(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	for name, tt := range map[string]struct{ script, want string }{
		"another program": {"echo unknown command >&2; exit 64", ": unknown command"},
		"an old build":    {`echo '{"k":"ready"}'; sleep 0.5; echo panic >&2; exit 2`, "it ended by itself: panic"},
		"a newer build":   {`echo '{"k":"ready","protocol":99}'; cat`, "speaks the protocol 99, and not 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "other")
			require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+tt.script+"\n"), 0o700))
			p := start(t, "", "torture", "--duration", "1s", "--redis", "redis://"+s.Addr(), "--timelines", t.TempDir(),
				"--other", file)
			require.Equal(t, exitUsage, p.wait())
			require.Contains(t, p.errs.String(), "the other build cannot be a client: process ")
			require.Contains(t, p.errs.String(), tt.want)
			require.Empty(t, p.rest())
		})
	}
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMergeReplacesRowsOfTheSameServer(t *testing.T) {
	t.Parallel()
	tested := func(version, date string) row {
		s := &server{name: "Redis", version: version, from: "a package"}
		return row{server: s, date: date, results: []result{{ran: 1}, {ran: 2}, {ran: 3}}}
	}
	table := merge("", tested("8.0.6", "2026-01-01"))
	table = merge(table, tested("7.0.15", "2026-01-01"))
	table = merge(table, tested("8.0.6", "2026-02-02"))
	require.Equal(t, `| server | from | one server | cluster | failover | tested |
|---|---|---|---|---|---|
| Redis 7.0.15 | a package | 1 tests pass | 2 tests pass | 3 tests pass | 2026-01-01 |
| Redis 8.0.6 | a package | 1 tests pass | 2 tests pass | 3 tests pass | 2026-02-02 |
`, table)
}

func TestWriteTableNeedsTheMarkers(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("before\n"+tableBegins+tableEnds+"\nafter\n"), 0o600))
	r := row{server: &server{name: "Valkey", version: "9.1.2", from: "a package"}, date: "2026-01-01"}
	require.NoError(t, writeTable(page, r))
	got, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, "before\n"+tableBegins+merge("", r)+tableEnds+"\nafter\n", string(got))
	require.NoError(t, os.WriteFile(page, []byte("no table"), 0o600))
	require.ErrorContains(t, writeTable(page, r), "lacks")
}

func TestReadCountsTestsAndPrintsFailures(t *testing.T) {
	t.Parallel()
	var got result
	var printed bytes.Buffer
	require.NoError(t, got.read(strings.NewReader(`{"Action":"output","Test":"TestA","Output":"fine\n"}
{"Action":"pass","Test":"TestA/sub"}
{"Action":"pass","Test":"TestA"}
{"Action":"output","Test":"TestB/sub","Output":"broken\n"}
{"Action":"fail","Test":"TestB/sub"}
{"Action":"fail","Test":"TestB"}
{"Action":"skip","Test":"TestC"}
{"Action":"fail"}
`), &printed))
	require.Equal(t, result{ran: 3, failed: []string{"TestB"}, skips: []string{"TestC"}}, got)
	require.Equal(t, "broken\n", printed.String())
	require.False(t, got.passed())
	require.Equal(t, "FAILED: TestB", got.String())
	require.False(t, result{}.passed(), "no tests")
}

// A server of an image runs with the loader and the libraries of the image.
func TestScriptUsesTheFilesOfTheImage(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	script := filepath.Join(t.TempDir(), "server")
	require.ErrorContains(t, writeScript(script, root), "no server")
	for _, file := range []string{"usr/local/bin/valkey-server", "usr/lib/some-linux-gnu/ld-linux-some.so.1"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, file), nil, 0o600))
	}
	require.NoError(t, writeScript(script, root))
	got, err := os.ReadFile(script)
	require.NoError(t, err)
	require.Equal(t, "#!/bin/sh\nexec 'ROOT/usr/lib/some-linux-gnu/ld-linux-some.so.1' "+
		"--library-path 'ROOT/usr/lib/some-linux-gnu' --argv0 valkey-server 'ROOT/usr/local/bin/valkey-server' \"$@\"\n",
		strings.ReplaceAll(string(got), root, "ROOT"))
}

func TestIdentifyReadsTheVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary := func(name, says string) string {
		path := filepath.Join(dir, name)
		text := "#!/bin/sh\necho '" + says + "'\n"
		require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
		return path
	}
	s, err := identify(t.Context(), binary("valkey", "Valkey server v=9.1.2 sha=00000000:0"), "a test")
	require.NoError(t, err)
	require.Equal(t, "Valkey 9.1.2", s.String())
	_, err = identify(t.Context(), binary("other", "hello"), "a test")
	require.ErrorContains(t, err, "not a Redis server")
}

// Tests of what only newer servers have run on these alone: a skipped test fails the run.
func TestSuitesSuitServers(t *testing.T) {
	t.Parallel()
	on := func(name, version string) (n int) {
		for _, u := range suites {
			if u.suits(&server{name: name, version: version}) {
				n++
			}
		}
		return n
	}
	require.Equal(t, len(suites), on("Valkey", "9.1.2"))
	require.Equal(t, len(suites)-1, on("Redis", "8.6.3"))
	require.Equal(t, len(suites)-2, on("Redis", "8.0.6"))
	require.Equal(t, len(suites)-2, on("Valkey", "8.1.1"))
}

func TestSuitesAreValid(t *testing.T) {
	t.Parallel()
	for _, u := range suites {
		require.Contains(t, topologies, u.topology)
		for _, expression := range []string{u.run, u.only} {
			_, err := regexp.Compile(expression)
			require.NoError(t, err)
		}
		for dir := range strings.FieldsSeq(u.packages) {
			require.DirExists(t, filepath.Join("../..", dir))
		}
	}
}

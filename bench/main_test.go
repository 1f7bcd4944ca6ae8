package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/bench/internal/harness"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func runApp(t *testing.T, args ...string) (out, progress string, err error) {
	t.Helper()
	var o, p strings.Builder
	err = app(strings.NewReader(""), &o, &p).Run(t.Context(), append([]string{"bench"}, args...))
	return o.String(), p.String(), err
}

func TestHelpListsWorkloadsAndFlags(t *testing.T) {
	out, _, err := runApp(t, "--help")
	require.NoError(t, err)
	for _, s := range harness.Specs(false) {
		require.Contains(t, out, "  "+s.ID)
	}
	for _, want := range []string{
		"--only", "--who", "--rounds", "--net", "--duration", "--fork", "--long", "--profile", "--json", "picture",
	} {
		require.Contains(t, out, want)
	}
}

func TestBadUsageIsAnError(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "W1,W99"}, "no workload W99"},
		{[]string{"-net", "udp"}, "-net must be unix, tcp or both"},
		{[]string{"-rounds", "0"}, "-rounds must be at least 1"},
		{[]string{"-duration", "-1s"}, "must not be negative"},
		{[]string{"W1"}, `unexpected argument "W1"`},
		{[]string{"picture"}, "json"},
		{[]string{"picture", "-json", "/nowhere.json"}, "no such file"},
	} {
		_, _, err := runApp(t, tt.args...)
		require.ErrorContains(t, err, tt.want, tt.args)
		require.NotErrorIs(t, err, errBadRows)
	}
}

func TestSplitListKeepsRowNames(t *testing.T) {
	require.Nil(t, splitList(""))
	require.Equal(t, []string{"a", "b"}, splitList("a,b"))
	require.Equal(t, []string{"go-redis alone, BLPOP", "redlatch"}, splitList("go-redis alone, BLPOP,redlatch"))
}

func TestRunWritesResultsAndPicture(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	dir := t.TempDir()
	results, picture, page := filepath.Join(dir, "r.json"), filepath.Join(dir, "p.svg"), filepath.Join(dir, "page.md")
	out, progress, err := runApp(t, "-only", "w1", "-who", "redlatch", "-rounds", "1", "-duration", "20ms",
		"-json", results, "-profile", filepath.Join(dir, "profiles"))
	require.NoError(t, err)
	require.Contains(t, out, "redlatch")
	require.Contains(t, progress, "W1, round 1 of 1: go-redis alone (unix)")
	profiles, err := filepath.Glob(filepath.Join(dir, "profiles", "W1-*.pprof"))
	require.NoError(t, err)
	require.Len(t, profiles, 3)

	r, err := report.Read(results)
	require.NoError(t, err)
	require.Len(t, r.Workloads, 1)
	require.NotEmpty(t, r.Setup.Redis)

	require.NoError(t, os.WriteFile(page, []byte("# Page\n<!-- results --><!-- end of results -->\n"), 0o600))
	_, _, err = runApp(t, "picture", "-json", results, "-out", picture, "-page", page)
	require.NoError(t, err)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "### W1")
	svg, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.Contains(t, string(svg), "</svg>")
}

func TestRunStopsWhenContextIsCancelled(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	progress := writerFunc(cancel) // cancel at the first line of progress
	err := app(strings.NewReader(""), &out, progress).Run(ctx, []string{"bench", "-only", "W1", "-who", "redlatch"})
	require.ErrorIs(t, err, context.Canceled)
}

// writerFunc calls itself for each write.
type writerFunc func()

func (w writerFunc) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

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
	"github.com/redlatch/redlatch/internal/redistest"
)

func call(t *testing.T, args ...string) (out, progress string, err error) {
	t.Helper()
	var o, p strings.Builder
	err = app(strings.NewReader(""), &o, &p).Run(t.Context(), append([]string{"bench"}, args...))
	return o.String(), p.String(), err
}

func TestHelpNamesAll(t *testing.T) {
	out, _, err := call(t, "--help")
	require.NoError(t, err)
	for _, s := range harness.Specs(false) {
		require.Contains(t, out, "  "+s.ID)
	}
	for _, want := range []string{"--only", "--who", "--rounds", "--net", "--duration", "--fork", "--long", "--profile", "--json", "picture"} {
		require.Contains(t, out, want)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "W1,W99"}, "no workload W99"},
		{[]string{"-net", "pigeon"}, "-net is unix, tcp or both"},
		{[]string{"-rounds", "0"}, "-rounds is at least 1"},
		{[]string{"-duration", "-1s"}, "not negative"},
		{[]string{"W1"}, `what is "W1"`},
		{[]string{"picture"}, "json"},
		{[]string{"picture", "-json", "/nowhere.json"}, "no such file"},
	} {
		_, _, err := call(t, tt.args...)
		require.ErrorContains(t, err, tt.want, tt.args)
		require.NotErrorIs(t, err, errBad)
	}
}

func TestSplit(t *testing.T) {
	require.Nil(t, split(""))
	require.Equal(t, []string{"a", "b"}, split("a,b"))
	require.Equal(t, []string{"floor, BLPOP", "redlatch"}, split("floor, BLPOP,redlatch"))
}

func TestRunAndPicture(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	dir := t.TempDir()
	results, picture, page := filepath.Join(dir, "r.json"), filepath.Join(dir, "p.svg"), filepath.Join(dir, "page.md")
	out, progress, err := call(t, "-only", "w1", "-who", "redlatch", "-rounds", "1", "-duration", "20ms", "-json", results, "-profile", filepath.Join(dir, "profiles"))
	require.NoError(t, err)
	require.Contains(t, out, "redlatch")
	require.Contains(t, progress, "W1, round 1 of 1: floor (unix)")
	profiles, err := filepath.Glob(filepath.Join(dir, "profiles", "W1-*.pprof"))
	require.NoError(t, err)
	require.Len(t, profiles, 2)

	r, err := report.Read(results)
	require.NoError(t, err)
	require.Len(t, r.Workloads, 1)
	require.NotEmpty(t, r.Setup.Redis)

	require.NoError(t, os.WriteFile(page, []byte("# Page\n<!-- results --><!-- end of results -->\n"), 0o600))
	_, _, err = call(t, "picture", "-json", results, "-out", picture, "-page", page)
	require.NoError(t, err)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(text), "### W1")
	svg, err := os.ReadFile(picture)
	require.NoError(t, err)
	require.Contains(t, string(svg), "</svg>")
}

func TestRunIsInterrupted(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	progress := writer(func() { cancel() }) // by the first line of progress
	err := app(strings.NewReader(""), &out, progress).Run(ctx, []string{"bench", "-only", "W1", "-who", "redlatch"})
	require.ErrorIs(t, err, context.Canceled)
}

type writer func()

func (w writer) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

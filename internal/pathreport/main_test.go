package main

import (
	"bytes"
	"go/importer"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// TestReport checks that the figures of this repository are plausible.
func TestReport(t *testing.T) {
	redistest.NeedFull(t, "it runs the tests of several packages")
	r, err := measure(t.Context())
	require.NoError(t, err)

	require.Len(t, r.Paths, len(scenarios))
	paths := map[string]pathFigures{}
	for _, p := range r.Paths {
		paths[p.Name] = p
		require.Greater(t, len(p.Functions), 20, p.Title)
		require.Greater(t, len(p.Files), 3, p.Title)
		require.Greater(t, len(p.Functions), len(p.Files), p.Title)
		require.Greater(t, len(p.Stack), 3, p.Title)
	}
	const (
		acquire   = "primitives.(*Lock).Acquire"
		release   = "primitives.(*Hold).Release"
		subscribe = "pubsub.(*Hub).Subscribe"
		sender    = "scripts.(*batcher).newPending.func1" // the goroutine that sends
	)
	for _, tt := range []struct {
		path     string
		runs     []string
		runsNot  []string
		outer    string // the last frame to the wire
		commands int
	}{
		{"acquire", []string{acquire}, []string{release, subscribe}, sender, 1},
		{"release", []string{release}, []string{acquire, subscribe}, sender, 1},
		{"wait", []string{acquire, subscribe}, []string{release}, sender, 3},
		{"handoff", []string{release}, []string{subscribe}, sender, 1},
		{"fair", []string{acquire, release, subscribe}, nil, sender, 3},
		{"renew", nil, []string{acquire, release, subscribe}, "", 1},
		{"lose", nil, []string{acquire, release, subscribe}, "", 1},
	} {
		p := paths[tt.path]
		require.Subset(t, p.Functions, tt.runs, tt.path)
		for _, name := range tt.runsNot {
			require.NotContains(t, p.Functions, name, tt.path)
		}
		if tt.outer != "" {
			require.Equal(t, tt.outer, p.Stack[len(p.Stack)-1], tt.path)
		}
		require.Equal(t, tt.commands, p.Commands, tt.path)
	}
	require.Greater(t, len(paths["wait"].Functions), len(paths["acquire"].Functions))

	require.NotEmpty(t, r.Packages)
	for _, p := range r.Packages {
		require.Greater(t, p.Code, p.Functions, p.Package)
		require.Positive(t, p.CommentShare(), p.Package)
		require.Less(t, p.CommentShare(), 100., p.Package)
	}
	require.Greater(t, r.Layers.Pairs, len(r.Layers.Against))
	require.Greater(t, r.Lines.Longest, 80)

	var table bytes.Buffer
	r.markdown(&table)
	require.Contains(t, table.String(), "| Path: acquire a free lock | ")
	requireCurrent(t, r)
}

// requireCurrent checks that doc/design.md has the figures of r, give or take a few functions.
func requireCurrent(t *testing.T, r *report) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "doc", "design.md"))
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range pathRow.FindAllStringSubmatch(string(page), -1) {
		documented[row[1]] = row[2]
	}
	for _, p := range r.Paths {
		functions, err := strconv.Atoi(documented[p.Title])
		require.NoError(t, err, p.Title)
		require.InDelta(t, len(p.Functions), functions, 3,
			"%s: run make paths, and put its table into doc/design.md", p.Title)
	}
}

// pathRow matches the row of a path in the table of figures.
var pathRow = regexp.MustCompile(`(?m)^\| Path: (.+?) \| (\d+) functions`)

func TestCountLines(t *testing.T) {
	code, comments := countLines([]byte(strings.Join([]string{
		"// Package p has a comment.", "package p", "",
		"/* A comment", "", "of three lines. */",
		"var text = `a", "", "b` // code", "",
		"func f() {", "\t// A comment.", "}",
	}, "\n")))
	require.Equal(t, 6, code)
	require.Equal(t, 5, comments)
}

// sources is a small package with a reference in each direction.
var sources = map[string]string{
	"errors.go": `package primitives
func describe(x any) string {
	if h, ok := x.(named); ok { // against the layers
		return h.name()
	}
	switch x.(type) {
	case interface{ Error() string }, int, nil:
		return "error"
	}
	return ""
}
func as[T any](x any) T { return x.(T) }
`,
	"hold.go": `package primitives
type named interface{ name() string }
func (h *hold) Error() string { return describe(h) }
type hold struct{}
`,
	"other.go": `package primitives
`,
}

func sourceModule(t *testing.T) *module {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "primitives")
	require.NoError(t, os.Mkdir(dir, 0o700))
	var names []string
	for name, src := range sources {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(src), 0o600))
		names = append(names, name)
	}
	m := &module{Path: "example.com/m", Dir: dir, fset: token.NewFileSet()}
	require.NoError(t, m.add("primitives", dir, names, importer.Default()))
	return m
}

func TestLayersCountReferencesFromGeneralToParticular(t *testing.T) {
	f := measureLayers(sourceModule(t))
	require.Equal(t, 2, f.Pairs)
	require.Equal(t, []reference{{"primitives/errors.go", "primitives/hold.go", []string{"name", "named"}}}, f.Against)
	require.Equal(t, []string{"primitives/other.go"}, f.Unknown)
}

func TestCodeCountsAssertedInterfaces(t *testing.T) {
	m := sourceModule(t)
	f, err := measureCode(m, m.packages[0])
	require.NoError(t, err)
	require.Equal(t, map[string]int{"named": 1, "interface{Error() string}": 1}, f.Interfaces)
	require.Equal(t, 2, f.Assertions)
	require.Equal(t, 3, f.Functions)
}

func TestExecutedFunctionsOfAProfile(t *testing.T) {
	m := sourceModule(t)
	profile := "mode: atomic\n" +
		"example.com/m/primitives/errors.go:2.29,3.30 1 0\n" +
		"example.com/m/primitives/hold.go:3.33,3.52 1 7\n"
	executed := executedFunctions([]byte(profile), indexFunctions(m))
	require.Len(t, executed, 1)
	for fn := range executed {
		require.Equal(t, "primitives.(*hold).Error", fn.name)
		require.Equal(t, "primitives/hold.go", fn.file)
	}
}

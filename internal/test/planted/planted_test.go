package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua/parse"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Every defect applies to the present tree, and what it changes compiles, which only CI tries: it
// takes long. Defects that do not touch the same text are compiled together.
func TestDefectsApply(t *testing.T) {
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	names := map[string]bool{}
	var together []*overlay
	for _, d := range Catalogue {
		require.False(t, names[d.Name], "two defects are named %q", d.Name)
		names[d.Name] = true
		require.NotEmpty(t, d.Edits, d.Name)
		require.NotEmpty(t, d.Promise, d.Name)
		alone := &overlay{root: root}
		if !assert.NoError(t, alone.plant(d)) {
			continue
		}
		for _, e := range d.Edits { // an equal text in another file is another text
			_, isThere := alone.files[e.File]
			assert.True(t, isThere, "%s: its text has moved from %s to one of %v",
				d.Name, e.File, slices.Collect(maps.Keys(alone.files)))
		}
		for file, text := range alone.files {
			if filepath.Ext(file) == ".lua" {
				_, err := lua.Parse(strings.NewReader(text), file)
				assert.NoError(t, err, d.Name)
			}
		}
		planted := false
		for _, o := range together {
			if planted = o.plant(d) == nil; planted {
				break
			}
		}
		if !planted {
			together = append(together, alone)
		}
	}
	t.Run("the result compiles", func(t *testing.T) {
		redistest.NeedFull(t, "compiles the library a few times")
		for _, o := range together {
			description, err := o.write(t.TempDir())
			require.NoError(t, err)
			build := exec.CommandContext(t.Context(), "go", "build", "-overlay", description, "./primitives") // not linked
			build.Dir = root
			out, err := build.CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	})
}

// A text that occurs twice, or not at all, is an error: the patch would change something else. A
// text that has moved to another file is found.
func TestEditNeedsOneText(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"primitives", "scripts", "pubsub", "watchdog", "internal", catalogueDir} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o750))
	}
	for file, text := range map[string]string{
		"internal/a.go": "one two two", "scripts/b.lua": "three", "internal/a_test.go": "four",
		filepath.Join(catalogueDir, "catalogue.go"): "five",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o600))
	}
	o := &overlay{root: root}
	for _, old := range []string{"two", "four", "five"} {
		err := o.plant(Defect{Name: "x", Edits: []Edit{{"internal/a.go", "one", "1"}, {"internal/a.go", old, "y"}}})
		require.ErrorContains(t, err, "should have it once")
		require.Empty(t, o.files)
	}
	moved := []Edit{{"internal/a.go", "one", "1"}, {"internal/gone.go", "three", "3"}}
	require.NoError(t, o.plant(Defect{Name: "x", Edits: moved}))
	require.Equal(t, map[string]string{"internal/a.go": "1 two two", "scripts/b.lua": "3"}, o.files)
}

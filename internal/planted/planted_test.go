package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua/parse"
)

// Every defect applies to the present tree, and what it changes compiles. Defects that do not touch the same
// text are compiled together.
func TestDefectsApply(t *testing.T) {
	root, err := filepath.Abs("../..")
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
	for _, o := range together {
		description, err := o.write(t.TempDir())
		require.NoError(t, err)
		build := exec.CommandContext(t.Context(), "go", "build", "-overlay", description, "-o", t.TempDir(), "./cmd/redlatch")
		build.Dir = root
		out, err := build.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// A text that occurs twice, or not at all, is an error: the patch would change something else.
func TestAmbiguousEditIsRefused(t *testing.T) {
	o := &overlay{root: "../.."}
	for _, old := range []string{"package", "no such text"} {
		err := o.plant(Defect{Name: "x", Edits: []Edit{{"internal/engine/doc.go", old, "y"}}})
		require.ErrorContains(t, err, "should have it once")
	}
	require.Empty(t, o.files)
}

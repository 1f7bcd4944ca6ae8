package simbuild

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The changed runtime takes in the overlay of the caller, and says so if it does not fit the
// installed Go.
func TestOverlay(t *testing.T) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	goroot := strings.TrimSpace(string(out))
	dir := t.TempDir()
	also := filepath.Join(dir, "also.json")
	require.NoError(t, os.WriteFile(also, []byte(`{"Replace": {"/a.go": "/b.go"}}`), 0o600))
	file, err := overlay(goroot, dir, also)
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), `"/a.go":"/b.go"`)
	require.Contains(t, string(text), "runtime/proc.go")
	other := t.TempDir()
	for _, i := range insertions {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(other, "src", i.file)), 0o750))
		require.NoError(t, os.WriteFile(filepath.Join(other, "src", i.file), []byte("package x\n"), 0o600))
	}
	_, err = overlay(other, dir, "")
	require.ErrorContains(t, err, "simbuild/runtime.go expects it once")
}

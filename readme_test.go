package redlatch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
)

// The first program of the README runs as pasted, against a server at localhost:6379.
func TestTheFirstProgramOfTheReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, program, found := strings.Cut(string(page), "```go\npackage main\n")
	require.True(t, found)
	program, _, _ = strings.Cut("package main\n"+program, "```")
	require.Contains(t, program, `"localhost:6379"`)
	server := locktest.NewServer(t)
	program = strings.ReplaceAll(program, "localhost:6379", server.Addr())
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	output, err := exec.CommandContext(t.Context(), "go", "run", "-ldflags=-s -w", file).CombinedOutput()
	require.NoError(t, err, "%s", output)
	require.Equal(t, "sending the report\n", string(output))
}

package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The command starts servers for torture with the package that our tests use, too. It links no library for tests.
func TestCommandLinksNoLibraryForTests(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, "github.com/redlatch/redlatch/primitives")
	for _, path := range packages {
		for _, library := range []string{
			"github.com/stretchr/testify", "go.uber.org/goleak", "pgregory.net/rapid", "go.yaml.in",
		} {
			require.False(t, strings.HasPrefix(path, library), path)
		}
	}
}

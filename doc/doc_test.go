// Package doc_test compiles and runs the Go code of the pages in this folder.
package doc_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// Each Go block of a page stands in the test of that page, which compiles and runs it. Indentation aside, the
// two are equal.
func TestCodeOfThePages(t *testing.T) {
	for page, file := range map[string]string{
		"decisions/late-copies.md": "late_copies_test.go", "setup.md": "setup_test.go", "traps.md": "traps_test.go",
	} {
		t.Run(page, func(t *testing.T) {
			code := unindented(t, file)
			blocks := strings.Split(unindented(t, page), "```go\n")[1:]
			require.NotEmpty(t, blocks)
			for _, block := range blocks {
				block, _, _ = strings.Cut(block, "```")
				require.Contains(t, code, block)
			}
		})
	}
}

func unindented(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(string(text), "")
}

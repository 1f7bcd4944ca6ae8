package doc_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	namedTest   = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	namedBefore = regexp.MustCompile("^(?:`Test\\w+`|all kinds[^:]*|contract[^:]*): (.*)$")
)

// The tests that the pages name exist. One page names patterns for go test -run.
func TestPagesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	source := testSources(t)
	for path, text := range allPages(t) {
		for _, name := range namedTest.FindAllStringSubmatch(text, -1) {
			end := "("
			if path == "../internal/test/planted/results.md" {
				end = ""
			}
			exists := strings.Contains(source, "\nfunc "+name[1]+end)
			assert.True(t, exists, "%s names %s, which does not exist", path, name[1])
		}
	}
}

// The subtests that the page on Redisson's tests names exist.
func TestConformanceNamesSubtestsThatExist(t *testing.T) {
	t.Parallel()
	source := testSources(t)
	page, err := os.ReadFile("../tests/contract/conformance.md")
	require.NoError(t, err)
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		for clause := range strings.SplitSeq(cells[len(cells)-2], ";") {
			named := namedBefore.FindStringSubmatch(strings.TrimSpace(clause))
			if named == nil {
				continue
			}
			rest, _, _ := strings.Cut(named[1], ". **")
			rest, _, _ = strings.Cut(rest, " (")
			require.True(t, areSubtests(source, strings.Split(rest, ", ")), "%q names a subtest that does not exist", clause)
		}
	}
}

// areSubtests reports whether parts, some of them joined again by commas, are names of subtests or
// of tests.
func areSubtests(source string, parts []string) bool {
	if len(parts) == 0 {
		return true
	}
	for n := len(parts); n > 0; n-- {
		name := strings.Join(parts[:n], ", ")
		exists := strings.Contains(source, `"`+name+`"`) || namedTest.MatchString(name)
		if exists && areSubtests(source, parts[n:]) {
			return true
		}
	}
	return false
}

// testSources returns the text of all tests.
func testSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	}))
	return all.String()
}

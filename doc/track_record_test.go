package doc_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorded is a row of the track record: what went wrong, what found it, the commit, and the test.
var recorded = regexp.MustCompile("^- .+: (torture|seed|model|attack|report|reading|unknown)( \\d+)?" +
	", `[0-9a-f]{8}`, (?:`(Test\\w+)`|no test)\n$")

// Each row of the track record is whole, and its test exists. The table at the head counts the
// rows.
func TestTrackRecordCountsItsRows(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("track-record.md")
	require.NoError(t, err)
	source := testSources(t)
	finders := []string{"torture", "seed", "model", "attack", "report", "reading", "unknown"} // the columns of the table
	head, rest, _ := strings.Cut(string(page), "\n## ")
	all := make([]int, len(finders)+1)
	for group := range strings.SplitSeq(rest, "\n## ") {
		title, rows, _ := strings.Cut(group, "\n")
		counts := make([]int, len(finders)+1)
		for row := range strings.Lines(rows) {
			if !strings.HasPrefix(row, "- ") {
				continue
			}
			found := recorded.FindStringSubmatch(row)
			require.NotNil(t, found, row)
			require.Equal(t, found[1] == "seed", found[2] != "", row)
			exists := found[3] == "" || strings.Contains(source, "\nfunc "+found[3]+"(")
			assert.True(t, exists, "no such test: %s", row)
			for _, column := range []int{slices.Index(finders, found[1]), len(finders)} {
				counts[column]++
				all[column]++
			}
		}
		assert.Regexp(t, `(?m)^\| \[`+title+`\]\(.*\)`+cells(counts), head)
	}
	assert.Regexp(t, `(?m)^\| All`+cells(all), head)
	assert.Contains(t, head, fmt.Sprintf(": %d, ", all[len(finders)]))
}

// cells returns a pattern of the rest of a row of a table.
func cells(counts []int) (pattern string) {
	for _, n := range counts {
		pattern += fmt.Sprintf(` \| %d`, n)
	}
	return pattern + ` \|$`
}

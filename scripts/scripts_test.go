package scripts

import (
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	headerLine = regexp.MustCompile(`^--(?:$| (?:(uses|defines|returns) +\S|(KEYS|ARGV)\[(\d+)(\.\.)?\] +\S| *\S))`)
	reference  = regexp.MustCompile(`\b(KEYS|ARGV)\[(\d+)\]`)
)

// Every file opens with "-- <path>: what it does.", tells each KEYS and ARGV in order, and ends its header with what it
// returns (a library: what it defines). Every KEYS and ARGV that the code names is told.
func TestHeaders(t *testing.T) {
	paths, err := fs.Glob(files, "*/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			body, err := files.ReadFile(path)
			require.NoError(t, err)
			checkHeader(t, strings.TrimSuffix(path, ".lua"), string(body))
		})
	}
}

func checkHeader(t *testing.T, name, body string) {
	lines := strings.Split(body, "\n")
	require.Regexp(t, `^-- `+regexp.QuoteMeta(name)+`: .+[.:]$`, lines[0])
	told, next, last, open := map[string]bool{}, map[string]int{"KEYS": 1, "ARGV": 1}, "", map[string]bool{}
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, "--") {
			break
		}
		m := headerLine.FindStringSubmatch(line)
		require.NotNil(t, m, "header line %q", line)
		if kind := m[2]; kind != "" {
			require.True(t, fmt.Sprint(next[kind]) == m[3] || next[kind] == 1, "header line %q is out of order", line)
			told[kind+m[3]] = true
			next[kind], _ = strconv.Atoi(m[3])
			next[kind]++
			open[kind] = m[4] != ""
		}
		if m[1] != "" {
			last = m[1]
		}
	}
	if last == "defines" { // a library: its KEYS and ARGV are told by the scripts that use it
		return
	}
	require.Equal(t, "returns", last)
	for kind, n := range next {
		require.True(t, n == 1 || told[kind+"1"], "%s[1] is not told", kind)
	}
	for _, m := range reference.FindAllStringSubmatch(code(body), -1) {
		require.True(t, told[m[1]+m[2]] || open[m[1]], "%s[%s] is used but not told", m[1], m[2])
	}
}

func TestLoadPutsLibrariesInFront(t *testing.T) {
	s := Load("lock/acquire")
	require.Equal(t, "lock/acquire", s.Name())
	require.Len(t, s.SHA(), 40)
	require.True(t, strings.HasPrefix(s.Text(), "local function may_publish"))
	require.NotContains(t, s.Text(), "\n--")
	require.Panics(t, func() { Load("lock/no-such") })
}

package scripts

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/scripts/internal/gencalls"
)

var (
	libraryLine = regexp.MustCompile(`^--(?:$| (?:(uses|defines) +\S| *\S))`)
	argument    = regexp.MustCompile(`\b(?:KEYS|ARGV)\b`)
	toplevel    = regexp.MustCompile(`(?m)^local (?:function )?(\w+)`)
	signature   = regexp.MustCompile(`\b\w+\(`)
)

// luaFiles returns the text of every Lua file by its path without the extension.
func luaFiles(t *testing.T) map[string]string {
	paths, err := fs.Glob(files, "*/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	bodies := map[string]string{}
	for _, path := range paths {
		name := strings.TrimSuffix(path, ".lua")
		bodies[name] = read(name)
	}
	return bodies
}

// isLibrary reports whether a Lua file is for use by others: its header says what it defines.
func isLibrary(body string) bool { return strings.Contains(body, "\n-- defines  ") }

// The generated calls are up to date with the headers. Package gencalls checks the headers.
func TestCallsAreUpToDate(t *testing.T) {
	want, err := gencalls.Generate(files)
	require.NoError(t, err)
	got, err := os.ReadFile("calls.go")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "calls.go is not up to date: run go generate ./scripts")
}

// A library opens with "-- <path>: what it is for." and its header ends with what it defines.
func TestHeadersOfLibraries(t *testing.T) {
	for name, body := range luaFiles(t) {
		if !isLibrary(body) {
			continue
		}
		lines := strings.Split(body, "\n")
		require.Regexp(t, `^-- `+regexp.QuoteMeta(name)+`: .+[.:]$`, lines[0])
		last := ""
		for _, line := range lines[1:] {
			if !strings.HasPrefix(line, "--") {
				break
			}
			m := libraryLine.FindStringSubmatch(line)
			require.NotNil(t, m, "%s: header line %q", name, line)
			if m[1] != "" {
				last = m[1]
			}
		}
		require.Equal(t, "defines", last, name)
	}
}

// No line is longer than 100 columns.
func TestLineLength(t *testing.T) {
	for name, body := range luaFiles(t) {
		for i, line := range strings.Split(body, "\n") {
			require.LessOrEqual(t, len(line), 100, "%s.lua:%d", name, i+1)
		}
	}
}

// A script gives names to its KEYS and ARGV in its first lines of code, and then uses only the
// names. A library has arguments instead.
func TestArgumentsHaveNames(t *testing.T) {
	for name, body := range luaFiles(t) {
		named := isLibrary(body)
		for line := range strings.Lines(code(body)) {
			if uses := argument.MatchString(line); uses {
				require.False(t, named, "%s: %q uses KEYS or ARGV", name, line)
				require.True(t, strings.HasPrefix(line, "local "), "%s: %q names no argument", name, line)
			} else {
				named = true
			}
		}
	}
}

// A header's "uses" line names the library of every function that the file calls, and of every
// constant that it reads. A "defines" line names every function that other files call.
func TestUsesAndDefinesAreComplete(t *testing.T) {
	t.Parallel()
	bodies := luaFiles(t)
	owners := map[string][]string{} // libraries by the names at the top level of each
	for name, body := range bodies {
		if !isLibrary(body) {
			continue
		}
		_, rest, _ := strings.Cut(body, "\n-- defines  ")
		header, _, _ := strings.Cut(rest, "\nlocal ")
		names := toplevel.FindAllStringSubmatch(code(body), -1)
		require.NotEmpty(t, names, name)
		for _, m := range names {
			owners[m[1]] = append(owners[m[1]], name)
		}
		defined, _, _ := strings.Cut(header, "\n\n")
		for _, f := range signature.FindAllString(defined, -1) {
			require.Contains(t, code(body), "local function "+f, "%s defines it", name)
		}
	}
	texts := map[string]string{}
	for name, body := range bodies {
		texts[name] = code(body)
	}
	for identifier, libs := range owners {
		use := regexp.MustCompile(`(?:^|[^.\w'])` + identifier + `\b`)
		definition := regexp.MustCompile(`\b(?:local|function)\b[^=\n]*\b` + identifier + `\b`)
		for name, body := range bodies {
			if slices.Contains(libs, name) || !use.MatchString(texts[name]) || definition.MatchString(texts[name]) {
				continue
			}
			listed := slices.ContainsFunc(libs, func(lib string) bool {
				return slices.Contains(uses(body), lib) || slices.Contains(uses(body), path.Base(lib))
			})
			require.True(t, listed, "%s: its header does not use %v for %s", name, libs, identifier)
			for _, lib := range libs {
				header, _, _ := strings.Cut(bodies[lib], "\nlocal ")
				require.Regexp(t, `-- defines  (?s:.*)\b`+identifier+`\b`, header, lib)
			}
		}
	}
}

// A library takes the place of the line that names it: what stands above it does not wait for its
// functions.
func TestLoadPutsLibrariesInTheirPlaces(t *testing.T) {
	s := Load("lock/acquire")
	require.Equal(t, "lock/acquire", s.Name())
	require.Len(t, s.SHA(), 40)
	require.True(t, strings.HasPrefix(s.Text(), "local function publish_denied"))
	require.NotContains(t, s.Text(), "\n--")
	usual, later, found := strings.Cut(s.Text(), "redis.call('pexpire', lock_hash, ttl_ms)\n    return 0\n")
	require.True(t, found)
	require.NotContains(t, usual, "function renew_place")
	require.Contains(t, later, "function renew_place")
	require.Panics(t, func() { Load("lock/no-such") })
}

// A script may consist of a header. It is a script of another folder then, with libraries of its
// own.
func TestLoadPrefersTheScriptsOwnLibrary(t *testing.T) {
	plain, fair := Load("lock/force").Text(), Load("fairlock/force").Text()
	require.NotContains(t, plain, "function hand_off")
	require.Contains(t, fair, "function hand_off")
	require.Equal(t, 1, strings.Count(fair, "function now_ms"), "each library is included once")
}

func TestHashes(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) redis.UniversalClient{
		"miniredis": func(t *testing.T) redis.UniversalClient { return redistest.Miniredis(t).Client(t) },
		"redis":     func(t *testing.T) redis.UniversalClient { return redistest.Redis(t).Client(t) },
		"cluster":   func(t *testing.T) redis.UniversalClient { return redistest.Cluster(t).ClusterClient(t) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := open(t)
			r := NewRunner(rdb, 0)
			defer r.Close()
			prefix := redistest.Name(t)
			var want []string
			var wg sync.WaitGroup
			for i := range 30 {
				want = append(want, fmt.Sprint(prefix, i))
				wg.Go(func() {
					_ = rdb.HSet(t.Context(), fmt.Sprint(prefix, i), "f", 1).Err()
					_ = rdb.Set(t.Context(), fmt.Sprint(prefix, i, "s"), 1, time.Minute).Err()
				})
			}
			wg.Wait()
			var got []string
			for key, err := range r.Hashes(t.Context(), prefix+"*") {
				require.NoError(t, err)
				got = append(got, key)
			}
			slices.Sort(got)
			slices.Sort(want)
			require.Equal(t, want, slices.Compact(got))
			for _, err := range r.Hashes(t.Context(), prefix+"*") {
				require.NoError(t, err)
				break
			}
			done, cancel := context.WithCancel(t.Context())
			cancel()
			for key, err := range r.Hashes(done, prefix+"*") {
				require.Empty(t, key)
				require.ErrorIs(t, err, context.Canceled)
			}
			for _, key := range want {
				require.NoError(t, rdb.Del(t.Context(), key).Err())
			}
		})
	}
}

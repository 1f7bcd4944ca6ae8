// Package doc_test compiles and runs the Go code of the pages, and checks their links and the names
// in them.
package doc_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// Each Go block of a page stands in the test of that page, which compiles and runs it. Indentation
// aside, the two are equal.
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

// surroundings declares what the fragments of pages use.
const surroundings = `package fragments

import (
	"context"
	"database/sql"
	"errors"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/eventlog"
	"github.com/redlatch/redlatch/fence"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

var (
	db      *sql.DB
	rdb     redis.UniversalClient
	hold    *primitives.Hold
	ctx     = context.Background()
	t       testing.TB
	client  *primitives.Client
	clients []*primitives.Client
	lock    *primitives.Lock
	store   interface{ Write(_ context.Context, token int64, report string) }
	use     func(context.Context)
	err     error

	show func(primitives.Leader, error)
	f, quote, change, transfer, render, lead, job func(context.Context) error
	ship, serve                              func(_ context.Context, what string) error
	order, next, report, from, to, id, addr  string

	_, _, _, _, _, _ = errors.Is, signal.Notify, syscall.SIGTERM, time.Second, redis.Nil, locktest.Start
	_, _             = eventlog.Open, fence.Redis
)
`

// The Go blocks of pages that no other test runs are fragments that compile, apart from variables
// that they do not use.
func TestFragmentsOfPagesCompile(t *testing.T) {
	t.Parallel()
	declared := regexp.MustCompile(`(?m)^\s*(\w+)(?:, (\w+))? :?= `)
	code := surroundings
	for _, page := range []string{
		"../README.md", "../llms.txt", "../examples/kubernetes/README.md", "fairlock.md", "fencedlock.md",
		"keyed.md", "latch.md", "lock.md", "multilock.md", "permitsemaphore.md", "redisson.md", "redlock.md",
		"rwlock.md", "semaphore.md", "striped.md", "tasks.md",
		"../site/pages/developer.md", "../site/pages/index.md",
	} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		blocks := strings.Split(string(text), "```go\n")[1:]
		require.NotEmpty(t, blocks, page)
		for i, block := range blocks {
			block, _, _ = strings.Cut(block, "```")
			if strings.HasPrefix(block, "package ") {
				continue // the program of the README, which another test runs
			}
			used := ""
			for _, names := range declared.FindAllStringSubmatch(block, -1) {
				for _, name := range names[1:] {
					if name != "" && name != "_" {
						used += "_ = " + name + "\n"
					}
				}
			}
			code += fmt.Sprintf("\n// %s, block %d\nfunc _() error {\n%s\n%sreturn nil\n}\n", page, i, block, used)
		}
	}
	file := filepath.Join(t.TempDir(), "fragments.go")
	require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
	output, err := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", file).CombinedOutput()
	require.NoError(t, err, "%s\n%s", output, code)
}

// A figure such as 17,686 in a table of performance.md, or about a workload on a page, is one of
// bench/results.md.
func TestFiguresAreThoseOfTheResults(t *testing.T) {
	t.Parallel()
	results, err := os.ReadFile("../bench/results.md")
	require.NoError(t, err)
	figure := regexp.MustCompile(`\d{1,3}(,\d{3})+`)
	for page, lines := range map[string]*regexp.Regexp{
		"performance.md": regexp.MustCompile(`(?m)^\| W.*$|^.* second within a client\n.*$|^.*\(W5\).*$`),
		"comparison.md":  regexp.MustCompile(`(?m)^.*\[W5\].*$`),
		"../README.md":   regexp.MustCompile(`(?m)^- \*\*(?:A contended lock|1,000 waiters).*\n.*$`),
	} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		found := figure.FindAllString(strings.Join(lines.FindAllString(string(text), -1), "\n"), -1)
		require.NotEmpty(t, found, page)
		for _, f := range found {
			require.Contains(t, string(results), f, page)
		}
	}
}

// The lines that judge.md tells the reader to change are in the files that it names before them,
// once each.
func TestBreaksOfThePageApply(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../contributing/judge.md")
	require.NoError(t, err)
	named := regexp.MustCompile("`([\\w/]+\\.(?:go|lua))`")
	parts := strings.Split(string(page), "```diff\n")
	require.Greater(t, len(parts), 5)
	for i, part := range parts[1:] {
		files := named.FindAllStringSubmatch(parts[i], -1)
		file := files[len(files)-1][1]
		text, err := os.ReadFile("../" + file)
		require.NoError(t, err)
		block, _, _ := strings.Cut(part, "```")
		for line := range strings.Lines(block) {
			if old, removed := strings.CutPrefix(line, "-"); removed {
				assert.Equal(t, 1, strings.Count(string(text), old), "%s: %s", file, old)
			}
		}
	}
}

// Links between the pages lead to files that exist, and to headings that exist.
func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code := regexp.MustCompile("(?s)```.*?```") // where a type argument before a call looks like a link
	for path, text := range allPages(t) {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			_, err := os.Stat(file)
			if assert.NoError(t, err, "%s links to %s", path, found[1]) && anchor != "" {
				page, err := os.ReadFile(file)
				require.NoError(t, err)
				assert.Contains(t, anchors(string(page)), anchor, "%s links to %s", path, found[1])
			}
		}
	}
}

// allPages returns the text of each Markdown file of the repository, and of llms.txt, by its path.
func allPages(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	require.FileExists(t, "../llms.txt")
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if path == "../site/.venv" {
			return filepath.SkipDir // packages of Python, which git ignores
		}
		isPage := filepath.Ext(path) == ".md" || path == "../llms.txt"
		if err != nil || !isPage {
			return err
		}
		text, err := os.ReadFile(path)
		pages[path] = string(text)
		return err
	}))
	return pages
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(page string) (all []string) {
	heading := regexp.MustCompile("(?m)^#+ (.*)$")
	notInAnchors := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, found := range heading.FindAllStringSubmatch(page, -1) {
		text := notInAnchors.ReplaceAllString(strings.ToLower(found[1]), "")
		all = append(all, strings.ReplaceAll(text, " ", "-"))
	}
	return all
}

func unindented(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(string(text), "")
}

// The site has all pages of this folder: its build fails otherwise, but that needs Python.
func TestSiteHasAllPages(t *testing.T) {
	t.Parallel()
	nav, err := os.ReadFile("../site/mkdocs.yml")
	require.NoError(t, err)
	for _, pattern := range []string{"*.md", "decisions/*.md"} {
		pages, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, pages)
		for _, page := range pages {
			isThere := strings.Contains(string(nav), " doc/"+filepath.ToSlash(page)+"\n")
			assert.True(t, isThere, "nav of site/mkdocs.yml lacks %s", page)
		}
	}
}

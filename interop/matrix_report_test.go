package interop_test

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// report collects what the cells came to: a table for each set-up, a line for each situation, a column for each primitive.
type report struct {
	mu     sync.Mutex
	tables []*table // in order of their beginning
}

type table struct {
	title string
	lines []*line
}

type line struct {
	situation string
	cells     map[string]*result // by primitive
}

// result is what one cell came to.
type result struct {
	verdict string // pass, FAILED, skipped; for one that does not apply: n/a
	reason  string // of n/a
	woken   woken  // how long wake-ups took, where they were measured
}

const (
	passed        = "pass"
	failed        = "FAILED"
	skipped       = "skipped"
	notApplicable = "n/a"
	blank         = "" // of a situation that is another primitive's own
)

func newReport() *report { return &report{} }

// record files what a cell came to.
func (r *report) record(title, situation, primitive string, got result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line(title, situation).cells[primitive] = &got
}

// line finds a line, or adds it. Its table and its place in it are settled by the first call.
func (r *report) line(title, situation string) *line {
	at := slices.IndexFunc(r.tables, func(t *table) bool { return t.title == title })
	if at < 0 {
		at = len(r.tables)
		r.tables = append(r.tables, &table{title: title})
	}
	t := r.tables[at]
	if at = slices.IndexFunc(t.lines, func(l *line) bool { return l.situation == situation }); at < 0 {
		at = len(t.lines)
		t.lines = append(t.lines, &line{situation, map[string]*result{}})
	}
	return t.lines[at]
}

// open makes the line of a situation before any of its cells has run, so that lines stand in the order of the tests.
func (r *report) open(title, situation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line(title, situation)
}

func (r *report) text(cell *result) string {
	switch {
	case cell == nil:
		return blank
	case cell.verdict == passed && len(cell.woken) > 0:
		return fmt.Sprintf("%s %s", passed, cell.woken)
	}
	return cell.verdict
}

// print writes the tables as plain text, with the figures of this run.
func (r *report) print(to io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tables {
		rows := [][]string{append([]string{t.title}, primitiveNames()...)}
		for _, l := range t.lines {
			row := []string{l.situation}
			for _, primitive := range primitiveNames() {
				row = append(row, r.text(l.cells[primitive]))
			}
			rows = append(rows, row)
		}
		fmt.Fprintln(to)
		for _, row := range rows {
			for i, text := range row {
				fmt.Fprintf(to, "%-*s  ", widest(rows, i), text)
			}
			fmt.Fprintln(to)
		}
	}
	if all := r.woken(); len(all) > 0 {
		fmt.Fprintf(to, "\n%d wake-ups between Go and Java: median %v, longest %v\n", len(all), all.median(), all.longest())
	}
}

func widest(rows [][]string, column int) int {
	width := 0
	for _, row := range rows {
		width = max(width, len([]rune(row[column])))
	}
	return width
}

// woken is all wake-ups of primitives that listen.
func (r *report) woken() (all woken) {
	for _, t := range r.tables {
		for _, l := range t.lines {
			for primitive, cell := range l.cells {
				if primitive != "spin" {
					all = append(all, cell.woken...)
				}
			}
		}
	}
	return all
}

// markdown is the tables without figures, so that one run's text is the next one's, and why what does not apply does not.
func (r *report) markdown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var text strings.Builder
	var reasons []string
	for _, t := range r.tables {
		fmt.Fprintf(&text, "**%s**\n\n| | %s |\n|---|%s\n", t.title, strings.Join(primitiveNames(), " | "), strings.Repeat("---|", len(primitiveNames())))
		for _, l := range t.lines {
			fmt.Fprintf(&text, "| %s |", l.situation)
			for _, primitive := range primitiveNames() {
				cell := l.cells[primitive]
				switch {
				case cell == nil:
					text.WriteString(" |")
				case cell.reason != "":
					at := slices.Index(reasons, cell.reason)
					if at < 0 {
						at = len(reasons)
						reasons = append(reasons, cell.reason)
					}
					fmt.Fprintf(&text, " %s (%d) |", cell.verdict, at+1)
				default:
					fmt.Fprintf(&text, " %s |", cell.verdict)
				}
			}
			text.WriteString("\n")
		}
		text.WriteString("\n")
	}
	for i, reason := range reasons {
		fmt.Fprintf(&text, "(%d) %s.\n", i+1, reason)
	}
	return text.String()
}

// complete tells whether the matrix was run whole and well.
func (r *report) complete() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, setup := range setups {
		for _, s := range situations() {
			if setup.core && !s.core {
				continue
			}
			for _, primitive := range s.primitives() {
				if cell := r.cell(setup.title, s.name, primitive); cell == nil || cell.verdict != passed {
					return fmt.Errorf("%s, %s, %s: %s", setup.title, s.name, primitive, cmp.Or(r.text(cell), "not run"))
				}
			}
		}
	}
	return nil
}

// cell finds what a cell came to; nil: nothing.
func (r *report) cell(title, situation, primitive string) *result {
	for _, t := range r.tables {
		for _, l := range t.lines {
			if t.title == title && l.situation == situation {
				return l.cells[primitive]
			}
		}
	}
	return nil
}

// Between these the matrix stands in the documentation.
const (
	matrixBegins = "<!-- matrix -->\n"
	matrixEnds   = "<!-- /matrix -->"
)

// write puts the matrix into a file, if the whole of it was run.
func (r *report) write(file string) error {
	if err := r.complete(); err != nil {
		return fmt.Errorf("the matrix is not written: %w", err)
	}
	return replaceBetween(file, r.markdown())
}

func replaceBetween(file, text string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the matrix: %w", err)
	}
	head, rest, begins := bytes.Cut(old, []byte(matrixBegins))
	_, tail, ends := bytes.Cut(rest, []byte(matrixEnds))
	if !begins || !ends {
		return fmt.Errorf("the matrix: %s lacks %q and %q", file, matrixBegins, matrixEnds)
	}
	fresh := slices.Concat(head, []byte(matrixBegins), []byte(text), []byte(matrixEnds), tail)
	if err := os.WriteFile(file, fresh, 0o644); err != nil {
		return fmt.Errorf("the matrix: %w", err)
	}
	return nil
}

// woken is how long wake-ups took, from just before the release was ordered until the waiter's success was known, both seen from here.
type woken []time.Duration

func (w woken) median() time.Duration {
	sorted := slices.Sorted(slices.Values(w))
	return sorted[len(sorted)/2].Round(10 * time.Microsecond)
}

func (w woken) longest() time.Duration { return slices.Max(w).Round(10 * time.Microsecond) }

func (w woken) String() string {
	return fmt.Sprintf("%.1f/%.0fms", w.median().Seconds()*1000, w.longest().Seconds()*1000)
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := newReport()
	r.open("one server", "a")
	require.ErrorContains(t, r.write("nowhere"), "not written")
	r.record("one server", "a", "lock", result{verdict: passed, woken: woken{time.Millisecond, 2 * time.Millisecond, 30 * time.Millisecond}})
	r.record("one server", "a", "latch", result{verdict: notApplicable, reason: "it is no lock"})
	var printed strings.Builder
	r.print(&printed)
	require.Contains(t, printed.String(), "pass 2.0/30ms")
	require.Contains(t, printed.String(), "median 2ms, longest 30ms")

	file := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(file, []byte("before\n"+matrixBegins+"outdated\n"+matrixEnds+"\nafter\n"), 0o600))
	require.NoError(t, replaceBetween(file, r.markdown()))
	page, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(page), "| a | pass | | | | | | | | | | n/a (1) |")
	require.Contains(t, string(page), "(1) it is no lock.\n"+matrixEnds+"\nafter\n")
	require.NotContains(t, string(page), "outdated")
	require.NoError(t, os.WriteFile(file, []byte("no place"), 0o600))
	require.Error(t, replaceBetween(file, "x"))
}

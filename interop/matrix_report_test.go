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

// report collects the results of the cells: a table per environment, a line per situation, a column
// per primitive.
type report struct {
	mu     sync.Mutex
	tables []*table // in the order of their first line
}

type table struct {
	title string
	lines []*line
}

type line struct {
	situation string
	cells     map[string]*result // by primitive
}

// result is the result of one cell.
type result struct {
	verdict string  // pass, FAILED, skipped or n/a
	reason  string  // for n/a: why the situation does not apply
	wakeUps wakeUps // measured wake-up times, if any
}

const (
	passed        = "pass"
	failed        = "FAILED"
	skipped       = "skipped"
	notApplicable = "n/a"
	blank         = "" // the situation is specific to other primitives
)

func newReport() *report { return &report{} }

// record records the result of a cell.
func (r *report) record(title, situation, primitive string, got result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line(title, situation).cells[primitive] = &got
}

// line returns a line and adds it if necessary. The first call for a line determines its position.
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

// open adds the line of a situation before its cells run, so that the lines are in the order of the
// tests.
func (r *report) open(title, situation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line(title, situation)
}

func (r *report) text(cell *result) string {
	switch {
	case cell == nil:
		return blank
	case cell.verdict == passed && len(cell.wakeUps) > 0:
		return fmt.Sprintf("%s %s", passed, cell.wakeUps)
	}
	return cell.verdict
}

// print writes the tables as plain text, with the times of this run.
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
	if all := r.allWakeUps(); len(all) > 0 {
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

// allWakeUps returns the wake-up times of all primitives that wait for messages.
func (r *report) allWakeUps() (all wakeUps) {
	for _, t := range r.tables {
		for _, l := range t.lines {
			for primitive, cell := range l.cells {
				if primitive != "spin" {
					all = append(all, cell.wakeUps...)
				}
			}
		}
	}
	return all
}

// markdown returns the tables, and the reasons for n/a as notes. It omits times, so that successful
// runs produce the same text.
func (r *report) markdown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var text strings.Builder
	var reasons []string
	for _, t := range r.tables {
		columns := primitiveNames()
		fmt.Fprintf(&text, "**%s**\n\n| | %s |\n", t.title, strings.Join(columns, " | "))
		fmt.Fprintf(&text, "|---|%s\n", strings.Repeat("---|", len(columns)))
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
		fmt.Fprintf(&text, "- (%d) %s.\n", i+1, reason)
	}
	return text.String()
}

// complete returns an error if a cell of the matrix has not run or has not passed.
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

// cell returns the result of a cell, or nil if it has none.
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

// The matrix is between these markers in the documentation.
const (
	matrixBegins = "<!-- matrix -->\n"
	matrixEnds   = "<!-- /matrix -->"
)

// write writes the matrix into a file. It returns an error unless all cells have passed.
func (r *report) write(file string) error {
	if err := r.complete(); err != nil {
		return fmt.Errorf("the matrix is not written: %w", err)
	}
	return replaceBetween(file, r.markdown())
}

// replaceBetween replaces the text between the markers in a file.
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

// wakeUps are wake-up times as measured in this process: from just before the release is sent until
// the waiter has acquired.
type wakeUps []time.Duration

func (w wakeUps) median() time.Duration {
	sorted := slices.Sorted(slices.Values(w))
	return sorted[len(sorted)/2].Round(10 * time.Microsecond)
}

func (w wakeUps) longest() time.Duration { return slices.Max(w).Round(10 * time.Microsecond) }

func (w wakeUps) String() string {
	return fmt.Sprintf("%.1f/%.0fms", w.median().Seconds()*1000, w.longest().Seconds()*1000)
}

func TestReportWritesTablesBetweenTheMarkers(t *testing.T) {
	t.Parallel()
	r := newReport()
	r.open("one server", "a")
	require.ErrorContains(t, r.write("nowhere"), "not written")
	times := wakeUps{time.Millisecond, 2 * time.Millisecond, 30 * time.Millisecond}
	r.record("one server", "a", "lock", result{verdict: passed, wakeUps: times})
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
	require.Contains(t, string(page), "- (1) it is no lock.\n"+matrixEnds+"\nafter\n")
	require.NotContains(t, string(page), "outdated")
	require.NoError(t, os.WriteFile(file, []byte("no place"), 0o600))
	require.Error(t, replaceBetween(file, "x"))
}

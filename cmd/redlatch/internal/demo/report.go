package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// report prints what happens and collects the results of checks. It is safe for concurrent use.
type report struct {
	started time.Time

	mu     sync.Mutex
	out    io.Writer
	checks []checkResult
}

// checkResult is the result of a check.
type checkResult struct {
	scene, what, measured, wanted string
	ok                            bool
}

func newReport(out io.Writer) *report { return &report{started: time.Now(), out: out} }

func (r *report) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

// add adds the result of a check.
func (r *report) add(scene, what, measured, wanted string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, checkResult{scene, what, measured, wanted, ok})
}

// fail records that a scene ended with an error.
func (r *report) fail(scene string, err error) {
	r.printf("%s", wrap("  ", err.Error()))
	r.add(scene, "scene completed", "no", "yes", false)
}

// String says what was checked, and what came out.
func (c checkResult) String() string {
	verdict := "ok"
	if !c.ok {
		verdict = "FAILED"
	}
	text := verdict + "  " + c.what + ": " + c.measured
	if c.measured != c.wanted {
		text += " (wanted: " + c.wanted + ")"
	}
	return text
}

// checksOf returns the checks of a scene.
func (r *report) checksOf(scene string) (all []checkResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.checks {
		if c.scene == scene {
			all = append(all, c)
		}
	}
	return all
}

// printChecks prints the checks of a scene below it.
func (r *report) printChecks(scene string) {
	r.printf("\n")
	for _, c := range r.checksOf(scene) {
		r.printf("%s", wrap("  ", c.String()))
	}
}

// failures counts the checks that failed. mu is held.
func (r *report) failures() (n int) {
	for _, c := range r.checks {
		if !c.ok {
			n++
		}
	}
	return n
}

// summary prints what failed, and how many checks passed. It returns an error if a check failed.
func (r *report) summary() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := r.failures()
	took := time.Since(r.started).Round(100 * time.Millisecond)
	if failed == 0 {
		fmt.Fprintf(r.out, "\nAll %d checks passed, in %v.\n", len(r.checks), took)
		return nil
	}
	fmt.Fprintln(r.out)
	for _, c := range r.checks {
		if !c.ok {
			fmt.Fprint(r.out, wrap("  ", c.scene+": "+c.String()))
		}
	}
	fmt.Fprintf(r.out, "\n%d of %d checks failed, in %v.\n", failed, len(r.checks), took)
	return fmt.Errorf("%d of %d checks failed", failed, len(r.checks))
}

// columns is the width of the text.
const columns = 80

// wrap returns lead and a text, in lines that fit the columns. Further lines begin below the text.
func wrap(lead, text string) string {
	var b strings.Builder
	b.WriteString(lead)
	indent := utf8.RuneCountInString(lead)
	at := indent
	for line := range strings.SplitSeq(text, "\n") {
		for i, word := range strings.Split(line, " ") {
			n := utf8.RuneCountInString(word)
			switch {
			case at > indent && at+1+n > columns:
				b.WriteString("\n" + strings.Repeat(" ", indent))
				at = indent
			case i > 0:
				b.WriteByte(' ')
				at++
			}
			b.WriteString(word)
			at += n
		}
	}
	return b.String() + "\n"
}

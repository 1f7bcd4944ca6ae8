package demo

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"
)

// report prints what happens and collects the results of checks. It is safe for concurrent use.
type report struct {
	started time.Time

	mu     sync.Mutex
	out    io.Writer
	checks []checkResult
}

// checkResult is one line of the summary table.
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

// add adds a line to the summary table.
func (r *report) add(scene, what, measured, wanted string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks = append(r.checks, checkResult{scene, what, measured, wanted, ok})
}

// fail records that a scene ended with an error.
func (r *report) fail(scene string, err error) {
	r.printf("  %v\n", err)
	r.add(scene, "scene completed", "no", "yes", false)
}

// summary prints the table. It returns an error if a check failed.
func (r *report) summary() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	failed := 0
	fmt.Fprint(r.out, "\nSummary of checks\n\n")
	w := tabwriter.NewWriter(r.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "  SCENE\tCHECK\tMEASURED\tWANTED")
	for _, c := range r.checks {
		verdict := "ok"
		if !c.ok {
			verdict = "FAILED"
			failed++
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", c.scene, c.what, c.measured, c.wanted, verdict)
	}
	_ = w.Flush() // an error of r.out does not change the result
	took := time.Since(r.started).Round(100 * time.Millisecond)
	if failed > 0 {
		fmt.Fprintf(r.out, "\n%d of %d checks failed, in %v.\n", failed, len(r.checks), took)
		return fmt.Errorf("%d of %d checks failed", failed, len(r.checks))
	}
	fmt.Fprintf(r.out, "\nAll %d checks passed, in %v.\n", len(r.checks), took)
	return nil
}

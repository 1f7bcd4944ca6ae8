package torture

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/anishathalye/porcupine"
)

// report adds violations to the result, and writes the timelines of those that have one.
func (r *runner) report(rd *round, violations []Violation) error {
	for i := range violations {
		v := &violations[i]
		v.Seed = rd.seed
		if v.result == nil {
			continue
		}
		file := filepath.Join(r.cfg.Timelines, fmt.Sprintf("redlatch-torture-%d-%s-%d.html", rd.seed, v.Primitive, i))
		if err := writeTimeline(file, v); err != nil {
			return err
		}
		v.Timeline = file
	}
	r.result.Violations = append(r.result.Violations, violations...)
	return nil
}

func writeTimeline(file string, v *Violation) error {
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("torture: timeline: %w", err)
	}
	err = porcupine.Visualize(v.model, *v.result, out)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// Print writes a result as a table.
func (r *Result) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	line("topology", r.Topology)
	line("seeds", fmt.Sprintf("%d to %d", r.Seed, r.Seed+uint64(max(r.Rounds, 1))-1))
	line("time", r.Elapsed.Round(time.Second))
	line("operations", r.Total())
	for _, name := range slices.Sorted(maps.Keys(r.Operations)) {
		line("  "+name, r.Operations[name])
	}
	line("outcomes", "")
	for _, name := range slices.Sorted(maps.Keys(r.Outcomes)) {
		line("  "+name, r.Outcomes[name])
	}
	faults := 0
	for _, n := range r.Faults {
		faults += n
	}
	line("faults", faults)
	for _, name := range slices.Sorted(maps.Keys(r.Faults)) {
		line("  "+name, r.Faults[name])
	}
	for _, name := range r.LeftOut {
		line("  "+name, "left out: it needs servers of the harness, or another topology")
	}
	line("holds lost", r.Lost)
	line("longest wait", r.LongestWait.Round(time.Millisecond))
	if r.Undecided > 0 {
		line("undecided histories", r.Undecided)
	}
	line("violations", len(r.Violations))
	if err := w.Flush(); err != nil {
		return err
	}
	for _, v := range r.Violations {
		fmt.Fprintf(out, "\n%s: %s %s\n  %s\n  repeat with --seed %d\n", v.Check, v.Primitive, v.Name, v.Detail, v.Seed)
		if v.Timeline != "" {
			fmt.Fprintf(out, "  timeline: %s\n", v.Timeline)
		}
	}
	return nil
}

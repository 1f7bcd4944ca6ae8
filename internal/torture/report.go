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

// report adds violations to the result, and writes the timelines of those that have one, and a log
// of the round that begins with the violations.
func (r *runner) report(rd *round, h *history, violations []Violation) error {
	var logs []string
	if len(violations) > 0 {
		log := filepath.Join(r.cfg.Timelines, fmt.Sprintf("redlatch-torture-%d.log", rd.seed))
		err := writeFile(log, func(out io.Writer) error {
			for _, v := range violations {
				fmt.Fprintf(out, "violation: %s of %s %s: %s\n", v.Check, v.Primitive, v.Name, v.Detail)
			}
			h.print(out, violations)
			return nil
		})
		if err != nil {
			return err
		}
		logs = append(logs, log)
	}
	for i := range violations {
		v := &violations[i]
		v.Seed = rd.seed
		if v.result == nil {
			continue
		}
		file := filepath.Join(r.cfg.Timelines, fmt.Sprintf("redlatch-torture-%d-%s-%d.html", rd.seed, v.Primitive, i))
		visualize := func(out io.Writer) error { return porcupine.Visualize(v.model, *v.result, out) }
		if err := writeFile(file, visualize); err != nil {
			return err
		}
		v.Timeline = file
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Violations = append(r.result.Violations, violations...)
	r.result.Logs = append(r.result.Logs, logs...)
	if r.cfg.Pictures {
		r.result.keepPicture(h.picture(rd.seed, rd.theme, rd.pace, violations))
	}
	return nil
}

func writeFile(name string, write func(io.Writer) error) error {
	out, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("torture: report: %w", err)
	}
	err = write(out)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

// print writes all that happened in a round, by name, those with violations first.
func (h *history) print(out io.Writer, violations []Violation) {
	if len(h.others) > 0 {
		fmt.Fprintf(out, "processes of the other build: %v\n", h.others)
	}
	for _, w := range h.windows {
		fmt.Fprintf(out, "%s to %s: fault %s, process %d, %v hit=%v\n",
			h.seconds(w.begin), h.seconds(w.end), w.fault, w.process, w.names, w.hit)
	}
	for _, process := range slices.Sorted(maps.Keys(h.stalls)) {
		for _, s := range h.stalls[process] {
			fmt.Fprintf(out, "%s to %s: process %d did not run\n", h.seconds(s.begin), h.seconds(s.end), process)
		}
	}
	for _, c := range h.copies {
		fmt.Fprintf(out, "%s: a command of process %d arrived %v late: %.300q, reply %.100q\n",
			h.seconds(c.at), c.process, c.delay, c.args, c.reply)
	}
	violated := map[string]bool{}
	for _, v := range violations {
		violated[v.Name] = true
	}
	names := slices.Sorted(maps.Keys(h.names))
	for _, now := range []bool{true, false} {
		for _, name := range names {
			if violated[name] == now {
				h.printName(out, name)
			}
		}
	}
	for _, o := range h.ops {
		if o.stacks != "" {
			fmt.Fprintf(out, "\ngoroutines of process %d while op %d was late:\n%s", o.process, o.call.Op, o.stacks)
		}
	}
}

func (h *history) printName(out io.Writer, name string) {
	fmt.Fprintf(out, "\n%s\n", name)
	for _, o := range h.names[name] {
		fmt.Fprintf(out, "%s to %s: process %d.%d op %d %s: %s", h.seconds(o.call.At), h.seconds(o.returned()),
			o.process, o.call.Session, o.call.Op, o.call.Do, o.outcome())
		if o.call.Bound != 0 {
			fmt.Fprintf(out, " (until %s)", h.seconds(o.call.Bound))
		}
		if o.call.Root != 0 && o.call.Root != o.call.Op {
			fmt.Fprintf(out, " of op %d", o.call.Root)
		}
		if o.call.Target != "" {
			fmt.Fprintf(out, " of %s", o.call.Target)
		}
		if o.call.Permits != 0 {
			fmt.Fprintf(out, ", permits %d", o.call.Permits)
		}
		if o.ret != nil && o.ret.Count != 0 {
			fmt.Fprintf(out, ", count %d", o.ret.Count)
		}
		if o.holds() {
			fmt.Fprintf(out, ", read=%v fixed=%v ttl %v min %v, id %s token %d, held to %s, valid to %s", o.call.Read,
				o.call.Fixed, o.call.TTL, o.call.MinHold, o.ret.ID, o.ret.Token, h.seconds(o.claimEnd()), h.seconds(o.until))
		}
		if o.waited != 0 {
			fmt.Fprintf(out, ", waited at %s", h.seconds(o.waited))
		}
		if o.ret != nil && o.ret.Err != "" {
			fmt.Fprintf(out, ", %s", o.ret.Err)
		}
		fmt.Fprintln(out)
	}
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
	if r.Others > 0 {
		line("  of them by the other program", r.Others)
	}
	line("outcomes", "")
	for _, name := range slices.Sorted(maps.Keys(r.Outcomes)) {
		line("  "+name, r.Outcomes[name])
	}
	faults := 0
	for name, n := range r.Faults {
		if name != faultStall && name != faultUnplanned {
			faults += n
		}
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
	if len(r.Undecided) > 0 {
		line("undecided histories", len(r.Undecided))
	}
	for _, name := range r.Undecided {
		line("  "+name, "")
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
	for _, log := range r.Logs {
		fmt.Fprintf(out, "\nall operations and faults of the round: %s\n", log)
	}
	if len(r.Enabled) == 0 {
		return nil
	}
	return r.Coverage.print(out, r.injectedFaults(), r.usedPrimitives())
}

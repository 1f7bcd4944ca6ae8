package torture

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// What a run has tested: which faults met which primitives, and in which phases of their use. A
// green run says nothing about a meeting that did not happen.

// The phases. Each has a letter for the table.
const (
	phaseAcquire  = "acquire"   // until the first answer
	phaseWait     = "wait"      // refused so far
	phaseNest     = "nest"      // a nested acquisition
	phaseHold     = "hold"      //
	phaseRenew    = "renew"     // a renewal was answered, or failed
	phaseCheck    = "check"     // Check and Extend
	phaseRelease  = "release"   //
	phaseHandOff  = "hand-off"  // a release, while others wait
	phaseTakeOver = "take-over" // Detach, Adopt, ReleaseID and ForceRelease
	phaseChange   = "change"    // pools and latches: their numbers are read or changed
)

var phaseLetters = []struct{ letter, phase string }{
	{"a", phaseAcquire}, {"w", phaseWait}, {"n", phaseNest}, {"h", phaseHold}, {"r", phaseRenew}, {"c", phaseCheck},
	{"R", phaseRelease}, {"H", phaseHandOff}, {"T", phaseTakeOver}, {"C", phaseChange},
}

// Coverage counts the operations that were in a phase during a fault, or shortly after: by fault,
// primitive and phase.
type Coverage map[string]map[string]map[string]int

// felt is for how long a fault that takes no time, such as a deleted key, is felt.
const felt = 50 * time.Millisecond

func (c Coverage) add(fault, primitive, phase string) {
	if c[fault] == nil {
		c[fault] = map[string]map[string]int{}
	}
	if c[fault][primitive] == nil {
		c[fault][primitive] = map[string]int{}
	}
	c[fault][primitive][phase]++
}

// cover adds what the faults of a round have met.
func (c Coverage) cover(h *history) {
	waits := map[string][]interval{} // by name
	for _, o := range h.ops {
		if o.waited != 0 {
			for _, name := range o.call.Names {
				waits[name] = append(waits[name], interval{o.waited, min(o.returned(), o.died)})
			}
		}
	}
	renewed := map[string][]renewal{}
	for _, r := range h.renewed {
		renewed[r.id] = append(renewed[r.id], r)
	}
	for _, w := range h.windows {
		w.end = max(w.end, w.begin+int64(felt))
		if w.isStall() || w.fault == faultUnplanned {
			continue
		}
		for _, o := range h.ops {
			if !w.touches(o) {
				continue
			}
			for phase, at := range o.phases() {
				if w.overlaps(at.begin, at.end) {
					c.add(w.fault, o.call.Primitive, phase)
				}
			}
			if o.release != nil && w.overlaps(o.release.call.At, min(o.release.returned(), o.died)) &&
				slices.ContainsFunc(waits[o.call.Names[0]], func(i interval) bool {
					return i.overlaps(o.release.call.At, o.release.returned())
				}) {
				c.add(w.fault, o.call.Primitive, phaseHandOff)
			}
			if !o.holds() {
				continue
			}
			for _, r := range renewed[o.ret.ID] {
				if r.process == o.process && w.overlaps(r.at, r.at) {
					c.add(w.fault, o.call.Primitive, phaseRenew)
					break
				}
			}
		}
	}
}

// touches reports whether a fault may have changed what an operation does.
func (w *window) touches(o *op) bool {
	return w.process == noProcess || slices.ContainsFunc(o.call.Names, func(name string) bool {
		return w.disturbs(o.process, name)
	})
}

// phases returns when an operation was in which phase.
func (o *op) phases() map[string]interval {
	end := min(o.returned(), o.died)
	switch o.call.Do {
	case opAcquire:
		out := map[string]interval{}
		if o.call.Root != 0 {
			out[phaseNest] = interval{o.call.At, end}
		} else {
			first := end
			if o.waited != 0 {
				first = o.waited
				out[phaseWait] = interval{o.waited, end}
			}
			out[phaseAcquire] = interval{o.call.At, first}
		}
		if o.holds() {
			out[phaseHold] = interval{o.ret.At, o.claimEnd()}
		}
		return out
	case opRelease:
		return map[string]interval{phaseRelease: {o.call.At, end}}
	case opCheck, opExtend:
		return map[string]interval{phaseCheck: {o.call.At, end}}
	case opDetach, opAdopt, opReleaseID, opForce:
		return map[string]interval{phaseTakeOver: {o.call.At, end}}
	}
	return map[string]interval{phaseChange: {o.call.At, end}}
}

// applicable are the letters of the phases that a primitive has.
func applicable(primitive string) string {
	switch primitive {
	case "latch":
		return "C"
	case "semaphore":
		return "awhRHC"
	case "permits":
		return "awhrcRHTC"
	case electionPrimitive:
		return "awhrcRH"
	}
	return "awnhrcRHT"
}

// missing returns the letters of the phases in which a fault has not met a primitive.
func (c Coverage) missing(fault, primitive string) (out string) {
	for _, p := range phaseLetters {
		if strings.Contains(applicable(primitive), p.letter) && c[fault][primitive][p.phase] == 0 {
			out += p.letter
		}
	}
	return out
}

// tableColumns is how many primitives a table of the coverage has: with more, it would be wider
// than a terminal.
const tableColumns = 6

// print writes tables: a row for each fault, a column for each primitive, and in each cell the
// letters of the phases in which they met. A dot stands for a phase in which they did not.
func (c Coverage) print(out io.Writer, faults, names []string) error {
	var legend, empty []string
	for _, p := range phaseLetters {
		legend = append(legend, p.letter+" "+p.phase)
	}
	half := (len(legend) + 1) / 2
	fmt.Fprintf(out, "\ncoverage: %s,\n          %s, . not met\n",
		strings.Join(legend[:half], ", "), strings.Join(legend[half:], ", "))
	for some := range slices.Chunk(names, tableColumns) {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintf(w, "\n\t%s\n", strings.Join(some, "\t"))
		for _, fault := range faults {
			var cells []string
			for _, name := range some {
				cells = append(cells, c.cell(fault, name))
			}
			fmt.Fprintf(w, "%s\t%s\n", fault, strings.Join(cells, "\t"))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	for _, fault := range faults {
		var unmet []string
		for _, name := range names {
			if strings.Trim(c.cell(fault, name), ".") == "" {
				unmet = append(unmet, name)
			}
		}
		switch {
		case len(unmet) == len(names):
			empty = append(empty, fault+" at all")
		case len(unmet) > 0:
			empty = append(empty, fault+" and "+strings.Join(unmet, ", "))
		}
	}
	if len(empty) > 0 {
		_, err := fmt.Fprintf(out, "\nnever met:\n  %s\n", strings.Join(empty, "\n  "))
		return err
	}
	_, err := fmt.Fprintln(out, "\neach fault has met each primitive")
	return err
}

// cell returns the letters of the phases in which a fault has met a primitive, and dots for the
// others that it has.
func (c Coverage) cell(fault, primitive string) (out string) {
	missing := c.missing(fault, primitive)
	for _, p := range phaseLetters {
		switch {
		case strings.Contains(missing, p.letter):
			out += "."
		case strings.Contains(applicable(primitive), p.letter):
			out += p.letter
		}
	}
	return out
}

// injectedFaults are the faults of a run, in the order of the documentation.
func (r *Result) injectedFaults() (out []string) {
	for _, f := range faults() {
		if slices.Contains(r.Enabled, f.name) {
			out = append(out, f.name)
		}
	}
	return out
}

// usedPrimitives are the primitives of a run.
func (r *Result) usedPrimitives() []string {
	used := slices.Collect(maps.Keys(r.Operations))
	slices.SortFunc(used, func(a, b string) int { return slices.Index(Primitives, a) - slices.Index(Primitives, b) })
	return used
}

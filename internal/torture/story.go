package torture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// storyLines is how many lines a story has at most.
const storyLines = 18

// story tells what happened in a few lines, in order: each fault, and each operation with what
// became of its hold. The operations on the names of violations come first if there are too many.
func (h *history) story(violations []Violation) []string {
	type event struct {
		at   int64
		rank int // 0: it must be told
		text string
	}
	var all []event
	concerned := map[string]bool{}
	for _, v := range violations {
		concerned[v.Name] = true
	}
	for i := range h.windows {
		w := &h.windows[i]
		if !w.isStall() {
			all = append(all, event{w.begin, 0, h.tellFault(w)})
		}
	}
	for _, o := range h.ops {
		if o.call.Do == opRelease || o.call.Do == opDetach {
			continue // told with the hold
		}
		rank := 1
		if concerned[o.call.Names[0]] {
			rank = 0
		}
		all = append(all, event{o.call.At, rank, h.tell(o)})
	}
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	// The violation is near the end of what it concerns, so the latest events stay.
	kept := slices.Clone(all)
	slices.SortStableFunc(kept, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.at, a.at))
	})
	left := max(0, len(kept)-storyLines)
	kept = kept[:len(kept)-left]
	slices.SortStableFunc(kept, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	var out []string
	for _, e := range kept {
		out = append(out, fmt.Sprintf("%8.3f s  %s", float64(e.at-h.begin)/float64(time.Second), e.text))
	}
	if left > 0 {
		out = append(out, fmt.Sprintf("%d further operations are not shown", left))
	}
	return out
}

func (h *history) tellFault(w *window) string {
	text := "fault " + w.fault
	if w.process >= 0 {
		text += fmt.Sprintf(" of client %d", w.process)
	}
	if len(w.names) > 0 {
		text += " of " + h.short(strings.Join(w.names, ", "))
	}
	if d := time.Duration(w.end - w.begin); w.end != never && d >= time.Millisecond {
		text += fmt.Sprintf(" for %v", d.Round(time.Millisecond))
	}
	return text
}

func (h *history) short(name string) string { return strings.ReplaceAll(name, h.tag+":", "") }

func (h *history) tell(o *op) string {
	text := fmt.Sprintf("client %d.%d  %s", o.process, o.call.Session, o.call.Do)
	if o.call.Read {
		text += " as reader"
	}
	if o.root != o {
		text += ", nested,"
	}
	text += " " + h.short(strings.Join(o.call.Names, ", "))
	if o.call.Target != "" {
		text += " of " + tail(o.call.Target)
	}
	text += ": " + o.outcome()
	if o.ret == nil {
		return text + ", has not returned"
	}
	if took := time.Duration(o.ret.At - o.call.At); took >= time.Millisecond {
		text += fmt.Sprintf(" after %v", took.Round(time.Millisecond))
	}
	if !o.holds() {
		return text
	}
	held := time.Duration(o.claimEnd() - o.ret.At).Round(time.Millisecond)
	text += fmt.Sprintf(", id %s, held for %v", tail(o.ret.ID), held)
	switch {
	case o.ended != nil && o.ended.Outcome == outcomeLost:
		text += ", lost: " + o.ended.Reason
	case o.detached:
		text += ", detached"
	case o.release != nil:
		text += ", release: " + o.release.outcome()
	}
	return text
}

// tail is the end of an id, which tells it from the others.
func tail(id string) string { return "…" + id[max(0, len(id)-8):] }

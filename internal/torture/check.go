package torture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// What the checks allow beyond the contract, because a busy machine runs nothing at once.
const (
	promptness = 50 * time.Millisecond  // of doc/contract.md, C5
	tolerance  = 250 * time.Millisecond // for the scheduler, beyond the stalls that were seen
	notice     = 200 * time.Millisecond // of doc/contract.md, C15: a holder learns of a takeover
	patience   = 3 * time.Second        // for a waiter of a lock that nobody can hold: it polls once a second
	recovery   = 3 * time.Second        // to connect again, and to poll, after a fault
	solving    = 20 * time.Second       // for porcupine, for one name
)

// Violation is a promise of doc/contract.md that was broken.
type Violation struct {
	Check     string `json:"check"`
	Primitive string `json:"primitive,omitempty"`
	Name      string `json:"name,omitempty"`
	Detail    string `json:"detail"`
	Seed      uint64 `json:"seed"`               // of the round
	Timeline  string `json:"timeline,omitempty"` // an HTML file

	result *porcupine.LinearizationInfo
	model  porcupine.Model
}

// The checks.
const (
	checkOrder    = "exclusion"   // the history of a name has no sequential order
	checkPrompt   = "return"      // a call returned too late
	checkReason   = "loss"        // a hold was lost without a reason
	checkNotice   = "notice"      // the holder learned of a loss too late
	checkFree     = "wait"        // a waiter waited although nobody could hold
	checkError    = "error"       // an error that no fault explains
	checkForever  = "end"         // a call did not return at all
	checkLeft     = "left behind" // keys, subscriptions or goroutines
	checkProcess  = "process"     // a client process failed
	checkUndecide = "undecided"   // porcupine found no answer in time
)

// check returns the violations of a history. undecided are names for which porcupine ran out of time.
func (h *history) check() (violations []Violation, undecided []string) {
	h.sort()
	names := h.byName()
	for name, ops := range names {
		v, known := h.linearize(name, ops)
		if !known {
			undecided = append(undecided, name)
		}
		violations = append(violations, v...)
		violations = append(violations, h.checkLosses(name, ops)...)
		violations = append(violations, h.checkNotices(name, ops)...)
	}
	violations = append(violations, h.checkReturns()...)
	violations = append(violations, h.checkErrors()...)
	violations = append(violations, h.checkWaits(names)...)
	slices.SortFunc(violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Check, b.Check), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Detail, b.Detail))
	})
	return violations, undecided
}

func violation(check string, o *op, name, format string, args ...any) Violation {
	return Violation{Check: check, Primitive: o.call.Primitive, Name: name, Detail: fmt.Sprintf(format, args...)}
}

// linearize looks for a sequential order of what happened to a name.
func (h *history) linearize(name string, ops []*op) (violations []Violation, known bool) {
	var model porcupine.Model
	var history []porcupine.Operation
	if ops[0].call.Primitive == "latch" {
		model, history = latchModel, h.latchSteps(ops)
	} else {
		model, history = holdersModel(limitOf(ops)), h.holderSteps(name, ops)
	}
	switch result, info := porcupine.CheckOperationsVerbose(model, history, solving); result {
	case porcupine.Ok:
		return nil, true
	case porcupine.Unknown:
		return nil, false
	default:
		h.annotate(&info, name)
		v := violation(checkOrder, ops[0], name, "%s", explain(history, info))
		v.result, v.model = &info, model
		return []Violation{v}, true
	}
}

// limitOf returns the size of a pool, or 0 for locks.
func limitOf(ops []*op) int {
	for _, o := range ops {
		if o.call.Limit > 0 {
			return o.call.Limit
		}
	}
	return 0
}

// explain says which operation fits in no order: the earliest one behind the longest order that was found.
func explain(history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := []porcupine.Operation(nil)
	for _, partial := range info.PartialLinearizationsOperations() {
		for _, p := range partial {
			if len(p) > len(longest) {
				longest = p
			}
		}
	}
	done := map[any]int{}
	for _, o := range longest {
		done[o.Input]++
	}
	for _, o := range history { // by the time of the call
		if s := o.Input.(step); s.do != stepEnd && done[o.Input] == 0 {
			return fmt.Sprintf("no order of the operations explains %s, by client %d", s.text, o.ClientId)
		}
	}
	return "no order of the operations explains the history"
}

// lanes numbers the sessions of all processes for a timeline.
type lanes map[[2]int]int

func (l lanes) of(o *op) int {
	key := [2]int{o.process, o.call.Session}
	if _, ok := l[key]; !ok {
		l[key] = len(l)
	}
	return l[key]
}

// holderSteps returns the operations on a lock or semaphore as the model sees them. A hold is two
// operations: an acquisition between its call and its return, and an end that can take effect from
// the moment at which the holder's own clock no longer promises anything.
func (h *history) holderSteps(name string, ops []*op) []porcupine.Operation {
	var out []porcupine.Operation
	horizon := h.end + 1
	lanes := lanes{}
	roots := map[*op]int{}
	for i, o := range ops {
		roots[o] = i
	}
	cut := int64(never)
	if limitOf(ops) > 0 {
		cut = h.firstLoss(ops)
	}
	emit := func(o *op, begin, end int64, s step) {
		out = append(out, porcupine.Operation{ClientId: lanes.of(o), Input: s, Call: begin, Return: min(end, horizon)})
	}
	for _, o := range ops {
		if o.call.Do != opAcquire {
			continue
		}
		s := step{do: opAcquire, root: roots[o.root], read: o.call.Read, permits: o.call.Permits}
		begin := o.call.At
		outermost := o.root == o
		queued := workloads[o.call.Primitive].fair && outermost && o.waited != 0 &&
			!h.disturbed(o.process, name, o.call.At, min(o.returned(), o.died))
		if queued && (o.holds() || o.outcome() == outcomeBusy) {
			emit(o, o.call.At, o.waited, step{do: stepJoin, root: s.root, text: fmt.Sprintf("join #%d", s.root)})
			begin = o.waited
			if !o.holds() {
				emit(o, o.waited, o.returned(), step{do: stepLeave, root: s.root, text: fmt.Sprintf("leave #%d", s.root)})
			}
		}
		if !o.holds() || o.ret.At >= cut {
			continue
		}
		s.ordered = queued
		// While servers change over, two of them may count. So tokens of that time are not compared.
		if outermost && !h.lossy(o.call.At, o.ret.At) {
			s.token = o.ret.Token
		}
		s.text = describe(o, s)
		emit(o, begin, o.ret.At, s)
		end, done := h.clip(o, ops), never
		if o.release != nil && o.release.outcome() == outcomeOK {
			done = int(o.release.ret.At)
		}
		emit(o, max(end, begin), max(int64(done), end, begin), step{
			do: stepEnd, root: s.root, read: s.read, permits: s.permits, text: fmt.Sprintf("end #%d", s.root),
		})
	}
	for _, w := range h.windows {
		if w.lossy {
			out = append(out, porcupine.Operation{
				ClientId: len(lanes), Input: step{do: stepLoss, text: w.fault}, Call: w.begin, Return: w.end,
			})
		}
	}
	return out
}

func describe(o *op, s step) string {
	kind := "acquire"
	switch {
	case o.root != o:
		kind = "nest"
	case s.read:
		kind = "read"
	}
	text := fmt.Sprintf("%s #%d", kind, s.root)
	if s.token > 0 {
		text += fmt.Sprintf(" token %d", s.token)
	}
	if s.permits > 0 {
		text += fmt.Sprintf(" %d permits", s.permits)
	}
	return text + fmt.Sprintf(" (process %d, %s)", o.process, o.ret.ID)
}

// clip returns when the claim of a hold ends, for the check of exclusion. An operator or a loss of data
// may end it earlier than its holder can know.
func (h *history) clip(o *op, ops []*op) int64 {
	end := o.claimEnd()
	begin := ownershipBegin(o, ops)
	for i := range h.windows {
		w := &h.windows[i]
		if slices.ContainsFunc(o.call.Names, w.ends) && w.overlaps(begin, end) {
			end = min(end, max(o.ret.At, w.begin))
		}
	}
	return end
}

// ownershipBegin returns when the id of a hold may have been granted first: nested holds and the members
// of a cohort share it.
func ownershipBegin(o *op, ops []*op) int64 {
	begin := o.root.call.At
	if o.ret.ID == "" {
		return begin
	}
	for _, other := range ops {
		if other.process == o.process && other.holds() && other.ret.ID == o.ret.ID {
			begin = min(begin, other.call.At)
		}
	}
	return begin
}

// lossy reports whether servers may have forgotten something between two instants.
func (h *history) lossy(begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool { return w.lossy && w.overlaps(begin, end) })
}

// firstLoss returns when the servers may first have forgotten a name that was in use. A pool or latch that
// was lost is not used again, except by calls that are under way.
func (h *history) firstLoss(ops []*op) int64 {
	first := int64(never)
	for _, w := range h.windows {
		if w.lossy && w.begin > ops[0].call.At {
			first = min(first, w.begin)
		}
	}
	return first
}

// latchSteps returns the operations on a latch. An operation of unknown outcome may take effect at any
// time after its call.
func (h *history) latchSteps(ops []*op) []porcupine.Operation {
	var out []porcupine.Operation
	lanes := lanes{}
	cut := h.firstLoss(ops)
	for _, o := range ops {
		s := step{do: o.call.Do, permits: o.call.Permits, result: -1, root: len(out)}
		end := o.returned()
		if min(end, o.died) >= cut {
			continue
		}
		switch o.outcome() {
		case outcomeOK:
			s.result = o.ret.Count
		case outcomeUnknown:
			end = never
		default:
			continue
		}
		if end == never && (s.do == opCount || s.do == opAwait) {
			continue // it changed nothing and saw nothing
		}
		s.text = s.do
		if s.do == opCount || s.do == opInit {
			s.text += fmt.Sprintf(" %d", s.result)
		}
		out = append(out, porcupine.Operation{
			ClientId: lanes.of(o), Input: s, Call: o.call.At, Return: min(end, h.end+1),
		})
	}
	return out
}

// annotate adds the faults to a timeline.
func (h *history) annotate(info *porcupine.LinearizationInfo, name string) {
	var notes []porcupine.Annotation
	for _, w := range h.windows {
		if len(w.names) > 0 && !slices.Contains(w.names, name) {
			continue
		}
		note := porcupine.Annotation{Tag: "faults", Start: w.begin, End: w.end, Description: w.fault}
		if w.process >= 0 {
			note.Description += fmt.Sprintf(" of process %d", w.process)
		}
		notes = append(notes, note)
	}
	info.AddAnnotations(notes)
}

// checkReturns finds calls that returned too late.
func (h *history) checkReturns() (out []Violation) {
	for _, o := range h.ops {
		if o.ret == nil || o.call.Bound == 0 {
			continue
		}
		late := time.Duration(o.ret.At - max(o.call.Bound, o.call.At))
		allowed := promptness + tolerance + h.stalled(o.process, o.call.At, o.ret.At) + h.paused(o)
		if late > allowed {
			out = append(out, violation(checkPrompt, o, o.call.Names[0],
				"%s returned %v after the end of its time: %s %s", o.call.Do, late.Round(time.Millisecond),
				o.ret.Outcome, o.ret.Err))
		}
	}
	return out
}

// paused is for how long the process was stopped during the call: by how much its own timers are late.
func (h *history) paused(o *op) time.Duration {
	sum := int64(0)
	for _, w := range h.windows {
		if w.fault == faultStop && w.process == o.process {
			sum += max(0, min(o.ret.At, w.end)-max(o.call.At, w.begin))
		}
	}
	return time.Duration(sum)
}

// checkLosses finds holds that were lost without a reason: nobody took them, and no fault kept them from
// being renewed.
func (h *history) checkLosses(name string, ops []*op) (out []Violation) {
	for _, o := range ops {
		if !o.holds() || o.call.Fixed || o.root.call.Fixed || o.until == 0 {
			continue
		}
		at := int64(0)
		switch {
		case o.ended != nil && o.ended.Outcome == outcomeLost:
			at = o.ended.At
		case o.release != nil && o.release.outcome() == outcomeLost:
			at = o.release.ret.At
		default:
			continue
		}
		begin := ownershipBegin(o, ops)
		ended := slices.ContainsFunc(h.windows, func(w window) bool {
			return slices.ContainsFunc(o.call.Names, w.ends) && w.overlaps(begin, at)
		})
		byTime := at >= o.until-int64(5*time.Millisecond)
		silent := o.until - int64(o.call.TTL)
		reason := h.disturbed(o.process, name, silent-int64(recovery), at) ||
			h.stalled(o.process, silent, at) > o.call.TTL/3
		if !ended && !(byTime && reason) {
			out = append(out, violation(checkReason, o, name,
				"process %d lost %s %v before the end of its validity, although nobody took it and no fault explains it",
				o.process, o.ret.ID, time.Duration(o.until-at).Round(time.Millisecond)))
		}
	}
	return out
}

// checkNotices finds holders that an operator has ended, and that learned it too late.
func (h *history) checkNotices(name string, ops []*op) (out []Violation) {
	for i := range h.windows {
		w := &h.windows[i]
		if !w.hit || !slices.Contains(w.names, name) {
			continue
		}
		for _, o := range ops {
			if !o.holds() || o.ret.At >= w.begin || o.claimEnd() <= w.end {
				continue
			}
			told := time.Duration(o.claimEnd() - w.end)
			limit := o.call.TTL
			quiet := !h.troubled(o.process, w.begin-int64(recovery), o.claimEnd())
			switch {
			case quiet && w.fault == faultForce && w.begin-o.root.ret.At > int64(time.Second):
				limit = min(limit, notice+tolerance)
			case quiet && !o.call.Fixed:
				limit = min(limit, o.call.TTL/3+time.Second)
			}
			if told > limit+h.stalled(o.process, w.begin, o.claimEnd()) {
				out = append(out, violation(checkNotice, o, name,
					"process %d held %s for %v after %s, and may hold for %v at most", o.process, o.ret.ID,
					told.Round(time.Millisecond), w.fault, limit))
			}
		}
	}
	return out
}

// troubled reports whether a fault other than an operator's act may have delayed a process.
func (h *history) troubled(process int, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return len(w.names) == 0 && w.disturbs(process, "") && w.overlaps(begin, end)
	})
}

// unexpected are parts of errors that only a bug causes, and the fault that excuses them.
var unexpected = map[string]string{
	"NOSCRIPT": "", "Error running script": "", "CROSSSLOT": "", "wrong number": "", "attempt to": "",
	"WRONGTYPE": faultOverwrite, "OOM ": faultMemory,
}

// checkErrors finds errors that no fault explains.
func (h *history) checkErrors() (out []Violation) {
	for _, o := range h.ops {
		if o.ret == nil || o.ret.Err == "" {
			continue
		}
		for part, excuse := range unexpected {
			if !strings.Contains(o.ret.Err, part) {
				continue
			}
			excused := slices.ContainsFunc(h.windows, func(w window) bool {
				return w.fault == excuse && w.overlaps(o.call.At, o.ret.At)
			})
			if !excused {
				out = append(out, violation(checkError, o, o.call.Names[0], "%s: %s", o.call.Do, o.ret.Err))
			}
		}
	}
	return out
}

// checkWaits finds waiters that waited for a lock that nobody can have held.
func (h *history) checkWaits(names map[string][]*op) (out []Violation) {
	for _, o := range h.ops {
		if o.call.Do != opAcquire || o.root != o || o.ret == nil || o.call.Limit > 0 || o.call.Primitive == "latch" {
			continue
		}
		if o.ret.At-o.call.At < int64(patience) {
			continue
		}
		var covered []interval
		for _, name := range o.call.Names {
			for _, other := range names[name] {
				if i, ok := h.possible(other, name); ok && other.root != o {
					covered = append(covered, i)
				}
			}
		}
		for _, w := range h.windows {
			if w.disturbs(o.process, o.call.Names[0]) {
				covered = append(covered, interval{w.begin, w.end + int64(recovery)})
			}
		}
		covered = append(covered, h.stalls[o.process]...)
		if at, gap := widestGap(covered, o.call.At, o.ret.At); gap > patience {
			out = append(out, violation(checkFree, o, o.call.Names[0],
				"process %d waited for %v from %v after the begin of the round, while nobody can have held it", o.process,
				gap.Round(time.Millisecond), time.Duration(at-h.begin).Round(time.Millisecond)))
		}
	}
	return out
}

// possible returns when an acquisition may have held its names in Redis.
func (h *history) possible(o *op, name string) (interval, bool) {
	if o.call.Do != opAcquire {
		return interval{}, false
	}
	const slack = int64(time.Second)
	ttl := int64(o.call.TTL) + slack
	if workloads[o.call.Primitive].fair {
		ttl += int64(waiterTimeout) // a dead waiter at the head of the queue
	}
	disturbed := h.disturbed(o.process, name, o.call.At, min(o.returned(), o.died))
	switch {
	case o.ret == nil:
		return interval{o.call.At, min(o.died, h.end) + ttl}, true
	case o.holds():
		i := interval{o.ret.At - slack/2, o.claimEnd() + ttl}
		if o.release != nil && o.release.outcome() == outcomeOK {
			i.end = o.release.ret.At
		}
		if disturbed {
			i.begin = o.call.At
		}
		return i, true
	case disturbed:
		return interval{o.call.At, o.ret.At + ttl}, true
	case o.outcome() == outcomeUnknown:
		return interval{o.ret.At - slack/2, o.ret.At + slack}, true
	}
	return interval{}, false
}

// widestGap returns the longest part of [begin, end] that no interval covers, and where it begins.
func widestGap(covered []interval, begin, end int64) (at int64, gap time.Duration) {
	slices.SortFunc(covered, func(a, b interval) int { return cmp.Compare(a.begin, b.begin) })
	covered = append(covered, interval{end, end})
	for _, i := range covered {
		if d := time.Duration(min(i.begin, end) - begin); d > gap {
			at, gap = begin, d
		}
		begin = max(begin, i.end)
	}
	return at, gap
}

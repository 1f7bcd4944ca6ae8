package torture

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearize looks for a sequential order of what happened to a name.
func (h *history) linearize(name string, ops []*op) (violations []Violation, known bool) {
	var model porcupine.Model
	var history []porcupine.Operation
	if ops[0].call.Primitive == "latch" {
		model, history = latchModel, h.latchSteps(ops)
	} else {
		model, history = holdersModel(limitOf(ops)), h.holderSteps(name, ops)
	}
	if h.exact {
		return h.searchExactly(name, ops, model, history)
	}
	found, known := findOrder(model, history, solving)
	if found {
		return nil, true
	}
	// Porcupine draws a timeline of what is wrong, and may decide what the search could not.
	result, info := porcupine.CheckOperationsVerbose(model, history, solving)
	if result == porcupine.Ok || result == porcupine.Unknown && !known {
		return nil, result == porcupine.Ok
	}
	h.annotate(&info, name)
	v := violation(checkOrder, ops[0], name, "%s", explain(history, info))
	v.result, v.model = &info, model
	return []Violation{v}, true
}

// mostTries bounds the search in a simulation, where computing takes no time.
const mostTries = 400_000

// searchExactly is linearize for a simulation.
func (h *history) searchExactly(name string, ops []*op, model porcupine.Model, history []porcupine.Operation) (
	violations []Violation, known bool,
) {
	s := newOrderSearch(model, history)
	found, known := s.run(func(tries int) bool { return tries > mostTries })
	if found || !known {
		return nil, known
	}
	return []Violation{
		violation(checkOrder, ops[0], name, "no order of the operations explains %s", s.unexplained()),
	}, true
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

// explain says which operation fits in no order: the earliest one behind the longest order that was
// found.
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

// stepper makes the operations on a lock or semaphore into steps of its model. A hold is two steps:
// an acquisition between its call and its return, and an end that can take effect from the moment
// at which the holder's own clock no longer promises anything. An operation of unknown outcome may
// take effect at any time after its call.
type stepper struct {
	*history

	name    string
	ops     []*op
	horizon int64
	cut     int64 // what returned later is left out
	lanes   lanes
	roots   map[*op]int
	owners  map[string]int // of WithOwner
	ids     map[string]int
	seen    map[string]int64 // until when somebody may have found an id in Redis

	acquired map[[2]int64]*op // by the process and the number of the operation
	out      []porcupine.Operation
}

func (h *history) holderSteps(name string, ops []*op) []porcupine.Operation {
	s := &stepper{
		history: h, name: name, ops: ops, horizon: h.end + 1, cut: never,
		lanes: lanes{}, roots: map[*op]int{}, owners: map[string]int{}, ids: map[string]int{},
		seen: map[string]int64{}, acquired: map[[2]int64]*op{},
	}
	for i, o := range ops {
		s.number(o, i)
	}
	for _, o := range ops {
		s.find(o)
	}
	if limitOf(ops) > 0 {
		s.cut = h.firstLoss(ops)
		for _, o := range ops {
			if o.call.Do == opDrain && o.outcome() == outcomeUnknown {
				s.cut = min(s.cut, o.call.At) // nobody knows how many permits there are
			}
		}
	}
	for _, o := range ops {
		switch o.call.Do {
		case opAcquire:
			s.acquisition(o)
		case opAdopt:
			s.takeover(o)
			s.acquisition(o)
		case opReleaseID, opForce:
			s.takeover(o)
		case opCheck, opExtend:
			s.sighting(o)
		case opAdd, opResize, opDrain, opInfo:
			s.change(o)
		}
	}
	for _, w := range h.windows {
		if w.loses(name) {
			s.out = append(s.out, porcupine.Operation{
				ClientId: len(s.lanes), Input: step{do: stepLoss, text: w.fault}, Call: w.begin, Return: w.end,
			})
		}
	}
	return s.out
}

// number gives numbers to an acquisition and to its id. What has one number never excludes itself.
func (s *stepper) number(o *op, i int) {
	s.roots[o] = i
	s.acquired[[2]int64{int64(o.process), o.call.Op}] = o
	if owner := o.call.Owner; owner != "" {
		if first, ok := s.owners[owner]; ok {
			s.roots[o] = first
		} else {
			s.owners[owner] = i
		}
	}
	if !o.holds() || o.ret.ID == "" {
		return
	}
	if _, ok := s.ids[o.ret.ID]; !ok {
		for id := range strings.SplitSeq(o.ret.ID, ",") {
			s.ids[id] = i
		}
		s.ids[o.ret.ID] = i
	}
}

// find notes which ids an operation may have found.
func (s *stepper) find(o *op) {
	found := o.call.Target
	if o.call.Do == opCheck || o.call.Do == opExtend {
		if acquired := s.acquired[[2]int64{int64(o.process), o.call.Root}]; acquired != nil && acquired.holds() {
			found = acquired.ret.ID
		}
	}
	for id := range strings.SplitSeq(found, ",") {
		s.seen[id] = max(s.seen[id], o.returned())
	}
}

// isSeen reports whether somebody may have found the id of a hold after an instant.
func (s *stepper) isSeen(o *op, after int64) bool {
	for id := range strings.SplitSeq(o.ret.ID, ",") {
		if s.seen[id] > after {
			return true
		}
	}
	return false
}

func (s *stepper) emit(o *op, begin, end int64, in step) {
	begin = min(begin, s.horizon) // a lease may end after the round
	s.out = append(s.out, porcupine.Operation{
		ClientId: s.lanes.of(o), Input: in, Call: begin, Return: min(max(begin, end), s.horizon),
	})
}

// acquisition emits an acquisition and the end of its hold.
func (s *stepper) acquisition(o *op) {
	in := step{do: o.call.Do, root: s.roots[o.root], read: o.call.Read, permits: o.call.Permits}
	begin := o.call.At
	outermost := o.root == o
	queued := workloads[o.call.Primitive].fair && outermost && o.waited != 0 && s.keptPlace(o, s.name)
	if !o.holds() || o.ret.At >= s.cut || s.isPassedOn(o) {
		return // a waiter that gives up may have left the queue at once
	}
	if queued {
		begin = o.waited
		s.emit(o, o.waited, o.waited, step{
			do: stepJoin, root: in.root, joined: o.waited, text: fmt.Sprintf("join #%d", in.root),
		})
	}
	in.ordered, in.called = queued, o.call.At
	in.id = s.ids[o.ret.ID]
	// While servers change over, two of them may count, so tokens of that time are not compared.
	if outermost && !s.lossy(s.name, o.call.At, o.ret.At) {
		in.token = o.ret.Token
	}
	in.text = describe(o, in)
	if o.call.Do == opAcquire {
		s.emit(o, begin, o.ret.At, in)
	} else {
		in.from, in.both = s.target(o), true
		in.lenient = s.isVague(o)
		s.emit(o, begin, o.ret.At, in)
	}
	end, done := s.clip(o), int64(never)
	if o.release != nil && o.release.outcome() == outcomeOK && o.call.MinHold == 0 { // else somebody may adopt the rest
		done = o.release.ret.At
	}
	if least := s.leastEnd(o); least > end {
		end, done = least, never
	}
	end = max(end, begin)
	if o.root.call.Owner == "" && !s.isSeen(o, end) {
		// Nothing but its id being found forbids that it ends as soon as it can, and then the
		// search is short.
		done = max(end, o.ret.At)
	}
	// The hold of a shared owner may also end with the count of one that was taken over before.
	lenient := o.root.call.Owner != "" || len(s.takeovers(o, o.root.call.At, never)) > 0
	s.emit(o, end, done, step{
		do: stepEnd, root: in.root, read: in.read, lenient: lenient, text: fmt.Sprintf("end #%d", in.root),
	})
}

// target returns the number of the id that a takeover names; -1 if no acquisition is known to have
// got it.
func (s *stepper) target(o *op) int {
	first, _, _ := strings.Cut(o.call.Target, ",")
	if i, ok := s.ids[first]; ok {
		return i
	}
	return -1
}

// isVague reports whether a takeover may have found what the model does not know: an acquisition of
// unknown outcome, a grant that its waiter had not seen, one of several counts of an id, or data
// that came back after a failover; a hold that was released before its minimum was over; or one
// that a late copy has acquired once more.
func (s *stepper) isVague(o *op) bool {
	from := s.target(o)
	return from < 0 || !s.wasTold(s.name, o) || s.hasCounts(s.ops[from]) || s.lossy(s.name, 0, o.returned()) ||
		s.ops[from].call.MinHold > 0 || s.hasReturned(s.ops[from], o)
}

// hasReturned reports whether a late copy of an acquisition may have acquired again before a
// takeover: somebody else, or an operator, had ended the hold, or had found it ended by time, and
// could not know that an attempt was in doubt.
func (s *stepper) hasReturned(held, takeover *op) bool {
	if !s.inDoubt(held, s.name) {
		return false
	}
	if s.endedByFault(held, held.call.At, takeover.returned()) {
		return true
	}
	return slices.ContainsFunc(s.names[s.name], func(t *op) bool {
		absent := t.outcome() == outcomeAbsent && sharePermits(t.call.Target, held.ret.ID)
		return t != takeover && (absent || t.ends(held) && t.outcome() == outcomeOK) &&
			t.effect().overlaps(held.call.At, takeover.returned())
	})
}

// takeover emits what an operation does to holds of others. What an adoption takes, it takes in its
// own step.
func (s *stepper) takeover(o *op) {
	in := step{do: o.call.Do, from: s.target(o), read: o.call.Read, permits: o.call.Permits, result: -1}
	in.text = fmt.Sprintf("%s of #%d", o.call.Do, in.from)
	end := o.returned()
	switch {
	case o.isOpen():
		end, in.lenient = never, true
		if in.do != opForce {
			in.both = in.do == opAdopt
			in.do = opReleaseID
		}
	case o.outcome() == outcomeAbsent:
		if in.from >= 0 && s.ops[in.from].call.Permits > in.permits {
			return // of several permits of one acquisition, the model does not know which are left
		}
		in.do = stepAbsent
		if in.from >= 0 && s.mayHaveTaken(o, s.ops[in.from]) {
			in.do, in.lenient, in.both = opReleaseID, true, true
		}
	case o.outcome() != outcomeOK || o.call.Do == opAdopt:
		return
	case o.call.Do == opForce:
		in.result = o.ret.Count
		in.text = fmt.Sprintf("force: %t", in.result != 0)
	default:
		in.lenient = s.isVague(o)
	}
	if in.do == opForce || in.from >= 0 {
		s.emit(o, o.call.At, end, in)
	}
}

// sighting emits that a hold was there: Redis has found its id.
func (s *stepper) sighting(o *op) {
	acquired := s.acquired[[2]int64{int64(o.process), o.call.Root}]
	if o.outcome() != outcomeOK || acquired == nil || !acquired.holds() || o.ret.At >= s.cut {
		return
	}
	in := step{
		do: stepPresent, from: s.ids[acquired.ret.ID], read: acquired.call.Read,
		text: fmt.Sprintf("%s #%d", o.call.Do, s.roots[acquired]),
	}
	if !s.hasCounts(acquired) && !s.lossy(s.name, 0, o.ret.At) {
		s.emit(o, o.call.At, o.ret.At, in)
	}
}

// change emits an operation on the size of a pool.
func (s *stepper) change(o *op) {
	in := step{do: o.call.Do, permits: o.call.Permits, total: o.call.Primitive == "permits"}
	end := o.returned()
	reads := in.do == opInfo || in.do == opDrain
	switch {
	case o.outcome() == outcomeUnknown && !reads && o.call.At < s.cut:
		end = never
	case o.outcome() != outcomeOK:
		return
	case o.ret.At >= s.cut && !reads && o.call.At < s.cut: // it may have taken effect before
		end = never
	case o.ret.At >= s.cut:
		return
	}
	if reads {
		in.result = o.ret.Count
	}
	in.text = fmt.Sprintf("%s %d", in.do, in.permits+int(in.result))
	s.emit(o, o.call.At, end, in)
}

func describe(o *op, s step) string {
	kind := "acquire"
	switch {
	case o.call.Do == opAdopt:
		kind = "adopt as"
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

// leastEnd returns until when a hold that was released keeps the lock for its minimum; 0: it has
// none. It was confirmed before the acquisition returned.
func (h *history) leastEnd(o *op) int64 {
	if o.call.MinHold == 0 || o.release == nil || o.release.outcome() != outcomeOK || o.detached {
		return 0
	}
	end := o.ret.At + int64(o.call.MinHold-minHoldTolerance-h.stalled(o.process, o.call.At, o.release.ret.At))
	ended := len(h.takeovers(o, o.call.At, end)) > 0 || slices.ContainsFunc(h.windows, func(w window) bool {
		return slices.ContainsFunc(o.call.Names, w.ends) && w.act().overlaps(o.call.At, end)
	})
	if ended || h.disturbed(o.process, o.call.Names[0], o.call.At, o.release.ret.At) {
		return 0
	}
	return end
}

// minHoldTolerance is how long an acquisition may take to return after it was confirmed.
const minHoldTolerance = 30 * time.Millisecond

// clip returns when the claim of a hold ends, for the check of exclusion. An operator or a loss of
// data may end it earlier than its holder can know, even before the acquisition returns. A late
// copy of an acquisition of several permits, of which somebody has taken some meanwhile, gives back
// the others.
func (h *history) clip(o *op) int64 {
	end := o.claimEnd()
	if o.call.Permits > 1 && h.inDoubt(o, o.call.Names[0]) {
		for _, t := range h.takeovers(o, o.call.At, end) {
			end = min(end, max(o.call.At, t.call.At))
		}
	}
	if o.isBlind() {
		end = o.ret.At
	}
	if o.until != 0 { // its validity may have ended before its call returned: then it claims nothing
		end = min(end, max(o.call.At, o.until))
	}
	begin := h.ownershipBegin(o)
	for i := range h.windows {
		w := &h.windows[i]
		if slices.ContainsFunc(o.call.Names, w.ends) && w.act().overlaps(begin, end) {
			end = min(end, max(o.call.At, w.begin))
		}
	}
	return end
}

// lossy reports whether servers may have forgotten something about a name between two instants.
func (h *history) lossy(name string, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool { return w.loses(name) && w.overlaps(begin, end) })
}

// lagging reports whether a replica that was promoted later lacked what was written between two
// instants.
func (h *history) lagging(begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return w.fault == faultFailover && w.process == noProcess && w.overlaps(begin, end)
	})
}

// firstLoss returns when the servers may first have forgotten a name that was in use, which may
// have come into use while they forget. A pool or latch that was lost is not used again, except by
// calls that are under way.
func (h *history) firstLoss(ops []*op) int64 {
	first := int64(never)
	for _, w := range h.windows {
		if w.loses(ops[0].call.Names[0]) && w.end > ops[0].call.At {
			first = min(first, w.begin)
		}
	}
	return first
}

// latchSteps returns the operations on a latch. An operation of unknown outcome may take effect at
// any time after its call.
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

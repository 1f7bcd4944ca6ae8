package torture

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// never is the end of an operation of which nobody knows whether and when it took effect.
const never = math.MaxInt64

// history is what happened in a round: the operations of all client processes, and the faults.
type history struct {
	tag     string
	ttl     time.Duration
	begin   int64
	end     int64
	ops     []*op // by the time of the call
	windows []window
	copies  []lateCopy
	stalls  map[int][]interval // by process
	renewed []renewal
	samples []sample
	// appeared is when ids came into locks; only in simulations.
	appeared []appearance
	names    map[string][]*op // the operations on each name
	starts   map[int]int64    // when each process made its first call
	others   []int            // processes of another build
	exact    bool             // of a simulation: only its network takes time
	takers   map[string][]*op // the operations on each name that may take over: takersOf fills it
}

// areOthersTooOld reports whether another build writes records without what the checks need: its
// acquisitions seem to emit no events at all.
func (h *history) areOthersTooOld() bool {
	acquired := false
	for _, o := range h.ops {
		if slices.Contains(h.others, o.process) && !o.outside && o.call.Do == opAcquire && o.holds() {
			if o.ret.Events > 0 {
				return false
			}
			acquired = true
		}
	}
	return acquired
}

// renewal is a renewal of a hold that was answered, or failed.
type renewal struct {
	process int
	at      int64
	id      string
	name    string
}

type interval struct{ begin, end int64 }

func (i interval) overlaps(begin, end int64) bool { return i.begin <= end && begin <= i.end }

// within is how much of i lies between two instants.
func (i interval) within(begin, end int64) int64 { return max(0, min(end, i.end)-max(begin, i.begin)) }

// op is one operation of a client process.
type op struct {
	process int
	call    record
	ret     *record // nil: the process was killed before it returned
	waited  int64   // when it was known to wait; 0: it did not wait
	ended   *record // when the hold's context ended without a release
	until   int64   // the latest known end of the hold's validity
	claims  []claim // all that were recorded
	release *op     // of an acquisition
	root    *op     // of a nested acquisition: the outermost one; else itself
	died    int64   // when its process was killed or stopped for good; never if it was not
	outside bool    // its process uses another library: only exclusion is checked

	stacks   string // of all goroutines of its process when it was late
	detached bool   // an acquisition that was left to its lease
	forgot   bool   // it was detached by being forgotten: its lease may have been renewed once more
	lostAt   int64  // when Detach was called, and told the loss; 0: it did not

	seen    []record // what a watcher of an election was told
	listens int64    // since when the holder listens to Wanted; 0: it does not
	wanted  int64    // when it was told that somebody waits; 0: it was not
	deaf    int64    // until when it has listened

	extended time.Duration // the longest lease that Extend has asked for; 0: none
}

// lease is how long the lease of an acquisition may last after a command.
func (o *op) lease() time.Duration { return max(o.call.TTL, o.extended) }

// orNone returns an empty record for none.
func (r *record) orNone() *record {
	if r == nil {
		return &record{}
	}
	return r
}

func (o *op) outcome() string {
	if o.ret == nil || o.call.Do == opAdopt && o.ret.Outcome == outcomeLost { // it may have taken the hold over
		return outcomeUnknown
	}
	return o.ret.Outcome
}

// returned is never for a call that did not return.
func (o *op) returned() int64 {
	if o.ret == nil {
		return never
	}
	return o.ret.At
}

// holds reports whether o is an acquisition or an adoption that succeeded.
func (o *op) holds() bool {
	return (o.call.Do == opAcquire || o.call.Do == opAdopt) && o.outcome() == outcomeOK
}

// isGrant reports whether o is an outermost acquisition that succeeded.
func (o *op) isGrant() bool { return o.call.Do == opAcquire && o.holds() && o.root == o }

// isReleased reports whether o is a hold whose release has succeeded.
func (o *op) isReleased() bool {
	return o.holds() && o.release != nil && o.release.outcome() == outcomeOK
}

// is reports whether the error that o returned has a class.
func (o *op) is(class string) bool { return o.ret != nil && slices.Contains(o.ret.Is, class) }

// claimEnd is when a hold ends by its own clock: the earliest of its release, the end of its
// context, the end of its validity, and the death of its process. A detached hold lasts until its
// validity ends.
func (o *op) claimEnd() int64 {
	end := int64(never)
	if !o.detached {
		end = o.died
	}
	if o.release != nil {
		end = min(end, o.release.call.At)
	}
	if o.ended != nil {
		end = min(end, o.ended.At)
	}
	if o.lostAt != 0 {
		end = min(end, o.lostAt)
	}
	if o.until != 0 {
		end = min(end, o.until)
	}
	return max(end, o.ret.At)
}

// window is a fault: when, where, and what it may do.
type window struct {
	interval

	fault   string
	process int           // -1: all of them
	names   []string      // what an operator changed
	lossy   bool          // the servers may forget anything
	acted   int64         // when what ends holds was over; 0: not before the end
	hit     bool          // the operator's act found a holder
	jump    time.Duration // of the server's clock: forward ends leases early, back lengthens them
}

// ends reports whether the window ends holds of this name.
func (w *window) ends(name string) bool {
	return w.loses(name) || w.jump > 0 || slices.Contains(w.names, name)
}

// loses reports whether the servers may forget anything about a name in this window.
func (w *window) loses(name string) bool {
	return w.lossy && (len(w.names) == 0 || slices.Contains(w.names, name))
}

// act is when the window may have ended holds.
func (w *window) act() interval {
	if w.acted == 0 {
		return w.interval
	}
	return interval{w.begin, w.acted}
}

// disturbs reports whether the window may fail what a process does with a name, or lose messages.
func (w *window) disturbs(process int, name string) bool {
	if w.isStall() {
		return false
	}
	return w.process == process || w.process == -1 && (len(w.names) == 0 || slices.Contains(w.names, name))
}

// learn notes the end of the validity. A joint hold that was lost has none any more.
func (o *op) learn(until int64) {
	if until != 0 {
		o.until = until
	}
}

// ofOurs returns the operations of redlatch.
func ofOurs(ops []*op) []*op {
	return slices.DeleteFunc(slices.Clone(ops), func(o *op) bool { return o.outside })
}

// hasOutsiders reports whether processes that use another library have used a name.
func (h *history) hasOutsiders(name string) bool {
	return slices.ContainsFunc(h.names[name], func(o *op) bool { return o.outside })
}

// add makes operations of the records of a process. died is when it was killed, or never.
func (h *history) add(process int, records []record, died int64, outside bool) {
	ops := map[int64]*op{}
	for _, r := range records {
		o := ops[r.Op]
		switch r.Kind {
		case kindCall:
			o = &op{process: process, call: r, died: died, outside: outside}
			o.root = o
			ops[r.Op] = o
			h.ops = append(h.ops, o)
			acquired := ops[r.Root]
			switch {
			case acquired == nil:
			case r.Do == opRelease:
				acquired.release = o
				acquired.learn(r.Until)
			case r.Do == opDetach:
				acquired.learn(r.Until)
			case r.Do == opExtend: // all holds of an id have one lease
				acquired.extended = max(acquired.extended, r.TTL)
				acquired.root.extended = max(acquired.root.extended, r.TTL)
			case r.Do == opAcquire:
				o.root = acquired
			}
		case kindReturn:
			o.ret = new(r)
			o.learn(r.Until)
			if r.Until != 0 && o.holds() {
				o.claims = append(o.claims, claim{r.At, r.Until, false})
			}
			if acquired := ops[o.call.Root]; acquired != nil {
				if o.call.Do == opExtend {
					acquired.learn(r.Until)
				}
				if o.call.Do == opExtend && r.Until != 0 && r.Outcome == outcomeOK {
					acquired.claims = append(acquired.claims, claim{r.At, r.Until, true})
				}
				switch {
				case o.call.Do != opDetach:
				case r.Outcome == outcomeOK:
					acquired.detached, acquired.forgot = true, o.call.Forgotten
				default:
					acquired.lostAt = o.call.At
				}
			}
		case kindWait:
			o.waited = r.At
		case kindLate:
			o.stacks = r.Stacks
		case kindValid:
			o.learn(r.Until)
			o.claims = append(o.claims, claim{r.At, r.Until, false})
		case kindEnd:
			o.ended = new(r)
		case kindSeen:
			o.seen = append(o.seen, r)
		case kindListen:
			o.listens, o.deaf = r.At, never
		case kindWanted:
			o.wanted = r.At
		case kindDeaf:
			o.deaf = r.At
		case kindRenew:
			h.renewed = append(h.renewed, renewal{process, r.At, r.ID, r.Names[0]})
		case kindStall:
			h.stalls[process] = append(h.stalls[process], interval{r.At - r.Count, r.At})
		}
	}
}

// sort puts the operations in order. It is called once all are there.
func (h *history) sort() {
	slices.SortFunc(h.ops, func(a, b *op) int { return cmp.Compare(a.call.At, b.call.At) })
	for _, o := range h.ops {
		if o.root != o && o.holds() && o.root.ret != nil && o.ret.ID != o.root.ret.ID {
			o.root = o // the release of the outer hold came first
		}
	}
	h.names = map[string][]*op{}
	for _, o := range h.ops {
		for _, name := range o.call.Names {
			h.names[name] = append(h.names[name], o)
		}
	}
}

// noteStarts notes when each process made its first call. It is called once the operations are in
// order.
func (h *history) noteStarts() {
	h.starts = map[int]int64{}
	for _, o := range h.ops {
		if _, ok := h.starts[o.process]; !ok {
			h.starts[o.process] = o.call.At
		}
	}
}

// isConnecting reports whether a call began while the clients of its process connected. That may be
// seconds after the begin of the round: a busy machine takes so long to start the process.
func (h *history) isConnecting(o *op) bool {
	start, ok := h.starts[o.process]
	return ok && o.call.At-start < int64(connecting)
}

// stalled is for how long the process, a server or the harness did not run between two instants. A
// stall takes time, and disturbs nothing beyond that.
func (h *history) stalled(process int, begin, end int64) time.Duration {
	sum := int64(0)
	for _, s := range h.stalls[process] {
		sum += s.within(begin, end)
	}
	for _, w := range h.windows {
		if w.isStall() {
			sum += w.within(begin, end)
		}
	}
	return time.Duration(sum)
}

// overloaded is for how long some process, a server or the harness did not run between two
// instants. When the machine keeps any of them waiting for its turn, it does so with others for as
// long, which cannot notice each wait of each goroutine. A process that was stopped says nothing
// about the machine.
func (h *history) overloaded(begin, end int64) time.Duration {
	var all []interval
	for process, stalls := range h.stalls {
		for _, s := range stalls {
			if h.stopped(process, s.begin, s.end) == 0 {
				all = append(all, s)
			}
		}
	}
	for _, w := range h.windows {
		if w.isStall() {
			all = append(all, w.interval)
		}
	}
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.begin, b.begin) })
	sum, at := int64(0), begin
	for _, s := range all {
		sum += s.within(at, end)
		at = max(at, s.end)
	}
	return time.Duration(sum)
}

// isBusy reports whether the machine was so busy between two instants that answers may have come
// late: what did not run for long at a time is not seen.
func (h *history) isBusy(process int, begin, end int64) bool {
	return h.stalled(process, begin, end) > stallAfter
}

// isAnyBusy reports whether any process noticed between two instants that it had not run for a
// while.
func (h *history) isAnyBusy(begin, end int64) bool {
	for _, stalls := range h.stalls {
		if slices.ContainsFunc(stalls, func(s interval) bool { return s.overlaps(begin, end) }) {
			return true
		}
	}
	return false
}

// isStall reports whether a window is no injected fault.
func (w *window) isStall() bool { return w.fault == faultStall }

// disturbed reports whether a fault may have affected what a process did with a name between two
// instants.
func (h *history) disturbed(process int, name string, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return w.disturbs(process, name) && w.overlaps(begin, end)
	})
}

// isShortened reports whether an operator may have shortened the lease of a name between two
// instants.
func (h *history) isShortened(name string, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return w.fault == faultShorten && slices.Contains(w.names, name) && w.overlaps(begin, end)
	})
}

// endsEarly reports whether the server's clock jumped forward between two instants.
func (h *history) endsEarly(begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool { return w.jump > 0 && w.overlaps(begin, end) })
}

// lengthened is by how much longer leases may have lasted that were set after an instant, because
// the server's clock has jumped back.
func (h *history) lengthened(begin int64) (sum int64) {
	for _, w := range h.windows {
		if w.jump < 0 && w.end >= begin {
			sum -= int64(w.jump)
		}
	}
	return sum
}

// takesOver reports whether o has, or may have, ended holds of others.
func (o *op) takesOver() bool {
	switch o.call.Do {
	case opAdopt, opReleaseID, opForce:
		return o.outcome() == outcomeOK || o.isOpen()
	}
	return false
}

// isOpen reports whether nobody knows if o has taken effect. A takeover of a joint lock that fails
// may have taken over some of the members.
func (o *op) isOpen() bool {
	joint := len(o.call.Names) > 1 || o.call.Primitive == "redlock"
	return o.outcome() == outcomeUnknown || joint && o.outcome() != outcomeOK || o.isUnconfirmed()
}

// isUnconfirmed reports whether too few replicas have confirmed an operation, which has then been
// undone.
func (o *op) isUnconfirmed() bool { return o.ret != nil && slices.Contains(o.ret.Is, isNotReplicated) }

// effect is when a takeover may have taken effect.
func (o *op) effect() interval {
	if o.isOpen() {
		return interval{o.call.At, never}
	}
	return interval{o.call.At, o.ret.At}
}

// ends reports whether a takeover ends a hold, if it finds it.
func (o *op) ends(held *op) bool {
	switch {
	case o == held || !held.holds() || !o.takesOver():
		return false
	case o.call.Do == opForce:
		return o.call.Read == held.call.Read
	}
	return sharePermits(o.call.Target, held.ret.ID)
}

// sharePermits reports whether two lists of ids have an id in common.
func sharePermits(a, b string) bool {
	if a == b {
		return a != ""
	}
	for id := range strings.SplitSeq(a, ",") {
		if slices.Contains(strings.Split(b, ","), id) {
			return id != ""
		}
	}
	return false
}

// takersOf returns the operations on a name that may end holds of others.
func (h *history) takersOf(name string) []*op {
	if all, ok := h.takers[name]; ok {
		return all
	}
	all := slices.DeleteFunc(slices.Clone(h.names[name]), func(o *op) bool {
		return o.call.Do != opAdopt && o.call.Do != opReleaseID && o.call.Do != opForce
	})
	if h.takers == nil {
		h.takers = map[string][]*op{}
	}
	h.takers[name] = all
	return all
}

// takeovers returns the operations that may have ended a hold between two instants.
func (h *history) takeovers(o *op, begin, end int64) (out []*op) {
	for _, name := range o.call.Names {
		for _, t := range h.takersOf(name) {
			ends := t.ends(o) || t.ends(o.root) || h.mayHaveTaken(t, o)
			if ends && t.effect().overlaps(begin, end) {
				out = append(out, t)
			}
		}
	}
	return out
}

// mayHaveTaken reports whether an adoption that found nothing may have been executed before,
// without an answer: then its repetition does not find the id.
func (h *history) mayHaveTaken(t, held *op) bool {
	return t.call.Do == opAdopt && t.outcome() == outcomeAbsent && held.holds() &&
		sharePermits(t.call.Target, held.ret.ID) && h.disturbed(t.process, t.call.Names[0], t.call.At, t.ret.At)
}

// keptPlace reports whether a waiter of a fair lock certainly kept its place until its call
// returned: nothing interrupted it for long enough to lose its place, or to let the lease of a
// grant end before it took the grant, and nothing that its client has to repeat is under way.
func (h *history) keptPlace(o *op, name string) bool {
	begin, end := o.call.At, min(o.returned(), o.died)
	shortest := min(waiterTimeout, o.call.TTL)
	if o.call.MaxHold > 0 {
		shortest = min(shortest, o.call.MaxHold)
	}
	return !h.disturbed(o.process, name, begin-int64(h.recovers()), end) &&
		h.stalled(o.process, begin, end) < shortest/2 && !h.mayJoinAgain(name, begin, end)
}

// mayJoinAgain reports whether a grant may have been ended between two instants without its waiter
// having seen it. The waiter then joins the queue again, behind others.
func (h *history) mayJoinAgain(name string, begin, end int64) bool {
	return slices.ContainsFunc(h.takersOf(name), func(t *op) bool {
		return t.takesOver() && t.effect().overlaps(begin, end) && (t.call.Do == opForce || !h.wasTold(name, t))
	})
}

// wasTold reports whether a takeover named a hold that its acquirer knew of.
func (h *history) wasTold(name string, t *op) bool {
	return slices.ContainsFunc(h.names[name], func(o *op) bool { return t.ends(o) && o.ret.At < t.call.At })
}

// ownershipBegin returns when the id of a hold may have been granted first: nested holds, the
// members of a cohort and the callers of WithOwner share it.
func (h *history) ownershipBegin(o *op) int64 {
	begin := o.root.call.At
	if o.ret.ID == "" {
		return begin
	}
	for _, other := range h.names[o.call.Names[0]] {
		if other.holds() && other.ret.ID == o.ret.ID {
			begin = min(begin, other.call.At)
		}
	}
	return begin
}

// isPassedOn reports whether a hold was passed on within a cohort that may have lost the lock
// before. Then a later member finds the loss, and this one may claim what it does not have. The
// first member is the one whose acquisition returned first: others may have begun to wait before it
// was called.
func (h *history) isPassedOn(o *op) bool {
	isEarlier := func(other *op) bool {
		return other.holds() && other.ret.ID == o.ret.ID && other.root == other && other.ret.At < o.root.ret.At
	}
	if !o.call.Passes || !slices.ContainsFunc(h.names[o.call.Names[0]], isEarlier) {
		return false
	}
	begin := h.ownershipBegin(o)
	return len(h.takeovers(o, begin, o.ret.At)) > 0 || slices.ContainsFunc(h.windows, func(w window) bool {
		return w.ends(o.call.Names[0]) && w.act().overlaps(begin, o.ret.At)
	})
}

// sharesID reports whether other acquisitions have the id of a hold.
func (h *history) sharesID(o *op) bool {
	return slices.ContainsFunc(h.names[o.call.Names[0]], func(other *op) bool {
		return other != o && other.holds() && other.ret.ID == o.ret.ID
	})
}

// hasCounts reports whether the id of a hold may have more than one count in Redis: others have it
// too, an acquisition under it may still be undone, or it was adopted with all counts of such an
// id.
func (h *history) hasCounts(o *op) bool {
	nested := func(other *op) bool { return other != o && other.root == o }
	if h.sharesID(o) || slices.ContainsFunc(h.names[o.call.Names[0]], nested) {
		return true
	}
	if o.call.Do != opAdopt {
		return false
	}
	known := false
	for _, former := range h.names[o.call.Names[0]] {
		if former != o && former.holds() && sharePermits(o.call.Target, former.ret.ID) {
			if h.hasCounts(former) {
				return true
			}
			known = true
		}
	}
	return !known
}

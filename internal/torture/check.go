package torture

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// What the checks allow beyond the contract, because a busy machine runs nothing at once.
const (
	promptness = 50 * time.Millisecond  // of doc/contract.md, C5
	scheduling = 250 * time.Millisecond // for the scheduler, beyond the stalls that were seen
	notice     = 200 * time.Millisecond // of doc/contract.md, C15: a holder learns of a takeover
	recovery   = 3 * time.Second        // to connect again, and to poll, after a fault
	solving    = 10 * time.Second       // for the search for an order, and for porcupine, for one name
)

// tolerance is how much later than promised something may happen. A simulated machine takes no
// time: there only the network does, and this is twice as long as its slowest round trip.
func (h *history) tolerance() time.Duration {
	if h.exact {
		return 2 * slowestRoundTrip
	}
	return scheduling
}

// recovers is how long a client may need to connect again and to look, after a fault. In a
// simulation it begins at once: it dials again and polls once a second at least.
func (h *history) recovers() time.Duration {
	if h.exact {
		return exactRecovery
	}
	return recovery
}

// exactRecovery is a pause of a second between two attempts, and the attempt.
const exactRecovery = 1300 * time.Millisecond

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
	checkWake     = "wake-up"     // a waiter was not woken up
	checkTurn     = "turn"        // a client got no turn, while another got many
	checkRelease  = "release"     // a release told nothing of a loss
	checkLease    = "validity"    // a hold claimed more than it was promised
	checkKept     = "kept"        // Redis kept a hold that was released
	checkCopy     = "copy"        // a copy of a command that came minutes late has changed something
	checkWhy      = "reason"      // a loss gave a wrong reason
	checkEvent    = "event"       // an acquisition did not emit one event of its outcome
	checkOwner    = "owner"       // an owner was kept out of its own lock
	checkError    = "error"       // an error that no fault explains
	checkForever  = "end"         // a call did not return at all
	checkLeft     = "left behind" // keys, subscriptions or goroutines
	checkProcess  = "process"     // a client process failed
	checkUndecide = "undecided"   // porcupine found no answer in time
)

// check returns the violations of a history. undecided are names for which porcupine ran out of
// time.
func (h *history) check() (violations []Violation, undecided []string) {
	for name, ops := range h.names {
		v, known := h.linearize(name, ops)
		if !known {
			undecided = append(undecided, name)
		}
		violations = append(violations, v...)
		ours := ofOurs(ops)
		violations = append(violations, h.checkLosses(name, ours)...)
		violations = append(violations, h.checkNotices(name, ours)...)
		violations = append(violations, h.checkReleases(name, ours)...)
		violations = append(violations, h.checkLeases(name, ours)...)
		violations = append(violations, h.checkExtensions(name, ours)...)
		violations = append(violations, h.checkReasons(name, ours)...)
		violations = append(violations, h.checkContexts(name, ours)...)
		violations = append(violations, h.checkSiblings(name, ours)...)
		violations = append(violations, h.checkTurns(name, ops)...)
		violations = append(violations, h.checkElections(name, ours)...)
		violations = append(violations, h.checkWanted(name, ours)...)
	}
	violations = append(violations, h.checkSamples()...)
	violations = append(violations, h.checkAppearances()...)
	violations = append(violations, h.checkSilence()...)
	violations = append(violations, h.checkEvents()...)
	violations = append(violations, h.checkReturns()...)
	violations = append(violations, h.checkErrors()...)
	violations = append(violations, h.checkWaits()...)
	violations = append(violations, h.checkLatches()...)
	violations = append(violations, h.checkCohorts()...)
	violations = append(violations, h.checkOwners()...)
	slices.SortFunc(violations, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Check, b.Check), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Detail, b.Detail))
	})
	return violations, undecided
}

func violation(check string, o *op, name, format string, args ...any) Violation {
	return Violation{Check: check, Primitive: o.call.Primitive, Name: name, Detail: fmt.Sprintf(format, args...)}
}

// checkReturns finds calls that returned too late.
func (h *history) checkReturns() (out []Violation) {
	for _, o := range ofOurs(h.ops) {
		if o.ret == nil || o.call.Bound == 0 {
			continue
		}
		late := time.Duration(o.ret.At - max(o.call.Bound, o.call.At))
		// A goroutine that waits for long at times waits for a short time at many others, which
		// nobody notices.
		allowed := promptness + h.tolerance() + 2*h.overloaded(o.call.At, o.ret.At)
		allowed += h.stopped(o.process, o.call.At, o.ret.At)
		if h.exact {
			allowed = promptness + h.overloaded(o.call.At, o.ret.At) + h.stopped(o.process, o.call.At, o.ret.At)
		}
		if h.isConnecting(o) && !h.exact {
			allowed += connecting
		}
		if late > allowed {
			out = append(out, violation(checkPrompt, o, o.call.Names[0],
				"%s returned %v after the end of its time: %s %s", o.call.Do, late.Round(time.Millisecond),
				o.ret.Outcome, o.ret.Err))
		}
	}
	return out
}

// checkLosses finds holds that were lost without a reason: nobody took them, and no fault kept them
// from being renewed.
func (h *history) checkLosses(name string, ops []*op) (out []Violation) {
	for _, o := range ops {
		lost := o.loss()
		if lost == nil || o.isLimited() || o.until == 0 {
			continue
		}
		at, begin := lost.At, h.ownershipBegin(o)
		ended := len(h.takeovers(o, begin, at)) > 0 || h.endedByFault(o, begin, at)
		byTime := at >= o.until-int64(5*time.Millisecond)
		silent := o.until - int64(o.lease())
		reason := h.disturbed(o.process, name, silent-int64(h.recovers()), at) || h.isBusy(o.process, silent, at)
		if !ended && !(byTime && reason) {
			out = append(out, violation(checkReason, o, name,
				"process %d lost %s %v before the end of its validity, although nobody took it and no fault explains it",
				o.process, o.ret.ID, time.Duration(o.until-at).Round(time.Millisecond)))
		}
	}
	return out
}

// checkNotices finds holders that an operator or another client has ended, and that learned it too
// late.
func (h *history) checkNotices(name string, ops []*op) (out []Violation) {
	for i := range h.windows {
		w := &h.windows[i]
		if !w.hit || !slices.Contains(w.names, name) {
			continue
		}
		for _, o := range ops {
			if o.holds() && !h.hasEnded(o, name, w.begin) {
				out = append(out, h.checkNotice(o, name, w.fault, w.interval, w.fault == faultForce, 0)...)
			}
		}
	}
	for _, t := range ops {
		// By a failover: then the holder is renewed as before.
		mayBeForgotten := h.lossy(name, t.call.At, t.returned()) || h.lagging(t.call.At, t.returned())
		if !t.takesOver() || t.outcome() != outcomeOK || mayBeForgotten {
			continue
		}
		quiet := !h.troubled(t.process, t.call.At-int64(h.recovers()), t.ret.At)
		for _, o := range ops {
			if h.hasTaken(t, o) && !h.hasEnded(o, name, t.call.At) {
				late := h.stalled(t.process, t.ret.At, o.claimEnd())
				out = append(out, h.checkNotice(o, name, t.call.Do, interval{t.call.At, t.ret.At}, quiet, late)...)
			}
		}
	}
	return out
}

// hasTaken reports whether a takeover that succeeded has certainly ended a hold, if it was there.
func (h *history) hasTaken(t, o *op) bool {
	switch {
	case !t.ends(o) || t.outcome() != outcomeOK:
		return false
	case t.call.Do == opForce:
		return t.ret.Count > 0
	}
	return t.call.Do != opReleaseID || !h.hasCounts(o) // it gives back one count, and others may be left
}

// hasEnded reports whether an operator or a takeover had ended a hold before an instant. Who takes
// the lock then takes it from somebody else, and this holder gets no notice.
func (h *history) hasEnded(o *op, name string, before int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return slices.Contains(w.names, name) && w.begin > o.ret.At && w.act().end < before
	}) || slices.ContainsFunc(h.names[name], func(t *op) bool {
		return h.hasTaken(t, o) && t.call.At > o.ret.At && t.ret.At < before
	})
}

// checkNotice checks when a holder learned that it was ended during a time. told: it was sent a
// notice, late by so much at most. If others have its id, it may go on with what they have acquired
// since.
func (h *history) checkNotice(o *op, name, by string, at interval, told bool, late time.Duration) []Violation {
	isTold := o.call.Primitive != keyedPrimitive && !o.detached
	isHeld := o.ret.At < at.begin && o.claimEnd() > at.end
	isShared := o.root.call.Owner != "" && h.sharesID(o)
	if !isTold || !isHeld || isShared {
		return nil
	}
	after := time.Duration(o.claimEnd() - at.end)
	limit := o.lease()
	quiet := !h.troubled(o.process, at.begin-int64(h.recovers()), o.claimEnd())
	switch {
	case quiet && told && at.begin-o.root.ret.At > int64(time.Second):
		limit = min(limit, notice+2*h.tolerance()+late) // the notice takes two more processes and the server
	case quiet && !o.call.Fixed && !h.wasExtended(o, at.begin):
		limit = min(limit, o.call.TTL/3+2*h.tolerance()) // its next renewal
	}
	if after <= limit+h.stalled(o.process, at.begin, o.claimEnd()) {
		return nil
	}
	return []Violation{violation(checkNotice, o, name, "process %d held %s for %v after %s, and may hold for %v at most",
		o.process, o.ret.ID, after.Round(time.Millisecond), by, limit)}
}

// wasExtended reports whether Extend may have put off the next renewal of a hold before an instant.
func (h *history) wasExtended(o *op, before int64) bool {
	return slices.ContainsFunc(h.names[o.call.Names[0]], func(e *op) bool {
		isOfHold := e.process == o.process && (e.call.Root == o.call.Op || e.call.Root == o.root.call.Op)
		return e.call.Do == opExtend && isOfHold && e.call.At < before
	})
}

// troubled reports whether a fault other than an operator's act may have delayed a process.
func (h *history) troubled(process int, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return len(w.names) == 0 && w.disturbs(process, "") && w.overlaps(begin, end)
	})
}

// checkOwners finds attempts that were refused although their owner had the lock all the time.
func (h *history) checkOwners() (out []Violation) {
	for _, o := range h.ops {
		if !o.call.Try || o.outcome() != outcomeBusy {
			continue
		}
		name := o.call.Names[0]
		for _, other := range h.names[name] {
			if !other.holds() || other.call.Owner != o.call.Owner {
				continue
			}
			isHeldAllTheTime := other.ret.At <= o.call.At && h.clip(other) >= o.ret.At
			// An earlier holder of that id that was ended may give back this one's count.
			isTaken := len(h.takeovers(other, h.ownershipBegin(other), o.ret.At)) > 0
			if !isHeldAllTheTime || isTaken {
				continue
			}
			out = append(out, violation(checkOwner, o, name, "process %d was refused, although its owner %s had the lock: %s",
				o.process, o.call.Owner, o.ret.Err))
			break
		}
	}
	return out
}

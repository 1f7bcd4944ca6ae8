package torture

import (
	"slices"
	"time"
)

// The checks of a hold by itself: how long it is valid, and why it was lost.

// marginOf is what a hold's validity leaves of its TTL: doc/contract.md, C10.
func marginOf(ttl time.Duration) time.Duration { return ttl/100 + 2*time.Millisecond }

// checkLeases finds holds that are valid for longer than what Redis has confirmed, or than their
// own limit, and holds that outlived their validity.
func (h *history) checkLeases(name string, ops []*op) (out []Violation) {
	for _, o := range ops {
		wasExtended := h.wasExtended(o, never)
		hasValidity := o.holds() && o.ret.Until != 0
		isUncertain := wasExtended && !h.exact
		if !hasValidity || name != o.call.Names[0] || isUncertain {
			continue
		}
		ttl := o.call.TTL
		if o.call.MaxHold > 0 {
			ttl = min(ttl, o.call.MaxHold)
		}
		confirmed, limit := time.Duration(o.ret.Until-o.ret.At), ttl-marginOf(ttl)
		isOwn := o.root == o && !wasExtended // nothing else has set its lease
		if isOwn && confirmed > limit+time.Millisecond {
			out = append(out, violation(checkLease, o, name, "%s is valid for %v after its acquisition has returned, and "+
				"should be for %v at most", o.ret.ID, confirmed, limit))
		}
		hasEnd := o.call.hasLimit() && !wasExtended
		if all := time.Duration(o.until - o.ret.At); hasEnd && all > ttl {
			out = append(out, violation(checkLease, o, name, "%s is valid for %v, although it may last for %v at most",
				o.ret.ID, all, ttl))
		}
		isKept := !o.detached && o.died == never
		if !isKept || o.release == nil {
			continue
		}
		end := o.release.call.At
		if o.ended != nil {
			end = min(end, o.ended.At)
		}
		over := max(o.until, o.ret.At) // while the call waits for its answer, nobody can be told
		late := time.Duration(end - over)
		stalled := max(h.stalled(o.process, over, end), h.overloaded(over, end))
		allowed := h.tolerance() + stalled + h.stopped(o.process, over, end)
		if h.exact { // no message is needed for it, only a timer
			allowed = 2*time.Millisecond + stalled
			if o.call.Primitive == "nested" { // nobody watches its context during its pause before the release
				allowed += nestedPause
			}
			allowed += nestingTime(o, ops, over, end)
		}
		if late > allowed {
			out = append(out, violation(checkLease, o, name, "%s was not told of its end until %v after its validity",
				o.ret.ID, late.Round(time.Microsecond)))
		}
	}
	return out
}

// nestingTime is for how long acquisitions that nest under o were under way between two instants.
// Meanwhile nobody watches the context of o: a reader may outlive the writer under which it is
// acquired, and then it has another id.
func nestingTime(o *op, ops []*op, begin, end int64) (sum time.Duration) {
	for _, inner := range ops {
		isNested := inner.process == o.process && inner.call.Root == o.root.call.Op
		if isNested && inner.call.Do == opAcquire && inner.ret != nil {
			sum += time.Duration(interval{inner.call.At, inner.ret.At}.within(begin, end))
		}
	}
	return sum
}

// checkExtensions finds extensions that have promised too little or too much, and holds that ended
// by their limits before their validity did. Only simulations are exact enough.
func (h *history) checkExtensions(name string, ops []*op) (out []Violation) {
	if !h.exact {
		return nil
	}
	for _, o := range ops {
		isExtension := o.call.Do == opExtend && o.outcome() == outcomeOK
		if !isExtension || name != o.call.Names[0] || o.ret.Until == 0 {
			continue
		}
		promised := o.call.TTL - marginOf(o.call.TTL)
		if got := time.Duration(o.ret.Until - o.call.At); got < promised-time.Millisecond {
			out = append(out, violation(checkLease, o, name, "after Extend by %v a hold of process %d is valid for %v only",
				o.call.TTL, o.process, got))
		}
	}
	for _, o := range ops {
		lost := o.loss()
		isByLimit := lost != nil && lost.Reason == "limit"
		if !isByLimit || o.root != o || name != o.call.Names[0] {
			continue
		}
		if early := time.Duration(o.until - lost.At); early > limitTolerance {
			out = append(out, violation(checkLease, o, name, "%s ended by its limit %v before the end of its validity",
				o.ret.ID, early))
		}
	}
	return out
}

// limitTolerance is how much earlier than the limit of a hold its lease may end: Redis counts whole
// milliseconds, and a command that finds the hold gone just then says that it was the limit.
const limitTolerance = 3 * time.Millisecond

// checkReasons finds losses whose reason cannot be true.
func (h *history) checkReasons(name string, ops []*op) (out []Violation) {
	for _, o := range ops {
		lost := o.loss()
		if lost == nil || name != o.call.Names[0] {
			continue
		}
		if why := h.doubt(o, lost, name); why != "" {
			out = append(out, violation(checkWhy, o, name, "process %d lost %s, with the reason %q, although %s: %s", o.process,
				o.ret.ID, lost.Reason, why, lost.Err))
		}
	}
	return out
}

// checkContexts finds holds whose context ended without a loss and without a release, although that
// of the acquisition did not end.
func (h *history) checkContexts(name string, ops []*op) (out []Violation) {
	for _, o := range ops {
		isEndless := o.holds() && o.call.Endless
		hasEnded := o.ended != nil && o.ended.Outcome != outcomeLost
		if isEndless && hasEnded && name == o.call.Names[0] {
			out = append(out, violation(checkReason, o, name, "the context of %s ended, although that of its acquisition did "+
				"not and it was not lost: %s", o.ret.ID, o.ended.Err))
		}
	}
	return out
}

// loss returns the record that told the holder of its loss first; nil if it was not lost.
func (o *op) loss() *record {
	switch {
	case !o.holds():
		return nil
	case o.ended != nil && o.ended.Outcome == outcomeLost:
		return o.ended
	case o.release != nil && o.release.outcome() == outcomeLost:
		return o.release.ret
	}
	return nil
}

// isLimited reports whether a hold, or the one in which it nests, ends even if all renewals
// succeed.
func (o *op) isLimited() bool { return o.call.hasLimit() || o.root.call.hasLimit() }

// hasLimit reports whether a hold ends by itself.
func (r *record) hasLimit() bool { return r.Fixed || r.MaxHold > 0 }

// endedByFault reports whether a fault took what an operation holds, between two instants.
func (h *history) endedByFault(o *op, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return slices.ContainsFunc(o.call.Names, w.ends) && w.act().overlaps(begin, end)
	})
}

// confirmedFor is how long a hold was to be valid after the last confirmation. A fair lock may be
// granted for less than its TTL, to a waiter whose heartbeat was old.
func (o *op) confirmedFor() time.Duration {
	if o.call.Primitive == "fair" && o.until == o.ret.Until {
		return min(o.call.TTL, time.Duration(o.until-o.ret.At))
	}
	return o.call.TTL
}

// doubt says why the reason of a loss cannot be true; "" if it can.
func (h *history) doubt(o *op, lost *record, name string) string {
	joint := o.call.Primitive == "multi" || o.call.Primitive == "redlock"
	begin := h.ownershipBegin(o)
	taken := len(h.takeovers(o, begin, lost.At)) > 0
	ended := taken || h.endedByFault(o, begin, lost.At)
	confirmed := o.until - int64(o.lease())
	busy := h.isBusy(o.process, confirmed, lost.At) || h.isAnyBusy(confirmed, lost.At)
	isAlone := o.root == o && !o.call.Passes
	hasOneLease := isAlone && !joint && o.call.MaxHold == 0
	hindered := busy || h.disturbed(o.process, name, confirmed-int64(h.recovers()), lost.At)
	switch lost.Reason {
	case "limit":
		if !o.isLimited() {
			return "it has no limit"
		}
	case "expired":
		switch {
		case o.call.Fixed && !joint:
			return "it is not renewed"
		case !hindered:
			return "nothing kept it from being renewed"
		case hasOneLease && lost.Silent < o.confirmedFor()/2:
			return "Redis had confirmed it shortly before"
		}
	case "paused":
		if h.stopped(o.process, confirmed, lost.At) == 0 && !busy {
			return "the process did not stand still"
		}
	case "forced":
		forced := slices.ContainsFunc(h.windows, func(w window) bool {
			return w.fault == faultForce && slices.Contains(w.names, name) && w.overlaps(begin, lost.At)
		})
		if !taken && !forced {
			return "nobody took it"
		}
	case "gone":
		if !ended && !hindered && !o.isLimited() {
			return "nobody took it"
		}
	case "members":
		if !joint {
			return "it has no members"
		}
	default:
		return "there is no such reason"
	}
	return ""
}

// stopped is for how long a process was stopped between two instants.
func (h *history) stopped(process int, begin, end int64) time.Duration {
	sum := int64(0)
	for _, w := range h.windows {
		if w.fault == faultStop && w.process == process {
			sum += w.within(begin, end)
		}
	}
	return time.Duration(sum)
}

// isNestedHold reports whether o is an acquisition inside another hold, and succeeded.
func (o *op) isNestedHold() bool { return o.call.Do == opAcquire && o.root != o && o.holds() }

// checkSiblings finds holds that were nested under one hold at the same time. Readers may be.
func (h *history) checkSiblings(name string, ops []*op) (out []Violation) {
	for i, a := range ops {
		mustBeAlone := !a.call.Read && a.call.Owner == ""
		if !a.isNestedHold() || !mustBeAlone {
			continue
		}
		for _, b := range ops[i+1:] {
			if b.call.At > a.claimEnd() {
				break
			}
			isSibling := b.root == a.root && b.call.Do == opAcquire
			if !isSibling || !b.holds() {
				continue
			}
			meets := b.ret.At < a.claimEnd() && a.ret.At < b.claimEnd()
			if meets {
				out = append(out, violation(checkOrder, a, name, "two holds nest in %s at the same time: operations %d and %d of "+
					"process %d", a.ret.ID, a.call.Op, b.call.Op, a.process))
			}
		}
	}
	return out
}

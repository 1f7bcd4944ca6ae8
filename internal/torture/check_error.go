package torture

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// The checks of what calls return.

// checkErrors finds errors that no fault explains.
func (h *history) checkErrors() (out []Violation) {
	for _, o := range ofOurs(h.ops) {
		if o.ret == nil {
			continue
		}
		for _, class := range o.ret.Is {
			if !h.explains(o, class) {
				out = append(out, violation(checkError, o, o.call.Names[0], "%s: %s (%s)", o.call.Do, o.ret.Err,
					strings.Join(o.ret.Is, ", ")))
				break
			}
		}
	}
	return out
}

// explains reports whether an operation may return an error of a class. A waiter behind others
// reports the latest failure of its client, which may be from before its call.
func (h *history) explains(o *op, class string) bool {
	begin, end := o.call.At-int64(recovery), o.ret.At
	during := func(fault string) bool {
		return slices.ContainsFunc(h.windows, func(w window) bool { return w.fault == fault && w.overlaps(begin, end) })
	}
	if o.is(isForeign) { // an earlier attempt may have failed in another way
		return during(faultOverwrite)
	}
	switch class {
	case isNotAcquired, isLost, isNotHeld, isEnded: // other checks judge them
		return true
	case isNotReplicated: // WithReplicas: a replica was late, or is gone
		return h.troubled(o.process, begin, end) || h.isBusy(o.process, begin, end)
	case isFull:
		return during(faultMemory)
	case isUnsupported: // a reader that also writes can only be adopted as the writer
		return o.call.Do == opAdopt && h.writesAndReads(o.call.Target)
	case isUnknown:
		if o.is(isNotAcquired) { // its time was over while a command was under way
			return true
		}
		fallthrough
	case isUnavailable, isTransport:
		isTimeOver := o.is(isEnded) || o.is(isNotAcquired)
		if class == isTransport && isTimeOver { // during an attempt
			return true
		}
		// On a busy machine an answer may take longer than silence, at the end of a call or to the
		// waiter before it. Then some process has noticed a stall, or the clients are still
		// connecting. The members of a redlock have less time: a tenth of the TTL.
		took := o.ret.At - o.call.At
		isLong := isTimeOver || took > int64(silence)
		if o.call.Primitive == "redlock" && isLong {
			return true
		}
		// A short call may have ended just before an answer that the scheduler has delayed.
		isWaitOver := strings.Contains(o.ret.Err, waitIsOver) && !h.exact
		hasEnded := o.is(isEnded) || o.is(isLost) || isWaitOver
		if hasEnded && took <= int64(h.tolerance()) {
			return true
		}
		// A fault may break many pooled connections, and each is found when it is used. A call
		// meets as many as it may repeat its command.
		isStale := strings.Contains(strings.ToLower(o.ret.Err), "broken pipe") && h.troubled(o.process, 0, begin)
		isLoaded := h.isBusy(o.process, begin, end) || h.isAnyBusy(begin, end)
		return isStale || isLoaded || h.troubled(o.process, begin, end) || h.isConnecting(o)
	}
	return false
}

// waitIsOver is in the error of an acquisition that ended while Redis owed it an answer, because it
// had waited for as long as WithWait says.
const waitIsOver = "the wait is over"

// writesAndReads reports whether an id was that of a writer and of a reader, or may have been:
// Redis may have executed a nested acquisition whose answer did not come in time.
func (h *history) writesAndReads(id string) bool {
	acquired := func(read bool) bool {
		return slices.ContainsFunc(h.ops, func(o *op) bool {
			holds := o.holds() && o.ret.ID == id
			isNested := o.root.ret.orNone().ID == id
			mayHold := o.call.Do == opAcquire && o.outcome() == outcomeUnknown && isNested
			return o.call.Read == read && (holds || mayHold)
		})
	}
	return acquired(false) && acquired(true)
}

// connecting is how long answers may take longer after the first call of a process.
const connecting = 500 * time.Millisecond

// silence is how long Redis must not have answered before a call may say so.
const silence = 100 * time.Millisecond

// checkSilence finds calls that say that somebody else holds, although Redis has answered nothing
// since before they began. A call that waits behind another goes by that one's answers, until the
// next poll has failed. A call that does not wait asks Redis itself.
func (h *history) checkSilence() (out []Violation) {
	const settled, polled = 60 * time.Millisecond, 1500 * time.Millisecond
	ours := ofOurs(h.ops)
	for _, w := range h.windows {
		isSilent := w.fault == faultHole || w.fault == faultRefuse
		mayBeginLate := h.overloaded(w.begin, w.begin+int64(settled)) > 0 // on a busy machine
		if !isSilent || mayBeginLate {
			continue
		}
		for _, o := range ours {
			isAcquisition := o.call.Do == opAcquire && o.root == o
			if !isAcquisition || o.process != w.process || o.ret == nil {
				continue
			}
			isDuring := o.call.At > w.begin+int64(settled) && o.ret.At < w.end
			if !isDuring || o.is(isUnavailable) {
				continue
			}
			took := time.Duration(o.ret.At - o.call.At)
			mustKnow := o.call.Once && took > 2*silence && o.is(isNotAcquired)
			mustHavePolled := took > polled && o.outcome() == outcomeBusy
			if mustKnow || mustHavePolled {
				out = append(out, violation(checkError, o, o.call.Names[0],
					"Redis was silent for the %v of the call, which says that somebody else holds: %s",
					took.Round(time.Millisecond), o.ret.Err))
			}
		}
	}
	return out
}

// checkEvents finds acquisitions that did not emit one event of their outcome.
func (h *history) checkEvents() (out []Violation) {
	for _, o := range ofOurs(h.ops) {
		isOne := o.call.Do == opAcquire && o.call.Primitive != keyedPrimitive // who locks by name may acquire twice
		if isOne && o.ret != nil && o.ret.Events != 1 {
			out = append(out, violation(checkEvent, o, o.call.Names[0], "%d events told the outcome of an acquisition: %s %s",
				o.ret.Events, o.ret.Outcome, o.ret.Err))
		}
	}
	return out
}

// checkReleases finds releases that say nothing of a loss.
func (h *history) checkReleases(name string, ops []*op) (out []Violation) {
	for _, o := range ops {
		isJudged := name == o.call.Names[0] || h.exact // of a joint lock, each member in a simulation
		if !o.isReleased() || !isJudged {
			continue
		}
		wasTold := o.ended != nil && o.ended.Outcome == outcomeLost
		if wasTold && o.ended.At < o.release.call.At {
			out = append(out, violation(checkRelease, o, name, "the release of %s returned nil, %v after its context had told "+
				"the loss", o.ret.ID, time.Duration(o.release.call.At-o.ended.At).Round(time.Microsecond)))
			continue
		}
		if by := h.takenBy(o, name); by != "" {
			out = append(out, violation(checkRelease, o, name, "the release of %s returned nil, after %s", o.ret.ID, by))
		}
	}
	return out
}

// repeatedAfter is how long a release takes at least if it was sent twice. A client repeats a
// command without an answer after 22 to 30 ms.
const repeatedAfter = 20 * time.Millisecond

// takenBy says what has certainly ended a hold before its release began; "" if nothing has.
func (h *history) takenBy(o *op, name string) string {
	isShared := o.call.Passes || o.call.Owner != "" || o.call.Limit > 0
	isJoint := len(o.call.Names) > 1 && !h.exact
	hasOwnID := o.root == o && !isShared
	if !hasOwnID || isJoint {
		return ""
	}
	if h.hasCounts(o) {
		return ""
	}
	release := o.release
	// A release that is repeated may find nothing, and cannot tell why. It is repeated if its
	// answer is late.
	if release.ret.At-release.call.At >= int64(repeatedAfter) {
		return ""
	}
	for _, t := range h.names[name] {
		if !t.ends(o) || t.outcome() != outcomeOK {
			continue
		}
		isBetween := t.call.At > o.ret.At && t.ret.At < release.call.At
		hasFoundNothing := t.call.Do == opForce && t.ret.Count == 0
		if isBetween && !hasFoundNothing && !h.troubled(o.process, t.call.At, release.ret.At) {
			return fmt.Sprintf("%s of process %d", t.call.Do, t.process)
		}
	}
	for _, w := range h.windows {
		isHit := w.hit && slices.Contains(w.names, name)
		isBetween := o.ret.At < w.begin && w.act().end < release.call.At
		if isHit && isBetween && !h.troubled(o.process, w.begin, release.ret.At) {
			return w.fault
		}
	}
	return ""
}

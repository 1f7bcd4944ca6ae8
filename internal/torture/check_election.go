package torture

import (
	"slices"
	"time"
)

// The checks of elections, and of holds that are told that somebody waits for them. They need a
// network that is as quick as that of simulations.

const (
	watching     = 200 * time.Millisecond // of doc/contract.md, C29: a watcher learns of a leader of redlatch
	standingBack = 100 * time.Millisecond // how long a candidate that has resigned leaves the turn to others
	wanting      = 300 * time.Millisecond // of doc/contract.md, C30: a waiter has waited, and the holder is told
	slowLook     = time.Second            // a waiter looks as often, whatever it hears
	// slowestWanting is of C30: a holder of a pool finds the waiters of other clients, which do not
	// know it.
	slowestWanting = 2 * time.Second
	// allAskedAgain is of C30: waiters ask all holders of a pool as often.
	allAskedAgain = 10*time.Second + wanting
)

// isQuiet reports whether nothing has disturbed a process and a name since so long before an
// instant that the process has connected again, and until a later instant.
func (h *history) isQuiet(process int, name string, begin, end int64) bool {
	return !h.disturbed(process, name, begin-int64(h.recovers()), end) && h.stalled(process, begin, end) == 0
}

// checkElections finds candidates that resigned and led again although others stood, watchers that
// were not told, and false answers about who leads.
func (h *history) checkElections(name string, ops []*op) (out []Violation) {
	if !h.exact || ops[0].call.Primitive != electionPrimitive || h.lossy(name, h.begin, h.end) {
		return nil
	}
	for _, o := range ops {
		switch {
		case o.call.Do == opWatch:
			out = append(out, h.checkWatcher(name, o, ops)...)
		case o.call.Do == opLeader && o.outcome() == outcomeOK:
			out = append(out, h.checkLeader(name, o, ops)...)
		case o.isReleased():
			out = append(out, h.checkResignation(name, o, ops)...)
		}
	}
	return out
}

// checkResignation finds the next term of a candidate that has resigned, if another one stood all
// the time. It stands back even if a fault keeps the other one from being elected: it knows nothing
// of that.
func (h *history) checkResignation(name string, o *op, ops []*op) (out []Violation) {
	resigned := o.release.ret.At
	for _, next := range ops {
		isSame := next.process == o.process && next.call.Session == o.call.Session && next.call.At >= o.release.call.At
		isCandidacy := isSame && next.call.Do == opAcquire
		isOfAnotherRun := next.call.Bound != 0 // only the first attempt of a call of Run has a bound
		if isCandidacy && isOfAnotherRun {
			break
		}
		if !isCandidacy || !next.isGrant() || next.ret.At >= resigned+int64(standingBack) {
			continue
		}
		for _, other := range ops {
			isRival := other.call.Do == opAcquire && other.process != o.process && other.waited != 0
			stands := isRival && other.waited < o.release.call.At && min(other.returned(), other.died) > next.ret.At
			if stands {
				out = append(out, violation(checkTurn, next, name, "process %d led again %v after it had resigned, while "+
					"process %d stood", o.process, time.Duration(next.ret.At-resigned).Round(time.Millisecond), other.process))
				break
			}
		}
	}
	return out
}

// checkWatcher finds terms that a watcher was not told of, although they lasted for long enough.
func (h *history) checkWatcher(name string, watcher *op, ops []*op) (out []Violation) {
	limit := int64(watching + h.tolerance())
	for _, o := range ops {
		if !o.isGrant() {
			continue
		}
		due := o.ret.At + limit
		lasts := min(o.claimEnd(), watcher.returned(), watcher.died) > due
		watched := watcher.call.At+limit < o.call.At
		isCalm := h.isQuiet(watcher.process, name, o.ret.At, due) && h.isQuiet(o.process, name, o.ret.At, due)
		if !lasts || !watched || !isCalm {
			continue
		}
		wasTold := slices.ContainsFunc(watcher.seen, func(r record) bool {
			return r.Token == o.ret.Token && r.At <= due
		})
		if !wasTold {
			out = append(out, violation(checkNotice, o, name, "a watcher of process %d was not told within %v that process %d "+
				"leads, with token %d", watcher.process, time.Duration(limit), o.process, o.ret.Token))
		}
	}
	return out
}

// checkLeader finds answers of Leader that were true at no instant of the call: another leader than
// the one that led all the time, or one that cannot have led then.
func (h *history) checkLeader(name string, asked *op, ops []*op) []Violation {
	begin, end, id := asked.call.At, asked.ret.At, asked.ret.ID
	mayLead := id == ""
	for _, o := range ops {
		isOther := o.isGrant() && o.ret.ID != id
		ledAllTheTime := isOther && o.ret.At <= begin && h.clip(o) > end && len(h.takeovers(o, o.call.At, end)) == 0
		if ledAllTheTime {
			return []Violation{violation(checkOrder, asked, name, "process %d was told that the leader is %q, while %q led",
				asked.process, id, o.ret.ID)}
		}
		// An attempt may have been granted that its candidate knows nothing of.
		isLeader := o.isGrant() && o.ret.ID == id
		mayBeUnknown := !o.isGrant() || h.disturbed(o.process, name, o.call.At, o.ret.At)
		at, isPossible := h.possible(o, name)
		if isPossible && at.overlaps(begin, end) && (isLeader || mayBeUnknown) {
			mayLead = true
		}
		if !isLeader || o.ret.Token == asked.ret.Token {
			continue
		}
		// Such an attempt of this candidate had a token of its own.
		isOfEarlierAttempt := mayBeUnknown && end <= o.ret.At && asked.ret.Token < o.ret.Token
		if !isOfEarlierAttempt {
			return []Violation{violation(checkOrder, asked, name, "process %d was told of the leader %q with token %d, "+
				"which has token %d", asked.process, id, asked.ret.Token, o.ret.Token)}
		}
	}
	if !mayLead {
		return []Violation{violation(checkOrder, asked, name, "process %d was told that the leader is %q, which cannot have "+
			"led then", asked.process, id)}
	}
	return nil
}

// waitsSince returns since when the client of a waiter has waited for the name without a break. Its
// waiters share what they know of the holder.
func waitsSince(w *op, ops []*op) int64 {
	since := w.waited
	for found := true; found; {
		found = false
		for _, other := range ops {
			isWaiter := other.call.Do == opAcquire && other.process == w.process && other.waited != 0
			if isWaiter && other.waited < since && other.returned() >= since {
				since, found = other.waited, true
			}
		}
	}
	return since
}

// checkWanted finds holds that were not told that somebody waits for them: doc/contract.md, C30.
func (h *history) checkWanted(name string, ops []*op) (out []Violation) {
	if !h.exact {
		return nil
	}
	for _, o := range ops {
		if !o.holds() || o.root != o || o.listens == 0 || h.isPassedOn(o) {
			continue
		}
		for _, w := range ops {
			isOfAnotherName := w.call.Names[0] != name // it is looked at there
			if isOfAnotherName || !h.isKeptWaiting(w, o) {
				continue
			}
			begin := max(o.listens, o.ret.At, w.waited)
			due := begin + int64(h.wantedWithin(w, o, ops))
			end := min(o.deaf, o.claimEnd(), w.returned(), w.died, h.end)
			wasTold := o.wanted != 0 && o.wanted <= due
			isCalm := h.isQuiet(o.process, name, begin, due) && h.isQuiet(w.process, name, begin, due)
			if end > due && !wasTold && isCalm {
				out = append(out, violation(checkNotice, o, name, "process %d was not told within %v that process %d waits for %s",
					o.process, time.Duration(due-begin), w.process, o.ret.ID))
				break
			}
		}
	}
	return out
}

// isKeptWaiting reports whether a hold certainly keeps a waiter waiting that does not poll. A
// waiter for several locks may be kept waiting by the holder of another one, unless the hold has
// them all.
func (h *history) isKeptWaiting(w, o *op) bool {
	isWaiter := w.call.Do == opAcquire && w.root == w && w.waited != 0 && !workloads[w.call.Primitive].polls
	isKeptOut := !h.isBeside(o, w) && (o.call.Owner == "" || w.call.Owner != o.call.Owner)
	isElsewhere := slices.ContainsFunc(w.call.Names, func(name string) bool {
		return !slices.Contains(o.call.Names, name)
	})
	return isWaiter && isKeptOut && !isElsewhere
}

// wantedWithin is how soon a hold is told that a waiter waits for it.
func (h *history) wantedWithin(w, o *op, ops []*op) time.Duration {
	// A waiter asks the holder that it knows. It learns of one that has adopted the lock, or that
	// was before it in line, when it looks again. All holds of an owner, or of a cohort, are one
	// holder, who is asked again as late.
	cameLater := waitsSince(w, ops) < o.ret.At
	isOfSameProcess := w.process == o.process
	mayKnowAnother := cameLater && (o.call.Do == opAdopt || !isOfSameProcess)
	isOneOfMany := o.call.Owner != "" || o.call.Passes && h.sharesID(o)
	isPool := o.call.Limit > 0
	hasHolders := o.call.Primitive != "semaphore"
	switch {
	case isPool && !cameLater && (hasHolders || isOfSameProcess): // the holders are read first
		return wanting + 2*h.tolerance()
	case isPool && !isOfSameProcess: // the holder finds it
		return slowestWanting + h.tolerance()
	case isPool:
		return allAskedAgain + h.tolerance()
	case mayKnowAnother, isOneOfMany:
		return wanting + slowLook + h.tolerance()
	}
	return wanting + h.tolerance()
}

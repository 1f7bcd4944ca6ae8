package torture

import (
	"slices"
	"time"
)

// The checks of elections, and of holds that are told that somebody waits for them. They need a network that is as
// quick as that of simulations.

const (
	watching     = 200 * time.Millisecond // of doc/contract.md, C29: a watcher learns of a leader of redlatch
	standingBack = 100 * time.Millisecond // how long a candidate that has resigned leaves the turn to others
	wanting      = 300 * time.Millisecond // of doc/contract.md, C30: a waiter has waited, and the holder is told
	slowLook     = time.Second            // a waiter looks as often, whatever it hears
)

// isQuiet reports whether nothing has disturbed a process and a name since so long before an instant that the process
// has connected again, and until a later instant.
func (h *history) isQuiet(process int, name string, begin, end int64) bool {
	return !h.disturbed(process, name, begin-int64(h.recovers()), end) && h.stalled(process, begin, end) == 0
}

// checkElections finds candidates that resigned and led again although others stood, and watchers that were not told.
func (h *history) checkElections(name string, ops []*op) (out []Violation) {
	if !h.exact || ops[0].call.Primitive != electionPrimitive || h.lossy(name, h.begin, h.end) {
		return nil
	}
	for _, o := range ops {
		switch {
		case o.call.Do == opWatch:
			out = append(out, h.checkWatcher(name, o, ops)...)
		case o.isReleased():
			out = append(out, h.checkResignation(name, o, ops)...)
		}
	}
	return out
}

// checkResignation finds the next term of a candidate that has resigned, if another one stood all the time. It stands
// back even if a fault keeps the other one from being elected: it knows nothing of that.
func (h *history) checkResignation(name string, o *op, ops []*op) (out []Violation) {
	resigned := o.release.ret.At
	for _, next := range ops {
		isSame := next.process == o.process && next.call.Session == o.call.Session && next.call.At >= o.release.call.At
		isOfSameRun := isSame && next.call.Bound == 0 // only the first attempt of a call of Run has a bound
		if !isOfSameRun || !next.isGrant() || next.ret.At >= resigned+int64(standingBack) {
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

// waitsSince returns since when the client of a waiter has waited for the name without a break. Its waiters share what
// they know of the holder.
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
		isAlone := len(o.call.Names) == 1 && o.call.Limit == 0 && !o.call.Passes && o.call.Primitive != "redlock"
		if !isAlone || !o.holds() || o.root != o || o.listens == 0 {
			continue
		}
		for _, w := range ops {
			isWaiter := w.call.Do == opAcquire && w.root == w && w.waited != 0 && len(w.call.Names) == 1
			isKeptOut := !h.isBeside(o, w) && (o.call.Owner == "" || w.call.Owner != o.call.Owner)
			if !isWaiter || !isKeptOut || workloads[w.call.Primitive].polls {
				continue
			}
			begin := max(o.listens, o.ret.At, w.waited)
			due := begin + int64(wanting+h.tolerance())
			// A waiter asks the holder that it knows. It learns of one that has adopted the lock, or that was before it in
			// line, when it looks again. All holds of an owner are one holder, who is asked again as late.
			mayKnowAnother := waitsSince(w, ops) < o.ret.At && (o.call.Do == opAdopt || w.process != o.process)
			if mayKnowAnother || o.call.Owner != "" {
				due += int64(slowLook)
			}
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

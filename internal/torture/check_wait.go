package torture

import (
	"cmp"
	"slices"
	"time"
)

// The checks of waiters: nobody waits for what is free, and every client has its turn.

const (
	patience = 3 * time.Second        // for a waiter of a lock that nobody can hold: it polls once a second
	wakingUp = 700 * time.Millisecond // the same where nothing can have delayed or lost its wake-up
	// resubscribing is how long a client takes at most to subscribe again, and to look, after its
	// connection was cut.
	resubscribing = 150 * time.Millisecond

	turnTime  = 500 * time.Millisecond // a client that has a lock for so long, while another waits,
	turnHolds = 20                     // in that many holds
)

// wakeUp is how long a waiter may wait where nothing can have delayed or lost its wake-up.
func (h *history) wakeUp() time.Duration {
	if h.exact {
		return 4 * slowestRoundTrip
	}
	return wakingUp
}

// patience is for how long a waiter may wait for what nobody can hold.
func (h *history) patience() time.Duration {
	if h.exact {
		return exactRecovery
	}
	return patience
}

// settles is how long after a fault a message that a waiter needs may be lost because of it.
func (h *history) settles() time.Duration {
	if h.exact {
		return exactRecovery
	}
	return 2 * recovery
}

// slack is how much earlier or later Redis may execute an undisturbed command than its call begins
// or ends.
func (h *history) slack() int64 {
	if h.exact {
		return 6 * int64(slowestRoundTrip)
	}
	return int64(time.Second)
}

// isBeside reports whether two acquisitions never wait for each other: readers. Only simulations
// are quick enough to tell them from the writers that come between them.
func (h *history) isBeside(a, b *op) bool { return h.exact && a.call.Read && b.call.Read }

// claims returns when a writer that waits may keep new readers out.
func (h *history) claims(writer, reader *op) (load, bool) {
	isWriter := writer.call.Do == opAcquire && writer.call.Primitive == "rwlock" && !writer.call.Read
	if !h.exact || !reader.call.Read || !isWriter {
		return load{}, false
	}
	return load{interval{writer.call.At, min(writer.returned(), writer.died, h.end) + h.slack()}, blocking}, true
}

// endsUnheard reports whether a reader may hear of the end of a writer's hold only when it looks,
// once a second. No message says that a lease has ended, and the reader does not know the lease of
// a writer that has acquired since its latest attempt.
func (h *history) endsUnheard(writer, reader *op) bool {
	isReader := h.exact && reader.call.Read && reader.waited != 0
	isLostWriter := writer.call.Primitive == "rwlock" && !writer.call.Read && writer.holds() && writer.ended != nil
	return isReader && isLostWriter && reader.waited < writer.ret.At
}

// checkWaits finds waiters that waited for a lock that nobody can have held, or for permits that
// were free.
func (h *history) checkWaits() (out []Violation) {
	for _, o := range ofOurs(h.ops) {
		isAcquisition := o.call.Do == opAcquire && o.root == o
		if !isAcquisition || o.ret == nil || o.call.Primitive == "latch" {
			continue
		}
		if o.call.Primitive == "fair" && h.hasOutsiders(o.call.Names[0]) {
			continue // their waiters keep their places for long after they have gone
		}
		if o.ret.At-o.call.At < int64(h.wakeUp()) {
			continue
		}
		var busy []load
		for _, name := range o.call.Names {
			if o.call.Limit > 0 && (h.resized(name) || h.lossy(name, h.begin, h.end)) {
				busy = append(busy, load{interval{o.call.At, o.ret.At}, blocking})
			}
			busy = append(busy, h.cameBack(name)...)
			for _, other := range h.names[name] {
				isOther := other.root != o && !h.isBeside(o, other)
				if i, ok := h.possible(other, name); ok && isOther {
					if h.endsUnheard(other, o) {
						i.end += int64(slowLook)
					}
					busy = append(busy, load{i, weightOf(other)})
				}
				if claim, ok := h.claims(other, o); ok {
					busy = append(busy, claim)
				}
			}
		}
		room := 0 // others may have so many permits
		if o.call.Limit > 0 {
			room = o.call.Limit - o.call.Permits
		}
		excused := slices.Concat(busy, h.excuses(o, h.recovers()), h.allStalls(o))
		if at, gap := widestGap(excused, room, o.call.At, o.ret.At); gap > h.patience() {
			out = append(out, violation(checkFree, o, o.call.Names[0],
				"process %d waited for %v from %v after the round began, while nobody can have held it", o.process,
				gap.Round(time.Millisecond), time.Duration(at-h.begin).Round(time.Millisecond)))
			continue
		}
		// Others may have some members of a joint lock for a while, and then give up.
		isJoint := len(o.call.Names) > 1 || o.call.Primitive == "multi" || o.call.Primitive == "redlock"
		if isJoint || o.waited == 0 {
			continue
		}
		begin := max(o.waited, o.call.At)
		at, gap := widestGap(slices.Concat(busy, h.excuses(o, h.settles())), room, begin, o.ret.At)
		if gap > h.wakeUp()+h.stalled(o.process, at, at+int64(gap)) && !mayBeKept(o, gap) {
			out = append(out, violation(checkWake, o, o.call.Names[0],
				"process %d waited for %v from %v after the round began, while nobody can have held it and nothing can "+
					"have lost its wake-up", o.process,
				gap.Round(time.Millisecond), time.Duration(at-h.begin).Round(time.Millisecond)))
		}
	}
	return out
}

// mayBeKept reports whether a gap is short enough for a lock that lingers, or that is left to other
// clients: doc/contract.md, C24. A waiter in line may not know who has the lock, and does not ask
// for it. A client that has given a lock up, because another one has asked for it, leaves it to
// others first. They may have given up since. A candidate that has resigned does the same: C29.
func mayBeKept(o *op, gap time.Duration) bool {
	lingers := o.call.Lingers && gap <= lingerTime+slowestRoundTrip
	isLeft := o.call.Primitive == electionPrimitive && gap <= standingBack
	return lingers || isLeft
}

// checkCohorts finds members of a cohort that got the lock after the cohort's time:
// doc/contract.md, C24. Only a simulation passes it on in no time.
func (h *history) checkCohorts() (out []Violation) {
	if !h.exact {
		return nil
	}
	for name, ops := range h.names {
		began := map[string]int64{} // by id
		for _, o := range ops {
			isOfCohort := o.call.Passes && !o.call.Lingers
			if !isOfCohort || !o.isGrant() {
				continue
			}
			if first, ok := began[o.ret.ID]; !ok || o.ret.At < first {
				began[o.ret.ID] = o.ret.At
			}
		}
		for _, o := range ops {
			first, ok := began[o.ret.orNone().ID]
			if !ok || !o.isGrant() {
				continue
			}
			if age := time.Duration(o.ret.At - first); age > cohortTime+time.Millisecond {
				out = append(out, violation(checkTurn, o, name, "a cohort of process %d that may last for %v passed the lock on "+
					"after %v", o.process, cohortTime, age.Round(time.Millisecond)))
			}
		}
	}
	return out
}

// checkLatches finds calls that waited for a latch although it was open.
func (h *history) checkLatches() (out []Violation) {
	for name, ops := range h.names {
		if ops[0].call.Primitive != "latch" || h.lossy(name, h.begin, h.end) {
			continue
		}
		open := openTimes(ops)
		for _, o := range ops {
			if o.call.Do != opAwait || o.ret == nil || o.outside {
				continue
			}
			for _, i := range open {
				begin, end := max(i.begin, o.call.At), min(i.end, o.ret.At)
				if end-begin < int64(h.wakeUp()) {
					continue
				}
				at, gap := widestGap(slices.Concat(h.excuses(o, h.settles()), h.allStalls(o)), 0, begin, end)
				if gap > h.wakeUp() {
					out = append(out, violation(checkWake, o, name,
						"process %d waited for %v from %v after the round began, while the latch was open", o.process,
						gap.Round(time.Millisecond), time.Duration(at-h.begin).Round(time.Millisecond)))
					break
				}
			}
		}
	}
	return out
}

// openTimes returns the times in which a latch was certainly open: from the last count-down that it
// needed, to the next call that may have closed it.
func openTimes(ops []*op) (out []interval) {
	for _, created := range ops {
		if created.call.Do != opInit || created.outcome() != outcomeOK || created.ret.Count != 1 {
			continue
		}
		closed := int64(never)
		var counts []int64 // when they had certainly counted
		for _, o := range ops {
			switch {
			case o == created || o.call.At < created.ret.At:
			case o.call.Do == opInit && o.outcome() == outcomeOK && o.ret.Count == 0: // there was one
			case o.call.Do == opInit:
				closed = min(closed, o.call.At)
			case o.call.Do == opCountDown && o.outcome() == outcomeOK:
				counts = append(counts, o.ret.At)
			}
		}
		slices.Sort(counts)
		if len(counts) >= created.call.Permits && counts[created.call.Permits-1] < closed {
			out = append(out, interval{counts[created.call.Permits-1], closed})
		}
	}
	return out
}

// load is how many permits somebody may have during an interval.
type load struct {
	interval

	permits int
}

// blocking is the load of a lock that is held, or of an excuse.
const blocking = 1 << 20

func weightOf(o *op) int {
	if o.call.Limit > 0 {
		return o.call.Permits
	}
	return blocking
}

// excuses are the times in which a waiter may have been delayed, and for after longer.
func (h *history) excuses(o *op, after time.Duration) (out []load) {
	for _, w := range h.windows {
		over := w.end + int64(after)
		if h.exact && w.fault == faultPubSub { // it cuts the subscriptions when it begins, and does nothing more
			over = w.begin + int64(resubscribing)
		}
		if w.disturbs(o.process, o.call.Names[0]) {
			out = append(out, load{interval{w.begin, over}, blocking})
		}
	}
	return out
}

// allStalls are the times in which a waiter, a server or the harness did not run.
func (h *history) allStalls(o *op) (out []load) {
	for _, s := range h.stalls[o.process] {
		out = append(out, load{s, blocking})
	}
	for _, w := range h.windows {
		if w.isStall() {
			out = append(out, load{interval{w.begin, w.end + int64(silence)}, blocking})
		}
	}
	return out
}

// cameBack are the times in which a server that has forgotten releases may have former holders and
// waiters: until their leases end, which nobody renews.
func (h *history) cameBack(name string) (out []load) {
	longest := longestLease*int64(h.ttl) + int64(waiterTimeout)
	for _, w := range h.windows {
		if w.loses(name) {
			out = append(out, load{interval{w.begin, w.end + longest + h.lengthened(w.begin)}, blocking})
		}
	}
	return out
}

// resized reports whether a pool has had other sizes, or may have lost permits.
func (h *history) resized(name string) bool {
	return slices.ContainsFunc(h.names[name], func(o *op) bool {
		switch o.call.Do {
		case opAdd, opDrain, opResize:
			return true
		case opInit:
			return o.outcome() != outcomeOK
		}
		// A plain semaphore's permits of unknown whereabouts may be gone for ever.
		return o.call.Primitive == "semaphore" && (o.ret == nil || o.died != never)
	})
}

// possible returns when an acquisition may have held its names in Redis.
func (h *history) possible(o *op, name string) (interval, bool) {
	i, ok := h.possibleBySteadyClock(o, name)
	i.end += h.lengthened(o.call.At)
	return i, ok
}

func (h *history) possibleBySteadyClock(o *op, name string) (interval, bool) {
	if o.call.Do != opAcquire && o.call.Do != opAdopt {
		return interval{}, false
	}
	slack := h.slack()
	ttl := int64(o.lease()) + slack
	if workloads[o.call.Primitive].fair {
		ttl += int64(waiterTimeout) // a dead waiter at the head of the queue
	}
	disturbed := h.disturbed(o.process, name, o.call.At, min(o.returned(), o.died))
	switch {
	case o.outside:
		return h.possibleOutside(o, name), o.outcome() != outcomeBusy || disturbed
	case o.call.Do == opAdopt && o.isOpen(): // it is not undone
		return interval{o.call.At, min(o.returned(), o.died, h.end) + int64(copyDelay) + ttl}, true
	case o.ret == nil:
		if o.call.Primitive == "rwlock" && !o.call.Read {
			ttl = max(ttl, int64(writerClaim)+slack)
		}
		return interval{o.call.At, h.arrived(o, name) + ttl}, true
	case o.holds():
		i := interval{o.ret.At - slack/2, o.claimEnd() + ttl}
		switch {
		case o.root.call.MinHold > 0: // a renewal after its release may keep it for that lease
		case o.release != nil && o.release.outcome() == outcomeFailed &&
			h.disturbed(o.process, name, o.call.At, o.release.ret.At): // so may one before it, if the network is slow
			i.end = max(i.end, o.release.ret.At+ttl)
		case o.release != nil && o.release.outcome() == outcomeOK:
			i.end = o.release.ret.At
			since := o.release.ret.At - int64(h.recovers()) // it may have missed that others ask for it
			if o.call.Passes && h.disturbed(o.process, name, since, o.release.ret.At+2*int64(lingerTime)) {
				i.end += ttl // it lingered, and its client could not free it
			}
		case o.forgot: // it is renewed until the garbage collector finds it
			i.end = h.end
		case o.root.call.Owner != "", // others of its owner renew what it did not give back
			o.call.Primitive == "semaphore": // it has no lease, and its release is repeated
			i.end = h.end
		}
		for _, t := range h.takeovers(o, o.ret.At, i.end) {
			// One that began before this acquisition returned may have ended an earlier hold.
			endsAll := o.call.Limit == 0 || t.call.Permits >= o.call.Permits // else some of its permits are left
			hasEnded := t.call.At > o.ret.At && t.outcome() == outcomeOK
			if endsAll && hasEnded && !h.hasCounts(o) {
				i.end = min(i.end, t.ret.At)
			}
		}
		if h.mayReturn(o, name) {
			i.end = max(i.end, o.call.At+h.latestCopy()+ttl)
		}
		if disturbed {
			i.begin = o.call.At
		}
		return i, true
	case disturbed, o.outcome() == outcomeUnknown && h.isBusy(o.process, o.call.At-slack, o.ret.At+slack):
		end := o.ret.At + ttl
		if h.mayReturn(o, name) {
			end = max(end, o.call.At+h.latestCopy()+ttl)
		}
		return interval{o.call.At, end}, true
	case o.isUnconfirmed():
		return interval{o.call.At, o.ret.At + slack}, true
	case o.outcome() == outcomeUnknown:
		return interval{o.ret.At - slack/2, o.ret.At + slack}, true
	}
	return interval{}, false
}

// arrived returns when all that an operation has sent, which has not returned, has arrived. A fault
// may keep what a process had sent when it died.
func (h *history) arrived(o *op, name string) int64 {
	died := min(o.died, h.end)
	end := died
	for _, w := range h.windows {
		if w.disturbs(o.process, name) && w.overlaps(died, died) {
			end = max(end, w.end)
		}
	}
	return end
}

// possibleOutside returns when an acquisition by another library may have held its names: what is
// in doubt, it leaves to its lease.
func (h *history) possibleOutside(o *op, name string) interval {
	i := interval{o.call.At, min(o.returned(), o.died, h.end)}
	released := o.isReleased()
	if released {
		i.end = o.release.ret.At
	}
	if !released || h.disturbed(o.process, name, i.begin, i.end) { // commands may arrive late
		i.end = max(i.end, o.until) + int64(o.lease()+copyDelay)
	}
	return i
}

// widestGap returns the longest part of [begin, end] in which the loads are at most room, and where
// it begins.
func widestGap(loads []load, room int, begin, end int64) (at int64, gap time.Duration) {
	type change struct {
		at      int64
		permits int
	}
	var changes []change
	for _, l := range loads {
		if l.end > begin && l.begin < end {
			changes = append(changes, change{max(l.begin, begin), l.permits}, change{min(l.end, end), -l.permits})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { // an interval that begins where another ends leaves no gap
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.permits, a.permits))
	})
	sum, since := 0, begin
	for _, c := range append(changes, change{end, blocking}) {
		was := sum
		sum += c.permits
		if was <= room && sum > room {
			if d := time.Duration(c.at - since); d > gap {
				at, gap = since, d
			}
		}
		if was > room && sum <= room {
			since = c.at
		}
	}
	return at, gap
}

// checkTurns finds clients that had a lock all the time, although another client waited and nothing
// kept it from acquiring.
func (h *history) checkTurns(name string, ops []*op) (out []Violation) {
	var grants []*op
	for _, o := range ops {
		if o.isGrant() && o.call.Limit == 0 {
			grants = append(grants, o)
		}
	}
	slices.SortFunc(grants, func(a, b *op) int { return cmp.Compare(a.ret.At, b.ret.At) })
	for first := 0; first < len(grants); {
		last := first
		for last+1 < len(grants) && grants[last+1].follows(grants[last]) {
			last++
		}
		if v, ok := h.starved(name, grants[first:last+1]); ok {
			out = append(out, v)
		}
		first = last + 1
	}
	return out
}

// follows reports whether a client may have passed the lock on to itself. A hold of an owner may
// also have joined another one of that owner, and has then taken nobody's turn.
func (o *op) follows(before *op) bool {
	mayHaveJoined := o.call.Owner != ""
	return o.process == before.process && !before.endsWithLease() && !mayHaveJoined
}

// endsWithLease reports whether a hold was not released. Then nobody passes the lock on: whoever
// looks first gets it when the lease ends, and that may be the same client again.
func (o *op) endsWithLease() bool { return o.loss() != nil || o.detached }

// starved finds a waiter that another client's streak kept out.
func (h *history) starved(name string, streak []*op) (Violation, bool) {
	begin, end := streak[0].ret.At, streak[len(streak)-1].ret.At
	if len(streak) < turnHolds || end-begin < int64(turnTime) || streak[0].outside {
		return Violation{}, false
	}
	for _, o := range h.names[name] {
		isRival := o.call.Do == opAcquire && o.process != streak[0].process && len(o.call.Names) == 1
		if !isRival || o.waited == 0 || workloads[o.call.Primitive].polls {
			continue
		}
		from, to := max(begin, o.waited), min(end, o.returned(), o.died)
		during := 0
		for _, g := range streak {
			if from <= g.ret.At && g.ret.At <= to {
				during++
			}
		}
		allowed := turnTime + h.stalled(o.process, from, to)
		quiet := !h.disturbed(o.process, name, from-int64(h.settles()), to)
		if quiet && during >= turnHolds && time.Duration(to-from) > allowed {
			return violation(checkTurn, o, name, "process %d waited for %v, while process %d had %d holds in a row", o.process,
				time.Duration(to-from).Round(time.Millisecond), streak[0].process, during), true
		}
	}
	return Violation{}, false
}

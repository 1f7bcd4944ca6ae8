package torture

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The harness looks at the locks in Redis while clients use them. Therefore it sees a hold that
// claims to be valid for longer than Redis keeps it, or that claims a renewal after Redis had
// forgotten it, even if nobody else acquires in that time; and a hold that was released and is
// still there.

const (
	sampling      = 100 * time.Millisecond
	sampleTimeout = 200 * time.Millisecond
	// sampleTolerance is for the milliseconds of Redis.
	sampleTolerance = 3 * time.Millisecond
)

// keeping is how long Redis may keep a hold after its release, when nothing disturbs its client: a
// release without an answer is repeated after a second at most.
const keeping = 1500 * time.Millisecond

// sample is an answer of Redis about a lock: who holds it, and when the lease ends.
type sample struct {
	name   string
	ids    []string         // none if nobody holds it
	before int64            // the command was sent
	after  int64            // it was answered
	until  int64            // the latest end of the lease
	own    map[string]int64 // the ends of the leases of readers and of permits, by id; only in simulations
	member bool             // of a joint lock: others of its members may have other holders
}

// lease returns until when Redis keeps what an acquisition holds, and whether it has that at all.
// It does not know the leases of readers outside of simulations.
func (s *sample) lease(o *op) (until int64, isThere, isKnown bool) {
	if o.call.Limit == 0 && !o.call.Read {
		return s.until, slices.Contains(s.ids, o.ret.ID), true
	}
	until, isThere, isKnown = never, true, s.own != nil
	for id := range strings.SplitSeq(o.ret.ID, ",") {
		end, hasLease := s.own[id]
		isThere, until = isThere && hasLease, min(until, end)
	}
	return until, isThere, isKnown
}

// claim is a validity that a holder has seen.
type claim struct {
	at, until int64
	extended  bool // by Extend
}

// sampled are the primitives whose holder and lease stand in one hash.
var sampled = []string{
	"lock", "nested", "spin", "cohort", "linger", "fenced", "fair", "rwlock", electionPrimitive, keyedPrimitive,
}

// sampleScript returns the fields of a lock's hash, and its TTL.
const sampleScript = `if redis.call('type', KEYS[1]).ok ~= 'hash' then return {0} end
local fields = redis.call('hkeys', KEYS[1])
table.insert(fields, 1, redis.call('pttl', KEYS[1]))
return fields`

// sample looks at all locks of the round, again and again.
func (r *round) sample(ctx context.Context) {
	var names []string
	for _, p := range r.cfg.Primitives {
		for _, s := range sampled {
			for i := range namesOf {
				if p == s {
					names = append(names, lockName(r.tag, p, i))
				}
			}
		}
	}
	for ctx.Err() == nil {
		r.sampleOnce(ctx, names)
		select {
		case <-ctx.Done():
		case <-time.After(sampling):
		}
	}
}

func (r *round) sampleOnce(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	before := monotonic()
	replies := make([]*redis.Cmd, len(names))
	_, _ = r.d.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, name := range names {
			replies[i] = pipe.Eval(ctx, sampleScript, []string{name})
		}
		return nil
	})
	after := monotonic()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, reply := range replies {
		fields, err := reply.Slice()
		if err != nil || len(fields) == 0 {
			continue // no answer
		}
		left, _ := fields[0].(int64)
		at := sample{name: names[i], before: before, after: after, until: after + left*int64(time.Millisecond)}
		for _, field := range fields[1:] {
			id, _ := field.(string)
			at.ids = append(at.ids, strings.TrimSuffix(id, ":write"))
		}
		r.samples = append(r.samples, at)
	}
}

// checkSamples compares the holds with what Redis has said.
func (h *history) checkSamples() (out []Violation) {
	seen := map[*op]bool{}
	for _, s := range h.samples {
		for _, o := range h.names[s.name] {
			if seen[o] || o.outside || !o.holds() {
				continue
			}
			until := max(s.until, o.until)
			mayBeForgotten := h.lossy(s.name, o.call.At, until) || h.isShortened(s.name, o.call.At, until)
			if mayBeForgotten || h.endsEarly(h.ownershipBegin(o), until) {
				continue
			}
			// Nobody tells the user of a detached hold that it was taken over. A late copy of its
			// acquisition may bring the id back, with a lease of its own.
			if o.detached && len(h.takeovers(o, o.ret.At, s.after)) > 0 {
				continue
			}
			// A redlock does not need all of its members.
			isNeeded := !s.member || h.exact && o.call.Primitive == "multi"
			if !isNeeded {
				continue
			}
			if why := s.contradicts(o, h.exact); why != "" {
				seen[o] = true
				out = append(out, violation(checkLease, o, s.name, "%s %s", o.ret.ID, why))
			}
		}
		for _, id := range s.ids {
			if o := h.keptBeyondMinimum(s, id); o != nil && !seen[o] {
				seen[o] = true
				out = append(out, violation(checkKept, o, s.name, "Redis keeps %s until %v after its minimum, although it was "+
					"released", id, time.Duration(s.until-o.ret.At-int64(o.call.MinHold)).Round(time.Millisecond)))
			}
			if o := h.keptAfterRelease(s, id); o != nil && !seen[o] {
				seen[o] = true
				out = append(out, violation(checkKept, o, s.name, "Redis still had %s %v after its release", id,
					time.Duration(s.before-o.release.ret.At).Round(time.Millisecond)))
			}
		}
	}
	return out
}

// contradicts says what is wrong with what a holder believed; "" if nothing is. exact: it is of a
// simulation, which knows what Redis has at the instant of each claim.
func (s *sample) contradicts(o *op, exact bool) string {
	until, isThere, isKnown := s.lease(o)
	hasOwnID := o.root.call.Owner == "" && !o.call.Passes // a shared id, and that of a cohort, may come back
	isGone := isKnown && !isThere && hasOwnID && o.extended == 0
	for _, c := range o.claims {
		isClaimed := c.at <= s.before && o.claimEnd() > s.after
		isClaimedLater := o.ret.At < s.before && c.at > s.after
		isExtended := c.extended && !exact
		isTold := isThere && isKnown && isClaimed
		switch {
		case isExtended:
		case isTold:
			allowed := until + int64(sampleTolerance)
			if exact {
				allowed -= int64(o.leastMargin())
			}
			if over := time.Duration(c.until - allowed); over > 0 {
				return fmt.Sprintf("was valid for its holder for %v longer than it may be, by the lease that Redis had",
					over.Round(10*time.Microsecond))
			}
		case isGone && isClaimedLater:
			confirmed := c.until - int64(o.call.TTL-marginOf(o.call.TTL)) // a command that was sent then
			if since := time.Duration(confirmed - s.after); since > sampleTolerance {
				return fmt.Sprintf("was renewed for its holder, %v after Redis had it no more", since.Round(time.Millisecond))
			}
		}
	}
	return ""
}

// leastMargin is how much earlier than its lease a hold's validity ends at least. A validity counts
// from before its command was sent. So one that counts from the reply is later than that, by the
// time of the reply.
func (o *op) leastMargin() time.Duration {
	if o.extended > 0 || o.call.Primitive == "fair" { // whose lease may be a shorter one
		return marginOf(0)
	}
	if o.call.MaxHold > 0 {
		return marginOf(min(o.call.TTL, o.call.MaxHold))
	}
	return marginOf(o.call.TTL)
}

// keptBeyondMinimum returns a hold that was released, and whose lease ends later than its minimum;
// nil if there is none. Only the release sets that lease, so one look is enough.
func (h *history) keptBeyondMinimum(s sample, id string) *op {
	if !h.exact {
		return nil
	}
	for _, o := range h.names[s.name] {
		isOfID := o.call.MinHold > 0 && o.isGrant() && o.ret.ID == id
		if !isOfID || !o.isReleased() || o.release.ret.At > s.before {
			continue
		}
		// A nested acquisition asks for a whole lease, and may be executed after the release. Then
		// the client frees the lock when the minimum is over: Redis's TTL does not say that.
		isAlone := !o.call.Read && !h.hasCounts(o) && !o.detached
		underWay := o.release.ret.At - o.release.call.At
		ends := o.ret.At + int64(o.call.MinHold) + underWay + int64(sampleTolerance) + h.lengthened(o.call.At)
		isCalm := !h.disturbed(o.process, s.name, o.release.call.At-int64(keeping), s.before) ||
			!h.disturbed(o.process, s.name, o.release.call.At, s.before) && s.member
		// A member that answers late gets the whole lease, and is then given back.
		isSettled := !s.member || s.before > o.release.ret.At+int64(h.wakeUp())
		if isAlone && isCalm && isSettled && s.until > ends {
			return o
		}
	}
	return nil
}

// keptAfterRelease returns a hold that Redis still has, although all that share its id were
// released long before; nil if there is none. Fields of readers stay as long as the lock has
// others. A switchover by Sentinel may forget a release, and the client must repeat it. Other
// losses of data excuse everything.
func (h *history) keptAfterRelease(s sample, id string) (kept *op) {
	last, isCertain := int64(0), h.exact
	for _, o := range h.names[s.name] {
		if o.call.At > s.after {
			break
		}
		mayAcquire := o.call.Do == opAcquire || o.call.Do == opAdopt
		isOfID := o.root.ret != nil && o.root.ret.ID == id
		switch {
		case !mayAcquire || !isOfID:
			continue
		case o.outside: // it may fail to release, and does not try again
			return nil
		case o.call.MinHold > 0 && !h.exact: // a renewal after its release may keep it
			return nil
		case o.ret == nil, o.died != never, o.detached, o.ended != nil, o.call.Passes, o.call.Read,
			o.root.call.Owner != "":
			return nil
		case !o.holds(): // it may have been counted, and is taken back
			last, isCertain = max(last, o.ret.At), false
			continue
		case o.release == nil, o.release.ret == nil, o.release.outcome() == outcomeLost:
			return nil
		}
		last = max(last, o.release.ret.At)
		// Nothing is repeated after a release that was answered, unless its client could not reach
		// all members.
		wasDisturbed := h.disturbed(o.process, s.name, o.release.call.At-int64(time.Second), s.before)
		isCertain = isCertain && o.release.outcome() == outcomeOK && !wasDisturbed
		if o.call.MinHold > 0 {
			last = max(last, o.ret.At+int64(o.call.MinHold))
		}
		kept = o
	}
	if kept == nil {
		return nil
	}
	for _, w := range h.windows {
		mayForget := w.loses(s.name) && w.overlaps(kept.root.call.At, s.after)
		// The member has forgotten the hold, too.
		isEmptied := s.member && (w.fault == faultDataLoss || w.fault == faultEviction)
		switch {
		case mayForget && !isEmptied:
			return nil
		case w.disturbs(kept.process, s.name) && w.begin < s.before && w.end > kept.root.call.At:
			last = max(last, w.end)
		}
	}
	allowed := h.tolerance() + h.stalled(kept.process, last, s.before)
	if !isCertain {
		allowed += keeping
	}
	if kept.call.MinHold > 0 { // its rest lasts longer, too, when the server's clock jumps back
		allowed += time.Duration(h.lengthened(kept.call.At))
	}
	if time.Duration(s.before-last) <= allowed {
		return nil
	}
	return kept
}

package joint

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// Holding is the ownership behind a hold of a joint lock. It consists of one hold of each member,
// of which enough must be live. Each member is renewed by its own client.
//
//	open    the attempt that makes the ownership adds holds; late holds are added even after that, while the
//	        joint hold lasts
//	closed  the attempt has failed, or the joint hold ends: a late hold is refused, and its attempt releases it;
//	        the ends of the members' holds no longer matter
type Holding struct {
	lock    *Lock
	ID      string        // the owner in every member
	carried bool          // the id comes from a hold in the caller's context
	whole   bool          // one command has acquired all members
	budget  time.Duration // how long a member may take to answer; 0 if there is no limit
	terms   *engine.Terms
	// shortest is the shortest time that a member's hold may last, for the attempt that acquires
	// the members in order. It is 0 if there is no limit.
	shortest time.Duration

	mu      sync.Mutex     // guards the rest; Hold.mu may be taken while it is held
	holds   []*engine.Hold // the holds of the members
	closed  bool           // it was released, detached or lost, and add refuses further holds
	lost    bool           // MemberEnded has found too few live members
	h       *engine.Hold   // the user's hold; it does not change once it has joined
	wanted  bool           // somebody waits for a member
	listens bool           // the user's hold wants to hear of waiters
	calling int            // calls of Check and Extend under way, which end the joint hold themselves if it is lost
	// early contains the members whose ends were reported before there was a joint hold, or before
	// add was called. Join or add reports them again.
	early []*engine.Hold
	ended context.Context //nolint:containedctx // ends with the joint hold; nil if nobody waits for that
	stop  context.CancelFunc
	since time.Time // when the joint hold was made; zero if there is none yet

	asked asked // the attempts for the members of a redlock; o.mu guards it
	// reserved contains the requests of this attempt that have left a reservation, by the member's
	// index. It is nil if the attempt is decided, or if there is nothing to reserve.
	reserved []*engine.Request
}

// NewOwnership returns an ownership without members, and sets q's TTL. A takeover adds the members
// whose owner it has replaced on the server (ReplaceMember), and makes the hold (NewAdoptedHold).
func (l *Lock) NewOwnership(q *engine.Request) *Holding {
	ttl, limit := l.shortest(q.Terms)
	q.TTL = ttl
	return &Holding{lock: l, ID: q.ID, budget: l.budget(ttl), terms: q.Terms, shortest: limit}
}

// ReplaceMember adds the hold of a member whose former owner was replaced by o's id on the server.
// It does not block. If o is already closed, the member is left to its lease.
func (o *Holding) ReplaceMember(ctx context.Context, m *engine.Resource, q *engine.Request, sent time.Time) error {
	q.Group = o
	hold, err := m.NewAdoptedHold(ctx, q, sent)
	if err == nil && !o.add(hold) {
		hold.Detach()
	}
	return err
}

// NewAdoptedHold returns the user's hold of o. If it cannot be made, or if too few members are
// still valid, the members are left to their leases.
func (o *Holding) NewAdoptedHold(ctx context.Context, q *engine.Request) (hold *engine.Hold, err error) {
	err = errMembersLost
	if o.enough() {
		hold, err = o.lock.Resource.NewHold(ctx, q, o.granted())
	}
	if err != nil {
		o.DetachMembers()
	}
	return hold, err
}

// DetachMembers closes o and leaves its members to their leases.
func (o *Holding) DetachMembers() {
	for _, hold := range o.close() {
		hold.Detach()
	}
}

func (o *Holding) core() *engine.Core { return o.lock.Resource.Core }

// OwnerID implements [engine.Holding].
func (o *Holding) OwnerID() string { return o.ID }

// Ownership implements [engine.Holding]. Each member has one of its own.
func (o *Holding) Ownership() *engine.Ownership { return nil }

// TokenOf implements [engine.Holding]. A joint lock has no fencing token.
func (o *Holding) TokenOf(*engine.Hold) int64 { return 0 }

// granted returns the result of an attempt that has acquired enough members.
func (o *Holding) granted() engine.Result {
	return engine.Result{Granted: true, Sent: time.Now(), Holding: o}
}

// add adds a member's hold. It returns false if o is closed. Then the caller must release the hold.
//
// A hold may come after the attempt has succeeded without it. In that case mayStillCount has
// returned true.
func (o *Holding) add(hold *engine.Hold) bool {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return false
	}
	o.holds = append(o.holds, hold)
	ended := false
	if o.h != nil { // the member's answer was late
		hold.JoinAs(o.h, o.since)
		ended = slices.Contains(o.early, hold)
	}
	listens := o.listens
	o.mu.Unlock()
	if listens {
		hold.Wanted()
	}
	if ended {
		o.MemberEnded(hold, hold.Ended())
	}
	return true
}

// close refuses further holds, ends the retakes, and returns the members' holds. From now on the
// end of a member's hold does not end the joint hold. close may be called more than once.
func (o *Holding) close() []*engine.Hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
	return slices.Clone(o.holds)
}

// end is like close, for callers that hold mu.
func (o *Holding) end() {
	if o.closed {
		return
	}
	o.closed = true
	if o.ended != nil {
		o.stop()
	}
	if o.asked.giveUp != nil {
		o.asked.giveUp()
	}
}

// untilOver returns a context that ends with the joint hold. mu is held.
func (o *Holding) untilOver() context.Context {
	if o.ended == nil {
		o.ended, o.stop = context.WithCancel(context.Background())
		if o.closed {
			o.stop()
		}
	}
	return o.ended
}

// memberHolds returns a copy of the members' holds, for callers that do not hold mu.
func (o *Holding) memberHolds() []*engine.Hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.holds)
}

// enoughAre reports whether match is true for as many members as needed. mu is held, and match may
// take the mutex of the hold.
func (o *Holding) enoughAre(match func(*engine.Hold) bool) bool {
	n := 0
	for _, member := range o.holds {
		if match(member) {
			n++
		}
	}
	return n >= o.lock.Need
}

// enough reports whether enough members were acquired and are still valid.
func (o *Holding) enough() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.enoughAre(isValid)
}

// isValid reports whether member is valid at this moment, by this process's clock. After a pause of
// the process, a member that counts as live may have ended, because its end has not been reported
// yet.
func isValid(member *engine.Hold) bool {
	return member.IsLive() && member.ValidUntil().After(time.Now())
}

// MemberEnded implements [engine.Group]. The joint hold is lost as soon as too few members are
// live. A member's hold may end by a loss, because the user released it, or because its client
// closed. A redlock with enough members left retakes a lost one.
//
// Before there is a joint hold, the end is noted for Join. A loss before add is noted for add.
// Holds that add has refused are ignored. No mutex is held.
func (o *Holding) MemberEnded(member *engine.Hold, cause error) {
	o.mu.Lock()
	// The client that ends its holds ends the joint hold too, with ErrClosed.
	closing := errors.Is(cause, engine.ErrClosed) && member.Resource().Core == o.core()
	isKnown := o.h != nil && slices.Contains(o.holds, member)
	isIgnored := o.closed || !isKnown
	mayCountLater := !o.closed && !isKnown
	isNoted := o.h == nil || errors.Is(cause, engine.ErrLost)
	if mayCountLater && isNoted {
		o.early = append(o.early, member)
	}
	if isIgnored || closing {
		o.mu.Unlock()
		return
	}
	lost := !o.enoughAre((*engine.Hold).IsLive)
	asking := o.calling > 0
	if lost {
		o.lost = true
		o.end()
	}
	o.mu.Unlock()
	switch {
	case lost && asking: // the call of Check or Extend stops waiting for other members, and ends the joint hold
	case lost:
		o.h.LoseInBackground(o.loss())
	case errors.Is(cause, engine.ErrLost):
		o.retakeLater(member)
	}
}

// MemberWanted implements [engine.Group]: somebody waits for the joint hold, because it waits for a
// member.
func (o *Holding) MemberWanted(*engine.Hold) {
	o.mu.Lock()
	o.wanted = true
	h := o.h
	o.mu.Unlock()
	if h != nil {
		h.NotifyWanted()
	}
}

// UserOf implements [engine.Group]: the user's hold is the joint one, and each member reports its
// own losses.
func (o *Holding) UserOf(*engine.Hold) (user *engine.Hold, isAnother bool) { return nil, false }

// JointHold implements [engine.Group].
func (o *Holding) JointHold() (joint *engine.Hold, isJoint bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.h, true
}

// Listen implements [engine.Holding]: all members listen, late ones too.
func (o *Holding) Listen(h *engine.Hold) {
	o.mu.Lock()
	o.listens = true
	wanted := o.wanted
	members := slices.Clone(o.holds)
	o.mu.Unlock()
	if wanted {
		h.NotifyWanted()
		return
	}
	for _, member := range members {
		member.Wanted()
	}
}

// Join implements [engine.Holding]. h is the user's hold. Members may have ended before h existed,
// when MemberEnded could not do anything.
func (o *Holding) Join(h *engine.Hold) {
	o.mu.Lock()
	o.h = h
	o.since = time.Now()
	for _, member := range o.holds {
		member.JoinAs(h, o.since)
	}
	early := o.early
	missing := o.asked.missing
	o.early = nil // members that add has not added yet are noted again
	o.asked.missing = nil
	o.mu.Unlock()
	for _, i := range missing {
		o.takeLater(i)
	}
	for _, member := range early {
		o.MemberEnded(member, member.Ended())
	}
}

// ValidUntil implements [engine.Holding]. It returns the instant at which too few members are left,
// unless a server answers before. Once too few are live, an ended member counts with the end of its
// last validity.
func (o *Holding) ValidUntil(*engine.Hold) time.Time {
	var ends, ended []time.Time
	for _, member := range o.memberHolds() {
		if member.IsLive() {
			ends = append(ends, member.ValidUntil())
		} else {
			ended = append(ended, member.ValidUntil())
		}
	}
	if len(ends) < o.lock.Need {
		ends = append(ends, ended...)
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[o.lock.Need-1]
}

// Member implements [engine.Holding]. It returns the hold of the member r, live or not, or nil if
// there is none.
func (o *Holding) Member(r *engine.Resource) *engine.Hold {
	for _, member := range o.memberHolds() {
		if r.Is(member.Resource()) {
			return member
		}
	}
	return nil
}

// Forget implements [engine.Holding]. It leaves the members to their leases.
func (o *Holding) Forget(*engine.Hold) { o.DetachMembers() }

// Release implements [engine.Holding]. It releases all members, by one command if possible. It
// blocks for their answers, for the budget at most. Silent members are released in the background.
func (o *Holding) Release(ctx context.Context, h *engine.Hold) (handedOff bool, err error) {
	done := false
	lost := false
	if o.whole {
		holds := o.close()
		done, lost, err = engine.ReleaseTogether(ctx, holds, func(ctx context.Context) ([]bool, bool, error) {
			return o.lock.Whole.Release(ctx, &holds[0].Ownership().Owner)
		})
	}
	if !done {
		lost, err = o.giveBack(context.WithoutCancel(ctx)).decide(o.lock.Need)
	}
	if err == nil && lost {
		err = h.Lose(ctx, o.loss())
	}
	return false, err
}

// Abandon implements [engine.Holding]. The joint hold was lost, and its user has called Release.
// The remaining members must be released, too.
func (o *Holding) Abandon(ctx context.Context) {
	o.giveBack(context.WithoutCancel(ctx))
}

// giveBack releases all members. It blocks for their answers until ctx is done, and for the budget
// at most. For members whose attempts are still under way, it blocks as [Holding.awaitAsked]
// says.
func (o *Holding) giveBack(ctx context.Context) votes {
	released := o.releaseMembers(ctx).count(ctx, o.budget)
	o.awaitAsked(ctx)
	return released
}

// releaseMembers starts to release all members at the same time, even if ctx is done. It does not
// block. The caller decides how long it waits for the answers. The other releases go on in the
// background.
func (o *Holding) releaseMembers(ctx context.Context) *fanOut {
	holds := o.close()
	return newFanOut(o.core(), len(holds), func(i int) error {
		return describe(holds[i], "release", holds[i].Release(ctx))
	})
}

// describe adds the member's name to an error.
func describe(member *engine.Hold, operation string, err error) error {
	if err == nil {
		return nil
	}
	return member.Resource().Core.Errors.Describe(member.Resource(), operation, err)
}

// Check implements [engine.Holding].
func (o *Holding) Check(ctx context.Context, _ *engine.Hold) error {
	return o.callMembers(ctx, func(ctx context.Context, member *engine.Hold) error { return member.Check(ctx) })
}

// Extend implements [engine.Holding].
func (o *Holding) Extend(ctx context.Context, _ *engine.Hold, d time.Duration) error {
	return o.callMembers(ctx, func(ctx context.Context, member *engine.Hold) error { return member.Extend(ctx, d, nil) })
}

// callMembers runs f, a Check or an Extend, for all members, and blocks for the answers, for the
// budget at most. If too few members are left, it ends the joint hold and emits the event before it
// returns. It does so at once, because a silent member's answer could not change that. If too few
// have answered in time, the calls of the others end, and their errors say why there was no answer.
func (o *Holding) callMembers(ctx context.Context, f func(context.Context, *engine.Hold) error) error {
	askCtx, stop := context.WithCancel(ctx)
	defer stop()
	o.mu.Lock()
	o.calling++
	holds := slices.Clone(o.holds)
	defer context.AfterFunc(o.untilOver(), stop)()
	o.mu.Unlock()
	callsCtx, end := context.WithCancelCause(ctx)
	var open atomic.Int64
	open.Store(int64(len(holds)))
	fan := newFanOut(o.core(), len(holds), func(i int) error {
		err := overBudget(f(callsCtx, holds[i]))
		if err != nil {
			err = ofMember(holds[i].Resource(), err)
		}
		if open.Add(-1) == 0 {
			end(nil)
		}
		return err
	})
	fan.collect(askCtx, o.budget)
	isCallerDone := ctx.Err() != nil
	isBudgetOver := !isCallerDone && askCtx.Err() == nil // otherwise the joint hold has ended
	isUndecided := fan.open > 0 && fan.yes < o.lock.Need
	if isUndecided && isBudgetOver {
		end(overdue{errBudget})
	}
	if isUndecided && (isBudgetOver || isCallerDone) {
		fan.collectReasons(ctx)
	}
	fan.countMissing(askCtx)
	lost, err := fan.decide(o.lock.Need)
	o.mu.Lock()
	o.calling--
	if o.lost {
		lost = true
	}
	if !o.closed && !o.enoughAre(isValid) {
		lost = true
	}
	o.mu.Unlock()
	ended := o.h.Ended() // for example by a Release under way, which reports a loss itself
	failed := lost || err != nil
	switch {
	case ended != nil && failed:
		return ended
	case !lost:
		return err
	}
	o.close()
	return o.h.Lose(ctx, o.loss())
}

// overBudget returns the error of a member's call. If the budget has ended the call, the member's
// server counts as silent, because the caller's own time was not over. That holds even if the
// member was asked a little after the budget began.
func overBudget(err error) error {
	if !errors.Is(err, errBudget) {
		return err
	}
	return failure.Silence(err)
}

// loss returns the loss of a joint hold with too few members left. Its reason is "members", unless
// the members' limits have ended them. A member that the user has released, or whose client was
// closed, is named only in the loss's text, because the joint hold itself was neither released nor
// closed.
func (o *Holding) loss() engine.Loss {
	loss := engine.Loss{Reason: engine.LossMembers}
	left := 0
	unlimited := 0
	for _, member := range o.memberHolds() {
		isOver := member.IsLimitOver()
		if isValid(member) || isOver {
			left++
		}
		if !isOver {
			unlimited++
		}
		if cause := member.Ended(); errors.Is(cause, engine.ErrLost) {
			loss.Members = append(loss.Members, cause)
		} else if cause != nil {
			loss.Members = append(loss.Members, errors.New(describe(member, "hold", cause).Error()))
		}
	}
	// The joint hold's limit is over when too few members are within theirs. An Extend may not have
	// reached some of them.
	isLimitOver := unlimited < o.lock.Need
	wouldBeLeft := left >= o.lock.Need // if the members had no limits
	if isLimitOver && wouldBeLeft {
		return engine.Loss{Reason: engine.LossLimit}
	}
	return loss
}

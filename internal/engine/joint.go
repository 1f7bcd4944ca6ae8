package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// How a joint lock works.
//
// A joint lock acquires each of its members in the usual way, on the member's own client, with one id for
// all. Its ownership is a JointOwnership: one hold of each member. The user's hold of the joint lock is
// live while enough of these holds are live. Each of them reports its end to the joint ownership
// (holdGroup), for whatever reason it ended.
//
//	user's Hold -> JointOwnership -> Hold of member 1 -> Ownership on server 1
//	                              -> Hold of member 2 -> Ownership on server 2
//
// The time of an attempt is limited (attemptTime). When it is over, the members acquired so far are
// released. A member that answers later is released as soon as it answers. The caller does not wait for
// that.

// Joint is one lock made of several members. It is held while enough of them are. It has no keys of its
// own: it acquires and releases its members, each on the member's client. It is immutable, and belongs to
// the handle.
type Joint struct {
	NoLease // the members have leases

	Resource *Resource
	Members  []*Resource // in the order in which a multi lock acquires them
	Need     int         // how many members must be held
	// Budgeted: no member is waited for longer than its budget, a tenth of the TTL.
	Budgeted bool
}

// Budget is how long a member may take to answer; 0: as long as it takes.
func (j *Joint) Budget(terms *Terms) time.Duration {
	ttl, _ := j.shortest(terms)
	return j.budget(ttl)
}

// budget is Budget for members whose shortest TTL is ttl.
func (j *Joint) budget(ttl time.Duration) time.Duration {
	if !j.Budgeted {
		return 0
	}
	return min(max(ttl/10, 100*time.Millisecond), 2*time.Second)
}

// shortest is the shortest TTL of the members, and the shortest limit of their holds; 0: no limit.
func (j *Joint) shortest(terms *Terms) (ttl, limit time.Duration) {
	for i := range j.Members {
		t := terms.ForMember(i)
		if first := t.FirstTTL(); ttl == 0 || first < ttl {
			ttl = first
		}
		if l := t.Limit(); l > 0 && (limit == 0 || l < limit) {
			limit = l
		}
	}
	return ttl, limit
}

// Rollback implements [Driver]: it releases the members that q's last attempt acquired. Earlier attempts
// have released theirs. It blocks for the answers; after the budget the rest goes on in the background.
func (j *Joint) Rollback(ctx context.Context, q *Request) error {
	if o, ok := q.State.(*jointRequest); ok && o.granted != nil {
		c := j.Resource.Core
		c.count(ctx, o.granted.releaseMembers(ctx), o.granted.budget) // until ctx is done; then in the background
		o.granted = nil
	}
	return nil
}

// jointRequest is the driver's state of a request for a joint lock. The goroutine that uses the request
// owns it.
type jointRequest struct {
	granted *JointOwnership // the result of the last attempt, if it was granted
	split   time.Duration   // how long the last attempt took, if rivals held some members each; else 0
}

// stateOf returns the state of q, and makes it on the first attempt.
func stateOf(q *Request) *jointRequest {
	s, ok := q.State.(*jointRequest)
	if !ok {
		s = &jointRequest{}
		q.State = s
	}
	return s
}

// Release implements [Driver]. The engine releases the members instead.
func (j *Joint) Release(context.Context, *Ownership, int, Next) (Released, error) {
	return Released{}, ErrUnsupported
}

// outer is Traits.Outer of a joint lock: the live joint hold that ctx carries, or nil.
func (j *Joint) outer(ctx context.Context) (*Hold, error) {
	hold, _ := HoldFrom(ctx, j.Resource.Key)
	return hold, nil
}

// carriedID is the id of the members' holds that ctx carries; "" if it carries none. It fails if they
// have different ids, because a joint hold has one id in all members.
func (j *Joint) carriedID(ctx context.Context) (id string, err error) {
	for _, m := range j.Members {
		outer, err := m.outer(ctx)
		switch {
		case err != nil:
			return "", err
		case outer == nil:
		case id != "" && id != outer.ID():
			return "", fmt.Errorf("%w: the context carries holds of members that have different ids", ErrDeadlock)
		default:
			id = outer.ID()
		}
	}
	return id, nil
}

// beginAttempt begins one more attempt for q. Each attempt has an id of its own, because the releases of
// an earlier one may still be under way. With the same id they would free the members of the new attempt:
//
//	attempt 1                         attempt 2
//	acquires A, is refused B
//	releases A: no reply
//	                                  acquires A
//	releases A again, is answered
//	                                  (A is free, and attempt 2 counts it)
//
// If ctx carries a hold of a member, the id is that hold's: a joint hold has one id in all members.
func (j *Joint) beginAttempt(ctx context.Context, q *Request) (*JointOwnership, error) {
	ttl, limit := j.shortest(q.Terms)
	q.TTL = ttl
	if q.heard == nil && !j.Budgeted { // a red lock counts the answers of its members
		q.heard = &Contact{members: true}
	}
	o := &JointOwnership{j: j, ID: q.ID, need: j.Need, budget: j.budget(ttl), shortest: limit, terms: q.Terms}
	if q.Shared {
		return o, nil
	}
	id, err := j.carriedID(ctx)
	if err != nil {
		return nil, err
	}
	o.carried = id != ""
	if !o.carried {
		id = j.Resource.Core.NewOwner().ID
	}
	o.ID, q.ID = id, id
	return o, nil
}

// acquireMember acquires the i-th member for o: under a hold of it that ctx carries, or as an outermost
// request. It blocks as long as w allows. It registers with the member's client, which may close
// independently of the joint lock's client.
func (o *JointOwnership) acquireMember(ctx context.Context, i int, q *Request, w wait) (hold *Hold, err error) {
	m := o.j.Members[i]
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %q: %w", m.Kind, m.Name, err)
		}
	}()
	if m.Core.IsClosing() {
		return nil, ErrClosed
	}
	if err = m.Core.Begin(ctx); err != nil {
		return nil, err
	}
	defer m.Core.Leave()
	terms := q.Terms.ForMember(i)
	if terms.Wait >= 0 && w.limit != 0 {
		w = w.within(terms.Wait)
	}
	mine := m.NewRequest(terms)
	mine.wait, mine.group = w, o
	if !o.j.Budgeted {
		mine.heard = q.heard
	}
	if !q.Shared { // an id that the caller names ignores the holds in ctx
		if hold, err := m.acquireNested(ctx, mine); hold != nil || err != nil {
			return hold, err
		}
	}
	mine.Name(o.ID, q.Shared || o.carried)
	// Siblings under the same hold may want the same member, and would all enter by the same id. Only
	// one of them may.
	mine.NonReentrant = mine.NonReentrant || o.carried
	hold, err = m.acquireOutermost(ctx, mine, nil)
	if o.carried && errors.Is(err, ErrDeadlock) {
		err = fmt.Errorf("%w: %w", ErrNotAcquired, errYield)
	}
	return hold, err
}

// acquireAndAdd acquires the i-th member and adds it to o. The attempt may have ended meanwhile: then the
// late hold is released at once. Otherwise nobody would release it.
func (o *JointOwnership) acquireAndAdd(ctx context.Context, i int, q *Request, w wait) error {
	hold, err := o.acquireMember(ctx, i, q, w)
	if err != nil || o.add(hold) {
		return err
	}
	_ = hold.Release(ctx) // goes on in the background if it must
	return o.core().Unanswered(errTooLate)
}

// retryQueue returns a queue for a joint request that has no message to wait for. Its pauses grow from a
// few milliseconds to half a second, at random, so that rivals do not come back together.
func (j *Joint) retryQueue() Queue {
	return j.Resource.Core.privateQueue(j.Resource, func(n int) time.Duration {
		return time.Millisecond + rand.N(10*time.Millisecond<<min(n, 6)) //nolint:gosec // jitter
	})
}

// JointOwnership is the ownership behind a hold of a joint lock: one hold of each member, of which enough
// must be live. Each is renewed by its own client.
//
//	open    attempts add holds
//	sealed  the attempt is over: a late hold is refused, and released by its attempt
//	closed  the joint hold ends: the ends of the members' holds have no effect any longer
//
// An attempt makes it. It seals it when enough members are acquired, and closes it otherwise.
type JointOwnership struct {
	j       *Joint
	ID      string // the owner in every member
	carried bool   // the id is that of a hold in the caller's context
	need    int
	budget  time.Duration // how long a member may take to answer; 0: as long as it takes
	terms   *Terms
	// shortest is the shortest time that a member may last; 0: no limit.
	shortest time.Duration

	mu     sync.Mutex // guards the rest; Hold.mu may be taken while it is held
	holds  []*Hold    // of members
	sealed bool       // add refuses further holds
	closed bool       // released, detached or lost
	h      *Hold      // the user's hold, once it has joined; does not change then
	asking int        // calls of Check and Extend under way, which report a loss themselves
	// unreported: a loss ended the hold while a call was asking, and its event is not emitted yet.
	unreported bool
	retakes    retakes // of lost members
}

// NewJointOwnership returns an ownership without members, for a takeover: the caller adds the members
// whose owner it has replaced on the server (ReplaceMember), and makes the hold (Adopted).
func (j *Joint) NewJointOwnership(q *Request) *JointOwnership {
	return &JointOwnership{j: j, ID: q.ID, need: j.Need, budget: j.Budget(q.Terms), terms: q.Terms}
}

// ReplaceMember adds the hold of a member on whose server o's id has replaced the former owner. It does
// not block. If o is closed already, the member is left to its lease.
func (o *JointOwnership) ReplaceMember(ctx context.Context, m *Resource, q *Request, sent time.Time) error {
	q.group = o
	hold, err := m.newHold(ctx, m.newOwnership(q, Result{Sent: sent}), q, sent, nil)
	if err == nil && !o.add(hold) {
		hold.Detach()
	}
	return err
}

// Adopted returns the user's hold of o. If it cannot be made, the members are left to their leases.
func (o *JointOwnership) Adopted(ctx context.Context, q *Request) (*Hold, error) {
	hold, err := o.j.Resource.newHold(ctx, o, q, time.Now(), nil)
	if err != nil {
		o.DetachMembers()
	}
	return hold, err
}

// DetachMembers closes o and leaves its members to their leases.
func (o *JointOwnership) DetachMembers() {
	for _, hold := range o.close() {
		hold.Detach()
	}
}

func (o *JointOwnership) core() *Core           { return o.j.Resource.Core }
func (o *JointOwnership) id() string            { return o.ID }
func (o *JointOwnership) leased() bool          { return true }
func (o *JointOwnership) ownership() *Ownership { return nil }

// limit implements holding. There is none: each member has its own limit.
func (o *JointOwnership) limit(time.Time, time.Duration) time.Time { return time.Time{} }

// add adds a member's hold. It reports false if o is sealed: then the caller must release the hold.
func (o *JointOwnership) add(hold *Hold) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sealed {
		return false
	}
	o.holds = append(o.holds, hold)
	return true
}

// seal refuses further holds. The attempt calls it when it has decided.
func (o *JointOwnership) seal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealed = true
}

// close seals o, ends its retakes, and returns its members' holds. From now on their ends do not end the
// joint hold. It may be called more than once.
func (o *JointOwnership) close() []*Hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end()
	return slices.Clone(o.holds)
}

// end is close for callers that hold mu.
func (o *JointOwnership) end() {
	if !o.closed {
		o.sealed, o.closed = true, true
		o.retakes.stop()
	}
}

// memberHolds returns a copy of the members' holds, for callers that must not hold mu.
func (o *JointOwnership) memberHolds() []*Hold {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.holds)
}

// tooFew reports whether fewer members are live than needed. mu is held; it takes the mutex of each hold.
func (o *JointOwnership) tooFew() bool {
	live := 0
	for _, hold := range o.holds {
		if hold.isLive() {
			live++
		}
	}
	return live < o.need
}

// enough reports whether enough members were acquired and are still live.
func (o *JointOwnership) enough() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.tooFew()
}

// memberEnded implements holdGroup. The joint hold is lost as soon as too few members are live. The
// others may have ended by a loss, by a user's Release of a member, or because a member's client
// closed. A red lock with enough members left retakes a lost one.
//
// Holds of an attempt that has no joint hold yet are ignored here, and so are holds that were refused by
// add: join looks at the members again. The caller holds no mutex.
func (o *JointOwnership) memberEnded(member *Hold, cause error) {
	o.mu.Lock()
	// The client that ends its holds ends the joint hold too, with ErrClosed.
	closing := errors.Is(cause, ErrClosed) && member.r.Core == o.core()
	if o.closed || o.h == nil || !slices.Contains(o.holds, member) || closing {
		o.mu.Unlock()
		return
	}
	lost, asking := o.tooFew(), o.asking > 0
	if lost {
		o.end()
		o.unreported = asking
	}
	o.mu.Unlock()
	loss := o.loss()
	switch {
	case lost && asking:
		// A Check or Extend is under way, and reports the loss before it returns. The hold ends now all
		// the same, because that call may wait for a silent member.
		_, err := o.h.explain(loss)
		o.h.end(err)
	case lost:
		o.h.loseInBackground(loss)
	case errors.Is(cause, ErrLost):
		o.retakeLater()
	}
}

// join implements holding: h is the user's hold. Members may have ended before h existed, and
// memberEnded could do nothing then. So join looks at them again.
func (o *JointOwnership) join(h *Hold) {
	o.mu.Lock()
	o.h = h
	lost, someEnded := o.tooFew(), false
	for _, member := range o.holds {
		member.mu.Lock()
		member.ctx = h.ctx // the attempt's context ends with the attempt, the hold's does not
		someEnded = someEnded || member.cause != nil
		member.mu.Unlock()
		member.Ownership().min.begin(member.r.Core)
	}
	o.mu.Unlock()
	switch {
	case lost:
		o.close()
		h.loseInBackground(o.loss())
	case someEnded:
		o.retakeLater()
	}
}

// validUntil implements holding: the instant at which too few members are left if no server answers
// before. Once too few are live, the ended members count with the last end of their validity.
func (o *JointOwnership) validUntil(*Hold) time.Time {
	var ends, ended []time.Time
	for _, member := range o.memberHolds() {
		if member.isLive() {
			ends = append(ends, member.ValidUntil())
		} else {
			ended = append(ended, member.ValidUntil())
		}
	}
	if len(ends) < o.need {
		ends = append(ends, ended...)
	}
	slices.SortFunc(ends, func(a, b time.Time) int { return b.Compare(a) })
	return ends[o.need-1]
}

// member implements holding: the live hold of the member that key names; nil if there is none.
func (o *JointOwnership) member(key *Key) *Hold {
	for _, member := range o.memberHolds() {
		if *member.r.Key == *key && member.isLive() {
			return member
		}
	}
	return nil
}

func (o *JointOwnership) forget(*Hold) { o.DetachMembers() }

// release implements holding: it releases all members, and blocks for their answers, for the budget at
// most. Silent members are released in the background.
func (o *JointOwnership) release(ctx context.Context, _ *Hold) (lost bool, err error) {
	return o.decide(o.core().count(context.WithoutCancel(ctx), o.releaseMembers(ctx), o.budget))
}

// abandon implements holding: the joint hold was lost, and its user has called Release. The members that
// are left must be released too.
func (o *JointOwnership) abandon(ctx context.Context) {
	o.core().count(context.WithoutCancel(ctx), o.releaseMembers(ctx), o.budget)
}

// releaseMembers starts to release all members at the same time, even if ctx is done. It does not block.
// The caller decides how long it waits for the answers; the rest goes on in the background.
func (o *JointOwnership) releaseMembers(ctx context.Context) *fanOut {
	holds := o.close()
	return o.core().fanOut(len(holds), func(i int) error {
		return describe(holds[i], "release", holds[i].Release(ctx))
	})
}

// describe adds the member's name to an error.
func describe(member *Hold, operation string, err error) error {
	if err == nil {
		return nil
	}
	return member.r.Core.Describe(member.r, operation, err)
}

func (o *JointOwnership) check(ctx context.Context) error {
	return o.ask(ctx, func(member *Hold) error { return describe(member, "check", member.Check(ctx)) })
}

func (o *JointOwnership) extend(ctx context.Context, _ *Hold, d time.Duration) error {
	return o.ask(ctx, func(member *Hold) error { return describe(member, "extend", member.Extend(ctx, d, nil)) })
}

// ask runs f, a Check or an Extend, for all members, and blocks for the answers, for the budget at most.
// If too few members are left, it ends the joint hold and emits the event before it returns.
//
// A member may also be lost while ask waits. memberEnded then ends the hold at once and leaves the event
// to ask (unreported), so that there is one event, and the call that found the loss reports it.
func (o *JointOwnership) ask(ctx context.Context, f func(*Hold) error) error {
	o.mu.Lock()
	o.asking++
	holds := slices.Clone(o.holds)
	o.mu.Unlock()
	fan := o.core().fanOut(len(holds), func(i int) error { return f(holds[i]) })
	lost, err := o.decide(o.core().count(ctx, fan, o.budget))
	o.mu.Lock()
	o.asking--
	unreported := o.unreported
	o.unreported = false
	lost = lost || unreported || (o.tooFew() && !o.closed)
	o.mu.Unlock()
	if !lost {
		return err
	}
	o.close()
	if unreported {
		loss, err := o.h.explain(o.loss())
		if !o.h.end(err) { // memberEnded was first
			err = o.h.ended()
		}
		if errors.Is(err, ErrLost) {
			o.core().logNow(ctx, o.h.lossRecord(loss, err))
			o.h.emit(ctx, EventLost, err)
		}
		return err
	}
	return o.h.lose(ctx, o.loss())
}

// loss implements holding: too few members are left. A member that the user has released, or whose client
// was closed, is a reason too. It stands there as text: the joint hold itself was neither released nor closed.
func (o *JointOwnership) loss() Loss {
	loss := Loss{Reason: LossMembers}
	for _, member := range o.memberHolds() {
		if cause := member.ended(); errors.Is(cause, ErrLost) {
			loss.Members = append(loss.Members, cause)
		} else if cause != nil {
			loss.Members = append(loss.Members, errors.New(describe(member, "hold", cause).Error()))
		}
	}
	return loss
}

// decide turns counted answers into a result. lost: so many members refused that too few are left. An
// error: too few answered, and the silent ones may hold the lock or not.
func (o *JointOwnership) decide(v votes) (lost bool, err error) {
	switch {
	case v.yes >= o.need:
		return false, nil
	case v.yes+len(v.failed) < o.need:
		return true, nil
	}
	return false, errors.Join(v.failed...)
}

package joint

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Lock is one lock made of several members. It is held while enough of them are. It has no keys of
// its own: it acquires and releases its members, each on the member's client. It is immutable, and
// belongs to the handle.
type Lock struct {
	Resource *engine.Resource
	Members  []*engine.Resource // in the order in which a multilock acquires them
	Need     int                // how many members must be held
	// Budgeted means that the lock waits for a member no longer than its budget, which is a tenth
	// of the TTL.
	Budgeted bool
	// Whole acquires all members of a multilock by one command. It is nil if that is not possible.
	Whole Whole
}

// budget returns how long a member may take to answer if the shortest TTL of all members is ttl, or
// 0 if there is no limit.
func (l *Lock) budget(ttl time.Duration) time.Duration {
	if !l.Budgeted {
		return 0
	}
	return min(max(ttl/10, 100*time.Millisecond), 2*time.Second)
}

// shortest returns the shortest TTL of the members, and the shortest limit of their holds, which is
// 0 if there is none.
func (l *Lock) shortest(terms *engine.Terms) (ttl, limit time.Duration) {
	for i := range l.Members {
		t := terms.ForMember(i)
		if first := t.FirstTTL(); ttl == 0 || first < ttl {
			ttl = first
		}
		d := t.Limit()
		isShorter := limit == 0 || d < limit
		if d > 0 && isShorter {
			limit = d
		}
	}
	return ttl, limit
}

// Rollback implements [engine.Driver]. It releases the members that q's last attempt acquired.
// Earlier attempts have released theirs. It blocks for the answers. After the budget, the remaining
// releases go on in the background.
//
// An attempt to acquire all members by one command may have taken them, or may still do so. The
// rollback of the first member keeps late copies of that command from taking anything.
func (l *Lock) Rollback(ctx context.Context, q *engine.Request) error {
	s := stateOf(q)
	s.giveUpReservations(ctx, l)
	switch {
	case s.granted != nil:
		s.granted.giveBack(ctx) // it blocks until ctx is done, and then goes on in the background
		s.granted = nil
	case s.whole != nil:
		member := q.Member(s.whole, nil)
		for _, r := range l.Members {
			if err := r.Driver.Rollback(ctx, member); err != nil {
				return err
			}
		}
	}
	return nil
}

// attempts is the driver's state of a request for a joint lock. The goroutine that uses the request
// owns it.
type attempts struct {
	granted *Holding      // what the last attempt was granted; a multilock sets it before it asks the members
	split   time.Duration // how long the last attempt took if rivals held some members each, otherwise 0
	whole   *engine.Terms // the terms of each member if they are acquired as a whole, otherwise nil
	// reserved contains the requests for members of a redlock, by index, that have left a
	// reservation. Each attempt replaces the requests of the attempt before it: see reserve.go.
	reserved []*engine.Request

	holds    bool // a multilock holds members while it waits for another one
	mustTell bool // a multilock has had to wait, and tells the observer as soon as it holds no member
}

// stateOf returns q's state, and creates it if there is none.
func stateOf(q *engine.Request) *attempts {
	s, ok := q.State.(*attempts)
	if !ok {
		s = &attempts{}
		q.State = s
	}
	return s
}

// carriedID returns the id of the members' holds that ctx carries, or "" if it carries none. It
// fails if one of these holds, or the joint hold that they belong to, was lost. An earlier attempt
// may have found the loss, and the members must not be acquired again. It also fails if the holds
// have different ids, because a joint hold has one id in all members.
func (l *Lock) carriedID(ctx context.Context) (id string, err error) {
	for _, m := range l.Members {
		outer, err := m.Outer(ctx)
		switch {
		case err != nil:
			return "", err
		case outer == nil: // ctx has no hold of this member
		case outer.IsLostUnreleased():
			return "", outer.Ended()
		case id != "" && id != outer.ID():
			return "", fmt.Errorf("%w: the context carries holds of members that have different ids", engine.ErrDeadlock)
		default:
			id = outer.ID()
		}
	}
	return id, nil
}

// beginAttempt begins one more attempt for q. Each attempt has an id of its own, because an earlier
// attempt's releases may still be under way. With the same id they would free the new attempt's
// members:
//
//	attempt 1                         attempt 2
//	acquires A, is refused B
//	releases A: no reply
//	                                  acquires A
//	releases A again, is answered
//	                                  (A is free, and attempt 2 counts it)
//
// If ctx carries a hold of a member, the attempt uses that hold's id, because a joint hold has one
// id in all members.
func (l *Lock) beginAttempt(ctx context.Context, q *engine.Request) (*Holding, error) {
	o := l.NewOwnership(q)
	if q.Shared {
		return o, nil
	}
	id, err := l.carriedID(ctx)
	if err != nil {
		return nil, err
	}
	o.carried = id != ""
	if !o.carried {
		id = l.Resource.Core.Owners.New().ID
	}
	o.ID = id
	q.ID = id
	return o, nil
}

// acquireMember acquires the i-th member for o, either under a hold of it that ctx carries, or as
// an outermost request. It blocks as long as w allows. It registers with the member's client, which
// may close independently of the joint lock's client.
func (o *Holding) acquireMember(
	ctx context.Context, i int, q *engine.Request, w engine.Wait,
) (hold *engine.Hold, err error) {
	m := o.lock.Members[i]
	if m.Core.IsClosing() {
		return nil, engine.ErrClosed
	}
	err = m.Core.EnterReady(ctx)
	if err != nil {
		return nil, err
	}
	defer m.Core.Leave()
	terms := q.Terms.ForMember(i)
	if terms.Wait != engine.Forever && !w.IsSingleTry() {
		w = w.Within(terms.Wait)
	}
	mine := m.NewRequest(terms)
	mine.Wait = w
	mine.Group = o
	if o.lock.Budgeted {
		mine.OfMajority = true
		mine.Reserves = q.MayQueue
		mine.WaitRecorded = o.isReserved(i)
		o.mu.Lock()
		o.asked.requests[i] = mine
		o.mu.Unlock()
		defer func() {
			o.noteReservation(ctx, i, mine)
			o.noteRefusal(i, mine, err)
		}()
	} else {
		defer func() { q.HearFrom(mine, err == nil) }()
	}
	if !q.Shared { // a request with an id that the caller names ignores the holds in ctx
		hold, err = m.AcquireNested(ctx, mine)
		if hold != nil || err != nil {
			return hold, err
		}
	}
	mine.SetID(o.ID, q.Shared || o.carried)
	// Siblings under the same hold may want the same member, and would all enter it by the same id.
	// Only one of them may.
	mine.NonReentrant = mine.NonReentrant || o.carried
	hold, err = m.AcquireOutermost(ctx, mine, time.Now())
	if o.carried && errors.Is(err, engine.ErrDeadlock) {
		err = fmt.Errorf("%w: %w", engine.ErrNotAcquired, errYield)
	}
	return hold, err
}

// acquireAndAdd acquires the i-th member and adds it to o. If the attempt, or the joint hold, has
// ended meanwhile, the late hold is released at once. Otherwise nobody would release it. The same
// happens if too few of the others confirm that they hold the lock. The member may then be acquired
// again, unless a copy of its release may still arrive.
func (o *Holding) acquireAndAdd(ctx context.Context, i int, q *engine.Request, w engine.Wait) error {
	hold, err := o.acquireMember(ctx, i, q, w)
	if err != nil {
		return err
	}
	mayCount := o.mayStillCount(hold)
	if mayCount && o.add(hold) {
		return nil
	}
	err = hold.Release(ctx) // it goes on in the background if it must
	if !mayCount && err == nil {
		return errUnconfirmed
	}
	return errTooLate
}

// memberError is the error of a member. Its text names the member, and the server if the server is
// known.
type memberError struct {
	member string
	err    error
}

func (e *memberError) Error() string { return e.member + ": " + e.err.Error() }
func (e *memberError) Unwrap() error { return e.err }

// named adds the names of the i-th member and its server to an error.
func (l *Lock) named(i int, err error) error {
	if err == nil {
		return nil
	}
	return ofMember(l.Members[i], err)
}

// ofMember adds the names of a member and its server to an error.
func ofMember(m *engine.Resource, err error) error {
	name := fmt.Sprintf("%s %q", m.Kind, m.Name)
	if address := m.Core.Errors.Address(m); address != "" {
		name += " at " + address
	}
	return &memberError{name, m.Core.Errors.Explain(m, err)}
}

// retryQueue returns a queue for a joint request that has no message to wait for. Its pauses are
// random, and grow from a few milliseconds to half a second, so that rivals do not come back at the
// same time.
func (l *Lock) retryQueue() engine.Queue {
	return l.Resource.PrivateQueue(func(n int) time.Duration {
		return time.Millisecond + rand.N(10*time.Millisecond<<min(n, 6)) //nolint:gosec // jitter
	})
}

// Reasons for which an attempt fails, or stops waiting for a member. Users see the texts only.
var (
	// errYield says that an attempt gave up so that a rival may go first. The attempt may be
	// repeated soon.
	errYield = errors.New("gave way to another")
	// errTooLate says that a member was granted after the attempt, or the joint hold, was over. The
	// member was given back.
	errTooLate = errors.New("acquired too late")
	// errUnconfirmed says that a late member was given back because too few of the others were
	// confirmed. It matches errTooLate.
	errUnconfirmed = fmt.Errorf("%w: the others were not confirmed", errTooLate)
	errBudget      = errors.New("no answer within the budget of a member")
	// errNotAwaited says that the others had decided before a member answered.
	errNotAwaited = errors.New("not awaited, because too many others had failed")
	// errMembersLost says that some members were lost before the others had answered. A waiting
	// acquisition makes another attempt.
	errMembersLost = fmt.Errorf("%w: members were lost meanwhile", engine.ErrLost)
)

package joint

import (
	"context"

	"github.com/redlatch/redlatch/internal/engine"
)

// How a multilock is acquired as a whole.
//
// If one server can acquire all members by one command, it acquires all of them or none. So the
// multilock holds nothing while it waits, and no two multilocks can wait for each other. It waits
// in the local queue of its own name, and tries when a member is released.
//
// The result is the same as if the members had been acquired one after another: a hold of each
// member, with an ownership of its own. So the rest of the library need not know the difference.
// The release also sends one command, unless a member needs a command of its own: see
// [engine.ReleaseTogether].

// Whole acquires and releases all members of a multilock by one command each. Package primitives
// implements it.
type Whole interface {
	// Fits reports whether all members can be acquired as a whole with these terms of the joint
	// lock and of its first member. It sends nothing.
	Fits(terms, member *engine.Terms) bool
	// TryAcquire tries once to acquire all members for o, which has an id of its own. Like
	// [engine.Driver].TryAcquire, it may be repeated.
	TryAcquire(ctx context.Context, o *engine.Owner) (engine.Result, error)
	// Release frees all members, and returns for each whether it was held.
	Release(ctx context.Context, o *engine.Owner) (held []bool, inDoubt bool, err error)
	// Subscribe is [engine.Driver].Subscribe for the members that make an acquisition wait.
	Subscribe(hear func(engine.Message)) []engine.Subscription
}

// wholeTerms returns the members' terms if q is to acquire them as a whole, and nil otherwise. It
// returns nil for an id that the caller names, because the server counts its holds. It also returns
// nil if ctx carries a hold of a member, because that member nests, and the others need the hold's
// id.
func (m *multi) wholeTerms(ctx context.Context, q *engine.Request) *engine.Terms {
	decided := q.State != nil
	s := stateOf(q)
	mayBeWhole := m.Whole != nil && !q.Shared
	if decided || !mayBeWhole {
		return s.whole
	}
	carried, err := m.carriedID(ctx)
	terms := q.Terms.ForMember(0)
	nests := carried != "" || err != nil
	if !nests && m.Whole.Fits(q.Terms, terms) {
		s.whole = terms
		q.TTL = terms.FirstTTL()
	}
	return s.whole
}

// tryWhole makes one attempt to acquire all members with one command. The terms apply to every
// member.
func (m *multi) tryWhole(ctx context.Context, q *engine.Request, terms *engine.Terms) (engine.Result, error) {
	m.Resource.Core.GiveUpLingering(ctx, m.Members)
	owner := q.Owner
	owner.TTL = terms.WireTTL()
	res, err := m.Whole.TryAcquire(ctx, &owner)
	if err != nil || !res.Granted {
		return res, err
	}
	o := &Holding{
		lock: m.Lock, ID: q.ID, terms: q.Terms, whole: true, holds: make([]*engine.Hold, 0, len(m.Members)),
	}
	member := q.Member(terms, o)
	member.InDoubt = q.InDoubt || res.InDoubt
	for _, r := range m.Members {
		hold, err := r.NewHold(ctx, member, res)
		if err != nil { // the client is closing, and nobody has seen the holds so far
			o.DetachMembers()
			q.MustRollback = true
			return engine.Result{}, err
		}
		o.holds = append(o.holds, hold)
	}
	stateOf(q).granted = o
	res.Holding = o
	return res, nil
}

package primitives

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/joint"
)

// Joint locks: Redisson's RedissonMultiLock and RedissonRedLock. A joint lock has no keys of its
// own, only the keys of its members.
//
// Package joint acquires and releases them (joint.Lock). This file makes them from their members.
// It also has the operations that need no hold: Adopt and ReleaseID ask all members. ForceRelease
// and Info are not supported.

// jointLock takes the place of a driver in a [Lock] that is a multilock or a redlock. It never
// changes after newJoint.
type jointLock struct {
	*joint.Lock

	members []*Lock  // sorted by name; no member is there twice
	opts    []Option // they replace the same options of the members
}

// terms returns the terms for acquiring each member, for a call with further options.
func (j *jointLock) terms(owner string, call []Option) func(i int) *engine.Terms {
	return func(i int) *engine.Terms {
		member := j.members[i].settings.forMember(owner, j.opts, call)
		return &member.Terms
	}
}

// newJoint returns a joint lock. If the members do not fit together, all its calls fail.
//
// The engine finds holds of a joint lock in a context by its kind and members. Its name does not
// identify it, because members of equal names may live on different clients.
func newJoint(kind string, locks []*Lock, opts []Option) *Lock {
	l := &Lock{}
	l.res.Kind = kind
	members, err := jointMembers(locks)
	if err != nil {
		l.refuse(err)
		return l
	}
	names := make([]string, len(members))
	resources := make([]*engine.Resource, len(members))
	for i, m := range members {
		names[i] = m.res.Name
		resources[i] = &m.res
	}
	if kind == "red" { // its members usually are one name on several servers
		names = slices.Compact(names)
	}
	first := members[0].c
	l.init(first, kind, strings.Join(names, ","), nil)
	identity := identityOf(members)
	l.res.Identity = &identity
	own := first.defaults.with(opts).shared("a joint lock")
	l.joint = &jointLock{&joint.Lock{Resource: &l.res, Members: resources}, members, slices.Clone(opts)}
	own.ForMember = l.joint.terms(own.Owner, nil)
	l.settings = &own
	if kind == "red" {
		joint.NewRed(l.joint.Lock)
	} else {
		l.joint.Whole = newWholeDriver(l.res.Name, members)
		joint.NewMulti(l.joint.Lock)
	}
	return l
}

// identityOf returns a text that is the same for joint locks of the same members, and only for
// them.
func identityOf(members []*Lock) string {
	parts := make([]string, len(members))
	for i, m := range members {
		parts[i] = fmt.Sprintf("%s %s %q", m.c.life, m.res.Kind, m.res.Name)
	}
	slices.Sort(parts) // members of equal names are in the order in which they were given
	return strings.Join(parts, ",")
}

// jointMembers checks the members of a joint lock and sorts them by name. A member given twice
// counts once. Two kinds of lock on one name would wait for each other for ever, so that is
// invalid.
func jointMembers(locks []*Lock) (members []*Lock, err error) {
	for _, l := range locks {
		switch {
		case l == nil || l.res.Kind == "":
			return nil, invalid("a nil lock")
		case l.res.Kind == "multi" || l.res.Kind == "red":
			return nil, invalid("a member that is a %s lock itself", l.res.Kind)
		case l.settings.err != nil:
			return nil, l.settings.err
		}
	}
	if len(locks) == 0 {
		return nil, invalid("no locks to join")
	}
	sorted := slices.Clone(locks)
	slices.SortStableFunc(sorted, func(a, b *Lock) int { return strings.Compare(a.res.Name, b.res.Name) })
	members = sorted[:0]
	for _, l := range sorted {
		same := slices.IndexFunc(members, func(m *Lock) bool { return m.c == l.c && m.res.Name == l.res.Name })
		switch {
		case same < 0:
			members = append(members, l)
		case members[same].res.Kind != l.res.Kind:
			return nil, invalid("members %s and %s of the same name %q", members[same].res.Kind, l.res.Kind, l.res.Name)
		}
	}
	return members, nil
}

// ofMember makes the call for one member from f, which is part of a call of that member's client.
func (j *jointLock) ofMember(ctx context.Context, f func(i int, m *Lock) error) func(i int) error {
	return func(i int) error {
		m := j.members[i]
		return m.c.during(ctx, func() error { return f(i, m) })
	}
}

// askMembers runs f for all members at once, each in a goroutine of the core. It returns when all
// have answered or their budget is over. It fails with ErrNotHeld if so many members answered with
// it that too few can succeed.
func (j *jointLock) askMembers(ctx context.Context, terms *engine.Terms, f func(i int, m *Lock) error) error {
	return j.ForAllMembers(ctx, terms, j.ofMember(ctx, f))
}

// adopt replaces id in the members, by one new id for all. It first checks that enough members are
// held, so that a wrong id changes nothing. If it fails after that, the members that it has adopted
// are left to their leases, because the former holder's critical section may still run.
//
// A member that does not answer costs its budget only once: the check does not wait for it if the
// others suffice.
func (j *jointLock) adopt(ctx context.Context, id string, terms *engine.Terms) (*engine.Hold, error) {
	err := j.ForEnoughMembers(ctx, terms, j.ofMember(ctx, func(_ int, m *Lock) error {
		lost, err := m.takeable().Check(ctx, m.res.OwnershipOf(id))
		return orNotHeld(!lost, err)
	}))
	if err != nil {
		return nil, err
	}
	q := j.Resource.NewRequest(terms)
	owned := j.NewOwnership(q)
	err = j.askMembers(ctx, terms, func(i int, m *Lock) error {
		mine := m.res.NewRequest(terms.ForMember(i))
		mine.SetID(q.ID, false)
		sent, err := m.replaceID(ctx, id, mine)
		if err != nil {
			return err
		}
		return owned.ReplaceMember(ctx, &m.res, mine, sent)
	})
	if err != nil {
		owned.DetachMembers()
		return nil, err
	}
	return owned.NewAdoptedHold(ctx, q)
}

// releaseID gives back one count of id in all members. Enough members must have held it: all
// members of a multilock, or a majority of a redlock.
func (j *jointLock) releaseID(ctx context.Context, id string, q *engine.Request) error {
	return j.askMembers(ctx, q.Terms, func(_ int, m *Lock) error {
		return orNotHeld(m.takeable().releaseID(ctx, id, m.res.NewRequest(&m.settings.Terms)))
	})
}

// orNotHeld returns [ErrNotHeld] if a driver answered that an id holds nothing.
func orNotHeld(held bool, err error) error {
	if err == nil && !held {
		return ErrNotHeld
	}
	return err
}

package primitives

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// NewMultiLock makes one lock of several: it is held while all of them are. Members may live on different clients. They are taken one after
// another, sorted by name, so that of rivals that come at once one wins, whatever order they were given in. One that another holds is not waited
// for with the others in hand for long: they are given back meanwhile. The hold has one id, the owner in every member. It is lost
// when one of them is lost.
//
// The multilock's client (defaults, observer, ids, Close) is its first member's. Options given here or to a call replace the members' same
// options; their others stay. A member given twice counts once. No member at all, nil, a joint lock, or two kinds of lock on one
// name of one client: [ErrInvalid].
func NewMultiLock(locks []*Lock, opts ...Option) *Lock {
	l, j := newJoint("multi", locks, opts)
	j.need = len(j.members)
	l.proto = &multi{j}
	return l
}

// joint speaks to several locks as one. What it sends is sent by its members; it has no keys of its own.
type joint struct {
	h       *handle
	members []*handle // sorted by name, none twice
	need    int       // how many must be held
	hasty   bool      // no member is waited for longer than its budget
}

func newJoint(kind string, locks []*Lock, opts []Option) (*Lock, *joint) {
	l := &Lock{}
	j := &joint{h: &l.handle}
	l.kind, l.nests = kind, &nestKey{kind: kind}
	if l.invalid = j.gather(locks); l.invalid != nil {
		return l, j
	}
	names, identity := make([]string, len(j.members)), make([]string, len(j.members))
	for i, m := range j.members {
		names[i] = m.name
		identity[i] = fmt.Sprintf("%p %s %q", m.c, m.kind, m.name)
	}
	slices.Sort(identity)
	l.init(j.members[0].c, kind, strings.Join(names, ","), nil)
	l.nests = &nestKey{kind: kind, name: strings.Join(identity, ",")}
	l.settings.given = 0 // defaults do not replace the members' options
	l.settings = l.settings.with(opts)
	l.invalid = l.settings.err
	return l, j
}

func (j *joint) gather(locks []*Lock) error {
	type place struct {
		c    *Client
		name string
	}
	seen := map[place]string{}
	for _, l := range locks {
		switch {
		case l == nil || l.nests == nil:
			return invalid("a nil lock")
		case l.kind == "multi" || l.kind == "red":
			return invalid("a member that is a %s lock itself", l.kind)
		case l.invalid != nil:
			return l.invalid
		}
		at := place{l.c, l.name}
		if kind, twice := seen[at]; twice && kind != l.kind {
			return invalid("members %s and %s of the same name %q", kind, l.kind, l.name)
		} else if !twice {
			seen[at] = l.kind
			j.members = append(j.members, &l.handle)
		}
	}
	if len(j.members) == 0 {
		return invalid("no locks to join")
	}
	slices.SortStableFunc(j.members, func(a, b *handle) int { return strings.Compare(a.name, b.name) })
	return nil
}

func (j *joint) parent(ctx context.Context) (*Hold, error) { return holdFrom(ctx, j.h.nests), nil }
func (j *joint) turns() bool                               { return true }

func (j *joint) undo(ctx context.Context, q *request) error {
	if b := q.parts; b != nil {
		q.parts = nil
		b.giveBack(ctx).count(ctx, b.budget) // until ctx is done; then in the background
	}
	return nil
}

// These are asked of members, never of the joint itself.

func (j *joint) give(context.Context, *tenure, int) (bool, error) { return false, ErrUnsupported }
func (j *joint) channel(*request) string                          { return "" }
func (j *joint) heeds(payload string) bool                        { return payload == "0" || payload == "1" }

func (j *joint) forceRelease(context.Context, *request) (bool, error) { return false, ErrUnsupported }
func (j *joint) info(context.Context) (Info, error)                   { return Info{}, ErrUnsupported }

// attempt begins one more attempt for q. Each has an id of its own: what gives back an earlier one may still be on its way. If ctx carries a
// hold of a member the id is that hold's, as a joint hold has one id in all members.
func (j *joint) attempt(ctx context.Context, q *request) (*bundle, error) {
	q.ttl, _ = j.shortest(q)
	b := &bundle{h: j.h, id: q.id, need: j.need, budget: j.budget(q), settled: q.settings}
	if q.shared {
		return b, nil
	}
	id, err := j.carried(ctx)
	if err != nil {
		return nil, err
	}
	b.carried = id != ""
	if !b.carried {
		id = j.h.c.mint()
	}
	b.id, q.id = id, id
	return b, nil
}

// carried is the id of the members' holds that ctx carries, "" if it carries none.
func (j *joint) carried(ctx context.Context) (id string, err error) {
	for _, m := range j.members {
		outer, err := m.proto.(nester).parent(ctx)
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

// take acquires m for b: under a hold of it that b's context carries, or else in its own right.
func (b *bundle) take(ctx context.Context, m *handle, q *request, w *wait) (*Hold, error) {
	if m.c.isClosing() {
		return nil, ErrClosed
	}
	if err := m.c.begin(ctx); err != nil {
		return nil, err
	}
	defer m.c.calls.Done()
	s := m.settings.overlaid(q.settings)
	s.of = b
	if s.wait >= 0 && w.limit != 0 {
		w = w.within(s.wait)
	}
	if !q.shared {
		if hold, err := m.acquireNested(ctx, &s, w); hold != nil || err != nil {
			return hold, err
		}
	}
	mine := m.request(&s)
	mine.named(b.id, q.shared || b.carried)
	// Others forked from the same hold may want the same member, and would stand there by the same id: only one may enter.
	mine.once = mine.once || b.carried
	hold, err := m.acquireOutermost(ctx, mine, &s, w, nil)
	if b.carried && errors.Is(err, ErrDeadlock) {
		err = fmt.Errorf("%w: %w", ErrNotAcquired, errYield)
	}
	return hold, err
}

// gather takes m and adds it to b. A part that comes too late for that is given back.
func (b *bundle) gather(ctx context.Context, m *handle, q *request, w *wait) error {
	part, err := b.take(ctx, m, q, w)
	if err != nil || b.add(part) {
		return err
	}
	_ = part.Release(ctx) // goes on in the background if it must
	return errLate
}

// errLate: a member was had after the attempt had ended, and was given back.
var errLate = noAnswer(errors.New("acquired too late"))

// errYield: the attempt was given up so that another may go first, and may be made again soon.
var errYield = errors.New("gave way to another")

// insist attempts until q is granted or refused for good: for those who have nothing to listen to.
func (j *joint) insist(ctx context.Context, q *request, w *wait, attempt func() (verdict, error)) (verdict, error) {
	for n := 0; ; n++ {
		v, err := attempt()
		switch {
		case ctx.Err() != nil:
			q.open = q.open || err == nil
			return verdict{}, gaveUp(ctx, nil)
		case err == nil && v.granted:
			return v, nil
		case j.h.c.isClosing():
			q.open = q.open || err == nil
			return verdict{}, ErrClosed
		case err == nil:
			err = v.met
		case errors.Is(err, errYield), w.waited && unanswered(err):
		default:
			return verdict{}, err
		}
		switch {
		case w.limit != 0 && !w.over():
		case errors.Is(err, ErrNotAcquired):
			return verdict{}, err
		default:
			return verdict{}, gaveUp(ctx, err)
		}
		j.h.waits(w, q.id)
		w.rest(ctx, jitter(n))
	}
}

// jitter is a pause that grows from a few milliseconds to half a second with n.
func jitter(n int) time.Duration {
	return time.Millisecond + rand.N(10*time.Millisecond<<min(n, 6)) //nolint:gosec // no secret
}

// nestAll acquires a joint lock under a hold of it: each member nests under that hold's part.
func (h *handle) nestAll(ctx context.Context, _ *bundle, s *settings, w *wait, parent *grip) (*Hold, error) {
	q := h.request(s)
	q.wait = *w
	return h.acquireOutermost(ctx, q, s, w, parent)
}

// shortest is the least TTL that q's members are taken for, and the least time that any may last; 0: without end.
func (j *joint) shortest(q *request) (ttl, limit time.Duration) {
	for _, m := range j.members {
		s := m.settings.overlaid(q.settings)
		if t := s.firstTTL(); ttl == 0 || t < ttl {
			ttl = t
		}
		if l := s.limit(); l > 0 && (limit == 0 || l < limit) {
			limit = l
		}
	}
	return ttl, limit
}

// adoptAll takes over what the holder of id has in the members.
func (j *joint) adoptAll(ctx context.Context, id string, s *settings) (*Hold, error) {
	q := j.h.request(s)
	b := &bundle{h: j.h, id: q.id, need: j.need, budget: j.budget(q), settled: s}
	if err := j.ask(ctx, b.budget, func(m *handle) error {
		lost, err := m.proto.(locking).check(ctx, &tenure{h: m, claim: claim{id: id}})
		return orNotHeld(!lost, err)
	}); err != nil {
		return nil, err
	}
	err := j.ask(ctx, b.budget, func(m *handle) error {
		ms := m.settings.overlaid(s)
		ms.of = b
		part, err := m.adoptAs(ctx, id, b.id, &ms)
		if err == nil && !b.add(part) {
			part.Detach()
		}
		return err
	})
	if err != nil {
		b.forget(nil) // left to the lease: the former holder's section may still run
		return nil, err
	}
	hold, err := j.h.newHold(ctx, b, s, time.Now(), nil)
	if err != nil {
		b.forget(nil)
	}
	return hold, err
}

func (j *joint) releaseID(ctx context.Context, id string, q *request) (bool, error) {
	err := j.ask(ctx, j.budget(q), func(m *handle) error {
		held, err := m.proto.(byID).releaseID(ctx, id, m.request(&m.settings))
		return orNotHeld(held, err)
	})
	if errors.Is(err, ErrNotHeld) {
		return false, nil
	}
	return err == nil, err
}

func orNotHeld(held bool, err error) error {
	if err == nil && !held {
		return ErrNotHeld
	}
	return err
}

// budget is how long each of q's members may take to answer; 0: as long as it takes.
func (j *joint) budget(q *request) time.Duration {
	if !j.hasty {
		return 0
	}
	ttl, _ := j.shortest(q)
	return min(max(ttl/10, 100*time.Millisecond), 2*time.Second)
}

// ask does f for all members at once. It fails with ErrNotHeld when so many do that too few are left.
func (j *joint) ask(ctx context.Context, limit time.Duration, f func(*handle) error) error {
	t := j.h.c.canvass(ctx, len(j.members), limit, func(i int) error {
		m := j.members[i]
		if err := m.c.begin(ctx); err != nil {
			return err
		}
		defer m.c.calls.Done()
		return f(m)
	})
	switch {
	case t.good >= j.need:
		return nil
	case t.good+len(t.errs) < j.need:
		return ErrNotHeld
	}
	return errors.Join(t.errs...)
}

// multi takes all members, in order.
type multi struct{ *joint }

// A multilock that has some members waits for the next only so long before it lets those go: whoever took them in another order, Redisson or
// a caller who takes them singly, could else wait for it as it does for them. Then it waits, with nothing in its hands, until the one that was
// missing can be had, and begins anew, with more patience. Among multilocks the order sees to it that nobody waits in a circle.
const (
	firstPatience   = 100 * time.Millisecond
	longestPatience = 2 * time.Second
)

func (m *multi) take(ctx context.Context, q *request) (verdict, error) {
	win := newWindow(ctx, &q.wait)
	defer win.close()
	v, _, err := m.sequence(ctx, win, q, &wait{quiet: true}, 0)
	return v, err
}

func (m *multi) stand(ctx context.Context, q *request, _ *settings, w *wait) (verdict, error) {
	waiting, cancel := m.whileOpen(ctx)
	defer cancel()
	win := newWindow(waiting, w)
	defer win.close()
	members := &wait{limit: w.limit, until: w.until, note: func() { m.h.waits(w, q.id) }}
	patience := firstPatience
	v, err := m.insist(waiting, q, w, func() (verdict, error) {
		for {
			v, missing, err := m.sequence(waiting, win, q, members, patience)
			if missing == nil {
				return v, err
			}
			if err := m.await(waiting, win, q, missing, members); err != nil {
				return verdict{}, err
			}
			patience = min(2*patience, longestPatience)
		}
	})
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		err = ErrClosed
	}
	return v, err
}

// await waits until a member can be had.
func (m *multi) await(ctx context.Context, win *window, q *request, member *handle, w *wait) error {
	b, err := m.attempt(ctx, q)
	if err != nil {
		return err
	}
	pending, err := win.call(m.h.c, func() error {
		part, err := b.take(ctx, member, q, w)
		if err == nil {
			_ = part.Release(ctx) // goes on in the background if it must
		}
		return err
	})
	if pending != nil {
		win.settle(0, pending)
		return pending.gaveUp(ctx)
	}
	return err
}

// whileOpen is ctx until the multilock's client closes: members on other clients wait in those clients' rooms.
func (m *multi) whileOpen(ctx context.Context) (context.Context, context.CancelFunc) {
	if !slices.ContainsFunc(m.members, func(member *handle) bool { return member.c != m.h.c }) {
		return ctx, func() {}
	}
	waiting, cancel := context.WithCancel(ctx)
	m.h.c.spawn(func() {
		select {
		case <-m.h.c.closing:
			cancel()
		case <-waiting.Done():
		}
	})
	return waiting, cancel
}

// sequence takes the members one after another: all, or none. missing is the one for which patience was at an end. The error
// of an attempt that the end of ctx or of the wait cut short matches ErrNotAcquired.
func (m *multi) sequence(ctx context.Context, win *window, q *request, w *wait, patience time.Duration) (v verdict, missing *handle, err error) {
	b, err := m.attempt(ctx, q)
	if err != nil {
		return verdict{}, nil, err
	}
	if _, limit := m.shortest(q); limit > 0 {
		patience = min(patience, limit/2) // of a lease that runs already at least half is left
	}
	for i, member := range m.members {
		mine := w
		if i > 0 && w.limit != 0 {
			mine = w.within(patience/2 + rand.N(patience)) //nolint:gosec // no secret: rivals should not give way at once
		}
		pending, err := win.call(m.h.c, func() error { return b.gather(ctx, member, q, mine) })
		if pending != nil {
			win.settle(0, b.giveBack(ctx), pending)
			return verdict{}, nil, pending.gaveUp(ctx)
		}
		if err == nil {
			continue
		}
		win.settle(0, b.giveBack(ctx))
		if mine != w && mine.over() && errors.Is(err, ErrNotAcquired) && ctx.Err() == nil {
			missing = member
		}
		return verdict{}, missing, err
	}
	switch {
	case ctx.Err() != nil:
		err = gaveUp(ctx, nil)
	case !b.stands():
		err = fmt.Errorf("%w: a member was lost meanwhile: %w", ErrNotAcquired, errYield)
	default:
		b.seal()
		q.parts = b
		return verdict{granted: true, sent: time.Now()}, nil, nil
	}
	win.settle(0, b.giveBack(ctx))
	return verdict{}, nil, err
}

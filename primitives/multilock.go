package primitives

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// NewMultiLock makes one lock of several: it is held while all of them are. Members may live on different clients. They are taken one after
// another, sorted by name, so that of rivals that come at once one wins, whatever order they were given in; the hold has one id, the
// owner in every member. It is lost when one of them is lost.
//
// The multilock's client (defaults, observer, ids, Close) is its first member's. Options given here or to a call replace the members' same
// options; their others stay.
func NewMultiLock(locks []*Lock, opts ...Option) *Lock {
	l, j := newJoint("multi", locks, opts)
	j.need = len(j.members)
	l.proto = &multi{j}
	return l
}

// NewRedLock makes one lock of several on independent Redis servers: it is held while a majority of them is, so that it survives the loss of
// the others. All are asked in parallel, each with a budget of a tenth of the TTL, at least 100 ms and at most 2 s.
//
// It is the algorithm published as Redlock (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/): its safety rests on
// clocks that drift by no more than the margin ([WithSafetyMargin]: a hundredth of the TTL and 2 ms, as published), and on servers
// that, having crashed without their data on disk, stay away for as long as the longest TTL. It gives no fencing token.
func NewRedLock(locks []*Lock, opts ...Option) *Lock {
	l, j := newJoint("red", locks, opts)
	j.need = len(j.members)/2 + 1
	l.proto = &red{j}
	return l
}

// joint speaks to several locks as one.
type joint struct {
	h       *handle
	members []*handle // sorted by name, none twice
	need    int
}

func newJoint(kind string, locks []*Lock, opts []Option) (*Lock, *joint) {
	l := &Lock{}
	j := &joint{h: &l.handle}
	bad := j.gather(locks)
	if bad != nil {
		l.kind, l.invalid = kind, bad
		return l, j
	}
	names, identity := make([]string, len(j.members)), make([]string, len(j.members))
	for i, m := range j.members {
		names[i] = m.name
		identity[i] = fmt.Sprintf("%p %s %q", m.c, m.kind, m.name)
		bad = errors.Join(bad, m.invalid)
	}
	slices.Sort(identity)
	l.init(j.members[0].c, kind, strings.Join(names, ","), nil)
	l.nests = &nestKey{l.c, kind, strings.Join(identity, ",")}
	l.settings.given = 0 // defaults do not replace the members' options
	l.settings = l.settings.with(opts)
	l.invalid = errors.Join(bad, l.settings.err)
	return l, j
}

func (j *joint) gather(locks []*Lock) error {
	seen := map[nestKey]bool{}
	for _, l := range locks {
		switch {
		case l == nil || l.nests == nil:
			return invalid("a nil lock")
		case l.kind == "multi" || l.kind == "red":
			return invalid("a member that is a %s lock itself", l.kind)
		case !seen[*l.nests]:
			seen[*l.nests] = true
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
		b.abandon(ctx)
	}
	return nil
}

// These are asked of members, never of the joint itself.

func (j *joint) give(context.Context, *tenure, int) (bool, error) { return false, ErrUnsupported }
func (j *joint) channel(*request) string                          { return "" }
func (j *joint) heeds(payload string) bool                        { return payload == "0" || payload == "1" }

func (j *joint) forceRelease(context.Context, *request) (bool, error) { return false, ErrUnsupported }
func (j *joint) info(context.Context) (Info, error)                   { return Info{}, ErrUnsupported }

// part acquires one member for q: under a hold of it that ctx carries, or in its own right by q's id.
func (j *joint) part(ctx context.Context, m *handle, q *request, b *bundle, w *wait) (*Hold, error) {
	if m.c.isClosing() {
		return nil, ErrClosed
	}
	if err := m.c.begin(ctx); err != nil {
		return nil, err
	}
	defer m.c.calls.Done()
	s := m.settings.overlaid(q.settings)
	if s.wait >= 0 && w.limit != 0 {
		w = w.within(s.wait)
	}
	s.of = b
	if !q.shared {
		hold, err := m.acquireNested(ctx, &s, w)
		if hold != nil || err != nil {
			return hold, err
		}
	}
	mine := m.request(&s)
	mine.id, mine.shared = q.id, q.shared
	mine.queue = w.limit != 0
	return m.acquireOutermost(ctx, mine, &s, w, nil)
}

// inherit gives a request the id of the member's hold that ctx carries: a joint hold has one id in all members.
func (j *joint) inherit(ctx context.Context, q *request) error {
	if q.shared {
		return nil
	}
	carried := ""
	for _, m := range j.members {
		p, ok := m.proto.(nester)
		if !ok {
			continue
		}
		outer, err := p.parent(ctx)
		switch {
		case err != nil:
			return err
		case outer == nil:
		case carried != "" && carried != outer.ID():
			return fmt.Errorf("%w: members are held by different ids in this context", ErrDeadlock)
		default:
			carried = outer.ID()
			q.id = carried
		}
	}
	return nil
}

// adoptAll takes over what the holder of id has in the members.
func (j *joint) adoptAll(ctx context.Context, id string, s *settings) (*Hold, error) {
	q := j.h.request(s)
	if err := j.enough(func(m *handle) error {
		lost, err := m.proto.(locking).check(ctx, &tenure{h: m, request: request{id: id}})
		if err == nil && lost {
			err = ErrNotHeld
		}
		return err
	}); err != nil {
		return nil, err
	}
	b := &bundle{h: j.h, id: q.id, need: j.need}
	sent := time.Now()
	err := j.enough(func(m *handle) error {
		ms := m.settings.overlaid(s)
		ms.of = b
		hold, err := m.adoptAs(ctx, id, q.id, &ms)
		if err == nil {
			b.add(hold)
		}
		return err
	})
	if err != nil {
		b.forget(nil) // left to the lease: the former holder's section may still run
		return nil, err
	}
	return j.h.newHold(ctx, b, s, sent, nil)
}

func (j *joint) releaseID(ctx context.Context, id string, q *request) (bool, error) {
	err := j.enough(func(m *handle) error {
		held, err := m.proto.(locking).releaseID(ctx, id, m.request(&m.settings))
		if err == nil && !held {
			err = ErrNotHeld
		}
		return err
	})
	if errors.Is(err, ErrNotHeld) {
		return false, nil
	}
	return err == nil, err
}

// enough runs f for every member, one after another, and fails when too few succeed.
func (j *joint) enough(f func(*handle) error) error {
	var tally tally
	for _, m := range j.members {
		err := m.c.begin(context.Background())
		if err == nil {
			err = f(m)
			m.c.calls.Done()
		}
		tally.count(err)
	}
	if tally.good >= j.need {
		return nil
	}
	return errors.Join(tally.errs...)
}

// tally counts what came of several things that were tried.
type tally struct {
	good int
	lost int
	errs []error
}

func (t *tally) count(err error) {
	switch {
	case err == nil:
		t.good++
	case errors.Is(err, ErrLost), errors.Is(err, ErrReleased):
		t.lost++
		t.errs = append(t.errs, err)
	default:
		t.errs = append(t.errs, err)
	}
}

// multi takes all members, in order.
type multi struct{ *joint }

// patience is how long a multilock that has some members waits for the next before it lets those go, and begins again: whoever took
// them in another order, Redisson or a caller who takes them singly, could else wait for it as it does for them.
const patience = 2 * time.Second

func (m *multi) take(ctx context.Context, q *request) (verdict, error) {
	return m.sequence(ctx, q, &wait{quiet: true})
}

func (m *multi) stand(ctx context.Context, q *request, _ *settings, w *wait) (verdict, error) {
	w = &wait{limit: w.limit, until: w.until, note: func() { m.h.waits(w, q.id) }}
	for {
		v, err := m.sequence(ctx, q, w)
		switch {
		case err == nil && ctx.Err() != nil:
			q.open = true
			return verdict{}, gaveUp(ctx, nil)
		case err == nil:
			return v, nil
		case ctx.Err() != nil:
			return verdict{}, gaveUp(ctx, nil)
		case w.over() || m.h.c.isClosing():
			return verdict{}, err
		case errors.Is(err, errImpatient) || (w.waited && unanswered(err)):
			w.rest(ctx, time.Millisecond+rand.N(50*time.Millisecond)) //nolint:gosec // jitter
		default:
			return verdict{}, err
		}
	}
}

// errImpatient: some members were had, and the next was not in time.
var errImpatient = errors.New("gave way")

// sequence takes the members one after another: all, or none.
func (m *multi) sequence(ctx context.Context, q *request, w *wait) (verdict, error) {
	b := &bundle{h: m.h, id: q.id, need: m.need}
	sent := time.Now()
	if err := m.inherit(ctx, q); err != nil {
		return verdict{}, err
	}
	b.id = q.id
	for i, member := range m.members {
		mine, patient := w, time.Now().Add(patience)
		if i > 0 && w.limit != 0 {
			mine = w.within(patience)
		}
		hold, err := m.part(ctx, member, q, b, mine)
		w.waited = w.waited || mine.waited
		if err == nil {
			b.add(hold)
			continue
		}
		b.abandon(ctx)
		if mine != w && errors.Is(err, ErrNotAcquired) && !time.Now().Before(patient) {
			err = fmt.Errorf("%w: %w", errImpatient, err)
		}
		return verdict{}, err
	}
	q.parts = b
	return verdict{granted: true, sent: sent}, nil
}

// red takes a majority of the members, at once.
type red struct{ *joint }

// budget is how long one member may take to answer.
func budget(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 100*time.Millisecond), 2*time.Second)
}

func (r *red) take(ctx context.Context, q *request) (verdict, error) {
	if err := r.inherit(ctx, q); err != nil {
		return verdict{}, err
	}
	if q.split > 0 { // rivals had some each: whoever comes back first should find all
		(&wait{}).rest(ctx, rand.N(min(5*time.Millisecond<<min(q.split, 5), 100*time.Millisecond))) //nolint:gosec // jitter
	}
	sent := time.Now()
	b := &bundle{h: r.h, id: q.id, need: r.need}
	refused, errs := r.askAll(ctx, q, b)
	if len(b.parts) >= r.need {
		q.parts = b
		return verdict{granted: true, sent: sent}, nil
	}
	if len(b.parts) > 0 {
		q.split++
	}
	b.abandon(ctx)
	if refused > len(r.members)-r.need {
		return verdict{wait: -1, met: errors.Join(errs...)}, nil
	}
	return verdict{}, mostly(errs, len(r.members)-r.need)
}

// askAll asks all members for q until all have answered or used up their budget, and gathers what was had in b.
func (r *red) askAll(ctx context.Context, q *request, b *bundle) (refused int, errs []error) {
	type answer struct {
		hold *Hold
		err  error
	}
	limited, cancel := context.WithTimeout(ctx, budget(q.ttl))
	answers := make(chan answer, len(r.members))
	for _, m := range r.members {
		r.h.c.spawn(func() {
			hold, err := r.part(limited, m, q, b, &wait{quiet: true})
			answers <- answer{hold, err}
		})
	}
	open := len(r.members)
	for done := false; open > 0 && !done; {
		select {
		case a := <-answers:
			open--
			switch {
			case a.err == nil:
				a.hold.g.ctx = ctx // the budget was for the asking
				b.add(a.hold)
			case errors.Is(a.err, ErrNotAcquired) && limited.Err() == nil:
				refused++
			default:
				errs = append(errs, a.err)
			}
		case <-limited.Done():
			done = true
		}
	}
	for range open {
		errs = append(errs, &scripts.Error{Script: "redlock", Outcome: scripts.Unknown, Err: errBudget})
	}
	if open == 0 {
		cancel()
		return refused, errs
	}
	r.h.c.spawn(func() { // what comes late gives itself back: its context is done. If it came just before, we do
		defer cancel()
		for range open {
			if a := <-answers; a.err == nil {
				_ = a.hold.Release(context.WithoutCancel(ctx))
			}
		}
	})
	return refused, errs
}

var errBudget = errors.New("no answer within the budget of a member")

// mostly joins errors: those that do not heal first if they alone are too many, for the first decides whether waiting goes on.
func mostly(errs []error, tolerated int) error {
	lasting := 0
	for _, err := range errs {
		if !unanswered(err) {
			lasting++
		}
	}
	slices.SortStableFunc(errs, func(a, b error) int {
		if unanswered(a) == unanswered(b) {
			return 0
		}
		if unanswered(a) == (lasting > tolerated) {
			return 1
		}
		return -1
	})
	return errors.Join(errs...)
}

// listen hears of releases of any member.
func (r *red) listen(hear func(pubsub.Signal)) []*pubsub.Subscription {
	var subs []*pubsub.Subscription
	for _, m := range r.members {
		subs = append(subs, m.c.hub.Subscribe(m.proto.channel(&request{}), hear))
	}
	return subs
}

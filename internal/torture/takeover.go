package torture

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// target is a lock or a semaphore whose holds have ids, by which others can take them over.
type target interface {
	acquirer
	Adopt(ctx context.Context, id string, opts ...primitives.Option) (*primitives.Hold, error)
	ReleaseID(ctx context.Context, id string) error
}

// inspectable also says who holds it.
type inspectable interface {
	target
	Info(ctx context.Context) (primitives.Info, error)
}

type forcible interface {
	ForceRelease(ctx context.Context) (bool, error)
}

// takeOver acts as an operator does: it frees the lock by force, or asks who holds it, and adopts
// or releases the hold of one of them.
func (s *session) takeOver(l inspectable, call record, nested acquirer) {
	call.Session = s.n
	if nested == nil {
		nested = l
	}
	if f, ok := l.(forcible); ok && s.one(4) {
		s.forceRelease(f, call)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, err := l.Info(ctx)
	if err != nil || len(info.Holders) == 0 {
		return
	}
	id := info.Holders[s.rand.IntN(len(info.Holders))].ID
	if s.one(2) {
		s.adopt(l, call, nested, id)
	} else {
		s.releaseID(l, call, id)
	}
}

// letGo ends a hold in one of the ways that callers have. It is mostly released. Else it is
// detached, and then adopted or released by its id, or left to its lease and to others that take it
// over.
func (s *session) letGo(h hold, l, nested acquirer, call record) {
	if s.simulated != nil {
		s.begins(momentEnding, call)
	}
	if s.canForget(call) && s.one(10) {
		s.forget(h, call)
		return
	}
	t, ok := l.(target)
	// While the process drains, nothing is left to its lease: it would delay the end of the round.
	if !ok || call.Primitive == "semaphore" || !s.one(s.Rates.Detach) || s.draining.Err() != nil {
		s.release(h, call)
		return
	}
	id := s.detach(h, call)
	if id == "" {
		return
	}
	time.Sleep(between(s.rand, 0, 10*time.Millisecond))
	switch {
	case s.one(s.Rates.Leave) && call.Limit == 0: // permits that expire are collected only by the next acquisition
	case s.one(2):
		s.adopt(t, call, nested, id)
	default:
		s.releaseID(t, call, id)
		if s.one(2) { // once more: nothing is left to release
			time.Sleep(between(s.rand, 0, 10*time.Millisecond))
			s.releaseID(t, call, id)
		}
	}
}

// canForget reports whether a hold can be forgotten without a release. That is for simulations,
// where the garbage collector runs soon, and for holds that nothing but the collector ends.
func (s *session) canForget(call record) bool {
	isPlain := call.Owner == "" && !call.Passes && call.MinHold == 0 && call.MaxHold == 0 && call.Limit == 0
	return s.simulated != nil && call.Do == opAcquire && call.Endless && !call.Fixed && isPlain &&
		call.Root == call.Op && len(call.Names) == 1 && call.Primitive != "redlock" && s.draining.Err() == nil
}

// forget drops the hold. Once the collector has found it, it is not renewed any more:
// doc/contract.md, C17.
func (s *session) forget(h hold, call record) {
	do := s.call(record{
		Do: opDetach, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op,
		Until: s.clock.at(h.ValidUntil()), Forgotten: true,
	})
	s.finish(do, nil, record{ID: h.ID()})
	go func() {
		for _, pause := range collections {
			time.Sleep(pause)
			runtime.GC()
		}
	}()
}

// collections are the pauses between the collections that find most forgotten holds. A command
// under way may refer to one for longer, so the checks expect that it is found at the end of the
// round.
var collections = []time.Duration{
	15 * time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond, 300 * time.Millisecond,
}

// detach leaves the hold to its lease, and returns its id, or "" if it was lost before.
func (s *session) detach(h hold, call record) string {
	do := s.call(record{
		Do: opDetach, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op,
		Until: s.clock.at(h.ValidUntil()),
	})
	id := h.Detach()
	var err error
	if id == "" {
		err = primitives.ErrLost
	}
	s.finish(do, err, record{ID: id})
	return id
}

// adopt takes over the hold of id, holds for a while, and lets go.
func (s *session) adopt(l target, call record, nested acquirer, id string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	call.Do, call.Root, call.Target, call.Owner, call.Bound = opAdopt, 0, id, "", s.deadline(ctx)
	if call.Limit > 0 {
		call.Permits = 1 + strings.Count(id, ",")
	}
	opts := s.terms(&call)
	call = s.call(call)
	call.Root = call.Op
	h, err := s.adoptID(ctx, l, id, opts)
	if err != nil {
		s.finish(call, err, record{})
		return
	}
	s.finish(call, nil, record{ID: h.ID(), Token: h.Token(), Until: s.clock.at(h.ValidUntil())})
	s.section(h, nested, call)
	s.letGo(h, l, nested, call)
}

// releaseID gives back one count of id.
func (s *session) releaseID(l target, call record, id string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	do := record{
		Do: opReleaseID, Session: s.n, Primitive: call.Primitive, Names: call.Names, Read: call.Read, TTL: call.TTL,
		Target: id, Limit: call.Limit, Bound: s.deadline(ctx),
	}
	if call.Limit > 0 {
		do.Permits = 1 + strings.Count(id, ",")
	}
	do = s.call(do)
	s.finish(do, s.freeID(ctx, l, id), record{})
}

func (s *session) forceRelease(l forcible, call record) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	do := s.call(record{
		Do: opForce, Session: s.n, Primitive: call.Primitive, Names: call.Names, Read: call.Read, Bound: s.deadline(ctx),
	})
	held, err := s.free(ctx, l)
	s.finish(do, err, record{Count: countOf(held)})
}

func countOf(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

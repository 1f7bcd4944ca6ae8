package primitives

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/scripts"
)

// Those of one client who wait for a lock may hand it on to each other, at one command each, while other clients wait: for so many hand-overs and for so
// long (lock cohorting: Dice, Marathe and Shavit, 2012).
const (
	maxHeirs = 16
	maxReign = 10 * time.Millisecond
)

// standBack is how long a client that has had its share leaves a free lock to others that were told of it.
const standBack = time.Millisecond

// reign is how long a client has had a lock without its being free in between.
type reign struct {
	since instant
	heirs int32 // how often it was handed on
}

func (r reign) over(now instant) bool { return r.heirs >= maxHeirs || now-r.since >= instant(maxReign) }

// passer is a protocol in which a hold can be handed on to who waits for it on the same client, without being free in between.
type passer interface {
	protocol
	// pass frees what t holds, or hands it on to heir if that is not nil. granted: the heir has it. heard is how many clients were told that it
	// is free.
	pass(ctx context.Context, t *tenure, heir *claim) (granted verdict, heard int, lost bool, err error)
	// rotates tells whether a release is for one that was told of it: then clients take turns.
	rotates() bool
}

// part frees what t holds, or hands it on to who waits for it here.
func (t *tenure) part(ctx context.Context) (lost bool, err error) {
	p, ok := t.h.proto.(passer)
	if !ok || t.shared {
		return t.h.proto.give(ctx, t, 0)
	}
	rooms := &t.h.c.rooms
	heir, room := rooms.offer(t, p.rotates())
	var next *claim
	if heir != nil {
		next = &heir.q.claim
	}
	v, heard, lost, err := p.pass(ctx, t, next)
	switch {
	case heir != nil:
		v.reign = reign{t.reign.since, t.reign.heirs + 1}
		rooms.bequeath(heir, v, err == nil)
	case room != nil:
		if err != nil {
			heard = 0
		}
		rooms.yield(room, heard-1)
	}
	return lost, err
}

// readPass reads what scripts answer that free something or hand it on: {token} of the heir, or 1 and how many heard that it is free, or 0.
func readPass(reply scripts.Reply, err error) (granted verdict, heard int, lost bool, _ error) {
	switch answer := reply.Value.(type) {
	case []any:
		token, _ := answer[0].(int64)
		return verdict{granted: true, sent: reply.Sent, token: token}, 0, false, err
	case int64:
		return verdict{}, int(answer) - 1, answer == 0, err
	}
	return verdict{}, 0, false, err
}

// offer picks who is to inherit what t holds: the first that waits here. If its client has had its share there is none, and the room
// makes way.
func (rs *rooms) offer(t *tenure, rotates bool) (heir *waiter, toYield *room) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.open[roomKey{t.h.kind, t.h.nests.name, false}]
	if r == nil {
		return nil, nil
	}
	if t.reign.over(t.h.c.instant(time.Now())) {
		if !rotates {
			return nil, nil
		}
		r.deaf++ // before the message can come
		return nil, r
	}
	w := r.head
	if w.q.shared || w.offered || w.q.permits > t.permits || t.h.c.replicas.n > 0 || t.h.c.isClosing() {
		return nil, nil
	}
	w.offered = true
	return w, nil
}

// bequeath tells w what came of its offer.
func (rs *rooms) bequeath(w *waiter, v verdict, known bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	w.inherit(v, known)
}

// inherit is what came of w's offer. If that is not known it has to ask: what it holds then is found by its id. rooms.mu is held.
func (w *waiter) inherit(v verdict, known bool) {
	if known && v.granted {
		w.gift = &v
		w.wake()
		return
	}
	w.offered = !known
	w.prod()
}

// yield leaves the free lock to the others that were told of it, each of them once; if there are none, the head may go at once.
func (rs *rooms) yield(r *room, others int) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	switch {
	case r.head == nil:
	case others > 0:
		r.deaf = min(r.deaf+others-1, others)
		r.lookIn(standBack)
	default:
		r.deaf = 0
		r.head.prod()
	}
}

// convoy is a protocol in which others that wait here may go where one may.
type convoy interface {
	protocol
	// takeWith is take for q, and, if that is granted, for others whose ids are their own. in tells which of them have it.
	takeWith(ctx context.Context, q *request, others []*waiter) (v verdict, in []bool, err error)
}

// maxConvoy bounds for how many one command acquires.
const maxConvoy = 64

// convoy is h's protocol, if it is one.
func (h *handle) convoy() (p convoy, ok bool) {
	p, ok = h.proto.(convoy)
	return p, ok && h.c.replicas.n == 0
}

// try has me try, and whoever may go where me may come along.
func (r *room) try(ctx context.Context, h *handle, me *waiter) (verdict, error) {
	p, ok := h.convoy()
	if !ok || me.q.shared {
		return h.try(ctx, me.q)
	}
	others := r.gather(me)
	v, in, err := p.takeWith(ctx, me.q, others)
	r.share(others, v, in, err)
	return h.tried(ctx, me.q, v, err)
}

// gather picks those who are to come along with me.
func (r *room) gather(me *waiter) (others []*waiter) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	for w := r.head; w != nil && len(others) < maxConvoy; w = w.next {
		if w != me && !w.q.shared && !w.offered {
			w.offered = true
			others = append(others, w)
		}
	}
	return others
}

// share tells those who came along what came of it, all before one of them goes on. If all were refused that is no reason to try: it was not
// theirs.
func (r *room) share(others []*waiter, v verdict, in []bool, err error) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	for i, w := range others {
		w.doubt = w.doubt || v.doubt
		switch {
		case standing(err):
			w.inherit(verdict{}, false)
		case in == nil:
			w.offered = false
		default:
			v.granted = in[i]
			w.inherit(v, true)
		}
	}
}

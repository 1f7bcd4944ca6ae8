package primitives

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// slowPoll covers for a message that was lost: one try a second for each client and name, whatever the number of waiters.
const slowPoll = time.Second

// rooms are where acquisitions wait: one room for each kind and name, while anybody is in it.
type rooms struct {
	mu   sync.Mutex
	open map[roomKey]*room
}

// roomKey: those that poll and those that subscribe do not wait for each other.
type roomKey struct {
	kind    string
	name    string
	polling bool
}

// room is the local queue in front of one name. Its waiters stand in order of arrival. The first, the head, looks for all: when a message comes,
// when what holds is known to end, and once a second in any case. Others try only when there is reason to think that they can go: the head
// went and there is room for more, or they fit where the head does not, or the holder is themselves.
type room struct {
	rooms *rooms
	key   roomKey
	h     *handle
	min   time.Duration // polling: the first delay, and the last
	max   time.Duration

	// guarded by rooms.mu
	head, tail *waiter
	look       time.Time // the head tries again then
	alarm      *time.Timer
	rings      time.Time // when the alarm is set for: no later than look; zero: it has rung, and the head is trying
	delay      time.Duration
	subs       []*pubsub.Subscription // none when polling
	unheard    []<-chan struct{}      // closed as subs are confirmed; those that are not yet
	deaf       int                    // so many messages are for others: the next is of a release of ours
}

// waiter is one acquisition that waits.
type waiter struct {
	q          *request
	nudge      bell // something below has changed
	prev, next *waiter

	// guarded by rooms.mu
	try     bool     // there is reason to try
	trying  bool     // a try is under way
	offered bool     // another is acquiring for q, or was and does not know what came of it
	doubt   bool     // another's attempt to acquire for q has an unknown outcome
	gift    *verdict // what q holds by that
}

// close has all that wait see that the client is closing.
func (rs *rooms) close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.open {
		for w := r.head; w != nil; w = w.next {
			w.wake()
		}
	}
}

// hopeless tells whether somebody waits already who could go wherever q could: trying could only fail, or overtake.
func (rs *rooms) hopeless(h *handle, q *request, s *settings) bool {
	if q.shared {
		return false
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if h.behind != "" && rs.open[roomKey{h.behind, h.nests.name, false}] != nil {
		return true
	}
	r := rs.open[roomKey{h.kind, h.nests.name, s.pollMin > 0}]
	if r == nil {
		return false
	}
	for w := r.head; w != nil; w = w.next {
		if !w.q.shared && w.q.permits <= q.permits {
			return true
		}
	}
	return false
}

// wait has q wait in its room until it is granted, w is over, ctx is done or the client closes. refused is what the first try came to.
func (rs *rooms) wait(ctx context.Context, h *handle, q *request, s *settings, limit *wait, refused verdict) (verdict, error) {
	me := &waiter{q: q, nudge: newBell()}
	r := rs.enter(h, me, s, refused)
	v, err := r.stay(ctx, h, me, limit, refused.met)
	r.leave(me, v)
	return v, err
}

func (rs *rooms) enter(h *handle, me *waiter, s *settings, refused verdict) *room {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	key := roomKey{h.kind, h.nests.name, s.pollMin > 0}
	r := rs.open[key]
	if r == nil {
		r = &room{rooms: rs, key: key, h: h, min: s.pollMin, max: s.pollMax}
		if rs.open == nil {
			rs.open = map[roomKey]*room{}
		}
		rs.open[key] = r
	}
	me.prev = r.tail
	if r.tail != nil {
		r.tail.next = me
	} else {
		r.head = me
	}
	r.tail = me
	if r.head == me {
		r.rest(refused)
		if !key.polling {
			// The second try waits for the confirmation: a release between a failed try and the subscription would never reach us.
			r.subs = h.listen(me.q, r.hear)
			for _, sub := range r.subs {
				r.unheard = append(r.unheard, sub.Confirmed())
			}
		}
	}
	return r
}

// hear takes in a message, or that messages may have been missed. It is called from the hub's goroutine.
func (r *room) hear(s pubsub.Signal) {
	if !s.Resubscribed && !r.h.proto.heeds(s.Payload) {
		return
	}
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	if r.deaf > 0 && !s.Resubscribed {
		r.deaf--
		r.lookIn(maxReign) // should nobody take it
		return
	}
	r.head.prod()
}

// stuckAfter is how long a try of the head may take before others stop waiting for it.
const stuckAfter = slowPoll / 4

// prodFree has the first waiter try that is not trying already: the head's connection may be stuck.
// rooms.mu is held.
func (r *room) prodFree() {
	for w := r.head; w != nil; w = w.next {
		if !w.trying {
			w.prod()
			return
		}
	}
}

// prod has w try. rooms.mu is held.
func (w *waiter) prod() {
	if w != nil {
		w.try = true
		w.wake()
	}
}

func (w *waiter) wake() {
	if w != nil {
		w.nudge.ring()
	}
}

// bell wakes one goroutine, once for all that rang meanwhile. Its capacity is 1.
type bell chan struct{}

func newBell() bell { return make(bell, 1) }

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// stay is the waiting itself: nothing but looking at what happens, until there is reason to try.
func (r *room) stay(ctx context.Context, h *handle, me *waiter, limit *wait, met error) (verdict, error) {
	// met is the last transport error.
	over, stop := limit.timer()
	defer stop()
	for {
		// Before turn: whoever leaves passes the reason to try on.
		switch {
		case ctx.Err() != nil, limit.over():
			return verdict{}, gaveUp(ctx, met)
		case h.c.isClosing():
			return verdict{}, ErrClosed
		}
		try, gift, confirmed := r.turn(me)
		switch {
		case gift != nil:
			return h.accept(ctx, me.q, *gift)
		case !try:
			select {
			case <-me.nudge:
			case <-over:
			case <-confirmed:
				r.confirmed(me)
			case <-ctx.Done():
			}
			continue
		}
		v, err := r.try(ctx, h, me)
		r.tried(me)
		switch {
		case err == nil && v.granted:
			return v, nil
		case err == nil:
			met = v.met
			r.refused(me, v)
		case notNow(err):
			met = err
			r.refused(me, verdict{wait: notNowPause})
		case unanswered(err):
			met = err
			r.refused(me, verdict{wait: -1})
			if ctx.Err() != nil {
				r.unspent(me) // the try may come to nothing: the next head has the same reason
			}
		default:
			r.unspent(me)
			return v, err
		}
	}
}

// unspent gives back a reason to try that me could make no use of.
func (r *room) unspent(me *waiter) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	me.try = true
}

// confirmed notes that one more subscription stands, or was refused. When all do, the head makes its second try: no release can go unheard any
// more. If the server will not let us listen, polling is what is left.
func (r *room) confirmed(me *waiter) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	if r.head != me {
		return // it is the next head's to note
	}
	if r.unheard = r.unheard[1:]; len(r.unheard) > 0 {
		return
	}
	me.try = true
	if err := r.deafness(); err != nil {
		r.h.c.logger.Warn("no notifications of releases, polling instead", slog.String("kind", r.h.kind), slog.String("name", r.h.name), slog.Any("error", err))
	}
}

// deafness is why the server will not let us listen, nil if it does.
func (r *room) deafness() error {
	var err error
	for _, sub := range r.subs {
		err = errors.Join(err, sub.Err())
	}
	return err
}

// turn tells me whether to try now, or that it need not, as it holds already. Until then it is nudged, or the room comes to hear of releases.
func (r *room) turn(me *waiter) (try bool, gift *verdict, confirmed <-chan struct{}) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	if r.head == me && len(r.unheard) > 0 {
		confirmed = r.unheard[0]
	}
	try, me.try = me.try, false
	if me.gift == nil && try {
		me.trying = true
		if r.head == me {
			r.lookIn(stuckAfter)
		}
	}
	return try, me.gift, confirmed
}

// tried notes that me's try has ended.
func (r *room) tried(me *waiter) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	me.trying = false
}

// refused notes what me was refused for, and passes the reason to try on to those behind who may be able to use it.
func (r *room) refused(me *waiter, v verdict) {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	if r.head == me {
		r.rest(v)
	}
	for w := me.next; w != nil; w = w.next {
		if w.q.fits(v.more) || (w.q.shared && w.q.id == v.holder) {
			w.prod()
			return
		}
	}
}

// rest sets when the head looks next: when what holds is known to end, and soon in any case.
func (r *room) rest(v verdict) {
	pause := slowPoll
	if r.key.polling {
		r.delay = min(max(2*r.delay, r.min), r.max)
		pause = r.delay + rand.N(r.delay/4+1) //nolint:gosec // jitter
	}
	if v.wait >= 0 {
		pause = min(pause, max(v.wait, 0)+time.Millisecond) // Redis rounds down
	}
	r.lookIn(pause)
}

// lookIn sets when the head looks next. The alarm is moved only to ring earlier: one that rings too early is set again.
func (r *room) lookIn(pause time.Duration) {
	r.look = time.Now().Add(pause)
	switch {
	case r.alarm == nil:
		r.alarm = time.AfterFunc(pause, r.ring)
	case r.rings.IsZero() || r.look.Before(r.rings):
		r.alarm.Reset(pause)
	default:
		return
	}
	r.rings = r.look
}

// ring has the head look.
func (r *room) ring() {
	r.rooms.mu.Lock()
	defer r.rooms.mu.Unlock()
	if r.head == nil {
		return
	}
	if left := time.Until(r.look); left > 0 {
		r.alarm.Reset(left)
		r.rings = r.look
		return
	}
	r.rings = time.Time{}
	if r.head.trying {
		r.lookIn(slowPoll)
		r.prodFree()
		return
	}
	r.head.prod()
}

// leave takes me out. The next head takes over the watch, and the reason to try if me has not followed it; if me was granted, those for
// whom there is room too are told. The last one closes the room.
func (r *room) leave(me *waiter, v verdict) {
	r.rooms.mu.Lock()
	wasHead, pending := r.head == me, me.try
	if me.offered || me.doubt {
		me.q.open, me.q.doubt = true, true
	}
	r.unlink(me)
	switch {
	case r.head == nil:
		delete(r.rooms.open, r.key)
		r.alarm.Stop()
	case v.granted:
		if wasHead {
			r.delay = 0
			r.rest(verdict{wait: me.q.ttl})
		}
		r.admit(me, v.more)
		if pending && r.h.many {
			r.head.prod() // the message may have come after the try was decided
		}
	case pending:
		r.head.prod()
	}
	if wasHead && len(r.unheard) > 0 {
		r.head.wake() // it has confirmations to note now
	}
	empty := r.head == nil
	r.rooms.mu.Unlock()
	if empty {
		for _, sub := range r.subs {
			sub.Close() // not under the mutex: it waits for hear
		}
	}
}

// admit has those try for whom there is room beside me, and those whom me's id is. Of those who can go along with one of them, one.
func (r *room) admit(me *waiter, room int) {
	_, along := r.h.convoy()
	led := false
	for w := r.head; w != nil; w = w.next {
		switch {
		case w.q.shared && me.q.shared && w.q.id == me.q.id:
			w.prod()
		case !w.q.fits(room), along && led && !w.q.shared:
		default:
			room -= w.q.permits
			led = led || !w.q.shared
			w.prod()
		}
	}
}

func (r *room) unlink(me *waiter) {
	if me.prev != nil {
		me.prev.next = me.next
	} else {
		r.head = me.next
	}
	if me.next != nil {
		me.next.prev = me.prev
	} else {
		r.tail = me.prev
	}
	me.prev, me.next = nil, nil
}

// unanswered tells a failure of the way to Redis, which waiting rides out, from Redis's own refusal, which it does not.
func unanswered(err error) bool {
	failure, ok := errors.AsType[*scripts.Error](err)
	return ok && (failure.Outcome != scripts.Executed || failure.NotNow) && !errors.Is(err, scripts.ErrClosed)
}

// listen subscribes to what q waits for.
func (h *handle) listen(q *request, hear func(pubsub.Signal)) []*pubsub.Subscription {
	if p, ok := h.proto.(listener); ok {
		return p.listen(hear)
	}
	return []*pubsub.Subscription{h.c.hub.Subscribe(h.proto.channel(q), hear)}
}

// listener is a protocol that hears of releases from several places.
type listener interface {
	listen(hear func(pubsub.Signal)) []*pubsub.Subscription
}

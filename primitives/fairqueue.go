package primitives

import (
	"context"
	"sync"
	"time"

	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// fairQueues are the client's shares in the queues of fair locks: by name, while anybody waits.
type fairQueues struct {
	mu   sync.Mutex
	open map[string]*fairShare
	// early is what was given to those of whom it is not known here yet that they wait: the answer that they do is still on its way.
	early map[string]gift
}

// maxEarly bounds what is given to nobody who comes for it. What is forgotten is found by the next look.
const maxEarly = 1000

// fairShare is those who wait for one fair lock through this client. Each stands in Redis's queue by itself. Whoever of them is given the lock is told
// on a channel that is the client's; one script, once a second and when the holder's lease ends, tells Redis that all of them are there, and looks
// for all of them.
type fairShare struct {
	queues *fairQueues
	f      *fair
	gifts  *pubsub.Subscription
	poke   bell          // look soon
	sooner bell          // the next look is due earlier than it was
	stop   chan struct{} // closed when the last has left

	// guarded by queues.mu
	first, last *fairWaiter            // in order of arrival
	known       map[string]*fairWaiter // by id; those who share one are linked by twin
	count, own  int                    // how many there are, and how many with an id of their own
	turn        *fairWaiter            // whose presence is verified next; nil: the first's
	round       int                    // counts looks
	constant    int                    // how many of those with an id of their own have been there since the last look began
	rings       time.Time              // when the next look is due
	lease       time.Time              // the holder's, or what the next owner of a free lock is given, ends then; zero: unknown
	stray       stray
}

// stray is a queue head of this client without a local waiter, and the time since which it has been the head of a free
// lock. Its request to leave never reached Redis. The client's heartbeats would keep it in the queue forever.
type stray struct {
	id    string
	since time.Time
}

type fairWaiter struct {
	q          *request
	nudge      bell // there is a gift, or reason to try
	prev, next *fairWaiter
	twin       *fairWaiter

	// guarded by queues.mu
	round int // of the look before which it came
	place place
	gift  gift
}

// verified is how many waiters one look asks after by id: a queue that was lost shows in their number at once, one that
// lost some of them when it is their turn.
const verified = 100

func (qs *fairQueues) wait(ctx context.Context, f *fair, q *request, limit *wait, refused verdict) (verdict, error) {
	me := &fairWaiter{q: q, nudge: newBell(), place: refused.place}
	share := qs.enter(f, me, refused)
	defer share.leave(me)
	return share.stay(ctx, me, limit)
}

// given hands a gift to the waiter that it is for. Waiters that share its id hold the lock too, each by a try of its
// own. A gift for an unknown waiter is kept: the answer that it joined the queue may be on its way.
func (qs *fairQueues) given(f *fair, g gift) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if share := qs.open[f.h.name]; share != nil {
		if w := share.known[g.id]; w != nil {
			for ; w != nil; w = w.twin {
				if !w.q.shared {
					w.gift = g
				}
				w.wake()
			}
			return
		}
	}
	if qs.early == nil || len(qs.early) >= maxEarly {
		qs.early = map[string]gift{}
	}
	qs.early[g.id] = g
}

func (qs *fairQueues) enter(f *fair, me *fairWaiter, refused verdict) *fairShare {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	share := qs.open[f.h.name]
	if share == nil {
		share = qs.begin(f)
	}
	share.add(me)
	share.expect(refused.wait)
	if g, ok := qs.early[me.q.id]; ok {
		delete(qs.early, me.q.id)
		me.gift = g
		me.wake()
	}
	return share
}

func (qs *fairQueues) begin(f *fair) *fairShare {
	s := &fairShare{
		queues: qs, f: f, known: map[string]*fairWaiter{},
		poke: newBell(), sooner: newBell(), stop: make(chan struct{}),
	}
	if qs.open == nil {
		qs.open = map[string]*fairShare{}
	}
	qs.open[f.h.name] = s
	s.gifts = f.h.c.hub.Subscribe(f.gifts(), func(sig pubsub.Signal) {
		if g, ok := readGift(sig.Payload); ok {
			qs.given(f, g)
		} else if sig.Resubscribed {
			s.look()
		}
	})
	f.h.c.spawn(s.watch)
	return s
}

func (s *fairShare) leave(me *fairWaiter) {
	s.queues.mu.Lock()
	s.remove(me)
	empty := s.first == nil
	if empty {
		delete(s.queues.open, s.f.h.name)
		close(s.stop)
	}
	s.queues.mu.Unlock()
	if empty {
		s.gifts.Close() // not under the mutex: it waits for the listener
	}
}

// add has me wait last. queues.mu is held.
func (s *fairShare) add(me *fairWaiter) {
	me.round, me.prev = s.round, s.last
	if s.last != nil {
		s.last.next = me
	} else {
		s.first = me
	}
	s.last = me
	me.twin = s.known[me.q.id]
	s.known[me.q.id] = me
	s.count++
	if !me.q.shared {
		s.own++
	}
}

// remove takes me out. queues.mu is held.
func (s *fairShare) remove(me *fairWaiter) {
	if me.prev != nil {
		me.prev.next = me.next
	} else {
		s.first = me.next
	}
	if me.next != nil {
		me.next.prev = me.prev
	} else {
		s.last = me.prev
	}
	if s.turn == me {
		s.turn = me.next
	}
	if w := s.known[me.q.id]; w != me {
		for ; w.twin != me; w = w.twin {
		}
		w.twin = me.twin
	} else if me.twin != nil {
		s.known[me.q.id] = me.twin
	} else {
		delete(s.known, me.q.id)
	}
	s.count--
	if !me.q.shared {
		s.own--
		if me.round < s.round {
			s.constant--
		}
	}
}

func (s *fairShare) stay(ctx context.Context, me *fairWaiter, limit *wait) (verdict, error) {
	timer, stop := limit.timer()
	defer stop()
	ear := s.listen(me)
	defer ear.close()
	var met error
	for {
		select {
		case <-me.nudge:
		case <-ear.confirmed: // a message before this was not heard
			ear.confirmed = nil
			s.look()
			continue
		case <-timer:
			return verdict{}, gaveUp(ctx, met)
		case <-ctx.Done():
			return verdict{}, gaveUp(ctx, met)
		case <-s.f.h.c.closing:
			return verdict{}, ErrClosed
		}
		if v := s.unwrap(me); v.granted {
			return s.f.h.accept(ctx, me.q, v)
		}
		v, err := s.f.h.try(ctx, me.q)
		switch {
		case err == nil && v.granted:
			s.granted(me)
			return v, nil
		case err == nil:
			s.refused(me, v)
			if ear.sub == nil {
				ear = s.listen(me)
			}
		case unanswered(err):
			met = err
		default:
			return v, err
		}
	}
}

// ear is a waiter's own channel, where those are heard that do not give the lock.
type ear struct {
	sub       *pubsub.Subscription // nil: there is no need
	confirmed <-chan struct{}
}

func (e *ear) close() {
	if e.sub != nil {
		e.sub.Close()
	}
}

// listen opens me's ear if who releases before me may be one of Redisson's, or if me is not given the lock. First come, first served: whoever releases
// before me stood before me, so what was seen when me came stays true, but for a release by force.
func (s *fairShare) listen(me *fairWaiter) ear {
	s.queues.mu.Lock()
	needed := me.place.foreign || me.place.since == ""
	s.queues.mu.Unlock()
	if !needed {
		return ear{}
	}
	sub := s.f.h.c.hub.Subscribe(s.f.channel(me.q), func(sig pubsub.Signal) {
		switch {
		case sig.Resubscribed:
			s.look()
		case s.f.heeds(sig.Payload):
			me.wake()
		}
	})
	return ear{sub, sub.Confirmed()}
}

// unwrap takes what me was given. It is granted if it is for the place that me has, and if enough is left of it, counted from when it was last known not
// to have been given yet; else me must ask.
func (s *fairShare) unwrap(me *fairWaiter) verdict {
	s.queues.mu.Lock()
	g, at := me.gift, me.place
	me.gift = gift{}
	s.queues.mu.Unlock()
	if g.since == "" || g.since != at.since {
		return verdict{}
	}
	v := verdict{granted: true, sent: at.seen}
	if g.sent.After(v.sent) {
		v.sent = g.sent
	}
	spare := g.ttl / 4
	if limit := me.q.settings.limit(); limit > 0 {
		spare = min(spare, limit/10)
	}
	if g.ttl < me.q.ttl {
		v.brief = g.ttl
	}
	v.granted = time.Since(v.sent) <= spare && (v.brief == 0 || me.q.settings.renew)
	return v
}

// look has the watch look soon.
func (s *fairShare) look() {
	s.poke.ring()
}

func (w *fairWaiter) wake() {
	w.nudge.ring()
}

func (s *fairShare) refused(me *fairWaiter, v verdict) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	me.place = v.place
	s.expect(v.wait)
}

// granted has those try who share me's id: they hold the lock too.
func (s *fairShare) granted(me *fairWaiter) {
	if !me.q.shared {
		return
	}
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	for w := s.known[me.q.id]; w != nil; w = w.twin {
		if w != me {
			w.wake()
		}
	}
}

// awaits tells whether anybody waits here under that id.
func (qs *fairQueues) awaits(f *fair, id string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	share := qs.open[f.h.name]
	return share != nil && share.known[id] != nil
}

// expect notes when there may be reason to look. queues.mu is held.
func (s *fairShare) expect(wait time.Duration) {
	s.lease = time.Time{}
	if wait < 0 {
		return
	}
	s.lease = time.Now().Add(wait + time.Millisecond) // Redis rounds down
	if s.lease.Before(s.rings) {
		s.sooner.ring()
	}
}

// watch is the share's one goroutine.
func (s *fairShare) watch() {
	timer := time.NewTimer(s.pause())
	defer timer.Stop()
	confirmed := s.gifts.Confirmed()
	for {
		select {
		case <-timer.C:
			s.refresh()
		case <-s.poke:
			s.refresh()
		case <-confirmed: // what was given before was not heard
			confirmed = nil
			s.refresh()
		case <-s.sooner:
		case <-s.stop:
			return
		case <-s.f.h.c.closing:
			return
		}
		timer.Reset(s.pause())
	}
}

// pause is until the next look: a second, less if there will be news before, or if a waiter must not be silent for that long.
func (s *fairShare) pause() time.Duration {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	pause := slowPoll
	for w := s.first; w != nil; w = w.next {
		pause = min(pause, w.q.patience/3)
	}
	if !s.lease.IsZero() {
		pause = min(pause, time.Until(s.lease))
	}
	pause = max(pause, time.Millisecond)
	s.rings = time.Now().Add(pause)
	return pause
}

// refresh looks once for all, and wakes those for whom there is news: who holds the lock and was not told, the next owner of a free one, and those who
// stand nowhere.
func (s *fairShare) refresh() {
	ids, longest := s.sample()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	news, err := s.f.refresh(ctx, longest, ids)
	if s.take(news, err, longest) {
		_ = s.f.leaves(ctx, news.next) // or at the next look
	}
}

// take takes in what a look came to. It tells whether the next owner is to leave the queue.
func (s *fairShare) take(news fairNews, err error, longest time.Duration) (strays bool) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	s.expect(news.wait)
	if err != nil {
		if scripts.OutcomeOf(err) == scripts.Executed {
			// Redis itself refused, as for a key of another type. Each waiter's own try returns that error.
			s.wakeAll()
		}
		return false
	}
	present := news.waiting
	if w := s.known[news.holder]; w != nil {
		present++
		w.wake()
	}
	switch {
	case present < s.constant:
		s.wakeAll()
	case news.free:
		s.wake(news.next)
		fallthrough
	default:
		for _, id := range news.missing {
			s.wake(id)
		}
	}
	return s.strays(news, longest)
}

// wakeAll wakes all waiters. queues.mu is held.
func (s *fairShare) wakeAll() {
	for w := s.first; w != nil; w = w.next {
		w.wake()
	}
}

// wake wakes those of that id. queues.mu is held.
func (s *fairShare) wake(id string) {
	for w := s.known[id]; w != nil; w = w.twin {
		w.wake()
	}
}

// strays tells whether the next owner is one of this client's whom nobody here has known for as long as it may be silent. A waiter's first
// try comes before it is known here. queues.mu is held.
func (s *fairShare) strays(news fairNews, longest time.Duration) bool {
	if !news.free || !news.own || s.known[news.next] != nil {
		s.stray = stray{}
		return false
	}
	if s.stray.id != news.next {
		s.stray = stray{news.next, time.Now()}
	}
	return time.Since(s.stray.since) >= longest
}

// sample picks those whose presence is verified this time, the first and the others in turn, and the longest that one of them may be silent.
func (s *fairShare) sample() (ids []string, longest time.Duration) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	s.round++
	s.constant = s.own
	if s.first == nil {
		return nil, 0
	}
	pick := func(w *fairWaiter) {
		ids = append(ids, w.q.id)
		longest = max(longest, w.q.patience)
	}
	pick(s.first)
	for range min(s.count, verified) - 1 {
		if s.turn == nil || s.turn == s.first {
			s.turn = s.first.next
		}
		pick(s.turn)
		s.turn = s.turn.next
	}
	return ids, longest
}

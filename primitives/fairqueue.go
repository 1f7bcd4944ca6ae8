package primitives

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redlatch/redlatch/pubsub"
)

// fairQueues are the client's shares in the queues of fair locks: by name, while anybody waits.
type fairQueues struct {
	mu   sync.Mutex
	open map[string]*fairShare
}

// fairShare is those who wait for one fair lock through this client. Each stands in Redis's queue by itself and is told by a channel of its own;
// one script, once a second and when the holder's lease ends, tells Redis that all of them are there, and looks for all of them.
type fairShare struct {
	queues *fairQueues
	f      *fair
	poke   chan struct{} // capacity 1: look soon
	stop   chan struct{} // closed when the last has left

	// guarded by queues.mu
	waiters []*fairWaiter // in order of arrival
	next    int           // whose presence is verified next
	lease   time.Time     // the holder's, or what the next owner of a free lock is given, ends then; zero: unknown
	stray   stray
}

// stray is a next owner of this client's of whom nobody here knows, and since when it has been next of a free lock: one whose leaving never reached
// Redis, or of an earlier life of a client that was given an id. The client's signs of life would keep it there for ever.
type stray struct {
	id    string
	since time.Time
}

type fairWaiter struct {
	q     *request
	nudge chan struct{} // capacity 1: try
}

// verified is how many waiters one look asks after by id: a queue that was lost shows in their number at once, one that
// lost some of them when it is their turn.
const verified = 100

func (qs *fairQueues) wait(ctx context.Context, f *fair, q *request, limit *wait, refused verdict) (verdict, error) {
	me := &fairWaiter{q: q, nudge: make(chan struct{}, 1)}
	share := qs.enter(f, me, refused)
	defer share.leave(me)
	sub := f.h.c.hub.Subscribe(f.channel(q), func(s pubsub.Signal) {
		switch {
		case s.Resubscribed:
			share.look()
		case f.heeds(s.Payload):
			me.wake()
		}
	})
	defer sub.Close()
	return share.stay(ctx, me, sub, limit)
}

func (qs *fairQueues) enter(f *fair, me *fairWaiter, refused verdict) *fairShare {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	share := qs.open[f.h.name]
	if share == nil {
		share = &fairShare{queues: qs, f: f, poke: make(chan struct{}, 1), stop: make(chan struct{})}
		if qs.open == nil {
			qs.open = map[string]*fairShare{}
		}
		qs.open[f.h.name] = share
		f.h.c.spawn(share.watch)
	}
	share.waiters = append(share.waiters, me)
	share.expect(refused.wait)
	return share
}

func (s *fairShare) leave(me *fairWaiter) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	if i := slices.Index(s.waiters, me); i >= 0 {
		s.waiters = slices.Delete(s.waiters, i, i+1)
	}
	if len(s.waiters) == 0 {
		delete(s.queues.open, s.f.h.name)
		close(s.stop)
	}
}

func (s *fairShare) stay(ctx context.Context, me *fairWaiter, sub *pubsub.Subscription, limit *wait) (verdict, error) {
	timer, stop := limit.timer()
	defer stop()
	confirmed := sub.Confirmed()
	var met error
	for {
		select {
		case <-me.nudge:
		case <-confirmed: // a message before this was not heard
			confirmed = nil
			s.look()
			continue
		case <-timer:
			return verdict{}, gaveUp(ctx, met)
		case <-ctx.Done():
			return verdict{}, gaveUp(ctx, met)
		case <-s.f.h.c.closing:
			return verdict{}, ErrClosed
		}
		v, err := s.f.h.try(ctx, me.q)
		switch {
		case err == nil && v.granted:
			s.granted(me)
			return v, nil
		case err == nil:
			s.refused(v)
		case unanswered(err):
			met = err
		default:
			return v, err
		}
	}
}

// look has the watch look soon.
func (s *fairShare) look() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (w *fairWaiter) wake() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

func (s *fairShare) refused(v verdict) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	s.expect(v.wait)
}

// granted has those try who share me's id: they hold the lock too.
func (s *fairShare) granted(me *fairWaiter) {
	if !me.q.shared {
		return
	}
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	for _, w := range s.waiters {
		if w != me && w.q.id == me.q.id {
			w.wake()
		}
	}
}

// awaits tells whether anybody waits here under that id.
func (qs *fairQueues) awaits(f *fair, id string) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	share := qs.open[f.h.name]
	return share != nil && share.knows(id)
}

// knows tells whether anybody waits here under that id. queues.mu is held.
func (s *fairShare) knows(id string) bool {
	return slices.ContainsFunc(s.waiters, func(w *fairWaiter) bool { return w.q.id == id })
}

// expect notes when there may be reason to look. queues.mu is held.
func (s *fairShare) expect(wait time.Duration) {
	s.lease = time.Time{}
	if wait >= 0 {
		s.lease = time.Now().Add(wait + time.Millisecond) // Redis rounds down
	}
}

// watch is the share's one goroutine.
func (s *fairShare) watch() {
	timer := time.NewTimer(s.pause())
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.poke:
		case <-s.stop:
			return
		case <-s.f.h.c.closing:
			return
		}
		s.refresh()
		timer.Reset(s.pause())
	}
}

// pause is until the next look: a second, less if there will be news before, or if a waiter must not be silent for that long.
func (s *fairShare) pause() time.Duration {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	pause := slowPoll
	for _, w := range s.waiters {
		pause = min(pause, w.q.patience/3)
	}
	if !s.lease.IsZero() {
		pause = min(pause, time.Until(s.lease))
	}
	return max(pause, time.Millisecond)
}

// refresh looks once for all, and wakes those for whom there is news: the next owner of a free lock, and those who stand nowhere.
func (s *fairShare) refresh() {
	ids, longest := s.sample()
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	news, err := s.f.refresh(ctx, longest, ids)
	if s.take(news, err, longest) {
		_ = s.f.leaves(ctx, news.next) // or at the next look
	}
}

// take takes in what a look came to. It tells whether the next owner is to leave the queue.
func (s *fairShare) take(news fairNews, err error, patience time.Duration) (strays bool) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	s.expect(news.wait)
	if err != nil {
		return false
	}
	lost := news.waiting < s.distinct()
	for _, w := range s.waiters {
		if lost || (news.free && w.q.id == news.next) || slices.Contains(news.missing, w.q.id) {
			w.wake()
		}
	}
	return s.strays(news, patience)
}

// strays tells whether the next owner is one of this client's whom nobody here has known for as long as it may be silent. A waiter's first
// try comes before it is known here. queues.mu is held.
func (s *fairShare) strays(news fairNews, patience time.Duration) bool {
	if !news.free || !news.own || s.knows(news.next) {
		s.stray = stray{}
		return false
	}
	if s.stray.id != news.next {
		s.stray = stray{news.next, time.Now()}
	}
	return time.Since(s.stray.since) >= patience
}

// distinct counts those that stand in the queue by an id of their own. queues.mu is held.
func (s *fairShare) distinct() int {
	n := 0
	for _, w := range s.waiters {
		if !w.q.shared {
			n++
		}
	}
	return n
}

// sample picks those whose presence is verified this time, the first and the others in turn, and the longest that one of them may be silent.
func (s *fairShare) sample() (ids []string, longest time.Duration) {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	pick := func(w *fairWaiter) {
		ids = append(ids, w.q.id)
		longest = max(longest, w.q.patience)
	}
	if len(s.waiters) > 0 {
		pick(s.waiters[0])
	}
	for range min(len(s.waiters), verified) - 1 {
		s.next = s.next%(len(s.waiters)-1) + 1
		pick(s.waiters[s.next])
	}
	return ids, longest
}

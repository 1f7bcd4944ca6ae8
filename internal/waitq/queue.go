package waitq

import (
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/list"
)

// How requests wait for a lock that has no queue on the server.
//
// All requests of one client for one name are in one queue, in order of arrival. The server does
// not know them. Only the head watches the lock, so a thousand waiters cost one subscription and
// one attempt a second. The head has a reason to try when
//
//   - its subscription is confirmed: it did not hear an earlier release,
//   - a message announces a release, or messages may have been missed,
//   - the holder's lease ends, according to the last refusal,
//   - a second has passed: a message may have been lost.
//
// The confirmation matters because of this order of events:
//
//	waiter                          holder
//	tries: refused
//	                                releases, publishes a message
//	subscribes                      (the message was not for the waiter)
//	confirmed: tries, is granted
//
// A reason to try is used once. A waiter that leaves without using it passes it on. So does a
// waiter that gives up after an attempt that failed and said nothing about the lock. Otherwise the
// lock could stay free until the next slow poll while requests wait for it.
//
// Another waiter tries only if it may succeed where the head does not:
//
//   - the head was granted, and there is room for more,
//   - it asks for less than the head,
//   - it has the shared id that holds the lock,
//   - the head's attempt is stuck, for example on a dead connection,
//   - an attempt of its own has an unknown outcome: its id may hold the lock, and the head may be
//     refused because of it.
//
// Most grants come without an attempt: the client that releases offers the lock to the head of its
// own queue.

const (
	// SlowPoll is the pause after which the head of a queue tries in case a message was lost. That
	// is one attempt a second for each client and name, however many requests wait.
	SlowPoll = time.Second
	// StuckAfter is how long the head's attempt may take before another waiter tries. It is also
	// how long the head waits for the reply to a release that leaves the lock to other clients.
	StuckAfter = SlowPoll / 4
	// MaxBatch is the largest number of waiters for which one command acquires.
	MaxBatch = 64
)

// Queue is the requests of one client that wait for one name. It is not safe for concurrent use,
// and must not be copied after its first event. Fields above TryAt do not change after that either.
type Queue struct {
	ManyHolders bool // a message that comes during a successful attempt may announce room for another
	Batches     bool // one command acquires for several waiters
	TakeTurns   bool // only one of the clients that hear a release can acquire

	TryAt time.Time // when the head tries again by itself, and Alarm is due; zero if it is about to try, or nobody waits

	waiters   list.List[Waiter, *Waiter]
	unused    bool // a reason to try came when all waiters were granted: the next waiter uses it
	unsettled int  // subscriptions that are neither confirmed nor refused
	listens   bool // the client subscribes to the common messages
	turn      Turn // of other clients
	place     Place
	inLine    bool // an attempt has taken the place, or may have

	actions []Action
}

// NeedsTime reports whether the actions for an event depend on the time.
func (q *Queue) NeedsTime(e *Event) bool {
	isQuietJoin := e.Kind == Joined && q.Head() != nil
	return e.Kind != Answered && !isQuietJoin
}

// On handles an event, and returns the actions to carry out. The slice is valid until the next
// event.
func (q *Queue) On(e *Event) []Action {
	q.actions = q.actions[:0]
	w := e.Who
	switch e.Kind {
	case Joined:
		q.join(e)
	case Confirmed:
		q.confirmed(e)
	case Begins:
		w.State = Trying
		q.do(Action{Kind: Try, Who: w, Place: q.placeFor(w, e.InLine)})
		if w == q.Head() {
			q.turn.due = time.Time{}
			q.TryAt = e.Now.Add(StuckAfter)
		}
	case Batching:
		q.batch(w)
	case Tried:
		q.tried(e)
	case Answered:
		q.answered(e)
	case Left:
		q.left(e)
	case Alarm:
		q.alarm(e.Now)
	case Releasing:
		q.release(e)
	case Listen:
		if q.waiters.First != nil && !q.listens {
			q.listenToo()
		}
	default: // a turn of other clients begins, goes on or ends
		q.othersTurn(e)
	}
	return q.actions
}

// confirmed handles one more confirmation. After the last one, the head makes its second attempt,
// because it did not hear an earlier release. If a message began a turn of others, that turn ends,
// because the message that ends it may have been missed too. If this client's own release began the
// turn, it goes on: the others must be able to try first. That release's message may or may not
// come, so the first message is taken for it. If the first message announces another client's
// release, the head waits until the turn's time is over.
func (q *Queue) confirmed(e *Event) {
	q.unsettled--
	switch {
	case q.unsettled > 0: // other subscriptions are not confirmed yet
	case q.turn.isOwn(e.Now): // it goes on
	default:
		q.turn = Turn{}
		q.wake(e.Who)
	}
}

// batch makes w's attempt acquire for other waiters, too.
func (q *Queue) batch(w *Waiter) {
	left := MaxBatch
	for o := q.waiters.First; o != nil && left > 0; o = o.Next {
		isAnother := o != w && !o.Shared
		if !isAnother || !o.MayOffer() {
			continue
		}
		o.Offered = true
		q.do(Action{Kind: Offer, Who: o})
		left--
	}
}

// answered handles the end of another request's command that may have acquired for a waiter.
func (q *Queue) answered(e *Event) {
	w := e.Who
	unused := w.Answered(e.Granted, e.Doubt)
	switch {
	case e.Granted:
		q.do(Action{Kind: Wake, Who: w})
		if unused && q.ManyHolders {
			q.wakeHead()
		}
	case !e.Untried:
		q.wake(w)
	}
}

// othersTurn handles a message about the turns of other clients. It wakes the head, or makes it try
// when the others' turn ends.
func (q *Queue) othersTurn(e *Event) {
	isHeard := e.Kind != OthersTurn || q.listens // only listeners leave a lock alone that is not offered to them
	if q.IsIdle() || !isHeard {
		return
	}
	if q.turn.On(e, q.listens, q.TakeTurns && !q.inLine) {
		q.wakeHead()
		return
	}
	due := q.turn.due
	if !due.IsZero() && q.TryAt.After(due) {
		q.TryAt = due
	}
}

func (q *Queue) do(a Action) { q.actions = append(q.actions, a) }

// Head returns the waiter that watches the lock: the first that was not granted. It is nil if there
// is none.
func (q *Queue) Head() *Waiter {
	w := q.waiters.First
	for w != nil && w.State == Granted {
		w = w.Next
	}
	return w
}

// First returns the waiter that has waited longest, granted or not. It is nil if nobody waits.
func (q *Queue) First() *Waiter { return q.waiters.First }

// IsIdle reports whether no request waits.
func (q *Queue) IsIdle() bool { return q.waiters.First == nil }

// MustWait reports whether a request for that many permits must not try before it has joined,
// because a waiter needs no more than that. An attempt would be refused, or overtake the waiter.
func (q *Queue) MustWait(permits int) bool {
	for w := q.waiters.First; w != nil; w = w.Next {
		if w.isWilling() && w.Permits <= permits {
			return true
		}
	}
	return false
}

// AnyStays reports whether there is a waiter, other than except, that is not about to leave.
func (q *Queue) AnyStays(except ...*Waiter) bool {
	for w := q.waiters.First; w != nil; w = w.Next {
		if !w.Leaves && !slices.Contains(except, w) {
			return true
		}
	}
	return false
}

// Subscribed tells the queue how many subscriptions the last action has made. The head waits for
// their confirmations. place is the number of the client's place if they are for the place's
// messages, and 0 if they are for the common ones.
func (q *Queue) Subscribed(subscriptions int, place uint64) {
	q.unsettled += subscriptions
	if place != 0 {
		q.place = Place{Number: place}
	} else {
		q.listens = subscriptions > 0
	}
}

// wake gives a waiter a reason to try.
func (q *Queue) wake(w *Waiter) {
	if w.Wake() {
		q.do(Action{Kind: Wake, Who: w})
	}
}

// wakeHead gives the head a reason to try, or keeps it for the next one.
func (q *Queue) wakeHead() {
	if w := q.Head(); w != nil {
		q.wake(w)
	} else {
		q.unused = true
	}
}

// join adds a waiter. The first one subscribes for the whole queue. If all earlier waiters are
// granted, the new one is the head, because they may still give up without telling anybody.
func (q *Queue) join(e *Event) {
	q.waiters.Append(e.Who)
	if !e.OthersTurnEnds.IsZero() && q.waiters.First == e.Who {
		q.turn.beginOwn(e.Now, e.OthersTurnEnds.Sub(e.Now), false)
	}
	if q.Head() == e.Who {
		q.schedule(e)
	}
	switch {
	case q.waiters.First == e.Who:
		q.do(Action{Kind: Subscribe})
		q.do(Action{Kind: JoinLine, Who: e.Who})
	case q.unused:
		q.unused = false
		q.wake(e.Who)
	}
}

// tried handles an attempt that has not acquired. A waiter behind it that may succeed despite the
// refusal tries now.
func (q *Queue) tried(e *Event) {
	w := e.Who
	w.Tried(e.Doubt, e.GivesUp)
	if w == q.Head() {
		q.schedule(e)
	}
	for o := w.Next; o != nil; o = o.Next {
		isHolder := o.Shared && o.ID == e.Holder
		if isHolder || o.Permits <= e.Free {
			q.wake(o)
			break
		}
	}
	if q.place.Number == 0 || !e.InLine {
		return
	}
	w.last = false
	if e.Since != 0 {
		q.place.Since = e.Since
	}
	switch {
	case q.unsettled > 0: // it has not begun to listen
	case e.NeedNotListen:
		q.listens = false
		q.turn = Turn{}
		q.do(Action{Kind: Unsubscribe})
	case !q.listens:
		q.listenToo()
	}
}

// left removes a waiter, and passes on what it no longer needs:
//
//   - It was the first: the next waiter watches the lock from now on, and waits for the
//     confirmations.
//   - It has an unused reason to try, and gives up: the head tries. A message is not lost with it.
//   - It was granted: waiters that also fit try now.
//   - It has given up the place, and others joined meanwhile: the head must take the place again.
//   - It was the last: the client unsubscribes.
func (q *Queue) left(e *Event) {
	w := e.Who
	wasFirst := q.waiters.First == w
	q.waiters.Remove(w)
	if e.Granted {
		q.turn.acquired()
		q.place.Since = 0 // the server has moved the place to the end of the line
		q.inLine = q.inLine && !w.last
	}
	if q.waiters.First == nil {
		q.do(Action{Kind: Unsubscribe})
		if q.place.Number != 0 {
			if !q.inLine {
				q.place = Place{}
			}
			q.do(Action{Kind: LeaveLine, Place: q.place})
		}
		q.TryAt = time.Time{}
		q.unused = false
		q.unsettled = 0
		q.listens = false
		q.turn = Turn{}
		q.place = Place{}
		q.inLine = false
		return
	}
	if e.Granted {
		if wasFirst {
			q.schedule(e)
		}
		q.admit(w, e.Free)
	}
	mayStillSucceed := !e.Granted || q.ManyHolders
	leavesReason := w.isDue() && mayStillSucceed
	if w.last || leavesReason {
		q.wakeHead()
	}
	if wasFirst && q.unsettled > 0 {
		q.do(Action{Kind: Wake, Who: q.waiters.First}) // so that its next step includes the confirmations
	}
}

// admit makes waiters try after w was granted: as many as fit into the free permits, and all with
// w's shared id. Where one command acquires for several requests, only the first of them tries.
func (q *Queue) admit(w *Waiter, free int) {
	isLed := false // a waiter tries, and its command acquires for the whole batch
	for o := q.waiters.First; o != nil; o = o.Next {
		sharesHold := w.Shared && o.ID == w.ID
		isInBatch := q.Batches && !o.Shared
		switch {
		case sharesHold:
			q.wake(o)
		case o.Permits > free: // it would be refused
		case isInBatch && isLed: // the command of the batch tries for it
		default:
			free -= o.Permits
			isLed = isLed || !o.Shared
			q.wake(o)
		}
	}
}

// alarm makes the head try. In two cases the head alone is not enough:
//
//   - The head's attempt hangs on its connection. The first waiter that is not trying tries
//     instead.
//   - A waiter is in doubt. Its id may hold the lock, and the head would be refused until that
//     lease ends. So waiters in doubt try too: only they can find out.
func (q *Queue) alarm(now time.Time) {
	if now.Before(q.TryAt) {
		return // the alarm is early
	}
	q.TryAt = time.Time{}
	head := q.Head()
	if head != nil && head.isTrying() {
		q.TryAt = now.Add(SlowPoll)
	}
	isFirst := true
	for w := head; w != nil; w = w.Next {
		if w.isTrying() || w.State == Granted {
			continue
		}
		if isFirst || w.Doubt {
			q.wake(w)
		}
		isFirst = false
	}
}

// schedule sets when the head tries next after a refusal: when the holder's lease ends, or at the
// next slow poll if that is sooner. It covers a holder that crashed, and a lost message. A release
// that was left to others during the attempt may make it sooner.
func (q *Queue) schedule(e *Event) {
	pause := SlowPoll
	if e.RetryAfter >= 0 && e.RetryAfter < pause { // compared first: it may be too large to add to
		pause = min(pause, e.RetryAfter+time.Millisecond) // Redis rounds a TTL down
	}
	q.TryAt = e.Now.Add(q.turn.Pause(e.Now, pause))
}

// release decides what a release does for the waiters: it offers the lock to the head, or leaves it
// to other clients if this client's time is over. If several holders release at the same time, each
// offers to a different waiter.
func (q *Queue) release(e *Event) {
	w := q.Head()
	switch {
	case w == nil: // nobody here waits
	case e.HasHadTurn:
		if q.TakeTurns || e.KeptFor > 0 {
			q.yield(e)
		}
	case e.HandsOff:
		if q.ManyHolders {
			w = firstToOffer(w)
		}
		if w != nil && w.canTake(e.Permits) {
			q.offer(w)
		}
	}
}

// firstToOffer returns the first waiter, from w on, for which no other command tries. It is nil if
// there is none.
func firstToOffer(w *Waiter) *Waiter {
	for w != nil && !w.MayOffer() {
		w = w.Next
	}
	return w
}

// yield leaves the lock to other clients. The turn begins before the command is sent, because its
// message may come before its reply, and would make the head try.
func (q *Queue) yield(e *Event) {
	a := Action{Kind: Yield, HearsRelease: q.listens}
	if q.inLine {
		q.place.Since = 0 // the place moves to the end of the line
		a.Place = q.place
	}
	q.turn.beginOwn(e.Now, OthersTurnFor(e.KeptFor), q.listens)
	q.TryAt = e.Now.Add(StuckAfter) // unless the reply says when
	q.do(a)
}

// offer makes the release pass the lock on to w.
func (q *Queue) offer(w *Waiter) {
	a := Action{Kind: Offer, Who: w}
	w.Offered = true
	w.last = q.inLine && q.isLast(w)
	if w.last {
		a.Place = Place{Number: q.place.Number, Last: true}
	}
	q.do(a)
}

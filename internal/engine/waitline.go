package engine

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
)

// How clients stand in line.
//
// If every client that waits heard every release, a thousand clients would send a thousand attempts for
// each, and one would succeed. So clients that wait stand in line on the server, where the release wakes the
// first of them. Few of them, the listeners, also hear the common channel, for releases by clients that do
// not know the line, such as Redisson's. The line is only a help: it may be deleted, and messages may be
// lost. The lock itself decides who gets it.
//
// The states of a queue whose driver is a [LineDriver]:
//
//	listening           as without a line: it hears each release, and tries
//	  | an attempt with a place is refused
//	  v
//	listener <-> quiet  in line; a listener hears the common channel too
//
// An attempt takes a place only when the subscription to the messages of that place is confirmed: a wake-up
// that nobody hears would be wasted. Each refusal says again whether the client must listen, and puts the
// place back if it was lost. So all that is lost or deleted comes back within a poll.
//
// A listener hears two messages of a release by a client that knows the line: first, at its place, whose
// turn it is, then the common one. If it is the turn of another client, it leaves the lock to that client for
// waitq.MaxTurn, in case that client has died or hangs.
//
// A client leaves the line when its last waiter does: by the command that grants it, or by one of its own.

// placeLife is how long the server keeps a place that nobody renews, and longer.
const placeLife = 5 * time.Second

// leaveGrace is how long a call waits until its place is given up.
const leaveGrace = 5 * time.Millisecond

// LineMessage is a message to a place.
type LineMessage uint8

// The messages to a place.
const (
	LineMissed     LineMessage = iota // messages may have been lost
	LineTurn                          // it is this client's turn
	LineOthersTurn                    // it is another client's turn; to listeners
	LineListen                        // become a listener
)

// linePart is the part of a wait queue that stands in line. waitQueues.mu guards it. The zero value does not.
type linePart struct {
	place   Place        // Number is 0 if it has no place
	atPlace Subscription // to the messages to the place
	inLine  bool         // an attempt has taken the place, or may have
}

// subscribePlace gives the queue a place, if its kind stands in line. mu is held.
func (q *waitQueue) subscribePlace(number uint64) {
	line, ok := q.r.Driver.(LineDriver)
	if !ok {
		return
	}
	if sub := line.SubscribePlace(number, q.lineMessage); sub != nil {
		q.linePart = linePart{place: Place{Number: number}, atPlace: sub}
		q.unsettled = append(q.unsettled, sub.Confirmed())
	}
}

// placeFor returns the place for the next attempt of w. There is none before the subscription is confirmed,
// if it was refused, and for a shared id. mu is held.
func (q *waitQueue) placeFor(w *Waiter) Place {
	w.givesUpPlace = false
	if q.atPlace == nil || w.Request.Shared || !isClosed(q.atPlace.Confirmed()) || q.atPlace.Err() != nil {
		return Place{}
	}
	q.inLine = true
	place := q.place
	place.Last = q.isLast(w)
	w.givesUpPlace = place.Last
	return place
}

// learnPlace is called after a refusal: it starts or stops to listen, as the server says. It returns the
// subscriptions that the caller must close. mu is held.
func (q *waitQueue) learnPlace(w *Waiter, res Result) (needless []Subscription) {
	if q.atPlace == nil {
		return nil
	}
	w.givesUpPlace = false
	if res.Since != 0 {
		q.place.Since = res.Since
	}
	switch {
	case len(q.unsettled) > 0:
	case res.Quiet:
		needless, q.subs, q.turn = q.subs, nil, waitq.Turn{}
	case len(q.subs) == 0:
		q.startListening(w.Request)
	}
	return needless
}

// startListening makes a quiet client a listener. mu is held.
func (q *waitQueue) startListening(r *Request) {
	q.listen(r)
	q.turn = waitq.Turn{}
	q.waiters.First.Wake() // so that its next step includes the confirmation
}

// lineMessage receives a message to the place. The subscription calls it, in a goroutine of package pubsub. It
// takes queues.mu and does not block.
func (q *waitQueue) lineMessage(m LineMessage) {
	q.queues.mu.Lock()
	defer q.queues.mu.Unlock()
	if q.waiters.First == nil {
		return // it has left, or is leaving: lock/leave passes the turn on
	}
	listens := len(q.subs) > 0 // then the common message follows
	switch m {
	case LineTurn:
		q.onTurn(waitq.Event{What: waitq.OurTurn, Now: time.Now(), Told: listens})
	case LineOthersTurn:
		if listens {
			q.onTurn(waitq.Event{What: waitq.OthersTurn, Now: time.Now()})
		}
	case LineListen:
		if !listens {
			q.startListening(q.waiters.First.Request)
		}
	default:
		q.onTurn(waitq.Event{What: waitq.Missed})
	}
}

// toTheEnd returns the queue's place, which a release is about to move to the end of the line. mu is held.
func (q *waitQueue) toTheEnd() Place {
	if !q.inLine {
		return Place{}
	}
	q.place.Since = 0
	return q.place
}

// leavePlace is called when w has left the queue. It returns the number of a place that must be given up; 0 if
// there is none. The caller must close subs. mu is held.
func (q *waitQueue) leavePlace(w *Waiter, res Result) (number uint64, subs []Subscription) {
	if q.atPlace == nil {
		return 0, nil
	}
	if res.Granted {
		q.place.Since = 0 // the server has moved the place to the end of the line
		q.inLine = q.inLine && !w.givesUpPlace
	}
	if q.waiters.First != nil {
		if w.givesUpPlace {
			q.waiters.First.wakeToTry() // it came when the command was under way, and must take the place again
		}
		return 0, nil
	}
	// A place that is left behind by a cohort has no subscriber: the next release drops it.
	if q.inLine && w.Request.passed == nil {
		number = q.place.Number
	}
	subs = []Subscription{q.atPlace}
	q.linePart = linePart{}
	return number, subs
}

// giveUpPlace gives up a place in the background. It blocks for a moment, so that the place is usually gone when
// the call of the waiter returns.
func (r *Resource) giveUpPlace(number uint64) {
	line := r.Driver.(LineDriver)
	r.inBackground(context.Background(), time.Now().Add(placeLife), leaveGrace, func(ctx context.Context) error {
		return line.GiveUpPlace(ctx, number)
	})
}

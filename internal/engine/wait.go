package engine

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
)

// Waiting is one loop (waitIn) over one kind of waiter. The queues differ: a Queue decides in which
// order waiters go, and what wakes them. Each event, such as a message or a grant, is noted in the
// queue and wakes a waiter. The loop then asks the queue for the next step. A wake-up without a
// reason costs little, and two wake-ups count as one.
//
//	Join -> NextStep -> wait for a wake-up -> NextStep -> ...
//	                 -> Try -> granted: Leave
//	                        -> refused: NextStep -> ...
//	                 -> granted by another: Leave
//	                 -> give up: Leave

// Limits of a wait that are not durations.
const (
	NoWait  time.Duration = 0  // it makes one attempt
	Forever time.Duration = -1 // it waits until its context ends
)

// Wait is how long an acquisition may wait, and whether it has waited. It belongs to its request.
// The zero value tries once.
type Wait struct {
	limit    time.Duration   // or NoWait, or Forever
	until    time.Time       // zero if there is no limit
	caller   context.Context //nolint:containedctx // for events
	waited   bool
	noEvents bool      // set for a tenure hold: its users emit the events
	waitedOn *Resource // the resource that it had to wait for; nil if none, or if notify was called
	notify   func()    // called instead of emitting an event; nil unless it is a member's acquisition
}

// ForMember returns the wait of a member's acquisition, which may take as long as w. notify is
// called, instead of emitting an event, when it has to wait.
func (w *Wait) ForMember(notify func()) Wait {
	return Wait{limit: w.limit, until: w.until, notify: notify}
}

// Within returns a copy of w, limited to d from now.
func (w Wait) Within(d time.Duration) Wait {
	if until := time.Now().Add(d); w.until.IsZero() || until.Before(w.until) {
		w.until = until
		w.limit = d
	}
	return w
}

// Bound bounds ctx by the end of the wait. A single try (limit 0) is bounded by the command timeout
// alone.
func (w *Wait) Bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return w.boundWith(ctx, 0)
}

// boundWithGrace is Bound for an attempt whose reply may come a little later. The reply to a member
// comes before the joint lock stops waiting for its members' errors.
func (w *Wait) boundWithGrace(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.notify != nil {
		return w.boundWith(ctx, answerGrace/2)
	}
	return w.boundWith(ctx, answerGrace)
}

func (w *Wait) boundWith(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	if w.limit <= 0 || w.until.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, w.until.Add(grace), errWaitOver)
}

// Left returns how much of the wait is left. limited is false if it has no limit, or is a single
// try.
func (w *Wait) Left() (left time.Duration, limited bool) {
	return time.Until(w.until), w.limit > 0
}

// since returns how long an acquisition that began at began has waited. It is 0 if and only if the
// acquisition has not waited.
func (w *Wait) since(began time.Time) time.Duration {
	if !w.waited {
		return 0
	}
	return max(time.Since(began), 1)
}

// Over reports whether the wait is over.
func (w *Wait) Over() bool { return !w.until.IsZero() && !time.Now().Before(w.until) }

// IsSingleTry reports whether the acquisition does not wait.
func (w *Wait) IsSingleTry() bool { return w.limit == NoWait }

// Waited reports whether the acquisition has had to wait.
func (w *Wait) Waited() bool { return w.waited }

// Begin notes, once, that the acquisition has to wait, and emits the event. id is the hold's or the
// holder's id. No mutex is held.
func (w *Wait) Begin(r *Resource, id string) {
	if w.waited {
		return
	}
	w.waited = true
	if w.noEvents {
		return
	}
	if w.notify != nil {
		w.notify()
		return
	}
	w.waitedOn = r
	r.Core.Presence.WaitBegan(r)
	r.Core.emit(Event{Kind: EventWait, Resource: r, ID: id, Ctx: w.caller})
}

// end tells Presence that the wait is over. It is deferred before Begin may be called, since
// observers and hooks of go-redis may panic.
func (w *Wait) end() {
	if w.waitedOn != nil {
		w.waitedOn.Core.Presence.WaitEnded(w.waitedOn)
	}
}

// Queue is where requests for one resource wait, if that is not the local wait queue of a name:
// this client's part of a fair lock's queue, or the private queue of one request. The engine calls
// its methods one at a time for each waiter: in the waiter's goroutine, except that a timer calls
// Leave if the observer is slow (beginWait). Join and NextStep do not block. Try blocks for the
// reply, and Leave may block until a listener has returned.
type Queue interface {
	// Join adds a waiter at the end, which hears what the others do: see [Request.ShareContact].
	// refused is the reply to its first attempt.
	Join(w *Waiter, refused Result)
	joinedQueue
}

// joinedQueue has the methods that waitIn calls once a waiter is in a queue, local ones included.
type joinedQueue interface {
	// NextStep returns what w should do now. If it should wait, the queue wakes it up later. waitIn
	// also calls it again when the channel in the Step was closed.
	NextStep(w *Waiter) Step
	// Try makes an attempt for w, and decides what follows from its reply. It blocks until the
	// reply. If w gives up because of an error that says nothing about the lock, the next waiter
	// must try for the same reason.
	Try(ctx context.Context, w *Waiter) (Result, error)
	// Leave removes a waiter. res is its result, which is not granted if the waiter gives up. An
	// unused reason to try must then reach the next waiter.
	Leave(w *Waiter, res Result)
}

// Step is what a waiter should do next: the first of these that is set. If none is, it waits.
type Step struct {
	HasTurn   bool            // the turn that it waits for has come, without a command
	Granted   *Result         // take this: a command of another request has acquired for it
	Try       bool            // try now
	Confirmed <-chan struct{} // while it waits, also wait for this
}

// Waiter is one request that waits. It serves every kind of queue. waitIn makes it, and it is in
// one queue until waitIn returns.
type Waiter struct {
	Request  *Request
	resource *Resource
	queue    joinedQueue   // where it waits
	wakeup   chan struct{} // of capacity 1: several wake-ups count as one
	hasLeft  bool          // it has left its queue, because the observer is slow; see beginWait

	// The mutex of its queue guards these fields.
	local   waitq.Waiter // in a local wait queue
	granted *Result      // the result of a command of another request that has acquired for it
}

// Wake makes the waiter ask its queue for the next step. It does not block, and any goroutine may
// call it, even after the waiter has left.
func (w *Waiter) Wake() {
	select {
	case w.wakeup <- struct{}{}:
	default:
	}
}

// observerLimit is how long a waiter keeps its place while the observer hears that it waits.
const observerLimit = 50 * time.Millisecond

// ErrObserverSlow says that the request has left its queue, because the observer is slow, and was
// rolled back. The caller waits again with another request: a copy of the first one must take
// nothing. Two callers outside of this package see it: multilocks, for a member, and package
// turns, for a user who waits for a turn.
var ErrObserverSlow = errors.New("the observer was slow")

// beginWait emits the event that w waits. w has its place before that, because others see by it
// that w waits. But while the observer runs, w takes no step, and all waiters behind it would wait
// for the observer too. So w leaves its queue if the observer is slow, and w.hasLeft says so.
//
//	w joins, as the head
//	the observer begins
//	the lock is released: w should try     the next waiter waits behind w
//	observerLimit is over: w leaves        the next waiter tries
//	the observer returns: w joins anew, at the end
func (r *Resource) beginWait(ctx context.Context, queue joinedQueue, w *Waiter) {
	q := w.Request
	observed := r.Core.Observe != nil || q.Wait.notify != nil
	isHeard := observed && !q.Wait.noEvents
	if q.Wait.waited || !isHeard {
		q.Wait.Begin(r, q.ID)
		return
	}
	left := make(chan struct{})
	timer := time.AfterFunc(observerLimit, func() {
		defer close(left)
		w.hasLeft = true
		queue.Leave(w, Result{})
		r.rollback(ctx, q, 0)
	})
	defer func() { // even if the observer panics
		isLeaving := !timer.Stop()
		if isLeaving {
			<-left
		}
	}()
	q.Wait.Begin(r, q.ID)
}

// anew returns another request for the same acquisition, after ErrObserverSlow. It occupies the
// gate that q has passed.
func (q *Request) anew(r *Resource) *Request {
	again := r.NewRequest(q.Terms)
	again.Wait = q.Wait
	again.parent = q.parent
	return again
}

// waitIn makes q wait in queue. If that is nil, q waits in the local queue of its name, or in a
// private one if it polls. It is the only waiting loop: fair locks and joint locks use it too.
// refused is the reply to the first attempt. It blocks until q is granted, the wait is over, ctx
// ends or the client closes. The caller rolls q back if it fails.
//
// The request of a tenure hold only joins: waitIn fails with errQueued.
func (r *Resource) waitIn(ctx context.Context, queue Queue, q *Request, refused Result) (Result, error) {
	w := r.join(queue, q, refused)
	r.Core.giveUpLingeringLater(r.Name) // the lock may linger since a release during the attempt of q
	if q.isTenure {
		q.waiter = w
		return Result{}, errQueued
	}
	return r.waitOn(ctx, w)
}

// WaitIn makes q, of a user who waits for a turn, wait in a queue of package turns. It is waitIn
// for a request that sends nothing: it returns nil when the user has the turn, and otherwise the
// error of the acquisition, or ErrObserverSlow.
func (r *Resource) WaitIn(ctx context.Context, queue Queue, q *Request) error {
	_, err := r.waitIn(ctx, queue, q, Result{})
	if errors.Is(err, ErrObserverSlow) {
		return err
	}
	return q.explain(ctx, r.Core, err)
}

// join adds a waiter for q to a queue, as waitIn says. It does not block.
func (r *Resource) join(queue Queue, q *Request, refused Result) *Waiter {
	w := &Waiter{Request: q, resource: r, wakeup: make(chan struct{}, 1)}
	if queue == nil && q.polls() {
		queue = r.PrivateQueue(q.Terms.pollPause)
	}
	w.queue = queue
	if queue != nil {
		queue.Join(w, refused)
	} else {
		w.queue = r.Core.queues.join(w, refused)
	}
	return w
}

// waitOn is the loop of a waiter that has joined its queue.
func (r *Resource) waitOn(ctx context.Context, w *Waiter) (res Result, err error) {
	c := r.Core
	q := w.Request
	queue := w.queue
	if heard := q.contact; heard != nil {
		c.waitedFor.add(heard, r)
		defer c.waitedFor.remove(heard)
	}
	defer func() {
		if !w.hasLeft {
			queue.Leave(w, res)
		}
	}()
	r.beginWait(ctx, queue, w)
	if w.hasLeft {
		return Result{}, ErrObserverSlow
	}
	var over <-chan time.Time
	if !q.Wait.until.IsZero() {
		timer := time.NewTimer(time.Until(q.Wait.until))
		defer timer.Stop()
		over = timer.C
	}
	for {
		// Before NextStep, which uses up the reason to try. A waiter that gives up here leaves its
		// reason to the next one.
		switch {
		case ctx.Err() != nil, q.Wait.Over():
			return Result{}, q.gaveUp(ctx, nil)
		case c.IsClosing():
			return Result{}, ErrClosed
		}
		step := queue.NextStep(w)
		switch {
		case step.HasTurn:
			res.Granted = true // for Leave
			return res, nil
		case step.Granted != nil:
			return r.tried(ctx, q, *step.Granted, nil)
		case !step.Try:
			select {
			case <-w.wakeup:
			case <-step.Confirmed:
			case <-over:
			case <-ctx.Done():
			case <-c.Closing():
			}
			continue
		}

		res, err = queue.Try(ctx, w)
		verdict := Judge(res, err)
		if verdict == Acquired || verdict == Failed {
			return res, err
		}
	}
}

package primitives

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// An observer ([WithObserver]) receives events, for metrics, traces and alerts. The engine emits
// them, and this file gives them their public form.

// EventKind says what happened.
type EventKind string

// The kinds of events. They are balanced, so that an observer can count waiters and holds:
//
//   - Each acquisition emits exactly one of EventAcquired, EventNested and EventNotAcquired, and
//     EventWait before that if it has to wait. A waiter of a latch emits EventWait and EventWaited.
//   - Each hold that was acquired or nested emits exactly one event of its end: EventReleased,
//     EventReleaseFailed, EventLost, EventLeaked, EventDetached or EventAbandoned.
const (
	// EventWait says that the first attempt was refused, and the caller waits. With Err it says
	// something else: an attempt of [Locker.Lock] has failed, and is repeated.
	EventWait          EventKind = "wait"
	EventWaited        EventKind = "waited"         // a wait for a latch is over, with Waited; Err if it failed
	EventAcquired      EventKind = "acquired"       // with Waited
	EventNotAcquired   EventKind = "not-acquired"   // with the error in Err, and Waited if it waited
	EventNested        EventKind = "nested"         // acquired under a hold that the context carried
	EventRenewed       EventKind = "renewed"        // the watchdog's renewal was confirmed, with Late
	EventRenewFailed   EventKind = "renew-failed"   // a renewal was not answered; it is repeated
	EventLost          EventKind = "lost"           // somebody else may hold the lock; Err is a [*LossError]
	EventReleased      EventKind = "released"       // the hold was released, or the lock was handed off
	EventReleaseFailed EventKind = "release-failed" // the release was not answered, and is repeated until the lease ends
	EventLeaked        EventKind = "leaked"         // the hold became unreachable without a release
	EventDetached      EventKind = "detached"       // the lock stays taken: see [Hold.Detach]
	EventAbandoned     EventKind = "abandoned"      // Close left the hold behind: see [Client.Close]
	// EventLinkLost says that the connection for wake-ups has failed with Err, or could not be
	// made. It is made again at once, and waiters poll meanwhile. The event belongs to the client,
	// so Lock and Name are empty.
	EventLinkLost EventKind = "link-lost"
)

// Event is one thing that happened to one acquisition. It is a value: an observer may keep it.
type Event struct {
	Kind EventKind
	// Lock is the primitive's kind: lock, fair, fenced, reader, writer, multi, red, semaphore,
	// permits, latch.
	Lock string
	Name string // the user's name
	ID   string // the id of the hold, once there is one
	// Election is set if the event belongs to a candidate of [Election.Run], whose Lock is fenced.
	// A term begins with EventAcquired and ends with the hold.
	Election bool
	Waited   time.Duration // how long an acquisition that is over has waited; 0 if and only if it has not
	Held     time.Duration // how long the hold has lasted, in later events
	// Late is how long after it was due a renewal was confirmed. Renewals are due every third of
	// the TTL, so a renewal that is late by two thirds of the TTL comes too late.
	Late time.Duration
	Err  error // the reason of a failure, or nil
	// Ctx is the context of the call that the event belongs to. It is nil for events that the
	// background finds, such as renewals, and for calls without a context.
	Ctx context.Context //nolint:containedctx // observers read trace ids from it
}

// Outcome is the result of an acquisition.
type Outcome string

// The outcomes of acquisitions.
const (
	OutcomeAcquired Outcome = "acquired"
	OutcomeNested   Outcome = "nested"
	// OutcomeBusy means that somebody else held it until the wait was over.
	OutcomeBusy Outcome = "busy"
	// OutcomeEnded means that the caller's context ended, or that the client was closed.
	OutcomeEnded Outcome = "ended"
	// OutcomeUnavailable means that Redis did not answer ([ErrUnavailable]), whether or not the
	// wait ended meanwhile.
	OutcomeUnavailable Outcome = "unavailable"
	// OutcomeError covers everything else: Redis returned an error, or the acquisition itself is
	// wrong, such as [ErrDeadlock].
	OutcomeError Outcome = "error"
)

// Outcome returns the result of an acquisition. It is "" for an event that is not the result of
// one.
func (e Event) Outcome() Outcome {
	// A waiter goes on after failures of Redis. The end of the wait may therefore be joined with
	// the last failure, which is then the reason.
	refused := errors.Is(e.Err, ErrNotAcquired) // false for an adoption that ended with its context
	switch {
	case e.Kind == EventAcquired:
		return OutcomeAcquired
	case e.Kind == EventNested:
		return OutcomeNested
	case e.Kind != EventNotAcquired:
		return ""
	case errors.Is(e.Err, ErrClosed), errors.Is(e.Err, failure.ErrClosed):
		return OutcomeEnded
	case errors.Is(e.Err, ErrUnavailable):
		return OutcomeUnavailable
	case e.endedWithContext(refused):
		return OutcomeEnded
	case !refused:
		return OutcomeError
	default:
		return OutcomeBusy
	}
}

// endedWithContext reports whether the acquisition ended because its context did. refused says that
// its error matches [ErrNotAcquired], which does not tell why it stopped waiting.
func (e *Event) endedWithContext(refused bool) bool {
	if e.Ctx == nil || e.Ctx.Err() == nil {
		return false
	}
	return refused || errors.Is(e.Err, context.Cause(e.Ctx))
}

// observer adapts a user's observers to [engine.Config].Observe. It returns nil if there are none,
// so that no event is made.
func (c *Client) observer() func(engine.Event) {
	if len(c.observe) == 0 {
		return nil
	}
	return func(e engine.Event) {
		c.tell(Event{
			Kind: EventKind(e.Kind), Lock: e.Resource.Kind, Name: e.Resource.Name, ID: e.ID,
			Election: e.Resource.Traits == &electionTraits,
			Waited:   e.Waited, Held: e.Held, Late: e.Late, Err: e.Err, Ctx: e.Ctx,
		})
	}
}

// tell calls the observers. No mutex is held, and Close waits for it.
func (c *Client) tell(e Event) {
	for _, observe := range c.observe {
		observe(e)
	}
}

// linkLost implements [pubsub.Config].LinkLost.
func (c *Client) linkLost(err error) {
	if len(c.observe) > 0 && c.core.Enter() == nil {
		defer c.core.Leave()
		c.tell(Event{Kind: EventLinkLost, Err: err})
	}
}

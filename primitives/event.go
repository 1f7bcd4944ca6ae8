package primitives

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// Events are what an observer ([WithObserver]) receives: for metrics, traces and alerts. The engine emits
// them; this file gives them their public form.

// EventKind says what happened.
type EventKind string

// The kinds of events. Each acquisition emits exactly one of EventAcquired, EventNested and
// EventNotAcquired, and EventWait before that if it has to wait.
const (
	EventWait          EventKind = "wait"           // the first attempt was refused: the caller waits
	EventAcquired      EventKind = "acquired"       // with Waited
	EventNotAcquired   EventKind = "not-acquired"   // with the error in Err, and Waited if it waited
	EventNested        EventKind = "nested"         // acquired under a hold that the context carried
	EventRenewed       EventKind = "renewed"        // the watchdog's renewal was confirmed
	EventRenewFailed   EventKind = "renew-failed"   // a renewal was not answered; it is repeated
	EventLost          EventKind = "lost"           // at most once for each hold
	EventReleased      EventKind = "released"       // or handed off
	EventReleaseFailed EventKind = "release-failed" // not answered; it is repeated until the lease is over
	EventLeaked        EventKind = "leaked"         // the hold became unreachable without a release
)

// Event is one thing that happened to one acquisition. It is a value: an observer may keep it.
type Event struct {
	Kind EventKind
	// Lock is the primitive's kind: lock, fair, fenced, reader, writer, multi, red, semaphore, permits,
	// latch.
	Lock   string
	Name   string        // the user's name
	ID     string        // the hold's, once there is one
	Waited time.Duration // how long the acquisition waited, when it was acquired or failed
	Held   time.Duration // how long the hold has lasted, in later events
	Err    error         // the reason of a failure; else nil
	// Ctx is the context of the call that the event belongs to. It is nil for events that the
	// background finds, such as renewals.
	Ctx context.Context //nolint:containedctx // observers read trace ids from it
}

// observer adapts a user's observer to [engine.Config].Observe. nil stays nil: then no event is made.
func observer(observe func(Event)) func(engine.Event) {
	if observe == nil {
		return nil
	}
	return func(e engine.Event) {
		observe(Event{
			Kind: EventKind(e.Kind), Lock: e.Resource.Kind, Name: e.Resource.Name, ID: e.ID,
			Waited: e.Waited, Held: e.Held, Err: e.Err, Ctx: e.Ctx,
		})
	}
}

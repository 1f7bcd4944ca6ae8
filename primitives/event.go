package primitives

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// EventKind says what happened.
type EventKind string

// The kinds of events. Each acquisition emits exactly one of EventAcquired, EventNested and
// EventNotAcquired.
const (
	EventWait          EventKind = "wait"           // the first attempt was refused: the caller waits
	EventAcquired      EventKind = "acquired"       // with Waited
	EventNotAcquired   EventKind = "not-acquired"   // with the error in Err, and Waited if it waited
	EventNested        EventKind = "nested"         // acquired under a hold that the context carried
	EventRenewed       EventKind = "renewed"        // the watchdog's renewal was confirmed
	EventRenewFailed   EventKind = "renew-failed"   // a renewal was not answered; it is repeated
	EventLost          EventKind = "lost"           // once a hold
	EventReleased      EventKind = "released"       //
	EventReleaseFailed EventKind = "release-failed" // not answered; it is repeated until the lease is over
	EventLeaked        EventKind = "leaked"         // the hold became unreachable without a release
)

// Event is one thing that happened to one acquisition.
type Event struct {
	Kind EventKind
	// Lock is the primitive's kind: lock, fair, fenced, reader, writer, multi, red, semaphore, permits,
	// latch.
	Lock   string
	Name   string // the user's name
	ID     string // the hold's, once there is one
	Waited time.Duration
	Held   time.Duration
	Err    error
	// Ctx is the context of the call that the event belongs to; nil for what is found in the
	// background, such as renewals.
	Ctx context.Context //nolint:containedctx // observers read trace ids from it
}

// observer adapts an observer to the engine.
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

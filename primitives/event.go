package primitives

import (
	"context"
	"time"
)

// EventKind says what happened.
type EventKind string

// The kinds of events. Each acquisition emits exactly one of EventAcquired, EventNested and EventNotAcquired.
const (
	EventWait          EventKind = "wait"           // refused at first: it waits now
	EventAcquired      EventKind = "acquired"       // with Waited
	EventNotAcquired   EventKind = "not-acquired"   // with the error in Err, and Waited if it waited
	EventNested        EventKind = "nested"         // acquired under a hold that the context carried
	EventRenewed       EventKind = "renewed"        // the watchdog's renewal was confirmed
	EventRenewFailed   EventKind = "renew-failed"   // a renewal was not answered; it is tried again
	EventLost          EventKind = "lost"           // once a hold
	EventReleased      EventKind = "released"       //
	EventReleaseFailed EventKind = "release-failed" // not answered; the release is tried again until the lease is over
	EventLeaked        EventKind = "leaked"         // the hold became unreachable without a release
)

// Event is one thing that happened to one acquisition.
type Event struct {
	Kind   EventKind
	Lock   string // the primitive's kind: lock, fair, fenced, reader, writer, multi, red, semaphore, permits, latch
	Name   string // the user's name
	ID     string // the hold's, once there is one
	Waited time.Duration
	Held   time.Duration
	Err    error
	// Ctx is the context of the call that the event belongs to; nil for what is found in the
	// background, such as renewals.
	Ctx context.Context //nolint:containedctx // observers read trace ids from it
}

// emit calls the observer, in the goroutine that did what is told.
func (c *Client) emit(e Event) {
	if c.observe != nil {
		c.observe(e)
	}
}

// report is emit for what is told outside of a call that Close waits for.
func (c *Client) report(e Event) {
	if c.enter() == nil {
		defer c.calls.Done()
		c.emit(e)
	}
}

// emitLater tells the observer from a goroutine of its own: for the watchdog, which must not wait for anybody.
func (c *Client) emitLater(e Event) {
	if c.observe == nil {
		return
	}
	c.spawn(func() { c.observe(e) })
}

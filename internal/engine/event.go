package engine

import (
	"context"
	"time"
)

// Events for the client's observer. There are three ways to emit one, because the observer may
// block:
//
//	emit       in the goroutine of a call that Close waits for, before that call returns
//	Report     in the goroutine of a call that has not registered yet
//	emitLater  in a new goroutine, for the watchdog and others that must not block
//
// Nobody emits an event with a mutex held.
//
// Events are balanced, so that an observer can count. Each hold that was announced by EventAcquired
// or EventNested emits one event of its end: released, release-failed, lost, leaked, detached or
// abandoned. Only the call of [Hold.end] that returns true emits it. Each EventWait is followed by
// one event of the acquisition's result, or by EventWaited for a waiter that acquires nothing.

// EventKind is the type of an event. Package primitives documents the kinds.
type EventKind string

// The kinds of events.
const (
	EventWait          EventKind = "wait"
	EventWaited        EventKind = "waited"
	EventAcquired      EventKind = "acquired"
	EventNotAcquired   EventKind = "not-acquired"
	EventNested        EventKind = "nested"
	EventRenewed       EventKind = "renewed"
	EventRenewFailed   EventKind = "renew-failed"
	EventLost          EventKind = "lost"
	EventReleased      EventKind = "released"
	EventReleaseFailed EventKind = "release-failed"
	EventLeaked        EventKind = "leaked"
	EventDetached      EventKind = "detached"
	EventAbandoned     EventKind = "abandoned"
)

// Event is one thing that happened to one acquisition.
type Event struct {
	Kind     EventKind
	Resource *Resource
	ID       string // the hold's, once there is one
	Waited   time.Duration
	Held     time.Duration
	Late     time.Duration // how long after it was due a renewal was confirmed
	Err      error
	Ctx      context.Context //nolint:containedctx // observers read trace ids from it
}

// emit calls the observer in the goroutine of a call that Close waits for. It blocks as long as the
// observer does.
func (c *Core) emit(e Event) {
	if c.Observe != nil {
		c.Observe(e)
	}
}

// Report emits an event outside of a call that Close waits for. After Close it does nothing, so
// that the observer is not called once Close has returned.
func (c *Core) Report(e Event) {
	if c.Enter() == nil {
		defer c.Leave()
		c.emit(e)
	}
}

// emitLater emits an event from a goroutine of its own, which ends when the observer returns. It
// does not block: a slow observer must not delay the renewal of other leases.
func (c *Core) emitLater(e Event) {
	if c.Observe != nil {
		c.Spawn(func() { c.Observe(e) })
	}
}

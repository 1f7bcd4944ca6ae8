package engine

import (
	"context"
	"time"
)

// EventKind says what happened. Package primitives documents the kinds.
type EventKind string

// The kinds of events.
const (
	EventWait          EventKind = "wait"
	EventAcquired      EventKind = "acquired"
	EventNotAcquired   EventKind = "not-acquired"
	EventNested        EventKind = "nested"
	EventRenewed       EventKind = "renewed"
	EventRenewFailed   EventKind = "renew-failed"
	EventLost          EventKind = "lost"
	EventReleased      EventKind = "released"
	EventReleaseFailed EventKind = "release-failed"
	EventLeaked        EventKind = "leaked"
)

// Event is one thing that happened to one acquisition.
type Event struct {
	Kind     EventKind
	Resource *Resource
	ID       string // the hold's, once there is one
	Waited   time.Duration
	Held     time.Duration
	Err      error
	Ctx      context.Context //nolint:containedctx // observers read trace ids from it
}

// emit calls the observer in the goroutine of a call that Close waits for.
func (c *Core) emit(e Event) {
	if c.Observe != nil {
		c.Observe(e)
	}
}

// Report emits an event outside of a call that Close waits for. After Close it does nothing.
func (c *Core) Report(e Event) {
	if c.Enter() == nil {
		defer c.Leave()
		c.emit(e)
	}
}

// emitLater emits an event from a goroutine of its own, for the watchdog, which must not block.
func (c *Core) emitLater(e Event) {
	if c.Observe != nil {
		c.Spawn(func() { c.Observe(e) })
	}
}

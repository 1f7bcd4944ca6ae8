package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A leaked hold is one that its user has dropped without a Release: the Hold of package primitives
// was garbage collected. Nothing renews it any longer, so the lock is free when its lease ends,
// instead of never.
//
// The Go runtime runs the cleanup of the user's Hold in a goroutine of its own. For a client that
// was made in a bubble of testing/synctest, that goroutine is outside of the bubble. It must not
// touch what belongs to the bubble: a channel, a timer, a context or the clock. The runtime ends
// the whole process if it does. Nor may it wake up a goroutine of the bubble. So it only adds the
// hold to a list, and a goroutine of the bubble looks at the list once a second of the bubble's
// clock, as long as the client has holds.
//
//	real time   cleanup: ReportLeak -> endLeaked
//	a bubble    cleanup: ReportLeak -> leaks.list
//	            collectLeaks, once a second -> endLeaked

// leakPeriod is how often a client in a bubble looks for leaked holds.
const leakPeriod = time.Second

// leaks are the leaked holds of a client in a bubble that were not ended yet. It is a part of Core.
type leaks struct {
	inBubble bool // does not change after NewCore

	mu         sync.Mutex // guards the rest; it is locked in the bubble and outside of it
	list       []*Hold
	collecting bool // collectLeaks runs
}

// isBubbleTime reports whether now was read in a bubble. Only there a time has no monotonic clock
// reading, which Round strips.
func isBubbleTime(now time.Time) bool {
	return now == now.Round(0) // not Equal, which ignores the monotonic clock reading
}

// ReportLeak ends a hold whose primitives.Hold was collected without a Release. The Go runtime
// calls it from a cleanup, so it does not block.
func (h *Hold) ReportLeak() {
	l := &h.r.Core.leaks
	if !l.inBubble {
		h.endLeaked()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, h)
}

// endLeaked is Detach for a leaked hold. It does not block.
func (h *Hold) endLeaked() {
	if h.takeAndForget() == nil && h.end(ErrReleased) {
		h.r.Core.log(newRecord(slog.LevelWarn, "hold leaked", h.r, slog.String("id", h.ID()),
			slog.Duration("held", h.heldFor())))
		h.r.Core.emitLater(h.event(EventLeaked, nil))
	}
}

// watchForLeaks starts collectLeaks, if this client needs it. Its caller has added a hold.
func (c *Core) watchForLeaks() {
	l := &c.leaks
	if !l.inBubble {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.collecting {
		l.collecting = true
		c.Spawn(c.collectLeaks)
	}
}

// collectLeaks ends leaked holds until the client has no hold, or until the core stops.
func (c *Core) collectLeaks() {
	for {
		Pause(context.Background(), leakPeriod, c.stopping)
		for _, h := range c.takeLeaks() {
			h.endLeaked()
		}
		if c.IsStopping() || c.stopCollectingIfEmpty() {
			return
		}
	}
}

// takeLeaks empties the list of leaked holds, and returns it.
func (c *Core) takeLeaks() []*Hold {
	l := &c.leaks
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

// stopCollectingIfEmpty reports whether the client has no hold. The caller, collectLeaks, then
// ends: the next hold starts it again.
func (c *Core) stopCollectingIfEmpty() bool {
	l := &c.leaks
	l.mu.Lock()
	defer l.mu.Unlock()
	l.collecting = c.holds.isNotEmpty()
	return !l.collecting
}

package scripts

import (
	"context"
	"sync/atomic"
	"time"
)

// deadlines makes contexts with a deadline. Calls that begin at about the same time share one,
// because most commands are answered long before it, and a timer for each would be wasted.
type deadlines struct {
	latest atomic.Pointer[deadline]
	final  atomic.Pointer[deadline] // no deadline is later than this one; nil if there is no limit

	// sending ends when nothing more must be sent. It is nil if no attempt has these deadlines.
	sending context.Context //nolint:containedctx // the parent of other contexts
	abandon context.CancelFunc
}

// deadline is a context that ends for all calls that share it.
type deadline struct {
	context.Context //nolint:containedctx // a deadline is a context
	until           time.Time
	sending         context.Context //nolint:containedctx // ends at until, or earlier with deadlines.sending
	stop            context.CancelFunc
}

// after returns a deadline in d from now, or up to a hundredth earlier, and a context for attempts,
// with the values of ctx. That context ends with the deadline or with ctx, whichever is earlier.
// go-redis checks it while it waits for a connection or dials. The context is made in joined, which
// must not be used for anything else.
func (ds *deadlines) after(ctx context.Context, d time.Duration, joined *joinedContext) (*deadline, context.Context) {
	end := ds.within(time.Now(), d-d/100, d)
	*joined = joinedContext{Context: end.sending, values: ctx, until: end.until}
	if until, ok := ctx.Deadline(); ok && until.Before(end.until) {
		joined.Context = ctx
	}
	return end, joined
}

// in returns a deadline in d from now, or up to a hundredth earlier.
func (ds *deadlines) in(d time.Duration) *deadline { return ds.within(time.Now(), d-d/100, d) }

// within returns a deadline that is between least and most after now, or the final one if that is
// earlier.
func (ds *deadlines) within(now time.Time, least, most time.Duration) *deadline {
	if final := ds.final.Load(); final != nil && final.until.Before(now.Add(most)) {
		return final
	}
	end := ds.latest.Load()
	isUsable := end != nil && end.until.Sub(now) >= least && end.until.Sub(now) <= most
	if !isUsable {
		end = ds.newDeadline(now.Add(most))
		// Two calls may do this at once. Then one deadline is not shared, and ends by its own
		// timer, as the replaced one does.
		ds.latest.Store(end)
	}
	return end
}

func (ds *deadlines) newDeadline(until time.Time) *deadline {
	timeout, stop := context.WithDeadline(context.Background(), until)
	if ds.sending == nil {
		return &deadline{timeout, until, timeout, stop}
	}
	sending, stopSending := context.WithDeadline(ds.sending, until)
	return &deadline{timeout, until, sending, func() {
		stop()
		stopSending()
	}}
}

// last makes all deadlines from now on end within d. It is called once.
func (ds *deadlines) last(d time.Duration) { ds.final.Store(ds.newDeadline(time.Now().Add(d))) }

// close ends the latest deadline early, so that its timer does not outlive the runner.
func (ds *deadlines) close() {
	for _, end := range []*deadline{ds.latest.Load(), ds.final.Load()} {
		if end != nil {
			end.stop()
		}
	}
}

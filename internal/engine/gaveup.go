package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// The errors of acquisitions that gave up: contact.go says which error follows from which answers.

// explain returns the error of an acquisition that failed with err, or nil if err is nil. ctx ends
// with the wait. An error of the server itself, such as WRONGTYPE, stays as it is.
func (q *Request) explain(ctx context.Context, c *Core, err error) error {
	f := failure.Of(err)
	outOfTime := ctx.Err() != nil || f.CallerEnded // the time of a joint attempt may end a little earlier than ctx
	switch {
	case err == nil:
		return nil
	case IsGiveUp(err):
		return withCause(ctx, err)
	case f.Retry() && outOfTime: // the attempt got no answer, and there is no time for another one
		var outage error // not noted yet if the preparation of the client failed
		if f.IsOutage(graceOf(ctx)) {
			outage = err
		}
		g := q.gaveUp(ctx, outage)
		if g.failed == nil {
			g.cut = err
		}
		return g
	case ctx.Err() != nil:
		return GaveUp(ctx, err)
	}
	return c.Unavailable(err)
}

// withCause adds why the caller's context ended to the error of an acquisition that gave up.
// Acquisitions of members end with the attempt of their joint lock, so their errors may not say it.
func withCause(ctx context.Context, err error) error {
	cause := causeOf(ctx)
	if cause == nil || errors.Is(err, cause) {
		return err
	}
	g := &gaveUpError{cause: cause, refused: errors.Is(err, ErrNotAcquired)}
	if errors.Is(err, ErrUnavailable) {
		g.failed = err
	} else {
		g.reason = err
	}
	return g
}

// Unavailable makes err match ErrUnavailable if it says that the server does not answer.
func (c *Core) Unavailable(err error) error {
	if err == nil || IsGiveUp(err) {
		return err
	}
	if !failure.Of(err).IsOutage(0) {
		return err
	}
	return &gaveUpError{failed: err}
}

// gaveUp returns the error of an acquisition that stopped waiting, because its wait was over or ctx
// ended. outage is the failure of its last attempt if it counts as an outage, else nil.
func (q *Request) gaveUp(ctx context.Context, outage error) *gaveUpError {
	g := &gaveUpError{cause: causeOf(ctx), failed: outage, refused: outage == nil}
	k := q.contact
	if k == nil {
		return g
	}
	k.catchUp()
	k.mu.Lock()
	defer k.mu.Unlock()
	g.holder = k.holder
	g.left = max(0, time.Until(k.until))
	g.endless = k.endless
	g.reason = k.reason
	asked := time.Since(k.attemptSince)
	isAsking := !k.attemptSince.IsZero() && outage == nil
	switch {
	case k.failed != nil:
		g.failed = k.failed
		if k.again {
			g.silent = time.Since(k.silent)
		}
	case isAsking && asked >= failure.SilentAfter:
		g.failed = failure.SilenceError(asked)
	}
	g.confirmed = k.refused
	g.refused = k.refused || g.failed == nil // nothing is known to be wrong: the time was too short
	return g
}

// RefusedBy returns the error of a single try that a hold of the same client has refused. ctx is
// the context of the try.
func (q *Request) RefusedBy(ctx context.Context, h *Hold) error {
	q.ownContact().HeldBy(h.ID(), max(0, time.Until(h.ValidUntil())), nil)
	return q.gaveUp(ctx, nil)
}

// GaveUp returns the error of an acquisition that stopped waiting and knows nothing of the server:
// see Request.gaveUp for the others. It joins ErrNotAcquired with the cause of ctx, if ctx ended,
// and with met, the last failure on the way, if there was one.
func GaveUp(ctx context.Context, met error) error {
	return &gaveUpError{refused: true, cause: causeOf(ctx), reason: met}
}

// IsTaken reports whether an acquisition failed with err because somebody else has the lock: the
// server's latest answer said so. It is false if the caller's time ended first, and if a later
// attempt had no answer. err must be as [Resource.Acquire] returns it, because the errors that it
// joins may belong to members of a joint lock.
func IsTaken(err error) bool {
	g, ok := err.(*gaveUpError) //nolint:errorlint // of this call, not of a member
	if !ok {
		return false
	}
	isUnanswered := g.failed != nil || g.cut != nil
	return g.confirmed && g.cause == nil && !isUnanswered
}

// causeOf returns why the caller's context ended, or nil if it did not. The end of the wait adds
// nothing to an error: ErrNotAcquired says it.
func causeOf(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != errWaitOver { //nolint:errorlint // the very value
		return cause
	}
	return nil
}

// gaveUpError is the error of an acquisition that gave up, and of a call without an answer. Its
// text is made only if it is asked for: most callers look at the class alone.
type gaveUpError struct {
	cause     error         // of the caller's context; nil if it has not ended
	refused   bool          // matches ErrNotAcquired
	confirmed bool          // the server has said so; else refused is assumed, because the time was too short
	holder    string        // "" if it is unknown
	own       bool          // the holder is this client
	shared    bool          // the holders are unknown, and this client holds it or a part of it
	client    string        // the name of the holder's client; "" if unknown
	left      time.Duration // of the holder's lease; 0 if unknown
	endless   bool          // that lease never ends
	reason    error         // of the refusal
	failed    error         // matches ErrUnavailable if it is not nil
	silent    time.Duration // since the last answer; 0 if failed says it, or if unknown
	cut       error         // an attempt that was cut short before it could count as failed
	waited    time.Duration // how long the whole call took; 0 if unknown
}

// complete adds to err, the error of an acquisition of r, what only the whole call knows: how long
// it took, whether its own client holds the lock, and the name of another client that does. Only
// the error of an acquisition that gave up is changed. isTry says that the call did not wait.
func (r *Resource) complete(err error, began time.Time, isTry bool) {
	g, ok := err.(*gaveUpError) //nolint:errorlint // of this call, not of a member
	if !ok {
		return
	}
	isRefusedTry := isTry && g.failed == nil
	if !isRefusedTry {
		g.waited = time.Since(began)
	}
	id := holderOf(g.holder, g.reason)
	g.own = id != "" && r.Core.owns(r, id)
	// Readers, and the holders of permits, are not named: one of them may be this client.
	isUnnamed := id == "" && g.reason == nil
	g.shared = isUnnamed && g.refused && r.Core.holdsSome(r)
	heldByOther := id != "" && !g.own
	if heldByOther && r.Core.Presence.NameOf != nil {
		g.client = r.Core.Presence.NameOf(id)
	}
}

// LeaseLeft returns how soon the lease of the holder that refused the acquisition ends. It is 0 if
// that is unknown.
func (g *gaveUpError) LeaseLeft() time.Duration { return g.left }

func (g *gaveUpError) Error() string {
	text := ErrNotAcquired.Error()
	unavailable := ErrUnavailable.Error()
	if g.silent > 0 {
		unavailable += " for " + g.silent.Round(100*time.Millisecond).String()
	}
	if !g.refused {
		text = unavailable
	}
	isCauseNew := g.failed == nil || !errors.Is(g.failed, g.cause)
	if g.cause != nil && isCauseNew {
		text += ": " + g.cause.Error()
	}
	if g.refused && g.holder != "" {
		text += ": held by " + g.holder
		if g.client != "" {
			text += " of " + g.client
		}
		if g.left > 0 {
			text += " for another " + g.left.Round(time.Millisecond).String()
		}
	}
	if notes := g.notes(); g.refused && len(notes) > 0 {
		text += " (" + strings.Join(notes, "; ") + ")"
	}
	if g.refused && g.failed != nil {
		text += "; " + unavailable
	}
	if g.failed != nil {
		text += ": " + g.failed.Error()
	}
	if g.waited >= failure.SilentAfter {
		text += "; gave up after " + shortened(g.waited)
	}
	return text
}

// notes returns what is known of the holder and of the refusal, besides the holder's id and lease.
func (g *gaveUpError) notes() (notes []string) {
	if g.reason != nil {
		notes = append(notes, g.reason.Error())
	}
	switch {
	case errors.Is(g.reason, errSibling): // it says that the holder is this client
	case g.own:
		notes = append(notes, "held by this client")
	case g.shared:
		notes = append(notes, "also held by this client")
	}
	if g.client != "" && g.holder == "" { // the reason names the holder of a member
		notes = append(notes, "held by "+g.client)
	}
	switch {
	case g.endless && g.holder != "":
		notes = append(notes, "never expires")
	case g.endless:
		notes = append(notes, "its holders never expire")
	}
	return notes
}

// shortened returns a duration for people, with two or three digits.
func shortened(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

// Unwrap returns the facts that the error joins.
func (g *gaveUpError) Unwrap() []error {
	var facts []error
	if g.refused {
		facts = append(facts, ErrNotAcquired)
	}
	if g.failed != nil {
		facts = append(facts, ErrUnavailable)
	}
	for _, err := range []error{g.cause, g.reason, g.failed, g.cut} {
		if err != nil {
			facts = append(facts, err)
		}
	}
	return facts
}

// IsGiveUp reports whether err is the error of an acquisition that gave up.
func IsGiveUp(err error) bool {
	return errors.Is(err, ErrNotAcquired) || errors.Is(err, ErrUnavailable)
}

// WithoutOutage returns err without ErrUnavailable, for a member whose silence did not matter.
func WithoutOutage(err error) error {
	g, ok := errors.AsType[*gaveUpError](err)
	switch {
	case !ok, g.refused:
		return err
	case g.cause == nil, errors.Is(g.failed, g.cause):
		return g.failed
	}
	return fmt.Errorf("%w: %w", g.cause, g.failed) // on one line
}

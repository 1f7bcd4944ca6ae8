package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Why an acquisition gave up: was the lock held by somebody else, or did the server not answer? Callers act
// differently on the two. A busy lock is daily life, and a silent server is an outage.
//
// Each request records the answers to its own attempts (learn). A wait queue records the answers to the attempts
// of all its waiters, because most waiters make none. gaveUp makes the error from both records:
//
//	nothing known            ErrNotAcquired: the caller's time was too short
//	refused                  ErrNotAcquired, with the holder
//	refused, then no answer  ErrNotAcquired and ErrUnavailable, with the last failure
//	no answer                ErrUnavailable, with the last failure

// Contact is what an acquisition, or a wait queue, has heard from the server. The zero value is nothing. It
// is safe for concurrent use, because members of a joint lock share one, and a member's call may go on when
// the attempt is over.
type Contact struct {
	mu      sync.Mutex
	members bool // of a joint lock whose members note their answers here
	refusal
	silence
}

// refusal is the latest one, of an attempt or of one that this stood behind. The zero value: there was none.
type refusal struct {
	refused bool
	holder  string    // "": unknown
	until   time.Time // when that holder's lease ends; zero: unknown
	reason  error     // if it is not the holder
}

// silence is what was not answered since the latest answer. The zero value: nothing.
type silence struct {
	asked  time.Time // an attempt is under way since then; zero: none, or unknown
	silent time.Time // since when no attempt was answered; zero: the latest was
	failed error     // why the latest attempt was not answered; nil: it was
	again  bool      // more than one attempt was not answered
}

// Asking notes that an attempt begins, or that a queue sends a command for all its waiters. Answered or Failed notes
// the outcome of that command.
func (k *Contact) Asking() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = time.Now()
}

// Answered notes that somebody has the lock: the other waiters still wait for it. holder is the holder's id,
// "" if it is unknown. left is the time until the holder's lease ends, negative if it is unknown. reason is another
// reason of a refusal, or nil.
func (k *Contact) Answered(holder string, left time.Duration, reason error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.silence, k.refusal = silence{}, refusal{refused: true, holder: holder, reason: reason}
	if left >= 0 {
		k.until = time.Now().Add(left)
	}
}

// Forget clears what was heard.
func (k *Contact) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.silence, k.refusal = silence{}, refusal{}
}

// Failed notes why that command, which was sent at began, failed. Only an outage counts.
func (k *Contact) Failed(c *Core, err error, began time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.Classify(err).isOutage(0) {
		k.unanswered(err, time.Since(began))
	} else {
		k.asked = time.Time{}
	}
}

// membersNote reports whether q is for a joint lock whose members note their answers themselves.
func (q *Request) membersNote(k *Contact) bool { return k.members && q.Group == nil }

// unanswered notes why an attempt was not answered, and for how long it had waited. mu is held.
func (k *Contact) unanswered(err error, waited time.Duration) {
	k.asked, k.again = time.Time{}, k.failed != nil
	if k.silent.IsZero() {
		k.silent = time.Now().Add(-waited)
	}
	k.failed = err
}

// Note takes over what a waiter has heard by its latest attempt, which is over.
func (k *Contact) Note(q *Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, other := k.silence, q.heard
	k.asked = time.Time{}
	if other == nil {
		return
	}
	other.mu.Lock() // after that of a queue's contact, never before it
	defer other.mu.Unlock()
	if other.refused && (other.failed == nil || !k.refused) { // else the queue may know a later holder
		k.refusal = other.refusal
	}
	k.silence = other.silence
	k.asked = time.Time{}
	if k.failed != nil && before.failed != nil {
		k.silent, k.again = before.silent, true
	}
}

// follow takes over what a queue has heard in which a member waited. The mutex of behind is held.
func (k *Contact) follow(behind *Contact) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.silence = behind.silence; behind.refused {
		k.refusal = behind.refusal
	}
}

// SilenceOf is how long an operation that began then had waited when ctx ended. A busy machine may notice the
// end of a deadline late.
func SilenceOf(ctx context.Context, began time.Time) time.Duration {
	silent := time.Since(began)
	if until, ok := ctx.Deadline(); ok && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		silent = max(0, min(silent, until.Sub(began)))
	}
	return silent
}

// graceOf is how much longer than the caller's time an attempt with ctx was allowed to wait.
func graceOf(ctx context.Context) time.Duration {
	if context.Cause(ctx) == errWaitOver { //nolint:errorlint // the very value
		return answerGrace
	}
	return 0
}

// learn notes the outcome of an attempt. A grant needs no note unless an earlier attempt has failed.
func (q *Request) learn(ctx context.Context, r *Resource, res Result, err error) {
	if q.heard == nil && res.Granted || q.heard != nil && q.membersNote(q.heard) {
		return
	}
	f := r.Core.Classify(err)
	outage := err != nil && f.isOutage(graceOf(ctx))
	if q.heard == nil {
		if err != nil && !outage {
			return
		}
		q.heard = &Contact{}
	}
	k := q.heard
	if err == nil && !res.Granted {
		k.Answered(res.Holder, res.RetryAfter, res.Met)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case outage:
		if k.failed != nil && f.Ended { // it says nothing but that time passed
			err = fmt.Errorf("%w: before that: %w", err, k.failed)
		}
		k.unanswered(err, f.Silent)
	case err != nil:
		k.asked = time.Time{}
	default:
		k.silence = silence{}
	}
}

// explain makes the error of an acquisition that failed with err, which is nil for none. ctx ends with the
// wait. An error of the server itself, such as WRONGTYPE, stays as it is.
func (q *Request) explain(ctx context.Context, c *Core, err error) error {
	f := c.Classify(err)
	switch {
	case err == nil, IsGiveUp(err):
		return err
	case f.Retry && (ctx.Err() != nil || f.Ended): // the time of a joint attempt may end a little earlier
		if q.heard == nil {
			q.heard = &Contact{}
		}
		q.heard.mu.Lock()
		if q.heard.failed == nil && f.isOutage(graceOf(ctx)) {
			q.heard.unanswered(err, f.Silent) // of the preparation of the client
		}
		q.heard.mu.Unlock()
		g := q.gaveUp(ctx, nil)
		if g.failed == nil {
			g.cut = err
		}
		return g
	case ctx.Err() != nil:
		return GaveUp(ctx, err)
	}
	return c.Unavailable(err)
}

// Unavailable makes err match ErrUnavailable if it says that the server does not answer.
func (c *Core) Unavailable(err error) error {
	if err == nil || IsGiveUp(err) || !c.Classify(err).isOutage(0) {
		return err
	}
	return &gaveUpError{failed: err}
}

// gaveUp is the error of an acquisition that stopped waiting, because its wait was over or ctx ended.
// behind is what the queue has heard in which it waited, or nil. It includes what the request itself has heard,
// because each attempt of the request is reported to the queue.
func (q *Request) gaveUp(ctx context.Context, behind *Contact) *gaveUpError {
	g := &gaveUpError{cause: causeOf(ctx), refused: true}
	k := cmp.Or(behind, q.heard)
	if k == nil {
		return g
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if q.Group != nil && behind != nil && q.heard != nil && q.heard.members {
		q.heard.follow(behind) // its joint lock may give up without this error
	}
	g.holder, g.left, g.reason, g.failed = k.holder, max(0, time.Until(k.until)), k.reason, k.failed
	switch {
	case k.failed != nil && k.again:
		g.silent = time.Since(k.silent)
	case k.failed == nil && !k.asked.IsZero() && time.Since(k.asked) >= silentAfter:
		g.failed = noAnswerFor(time.Since(k.asked))
	}
	g.refused = k.refused || g.failed == nil // nothing is known to be wrong: the time was too short
	return g
}

// GaveUp is the error of an acquisition that stopped waiting and knows nothing of the server: see
// Request.gaveUp for the others. It joins ErrNotAcquired with the cause of ctx, if ctx ended, and with met,
// the last failure on the way, if there was one.
func GaveUp(ctx context.Context, met error) error {
	return &gaveUpError{refused: true, cause: causeOf(ctx), reason: met}
}

// causeOf is why the caller's context ended; nil if it did not. The end of the wait adds nothing to an error:
// ErrNotAcquired says it.
func causeOf(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != errWaitOver { //nolint:errorlint // the very value
		return cause
	}
	return nil
}

// gaveUpError is the error of an acquisition that gave up, and of a call without an answer. Its text is made
// only if it is asked for: most callers look at the class alone.
type gaveUpError struct {
	cause   error         // of the caller's context; nil: it has not ended
	refused bool          // matches ErrNotAcquired
	holder  string        // "": unknown
	left    time.Duration // of the holder's lease; 0: unknown
	reason  error         // of the refusal
	failed  error         // matches ErrUnavailable if it is not nil
	silent  time.Duration // since the last answer; 0: failed says it, or unknown
	cut     error         // an attempt that was cut short before it could count as failed
}

// LeaseLeft is how soon the lease of the holder ends that refused the acquisition; 0 if that is unknown.
func (g *gaveUpError) LeaseLeft() time.Duration { return g.left }

// noAnswerFor is the error of an attempt that is still under way.
type noAnswerFor time.Duration

// Is reports whether target is the error of a time limit.
func (d noAnswerFor) Is(target error) bool { return target == os.ErrDeadlineExceeded }

func (d noAnswerFor) Error() string {
	return "no answer for " + time.Duration(d).Round(time.Millisecond).String()
}

func (g *gaveUpError) Error() string {
	text, unavailable := ErrNotAcquired.Error(), ErrUnavailable.Error()
	if g.silent > 0 {
		unavailable += " for " + g.silent.Round(100*time.Millisecond).String()
	}
	if !g.refused {
		text = unavailable
	}
	if g.cause != nil && (g.failed == nil || !errors.Is(g.failed, g.cause)) {
		text += ": " + g.cause.Error()
	}
	if g.refused && g.holder != "" {
		text += ": held by " + g.holder
		if g.left > 0 {
			text += " for another " + g.left.Round(time.Millisecond).String()
		}
	}
	if g.refused && g.reason != nil {
		text += " (" + g.reason.Error() + ")"
	}
	switch {
	case g.failed == nil:
		return text
	case g.refused:
		text += "; " + unavailable
	}
	return text + ": " + g.failed.Error()
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

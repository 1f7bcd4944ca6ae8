package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// Why an acquisition gave up: was the lock held by somebody else, or did the server not answer? Callers act
// differently on the two. A busy lock is daily life, and a silent server is an outage.
//
// Each request notes the answers to its attempts (learn) in a contact. While it waits, that is the contact of its
// queue, because most waiters make no attempts: what one of them hears, all know. gaveUp makes the error from it:
//
//	nothing known            ErrNotAcquired: the caller's time was too short
//	refused                  ErrNotAcquired, with the holder
//	refused, then no answer  ErrNotAcquired and ErrUnavailable, with the last failure
//	no answer                ErrUnavailable, with the last failure

// Contact is what an acquisition, or all waiters of a queue, have heard from the server. The zero value is nothing.
// It is safe for concurrent use.
type Contact struct {
	mu sync.Mutex // innermost
	heard
	source *Contact // of the queue in which somebody waits for all who share this contact; nil: none
}

// heard is what a contact knows.
type heard struct {
	refusal
	silence
}

// refusal is the latest one, of an attempt or of one that this stood behind. The zero value: there was none.
type refusal struct {
	refused bool
	holder  string    // "": unknown
	until   time.Time // when that holder's lease ends; zero: unknown
	endless bool      // that lease never ends
	reason  error     // if it is not the holder

	// For the asks: see wanted.go.
	of       *Resource // what the holder holds, if that is a member of a joint lock; nil: what was asked for
	since    time.Time // since when the same holder has refused
	latest   time.Time // when it has refused
	askedFor time.Time // when that holder was asked; zero: it was not
	quiet    bool      // its client hears no messages of releases
	outdated bool      // there was a release since
}

// silence is what was not answered since the latest answer. The zero value: nothing.
type silence struct {
	attemptSince time.Time // an attempt is under way since then; zero: none, or unknown
	silent       time.Time // since when no attempt was answered; zero: the latest was
	failed       error     // why the latest attempt was not answered; nil: it was
	outage       error     // the latest failure that says more than that time passed; nil: none
	again        bool      // more than one attempt was not answered
}

// AttemptBegins notes that an attempt begins, or that a queue sends a command for all its waiters. Answered or Failed
// notes the outcome of that command.
func (k *Contact) AttemptBegins() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.attemptSince.IsZero() { // else an earlier attempt has not been answered yet
		k.attemptSince = time.Now()
	}
}

// Answered notes that somebody has the lock: the other waiters still wait for it. holder is the holder's id,
// "" if it is unknown. left is the time until the holder's lease ends: [Endless], or another negative time if it is
// unknown. reason is another reason of a refusal, or nil.
func (k *Contact) Answered(holder string, left time.Duration, reason error) {
	k.refuse(refusal{holder: holder, endless: left == Endless, reason: reason}, left)
}

// refuse is Answered, with all that is known of the refusal.
func (k *Contact) refuse(now refusal, left time.Duration) {
	now.refused = true
	now.latest = time.Now()
	now.since = now.latest
	if left >= 0 {
		now.until = now.latest.Add(left)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now.continues(&k.refusal)
	k.heard = heard{refusal: now}
}

// continues notes that the same holder has refused before, if it has.
func (f *refusal) continues(before *refusal) {
	isSame := before.refused && before.holder == f.holder && before.of == f.of
	if isSame && !before.outdated {
		f.since = before.since
		f.askedFor = before.askedFor
	}
}

// released notes that somebody has released the lock: another holder may refuse from now on.
func (k *Contact) released() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.outdated = true
}

// toAsk returns who is to be asked for what, and when. of is nil if that is what the waiters wait for. at is zero if
// nobody is to be asked before the next refusal. If it is not after now, toAsk notes that the holder was asked.
//
// A client that hears no messages of releases, because it stands in line, knows only at its next attempt whether the
// same holder still has the lock.
func (k *Contact) toAsk(now time.Time) (of *Resource, holder string, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	isKnown := k.refused && !k.outdated
	isOldNews := k.quiet && k.latest.Before(later(k.since.Add(askAfter), k.askedFor.Add(askAgain/2)))
	again := askAgain
	if k.holder == "" {
		again = askAllAgain
	}
	if !isKnown || isOldNews {
		return nil, "", time.Time{}
	}
	at = later(k.since.Add(askAfter), k.askedFor.Add(again))
	if k.quiet {
		at = now
	}
	if !now.Before(at) {
		k.askedFor = now
	}
	return k.of, k.holder, at
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Failed notes why that command failed. Only an outage counts.
func (k *Contact) Failed(err error) { k.fail(err, failure.Of(err), 0) }

// fail is Failed for an error that means f. grace is how much longer than its caller's time the command was allowed to
// wait.
func (k *Contact) fail(err error, f failure.Failure, grace time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !f.IsOutage(grace):
		k.attemptSince = time.Time{}
		return
	case !f.Ended:
		k.outage = err
	case k.outage != nil:
		err = fmt.Errorf("%w: before that: %w", err, k.outage)
	}
	if k.silent.IsZero() {
		k.silent = time.Now().Add(-f.Silent)
	}
	k.again = k.failed != nil
	k.failed = err
	k.attemptSince = time.Time{}
}

// forget clears what was heard.
func (k *Contact) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.heard = heard{}
}

// takeOver takes over what another contact has heard later than k.
func (k *Contact) takeOver(other *Contact) {
	if other == k {
		return
	}
	other.mu.Lock()
	news := other.heard
	other.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if news.refused {
		news.refusal.continues(&k.refusal)
	} else {
		news.refusal = k.refusal
	}
	if news.failed != nil && k.failed != nil {
		news.silent = k.silent
		news.again = true
	}
	k.heard = news
}

// SetSource makes k, which users who take turns share, know from now on what the queue hears in which q stands for
// all of them. Nil: nobody stands there any longer.
func (k *Contact) SetSource(q *Request) {
	k.catchUp()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.source = nil
	if q != nil {
		k.source = q.contact
	}
}

// catchUp takes over what the source of k has heard.
func (k *Contact) catchUp() {
	k.mu.Lock()
	source := k.source
	k.mu.Unlock()
	if source != nil {
		k.takeOver(source)
	}
}

// ShareContact makes q share the contact of the queue in which it waits from now on.
func (q *Request) ShareContact(queue *Contact) {
	if q.contact != nil {
		queue.takeOver(q.contact)
	}
	q.contact = queue
}

// graceOf is how much longer than the caller's time an attempt with ctx was allowed to wait.
func graceOf(ctx context.Context) time.Duration {
	if context.Cause(ctx) == errWaitOver { //nolint:errorlint // the very value
		return answerGrace
	}
	return 0
}

// attemptBegins notes that an attempt begins. The error of the first one will say how long it took.
func (q *Request) attemptBegins() {
	if q.contact != nil && !q.membersNote {
		q.contact.AttemptBegins()
	}
}

// learn notes the outcome of an attempt. A grant needs no note unless an earlier attempt has failed.
func (q *Request) learn(ctx context.Context, res Result, err error) {
	switch {
	case q.membersNote, q.contact == nil && res.Granted:
	case err != nil:
		f := failure.Of(err)
		grace := graceOf(ctx)
		if q.contact != nil || f.IsOutage(grace) {
			q.ownContact().fail(err, f, grace)
		}
	case res.Granted:
		q.contact.takeOver(&Contact{})
	default:
		q.ownContact().refuse(refusal{
			holder: res.Holder, endless: res.RetryAfter == Endless, reason: res.Why,
			of: res.BusyMember, quiet: res.NeedNotListen,
		}, res.RetryAfter)
	}
}

// ownContact returns what q has heard, to add to it.
func (q *Request) ownContact() *Contact {
	if q.contact == nil {
		q.contact = &Contact{}
	}
	return q.contact
}

// explain makes the error of an acquisition that failed with err, which is nil for none. ctx ends with the
// wait. An error of the server itself, such as WRONGTYPE, stays as it is.
func (q *Request) explain(ctx context.Context, c *Core, err error) error {
	f := failure.Of(err)
	isOver := ctx.Err() != nil || f.Ended // the time of a joint attempt may end a little earlier than ctx
	switch {
	case err == nil:
		return nil
	case IsGiveUp(err):
		return withCause(ctx, err)
	case f.Retry() && isOver: // the attempt got no answer, and there is no time for another one
		var outage error // which nobody has noted if it is of the preparation of the client
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

// withCause adds why the caller's context ended to the error of an acquisition that gave up. The members of a joint
// lock end with its attempt, so their errors may not say it.
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

// gaveUp is the error of an acquisition that stopped waiting, because its wait was over or ctx ended. outage is the
// failure of its last attempt, if that was one.
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
		g.failed = failure.NoAnswerFor(asked)
	}
	g.told = k.refused
	g.refused = k.refused || g.failed == nil // nothing is known to be wrong: the time was too short
	return g
}

// RefusedBy is the error of a single try that a hold of its own client has refused. ctx is that of the try.
func (q *Request) RefusedBy(ctx context.Context, h *Hold) error {
	q.ownContact().Answered(h.ID(), max(0, time.Until(h.ValidUntil())), nil)
	return q.gaveUp(ctx, nil)
}

// GaveUp is the error of an acquisition that stopped waiting and knows nothing of the server: see
// Request.gaveUp for the others. It joins ErrNotAcquired with the cause of ctx, if ctx ended, and with met,
// the last failure on the way, if there was one.
func GaveUp(ctx context.Context, met error) error {
	return &gaveUpError{refused: true, cause: causeOf(ctx), reason: met}
}

// IsTaken reports whether an acquisition failed with err because somebody else has the lock: the server's latest answer
// said so. It is false if the caller's time ended first, and if a later attempt had no answer. err is as
// [Resource.Acquire] returns it, because the errors that it joins may be those of members of a joint lock.
func IsTaken(err error) bool {
	g, ok := err.(*gaveUpError) //nolint:errorlint // of this call, not of a member
	if !ok {
		return false
	}
	isUnanswered := g.failed != nil || g.cut != nil
	return g.told && g.cause == nil && !isUnanswered
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
	told    bool          // the server has said so; else refused is only assumed, because the time was too short
	holder  string        // "": unknown
	own     bool          // the holder is this client
	shared  bool          // the holders are unknown, and this client holds it or a part of it
	client  string        // the name of the holder's client; "": unknown
	left    time.Duration // of the holder's lease; 0: unknown
	endless bool          // that lease never ends
	reason  error         // of the refusal
	failed  error         // matches ErrUnavailable if it is not nil
	silent  time.Duration // since the last answer; 0: failed says it, or unknown
	cut     error         // an attempt that was cut short before it could count as failed
	waited  time.Duration // how long the whole call took; 0: unknown
}

// complete adds to err, the error of an acquisition of r, what only the whole call knows: how long it took, whether its
// own client holds the lock, and the name of another client that does. An error that says nothing of a wait stays as it
// is. isTry: the call did not wait.
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
	isOthers := id != "" && !g.own
	if isOthers && r.Core.Presence.NameOf != nil {
		g.client = r.Core.Presence.NameOf(id)
	}
}

// LeaseLeft is how soon the lease of the holder ends that refused the acquisition; 0 if that is unknown.
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

// notes are what is known of the holder and of the refusal, besides the holder's id and lease.
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

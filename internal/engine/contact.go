package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// Why an acquisition gave up: was the lock held by somebody else, or did the server not answer?
// Callers act differently on the two. A busy lock is normal, and a silent server is an outage.
//
// Each request notes the answers to its attempts (learn) in a contact. While it waits, that is the
// contact of its queue, because most waiters make no attempts: what one of them hears, all know.
// gaveUp makes the error from it:
//
//	nothing known            ErrNotAcquired: the caller's time was too short
//	refused                  ErrNotAcquired, with the holder
//	refused, then no answer  ErrNotAcquired and ErrUnavailable, with the last failure
//	no answer                ErrUnavailable, with the last failure

// Contact is what an acquisition, or all waiters of a queue, have heard from the server. The zero
// value has heard nothing. It is safe for concurrent use.
type Contact struct {
	mu sync.Mutex // innermost
	contactState
	source *Contact // of the queue in which a request waits for all that share this contact; else nil
}

// contactState is what a contact knows.
type contactState struct {
	refusal
	silence
}

// refusal is the latest refusal: of an attempt of the request, or of a waiter before it.
// The zero value means that there was none.
type refusal struct {
	refused bool
	holder  string    // "" if it is unknown
	until   time.Time // when that holder's lease ends; zero if unknown
	endless bool      // that lease never ends
	reason  error     // another reason than the holder, or nil

	// For the asks: see wanted.go.
	busyMember *Resource // the member of a joint lock that the holder has; nil if it has the resource itself
	since      time.Time // since when the same holder has refused
	latest     time.Time // when it last refused
	askedFor   time.Time // when that holder was asked; zero if it was not
	quiet      bool      // the waiter's client hears no messages of releases
	outdated   bool      // there was a release since
}

// silence describes the attempts without an answer since the latest answer. The zero value means
// that there is none.
type silence struct {
	attemptSince time.Time // since when an attempt is under way; zero if none is, or if unknown
	silent       time.Time // since when no attempt was answered; zero if the latest was
	failed       error     // why the latest attempt was not answered; nil if it was
	outage       error     // the latest failure that says more than that time passed; nil if there is none
	again        bool      // more than one attempt was not answered
}

// AttemptBegins notes that an attempt begins, or that a queue sends a command for all its waiters.
// HeldBy or Failed notes the outcome of that command.
func (k *Contact) AttemptBegins() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.attemptSince.IsZero() { // else an earlier attempt has not been answered yet
		k.attemptSince = time.Now()
	}
}

// HeldBy notes that somebody has the lock: the other waiters still wait for it. holder is the
// holder's id, "" if it is unknown. left is the time until the holder's lease ends: [Endless], or
// another negative time if it is unknown. reason is another reason of a refusal, or nil.
func (k *Contact) HeldBy(holder string, left time.Duration, reason error) {
	k.refuse(refusal{holder: holder, endless: left == Endless, reason: reason}, left)
}

// refuse is HeldBy with all that is known of the refusal.
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
	k.contactState = contactState{refusal: now}
}

// continues notes that the same holder has refused before, if it has.
func (f *refusal) continues(before *refusal) {
	isSame := before.refused && before.holder == f.holder && before.busyMember == f.busyMember
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

// takeDueAsk returns the holder to ask, the resource to ask it for, and when to ask. of is nil for
// the resource that the waiters wait for. at is zero if no holder is to be asked before the next
// refusal. If at is not after now, takeDueAsk notes that the holder was asked.
//
// A client that hears no messages of releases, because it stands in line, knows only at its next
// attempt whether the same holder still has the lock.
func (k *Contact) takeDueAsk(now time.Time) (of *Resource, holder string, at time.Time) {
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
	return k.busyMember, k.holder, at
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Failed notes why the command failed. Only an outage counts.
func (k *Contact) Failed(err error) { k.fail(err, failure.Of(err), 0) }

// fail is Failed for an error that means f. grace is how much longer than its caller's time the
// command was allowed to wait.
func (k *Contact) fail(err error, f failure.Failure, grace time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case !f.IsOutage(grace):
		k.attemptSince = time.Time{}
		return
	case !f.CallerEnded:
		k.outage = err
	case k.outage != nil:
		err = fmt.Errorf("%w: before that: %w", err, k.outage)
	}
	if k.silent.IsZero() {
		k.silent = time.Now().Add(-f.Waited)
	}
	k.again = k.failed != nil
	k.failed = err
	k.attemptSince = time.Time{}
}

// forget clears what was heard.
func (k *Contact) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.contactState = contactState{}
}

// takeOver takes over what another contact has heard later than k.
func (k *Contact) takeOver(other *Contact) {
	if other == k {
		return
	}
	other.mu.Lock()
	news := other.contactState
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
	k.contactState = news
}

// SetSource makes k, which users who take turns share, follow the queue in which q stands for all
// of them. A nil q means that no request is there any longer.
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

// graceOf returns how much longer than the caller's time an attempt with ctx was allowed to wait.
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

// learn notes the outcome of an attempt. A grant needs no note unless an earlier attempt has
// failed.
func (q *Request) learn(ctx context.Context, res Result, err error) {
	switch {
	case q.membersNote: // the members of a joint lock note it themselves
	case q.contact == nil && res.Granted: // nothing has failed so far
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
			busyMember: res.BusyMember, quiet: res.NeedNotListen,
		}, res.RetryAfter)
	}
}

// ownContact returns the contact of q, and makes it if needed.
func (q *Request) ownContact() *Contact {
	if q.contact == nil {
		q.contact = &Contact{}
	}
	return q.contact
}

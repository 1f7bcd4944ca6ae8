package turns

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/list"
)

// enqueueAfter is how long a user waits until the entry's request joins the engine's queue, if it
// has not joined before. The lock may have been lost, or another user's attempt may be stuck.
const enqueueAfter = 100 * time.Millisecond

// Turns contains the entries of one client. It implements [engine.Turns].
type Turns struct {
	core *engine.Core
	// idle is how many locks linger. A lock whose turn ends is counted before it is decided whether
	// it lingers. So whoever joins a queue, or closes the client, and then finds 0, has come in time
	// for that decision.
	idle atomic.Int32

	mu      sync.Mutex        // guards all entries, with their tenures and turns
	entries map[string]*entry // by name: the first entry, which links to the others
}

// entry is the state of one name for users with the same terms. It exists while somebody uses it.
type entry struct {
	turns   *Turns
	r       *engine.Resource
	terms   *engine.Terms // the first user's
	another *entry        // the next entry of the same name

	waiters  list.List[turn, *turn]
	tenure   *tenure // nil if the client does not have the lock
	next     *tenure // its request is in the engine's queue; nil if there is none
	second   *tenure // its request is behind next's; nil if there is none
	attempts int     // attempts under way by users who are not waiters
	watching bool    // the timer of watch is set
	contact  engine.Contact
	unused   *tenure // allocated with the entry; nil once it is in use
}

// New lets a client's users take turns. Call it before the first acquisition.
func New(core *engine.Core) *Turns {
	t := &Turns{core: core, entries: map[string]*entry{}}
	core.UseTurns(t)
	return t
}

// Acquire implements [engine.Turns].
func (t *Turns) Acquire(ctx context.Context, r *engine.Resource, q *engine.Request) (*engine.Hold, error) {
	attemptCtx, stop := q.AttemptContext(ctx, r)
	defer stop()
	for {
		hold, err := t.acquire(ctx, attemptCtx, r, q)
		if !errors.Is(err, engine.ErrObserverSlow) {
			return hold, err
		}
	}
}

// step is what an acquisition does first.
type step uint8

const (
	takeLingering    step = iota // it has the next turn of the tenure that lingers
	releaseLingering             // it releases the tenure that lingers, and then makes an attempt
	beRefused                    // by the hold of its own client
	makeAttempt
	waitForTurn
)

// firstStep decides what an acquisition does first, as the table in the package comment says. mu is
// held.
func (e *entry) firstStep(isTry bool, now time.Time) step {
	current := e.tenure
	lingers := current != nil && current.user == nil
	isHeld := current != nil && current.hold.ValidUntil().After(now)
	isFree := current == nil && e.waiters.First == nil && e.next == nil && e.attempts == 0
	switch {
	case lingers && current.mayBeKept(now):
		return takeLingering
	case lingers:
		return releaseLingering
	case isTry && isHeld:
		return beRefused
	case isTry, isFree:
		return makeAttempt
	}
	return waitForTurn
}

// acquire does what the table in the package comment says. attemptCtx ends with the user's wait.
func (t *Turns) acquire(
	ctx, attemptCtx context.Context, r *engine.Resource, q *engine.Request,
) (*engine.Hold, error) {
	now := time.Now()
	t.mu.Lock()
	e := t.entryFor(r, q.Terms)
	current := e.tenure
	first := e.firstStep(q.Wait.IsSingleTry(), now)
	var w *turn // of this acquisition, unless it makes an attempt
	var released <-chan struct{}
	switch first {
	case takeLingering:
		t.idle.Add(-1)
		w = &turn{entry: e}
		current.give(w)
	case releaseLingering:
		released = current.giveUp()
		e.attempts++
	case makeAttempt:
		e.attempts++
	case waitForTurn:
		w = &turn{entry: e, since: now}
		e.waiters.Append(w)
		e.prepareNext()
	case beRefused: // nothing changes
	}
	t.mu.Unlock()

	switch first {
	case takeLingering:
		return w.begin(ctx, q)
	case releaseLingering:
		engine.AwaitReleased(attemptCtx, released, t.core.RollbackLimit(now))
		return e.attempt(ctx, attemptCtx, q)
	case beRefused:
		return nil, q.RefusedBy(attemptCtx, current.hold)
	case makeAttempt:
		return e.attempt(ctx, attemptCtx, q)
	case waitForTurn:
	}
	return e.wait(ctx, attemptCtx, q, w)
}

// entryFor returns the entry of users with these terms, and makes it if there is none. mu is held.
func (t *Turns) entryFor(r *engine.Resource, terms *engine.Terms) *entry {
	first := t.entries[r.Name]
	for e := first; e != nil; e = e.another {
		if e.r.Kind == r.Kind && mayShare(e.terms, terms) {
			return e
		}
	}
	made := new(struct { // one allocation
		entry
		first tenure
	})
	e := &made.entry
	*e = entry{turns: t, r: r, terms: terms, unused: &made.first}
	e.register()
	return e
}

// register adds the entry to the list for its name, unless it is in it. Turns.mu is held.
func (e *entry) register() {
	first := e.turns.entries[e.r.Name]
	for o := first; o != nil; o = o.another {
		if o == e {
			return
		}
	}
	e.another = first
	e.turns.entries[e.r.Name] = e
}

// mayShare reports whether users with these terms may take turns on the same hold. If not, they
// meet in the engine.
func mayShare(a, b *engine.Terms) bool {
	isKeptAsLong := a.Cohort == b.Cohort && a.Linger == b.Linger && a.TTL == b.TTL
	waitsEqually := a.PollMin == b.PollMin && a.PollMax == b.PollMax
	return isKeptAsLong && waitsEqually
}

// removeIfUnused removes the entry if nobody uses it. Turns.mu is held.
func (e *entry) removeIfUnused() {
	hasRequests := e.waiters.First != nil || e.attempts > 0 || e.next != nil
	if hasRequests || e.tenure != nil {
		return
	}
	t := e.turns
	name := e.r.Name
	var before *entry
	for o := t.entries[name]; o != nil; before, o = o, o.another {
		switch {
		case o != e:
			continue
		case before != nil:
			before.another = e.another
		case e.another != nil:
			t.entries[name] = e.another
		default:
			delete(t.entries, name)
		}
		return
	}
}

// attempt makes a user's first attempt, and blocks for it. The caller has counted it. If it is
// refused, the user becomes the first waiter, and its request is in the engine's queue.
func (e *entry) attempt(ctx, attemptCtx context.Context, q *engine.Request) (*engine.Hold, error) {
	t := e.turns
	mayWait := !q.Wait.IsSingleTry()
	t.mu.Lock()
	tn := e.newTenure()
	e.r.InitTenure(&tn.request, q.Terms, tn, mayWait)
	t.mu.Unlock()
	e.contact.AttemptBegins()
	undo := func() {
		t.mu.Lock()
		e.attemptEnded()
		t.mu.Unlock()
	}
	var hold *engine.Hold
	var queued bool
	var err error
	engine.Guarded(undo, func() { hold, queued, err = e.r.AcquireTenure(attemptCtx, &tn.request) })
	t.mu.Lock()
	switch {
	case hold != nil:
		tn.begin(hold)
		w := &tn.first
		w.entry = e
		tn.give(w)
		e.attemptEnded()
		t.mu.Unlock()
		return w.begin(ctx, q)
	case queued:
		w := &turn{entry: e, since: time.Now()}
		e.waiters.Prepend(w)
		e.awaitTenure(tn)
		e.attemptEnded()
		t.mu.Unlock()
		return e.wait(ctx, attemptCtx, q, w)
	}
	e.contact.Failed(err)
	e.attemptEnded()
	t.mu.Unlock()
	return nil, err
}

// attemptEnded cleans up after an attempt. Users that have waited behind it must not wait in vain.
// Turns.mu is held.
func (e *entry) attemptEnded() {
	e.attempts--
	e.prepareNext()
	e.removeIfUnused()
}

// prepareNext puts a request into the engine's queue if a user waits, and if it is time for
// that: see the package comment. Turns.mu is held.
func (e *entry) prepareNext() {
	isNeedless := e.waiters.First == nil || e.next != nil
	isInCohort := e.tenure != nil && e.terms.Cohort > 0
	isLeftAlone := e.tenure == nil && e.attempts == 0
	switch {
	case isNeedless: // nobody waits, or there is a request already
	case isInCohort, isLeftAlone:
		e.enqueueNext(nil)
	case !e.watching:
		e.watch(enqueueAfter)
	}
	e.enqueueSecond()
}

// enqueueSecond puts a second request into the engine's queue if at least two users of a
// cohort wait. So the client keeps its place and its subscriptions when the first request is
// granted. Otherwise each tenure would cost two more commands. Turns.mu is held.
func (e *entry) enqueueSecond() {
	hasTwo := e.waiters.First != nil && e.waiters.First.Next != nil
	isWorthwhile := hasTwo && e.next != nil && e.terms.Cohort > 0
	if !isWorthwhile || e.second != nil || e.turns.core.IsClosing() {
		return
	}
	e.awaitTenure(e.joinQueue(nil))
}

// watch puts a request into the engine's queue when the first user has waited for
// enqueueAfter. Turns.mu is held.
func (e *entry) watch(in time.Duration) {
	e.watching = true
	time.AfterFunc(in, func() {
		e.turns.mu.Lock()
		defer e.turns.mu.Unlock()
		e.watching = false
		w := e.waiters.First
		if w == nil || e.next != nil {
			return
		}
		left := enqueueAfter - time.Since(w.since)
		if left > 0 {
			e.watch(left)
		} else {
			e.enqueueNext(nil)
		}
	})
}

// enqueueNext makes a request for the next tenure join the engine's queue, if a user waits and no
// request is there. behind, if not nil, is the tenure hold that the caller is about to release.
// enqueueNext does not block. Turns.mu is held.
func (e *entry) enqueueNext(behind *engine.Hold) {
	isNeedless := e.waiters.First == nil || e.next != nil
	if isNeedless || e.turns.core.IsClosing() {
		return
	}
	tn := e.joinQueue(behind)
	e.turns.giveUpLingering(e.r.Name) // locks that linger with other terms
	e.awaitTenure(tn)
}

// joinQueue returns a tenure whose request has joined the engine's queue. behind is passed to
// [engine.Resource.JoinQueue]. mu is held.
func (e *entry) joinQueue(behind *engine.Hold) *tenure {
	tn := e.newTenure()
	e.r.InitTenure(&tn.request, e.terms, tn, true)
	e.r.JoinQueue(&tn.request, behind)
	return tn
}

// awaitTenure waits, in the background, for the tenure hold of tn, whose request is in the
// engine's queue. Turns.mu is held.
func (e *entry) awaitTenure(tn *tenure) {
	core := e.turns.core
	ctx, cancel := context.WithCancel(context.Background())
	tn.cancel = cancel
	tn.answered = make(chan struct{})
	switch {
	case e.next == nil:
		e.next = tn
		e.contact.SetSource(&tn.request)
	case e.second == nil:
		e.second = tn
	default: // two requests came first, because the attempt of tn took long
		e.withdraw(tn)
	}
	isOpen := core.Enter() == nil
	core.Spawn(func() {
		defer cancel()
		if isOpen {
			defer core.Leave()
		}
		defer close(tn.answered)
		hold, _, err := e.r.AcquireTenure(ctx, &tn.request)
		e.tenureAnswered(tn, hold, err)
	})
}

// tenureAnswered gives the first waiter its turn on the tenure hold of tn, or the error if there is
// no hold. It blocks for the release of a hold that nobody needs any longer.
func (e *entry) tenureAnswered(tn *tenure, hold *engine.Hold, err error) {
	t := e.turns
	t.mu.Lock()
	isNext := e.next == tn
	switch {
	case isNext:
		e.next = e.second
		e.second = nil
		e.followNext()
	case e.second == tn:
		e.second = nil
	}
	w := e.waiters.First
	isWanted := w != nil && !tn.lost
	switch {
	case hold != nil && isWanted:
		tn.begin(hold) // before w is removed, because w keeps the entry
		e.waiters.Remove(w)
		tn.give(w)
	case hold == nil && isNext && w != nil: // waiting longer would not help
		e.waiters.Remove(w)
		w.err = err
		w.wake()
	}
	e.prepareNext()
	e.removeIfUnused()
	t.mu.Unlock()
	if hold != nil && !isWanted {
		_ = hold.Release(context.Background())
	}
}

// followNext makes waiting users hear what the request of next hears. Turns.mu is held.
func (e *entry) followNext() {
	if e.next == nil {
		e.contact.SetSource(nil)
	} else {
		e.contact.SetSource(&e.next.request)
	}
}

// withdrawNext makes the requests that stand in the engine's queue give up, and returns a channel
// that is closed when the first one has left; nil if there is none. Turns.mu is held.
func (e *entry) withdrawNext() (left <-chan struct{}) {
	first := e.next
	second := e.second
	e.next = nil
	e.second = nil
	if second != nil {
		e.withdraw(second)
	}
	if first == nil {
		return nil
	}
	e.followNext()
	e.withdraw(first)
	return first.answered
}

// withdraw makes tn's request, which is in the engine's queue, give up. Turns.mu is held.
func (e *entry) withdraw(tn *tenure) {
	e.r.Withdraw(&tn.request)
	tn.cancel()
}

// GiveUp implements [engine.Turns].
func (t *Turns) GiveUp(ctx context.Context, name string) {
	if t.idle.Load() == 0 {
		return
	}
	t.mu.Lock()
	pending := t.giveUpLingering(name)
	t.mu.Unlock()
	for _, released := range pending {
		engine.AwaitReleased(ctx, released, t.core.RollbackLimit(time.Now()))
	}
}

// GiveUpLater implements [engine.Turns].
func (t *Turns) GiveUpLater(name string) {
	if t.idle.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.giveUpLingering(name)
}

// GiveUpAll implements [engine.Turns].
func (t *Turns) GiveUpAll() {
	if t.idle.Load() == 0 {
		return // the client's presence calls it often
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.entries {
		t.giveUpLingering(name)
	}
}

// giveUpLingering releases the lingering locks of a name in the background. mu is held.
func (t *Turns) giveUpLingering(name string) (released []<-chan struct{}) {
	var next *entry
	for e := t.entries[name]; e != nil; e = next {
		next = e.another // giveUp may remove e
		tn := e.tenure
		if tn != nil && tn.user == nil {
			released = append(released, tn.giveUp())
		}
	}
	return released
}

// Len returns the number of entries, for tests that look for leaks.
func (t *Turns) Len() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.entries {
		for ; e != nil; e = e.another {
			n++
		}
	}
	return n
}

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/waitq"
)

// What package turns needs of the engine.
//
// With Terms.Cohort or Terms.Linger the users of a client take turns on one hold, without commands
// in between. The hold, the tenure hold, is an ordinary one, which the client acquires by an
// ordinary request. Three things are special:
//
//   - It is silent: the holds of the users emit the events ([Group].UserOf).
//   - Its request only joins its queue, when it is refused. A goroutine waits for it later
//     (AcquireTenure, JoinQueue), while the users wait for their turns.
//   - Its ownership knows how long the client may keep the lock (Ownership.turnTerms), so that the
//     release which ends that time leaves the lock to others: see handoff.go.

// Turns lets the users of a client take turns on tenure holds: package turns.
type Turns interface {
	// Acquire acquires for q, instead of [Resource.AcquireOutermost].
	Acquire(ctx context.Context, r *Resource, q *Request) (*Hold, error)
	// GiveUp frees the lingering locks with that name, and waits for the answers, or until ctx
	// ends.
	GiveUp(ctx context.Context, name string)
	// GiveUpLater does the same in the background. It does not block.
	GiveUpLater(name string)
	// GiveUpAll frees all locks that linger, in the background. It does not block.
	GiveUpAll()
}

// TenureTokens is how many fencing tokens the request of a tenure hold reserves: one for each turn.
// When they are used up, the lock is handed off by a command, which reserves more. They last for
// the turns of 5 ms, and of most lingers. The number fits Hold.earlier and Owner.Tokens.
const TenureTokens = 10_000

// errQueued says that the request of a tenure hold was refused, and is in its queue.
var errQueued = errors.New("it is in the queue")

// UseTurns lets users take turns by t. It must be called before the first acquisition.
func (c *Core) UseTurns(t Turns) { c.turns = t }

// takesTurns reports whether users with these terms take turns. Only renewed holds without a limit
// do. The others rely on a lease of their own on the server, which the next turn would not set.
func (r *Resource) takesTurns(t *Terms) bool {
	keepsLock := t.Cohort > 0 || t.Linger > 0
	isUnlimited := t.Renew && t.MaxHold == 0 && t.MinHold == 0
	mayTakeTurns := r.Core.turns != nil && r.Traits.HasTurnsOfUsers() && !r.Core.NeedsReplicas
	return keepsLock && isUnlimited && t.Owner == "" && mayTakeTurns
}

// newTurnRequest returns the request of a user who takes turns. The server never hears of it, so it
// has no id.
func newTurnRequest(terms *Terms) *Request {
	q := &Request{Terms: terms, NonReentrant: terms.NonReentrant}
	q.Permits = 1
	q.TTL = terms.TTL
	return q
}

// giveUpLingering frees the locks with that name that linger on this client, before an attempt to
// acquire the name.
func (c *Core) giveUpLingering(ctx context.Context, name string) {
	if c.turns != nil {
		c.turns.GiveUp(ctx, name)
	}
}

// giveUpLingeringLater is giveUpLingering in the background.
func (c *Core) giveUpLingeringLater(name string) {
	if c.turns != nil {
		c.turns.GiveUpLater(name)
	}
}

// GiveUpLingering frees resources that linger on this client, before a command that acquires them
// together.
func (c *Core) GiveUpLingering(ctx context.Context, resources []*Resource) {
	for _, r := range resources {
		c.giveUpLingering(ctx, r.Name)
	}
}

// GiveUpAllLingering gives up all lingering locks, in the background: the client closes, or may
// have missed that another client has asked.
func (c *Core) GiveUpAllLingering() {
	if c.turns != nil {
		c.turns.GiveUpAll()
	}
}

// InitTenure makes q, which is new, the request of a tenure hold for users with these terms. group
// hears of the end of the hold. waits says that q, if it is refused, joins its queue, and waits
// until its context ends.
func (r *Resource) InitTenure(q *Request, terms *Terms, group Group, waits bool) {
	r.initRequest(q, terms)
	q.Group = group
	q.isTenure = true
	q.Wait.noEvents = true
	if waits {
		q.Wait.limit = Forever
	}
	if terms.Linger > 0 {
		q.ID = lingerID(q.ID)
	}
	if r.Traits.Fenced {
		q.Tokens = TenureTokens
	}
}

// AcquireTenure acquires for the request of a tenure hold. If that is refused and may wait, it
// joins its queue: queued is true, and the caller must call AcquireTenure once more, which then
// waits. It blocks as [Resource.AcquireOutermost] does. The caller is a call that Close waits for.
func (r *Resource) AcquireTenure(ctx context.Context, q *Request) (hold *Hold, queued bool, err error) {
	hold, err = r.AcquireOutermost(ctx, q, time.Now())
	if errors.Is(err, errQueued) {
		return nil, true, nil
	}
	return hold, false, err
}

// JoinQueue puts the request of a tenure hold into its queue, without an attempt. behind, if not
// nil, is a hold that is about to be released. If its release will leave the lock to other clients,
// q lets others go first from now on: its subscription may be confirmed, and its attempt sent,
// while the release is under way. JoinQueue does not block, and takes waitQueues.mu. The caller
// must call AcquireTenure, which then waits.
func (r *Resource) JoinQueue(q *Request, behind *Hold) {
	if behind != nil {
		behind.Ownership().announceOthersTurn()
	}
	q.MayQueue = true
	q.waiter = r.join(nil, q, Result{RetryAfter: -1})
}

// Withdraw says that q, which is in its queue, is about to give up: no release of this client
// is for it from now on, and nobody waits behind it. It takes waitQueues.mu and does not block.
func (r *Resource) Withdraw(q *Request) {
	qs := &r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q.waiter.local.Leaves = true
}

// HasHeardRelease reports whether a message of a release has come since q, which is in its
// queue, knows that somebody has the lock. A nil request has heard of none.
func (q *Request) HasHeardRelease() bool {
	if q == nil || q.contact == nil {
		return false
	}
	q.contact.mu.Lock()
	defer q.contact.mu.Unlock()
	return q.contact.outdated
}

// OthersWait reports whether a request of this client waits for the lock of r, other than queued:
// the requests of tenure holds that are in their queue for it. It takes waitQueues.mu and does not
// block.
func (r *Resource) OthersWait(queued []*Request) bool {
	qs := &r.Core.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	polling := qs.polling[queueKey{r.Kind, r.Name}]
	except := make([]*waitq.Waiter, 0, 2)
	for _, q := range queued {
		if q.polls() {
			polling--
		}
		except = append(except, &q.waiter.local)
	}
	if polling > 0 {
		return true
	}
	for _, kind := range [...]string{r.Kind, r.Traits.OtherSide} {
		queue := qs.open[queueKey{kind, r.Name}]
		if queue != nil && queue.state.AnyStays(except...) {
			return true
		}
	}
	return false
}

// NewTurnHold makes the hold of a user's turn on a tenure hold, in memory. The turn began at began.
// It fails with ErrClosed if the client is closing. The caller is a call that Close waits for.
func (r *Resource) NewTurnHold(
	ctx context.Context, q *Request, memory *Hold, turn Holding, began time.Time,
) (*Hold, error) {
	q.memory = memory
	return r.NewHold(ctx, q, Result{Granted: true, Sent: began, Holding: turn})
}

// IsSole reports whether the next user may have h, a tenure hold, as it is now:
//
//   - Nothing else counts on its lock, and no command is under way that could change that: no
//     nested hold, and no hold of another kind.
//   - No user was promised a longer lease, by Extend.
//   - At least half of its TTL is left. If renewals are overdue, the server should decide.
//
// The wire lock decides whether a nested acquisition or the release of the turn came first: see
// Ownership.nest. IsSole takes that lock for a moment, and does not block.
func (h *Hold) IsSole(now time.Time) bool {
	o := h.Ownership()
	if !o.wire.TryLock() {
		return false
	}
	defer o.wire.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	isOnlyHold := o.holds == h && h.sibling == nil && o.count == 1
	isConfirmed := o.lease.ValidUntil().Sub(now) >= h.ttl/2
	return isOnlyHold && !o.otherKind && isConfirmed && h.state().extended == 0
}

// WasWanted reports whether another client has asked for h, a tenure hold. It takes waitQueues.mu
// and does not block.
func (h *Hold) WasWanted() bool { return h.Ownership().wasWanted() }

// KeptSince returns when this client acquired the lock of h. Since then the lock may have been
// handed off to h.
func (h *Hold) KeptSince() time.Time { return h.r.Core.Time(h.Ownership().streak.since) }

// Tokens returns the first fencing token of h, a tenure hold, and the number of its tokens. Both
// are 0 if it has none.
func (h *Hold) Tokens() (first int64, n int) {
	o := h.Ownership()
	if !h.r.Traits.Fenced || o.Token == 0 {
		return 0, 0
	}
	return o.Token, max(int(o.Tokens), 1)
}

// ReleaseLater releases h in the background, and does not block. The release begins now, and not
// when its goroutine runs: Close abandons no hold whose release has begun. released is closed when
// the release has been answered, or goes on as a duty. That takes releaseTimeout at most. The
// release is no duty from the start, because a duty could wait behind others while h is still
// renewed.
func (h *Hold) ReleaseLater() (released <-chan struct{}) {
	c := h.r.Core
	done := make(chan struct{})
	if c.Enter() != nil {
		_ = h.takeAndForget()
		close(done)
		return done
	}
	taken := h.take()
	c.Spawn(func() {
		defer close(done)
		defer c.Leave()
		_ = h.release(context.Background(), taken)
	})
	return done
}

// AwaitReleased waits until released is closed, for limit at most, and not for long once ctx has
// ended.
func AwaitReleased(ctx context.Context, released <-chan struct{}, limit time.Duration) {
	awaitFirst(ctx, released, limit)
}

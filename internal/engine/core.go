package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/duty"
	"github.com/redlatch/redlatch/watchdog"
)

// What belongs to one client: its configuration, the calls and goroutines that are under way, and
// Close.
//
// Close returns only when nothing of the client runs. Each call therefore registers before it does
// anything (Enter), and Spawn starts each goroutine. When it is too late, Enter fails and Spawn
// does nothing.

// Config is the part of a client that a [Core] needs. It does not change after NewCore.
type Config struct {
	Commands Commands
	Owners   Owners
	Errors   Errors
	Presence Presence
	// Observe receives every event; nil if there is no observer. It is called from many goroutines
	// and with no mutex of the engine held. A slow observer delays the call that it observes.
	Observe func(Event)

	// Logger must not block: see package logqueue.
	Logger *slog.Logger
	// NeedsReplicas is set if replicas must confirm an acquisition. No request then acquires for
	// another, because WAIT only follows the command of the request that acquires.
	NeedsReplicas bool
	// Margin is how long before its end a lease is no longer trusted. A negative margin stands for
	// TTL/100 + 2 ms.
	Margin time.Duration
	// CommandTimeout is how long a call waits for the server's answer.
	CommandTimeout time.Duration
	// RepeatFor is how long after its first attempt a command that the server remembers may be
	// repeated.
	RepeatFor time.Duration
	// LateCopies is how long a copy of a command of unknown outcome may still arrive.
	LateCopies time.Duration
}

// Commands has the functions that the engine needs for the commands of a client, besides its
// drivers.
type Commands struct {
	// Renew extends leases in batches: see [watchdog.Renew]. The keeper of each is an [*Ownership].
	Renew watchdog.Renew
	// Ready prepares the client for its first command. Every call that needs the server waits for
	// it, except a Release, whose acquisition has waited. It is nil if there is nothing to prepare.
	Ready func(ctx context.Context) error
	// Try returns a context for the attempts of an acquisition that does not wait. They end soon if
	// the server refuses commands for the moment.
	Try func(ctx context.Context) context.Context
	// Server returns a key for the server that has r now. Resources with equal keys fail together.
	// It must only compute.
	Server func(r *Resource) any
}

// Owners makes the ids of owners, and reads them.
type Owners struct {
	// New makes an owner with an id and a number that no other acquisition ever gets.
	New func() Owner
	// IsOwn reports whether this client has made an owner's id, for an acquisition of its own.
	// known is false for an id that no client has made. It must only compute.
	IsOwn func(ownerID string) (own, known bool)
	// TagOf returns the tag of an owner's id, or "" if it has none. Takeovers of holds with the
	// same tag are announced together. TagOf is called with a mutex held, so it must only compute.
	TagOf func(ownerID string) string
}

// Errors makes the errors that users see.
type Errors struct {
	// Describe adds the operation and the resource to an error.
	Describe func(r *Resource, operation string, err error) error
	// Explain says what a key holds, if err is Redis's answer that the key does not hold what r
	// stores there. It returns other errors unchanged.
	Explain func(r *Resource, err error) error
	// Address returns the name of the server that has r, for errors, or "" if it is unknown. It
	// must only compute.
	Address func(r *Resource) string
	// Lost makes the error of a loss. It matches ErrLost.
	Lost func(Loss) error
}

// Presence has the functions that tell other clients of this one, and ask them: see package
// presence. None of them may block, except CanLinger.
type Presence struct {
	// HoldAdded is called for each new hold, and WaitBegan and WaitEnded for each acquisition that
	// waits.
	HoldAdded            func()
	WaitBegan, WaitEnded func(r *Resource)
	// StaysTaken is called when a release has left the lock of an id taken for the rest of its
	// minimum hold. It may be nil.
	StaysTaken func(id string, rest time.Duration)
	// CanLinger reports whether the client hears other clients that ask for a lingering lock. The
	// first call may wait for a moment until it does.
	CanLinger func(ctx context.Context) bool
	// NameOf returns the name of a holder's client, or "" if it is unknown. It must only compute.
	// It may be nil.
	NameOf func(holder string) string
	// Ask asks the client of a holder to give up a lingering lock.
	Ask func(r *Resource, holder string)
	// HoldListens is called when the user of a hold first asks whether anybody waits for it: see
	// [Hold.Wanted].
	HoldListens func()
}

// Core is the engine of one client: its watchdog, its wait queues, its holds, and the goroutines
// that finish its work in the background. A client makes one with NewCore and ends it with Close.
// It is safe for concurrent use. Close takes it through these states:
//
//	open           calls may acquire
//	closing        acquisitions fail, and waiters give up (beginClose, the context open)
//	refusesCalls   no call begins; those under way, and background work, go on
//	stopping       background work ends
//	dead           no goroutine starts
type Core struct {
	Config

	born      time.Time // instants count from here
	turns     Turns     // nil if nobody takes turns
	dog       *watchdog.Dog
	queues    waitQueues
	holds     holdList
	duties    *duty.Lanes
	tokens    seenTokens
	reach     reach
	leaks     leaks
	waitedFor waitedFor
	listening listeningHolds

	open       context.Context //nolint:containedctx // ends when Close begins: acquisitions fail, and waiters give up
	beginClose context.CancelFunc
	stopping   chan struct{} // closed when Close has waited for all calls: background work ends

	// mu guards refusesCalls and dead. It is held for reading while a call or a goroutine registers.
	// That way none registers after Close has set the flag, and a WaitGroup never grows while Close
	// waits for it.
	mu           sync.RWMutex
	refusesCalls bool // no more calls
	dead         bool // no more background goroutines
	calls        sync.WaitGroup
	background   sync.WaitGroup

	muted atomic.Bool // set when Close stops waiting for code of the user: the observer is no longer called
}

// NewCore returns a core. It starts no goroutine.
func NewCore(config Config) *Core {
	c := &Core{Config: config, born: time.Now(), stopping: make(chan struct{})}
	c.open, c.beginClose = context.WithCancel(context.Background())
	if observe := config.Observe; observe != nil {
		c.Observe = func(e Event) {
			if !c.muted.Load() {
				observe(e)
			}
		}
	}
	c.dog = watchdog.New(config.Commands.Renew)
	c.duties = duty.NewLanes(c.Spawn, releaseTimeout)
	c.holds.drained = make(chan struct{})
	c.holds.tags = map[string]int{}
	c.holds.byName = map[string]*Hold{}
	c.holds.undelivered = map[*Hold]struct{}{}
	c.queues.open = map[queueKey]*waitQueue{}
	c.queues.polling = map[queueKey]int{}
	c.queues.leftTo = map[queueKey]time.Time{}
	c.queues.pending = map[string]*Request{}
	c.queues.wantedNext = map[string]time.Time{}
	c.tokens.byNames = map[string]seenToken{}
	c.leaks.inBubble = isBubbleTime(c.born)
	return c
}

// Enter registers a call that Close waits for. The caller ends it with [Core.Leave]. It does not
// block. It fails with [ErrClosed] once Close refuses calls. Calls may still enter while Close
// waits for holds: they include the releases that it waits for.
func (c *Core) Enter() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.refusesCalls {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

// Leave ends a call that Enter or EnterReady registered.
func (c *Core) Leave() { c.calls.Done() }

// EnterReady is Enter for a call that needs the server. It waits for Commands.Ready, up to the end
// of ctx. The caller must not call Leave if EnterReady fails.
func (c *Core) EnterReady(ctx context.Context) error {
	err := c.Enter()
	if err != nil || c.Commands.Ready == nil {
		return err
	}
	err = c.Commands.Ready(ctx)
	if err != nil {
		c.Leave()
	}
	return err
}

// Spawn runs f in a goroutine that Close waits for. f must end when stopping is closed, or by
// itself. After Close, Spawn does nothing.
func (c *Core) Spawn(f func()) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.dead {
		c.background.Go(f)
	}
}

// ClosingContext returns a context that ends when Close begins.
func (c *Core) ClosingContext() context.Context { return c.open }

// Closing returns a channel that is closed when Close begins.
func (c *Core) Closing() <-chan struct{} { return c.open.Done() }

// Stopping returns a channel that is closed when Close ends background work.
func (c *Core) Stopping() <-chan struct{} { return c.stopping }

// IsClosing reports whether Close has begun: nothing new may be acquired.
func (c *Core) IsClosing() bool { return c.open.Err() != nil }

// IsStopping reports whether Close has ended background work.
func (c *Core) IsStopping() bool { return IsClosed(c.stopping) }

// CloseHooks has the functions of a client that Close needs. They are called at most once each, in
// this order.
type CloseHooks struct {
	// Hurry must make all commands, and all later ones, end within the command timeout. It must not
	// block.
	Hurry func()
	// Cut makes commands fail from now on, and must not block. It is called only if code of the
	// user does not return.
	Cut func()
	// Stop is called when no call is left, or after Cut, with the error that Close returns because
	// of holds, or nil. It must end everything that background work waits for. After Cut it may
	// block for as long as code of the user does.
	Stop func(holdsErr error)
}

// cutGrace is how much longer than the command timeout Close waits after Hurry. Everything but code
// of the user ends within the command timeout, but a busy machine may be late.
const cutGrace = 500 * time.Millisecond

// errUserCode says why Close stopped waiting.
var errUserCode = errors.New("an observer or a hook of the redis client has not returned")

// Close refuses new acquisitions, ends waiting ones, and waits until all holds are released or ctx
// is done. It abandons the holds that are left: their contexts end with [ErrClosed], and nothing
// renews their leases. Then it waits for calls, and for one last attempt at each rollback and
// release. On a silent server, commands that were tried before are dropped instead.
//
// Calls and background work have a command timeout after the last hold has ended, or until ctx
// ends. Then Close hurries them, which gives them another command timeout. Only code of the user
// can take longer: an observer, or a hook of the redis client. It may even wait for Close itself.
// Close does not wait for it: from then on nothing is sent, and no observer is called.
//
//	no hold is left, or ctx ends            holds that are left are abandoned; calls and background go on
//	ctx ends, or after a command timeout    Hurry
//	after another command timeout           Cut: only goroutines in code of the user are left
//
// Close returns the cause of ctx if holds were left, and an error if it did not wait for code of
// the user. panicked is the value with which the observer panicked when it heard of the holds that
// were left. Close must be called once.
func (c *Core) Close(ctx context.Context, how CloseHooks) (panicked any, err error) {
	// Seal first. An acquisition that did not see in time that the client closes cannot add its
	// hold, and is rolled back. Otherwise its hold could appear after Close has looked for holds.
	c.holds.seal()
	c.beginClose()
	c.GiveUpAllLingering() // first: Close waits for a release that has begun, even after its context has ended
	var abandoned []*Hold
	var holdsErr error
	if why := c.awaitHolds(ctx); why != nil {
		abandoned = c.holds.abandon()
		holdsErr = holdsLeft(why, abandoned)
	}
	c.mu.Lock()
	c.refusesCalls = true
	c.mu.Unlock()

	e := &ender{c: c, cut: make(chan struct{}), done: make(chan struct{})}
	go e.finish(abandoned, func() { how.Stop(holdsErr) }) // holdsErr does not change from now on
	timer := time.NewTimer(c.CommandTimeout)
	defer timer.Stop()
	select {
	case <-e.done:
		return e.panicked, holdsErr
	case <-ctx.Done():
	case <-timer.C:
	}
	how.Hurry()
	timer.Reset(c.CommandTimeout + cutGrace)
	select {
	case <-e.done:
		return e.panicked, holdsErr
	case <-timer.C:
	}
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	c.muted.Store(true)
	how.Cut()
	close(e.cut)
	why := holdsErr
	if why == nil {
		why = context.Cause(ctx)
	}
	if why == nil {
		return nil, errUserCode
	}
	return nil, fmt.Errorf("%w; %w", why, errUserCode)
}

// awaitHolds waits until no hold is left. It returns why it waits no longer: ctx has ended, or
// nobody can release the holds that are left, because the observer keeps the calls that acquired
// them from returning.
func (c *Core) awaitHolds(ctx context.Context) error {
	ticker := time.NewTicker(c.CommandTimeout)
	defer ticker.Stop()
	for {
		select {
		case <-c.holds.drained:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
			// Close lets no new acquisition begin, so their observer has run for at least as long
			// as Close.
			if c.holds.allUndelivered() {
				return errUserCode
			}
		}
	}
}

// ender is the part of Close that comes when no hold is left. It has a goroutine, because Close may
// stop waiting for it.
type ender struct {
	c        *Core
	cut      chan struct{} // closed when Close waits no longer
	done     chan struct{} // closed when everything has ended
	panicked any           // by the observer; read after done
}

// finish runs in that goroutine. It ends when all code of the user has returned.
func (e *ender) finish(abandoned []*Hold, stop func()) {
	defer close(e.done)
	c := e.c
	e.await(func() {
		defer func() { e.panicked = recover() }()
		for _, h := range abandoned {
			h.emit(noContext, EventAbandoned, ErrClosed)
		}
	})
	e.await(c.calls.Wait) // no call waits for a lock now, and commands have the client's timeouts
	limit := c.CommandTimeout
	if IsClosed(e.cut) {
		limit = 0
	}
	c.duties.Finish(limit)
	close(c.stopping)
	c.dog.Close()
	stop()
	// Background work may start more of its kind until here, for example the event of a lost hold.
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	c.background.Wait()
}

// await runs f, and returns when f does or when Close waits no longer.
func (e *ender) await(f func()) {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		f()
	}()
	select {
	case <-returned:
	case <-e.cut:
	}
}

// Instant is a point of the monotonic clock, counted from the creation of the core. 0 means none. A
// hold stores several of them, and a time.Time is three times as large.
type Instant time.Duration

// Instant converts a time to an instant.
func (c *Core) Instant(t time.Time) Instant { return Instant(t.Sub(c.born)) }

// Time converts an instant to a time.
func (c *Core) Time(i Instant) time.Time { return c.born.Add(time.Duration(i)) }

// MarginOf returns how long before its end a lease of ttl is no longer trusted. It is at most half
// of ttl.
func (c *Core) MarginOf(ttl time.Duration) time.Duration {
	margin := c.Margin
	if margin < 0 {
		margin = ttl/100 + 2*time.Millisecond
	}
	return min(margin, ttl/2)
}

// trustedUntil returns when a lease of ttl is no longer trusted, if its command was sent at sent.
func (c *Core) trustedUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - c.MarginOf(ttl))
}

// Pause waits for d. It returns early when ctx ends, or when done is closed or something arrives
// from it.
func Pause(ctx context.Context, d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-done:
	}
}

// IsClosed reports whether a channel on which nothing is sent was closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

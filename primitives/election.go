package primitives

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/redisutil"
)

// Leader election: the leader is the client that holds a fenced lock. This file stands for
// election, and election_watch.go tells who leads.
//
//	stand -> acquire, without a limit -> lead(ctx, term) -> release
//	  ^        failed: pause                                  |
//	  +-------------------------------------------------------+  lead returned nil: pause for the others' turn
//
// Only one goroutine, the caller's, does all of this, so a lead that overstays keeps its own client
// from standing again, and two calls of lead never overlap.

// Election elects one leader among all clients that use its name: [Client.Election]. It is a
// handle: immutable, shareable, and made without I/O.
//
// Behind it is the fenced lock of that name ([Client.FencedLock], Redisson's getFencedLock), so a
// Java process may stand for election, too. While a candidate leads, that lock is held for Java,
// and a Java thread that waits for it gets it as soon as the leader has ended. A Java thread that
// holds it is the [Leader], without a client name.
//
// What that lock cannot promise, an election cannot promise either: a leader that does not watch
// its context may go on after its term has ended. A store that checks [Term].Token refuses its
// writes.
type Election struct {
	_ noCopy

	lock *Lock
}

// Term is the time from a candidate's election until its lead function has returned.
type Term struct {
	Token int64 // the fencing token: greater than that of every earlier term
	Hold  *Hold // the hold of the fenced lock; Run releases it
}

// electionTraits are the traits of fenced locks, except that a release hands the lock to no
// candidate of the same client: it publishes, so that watchers learn of the change.
var electionTraits = func(t engine.Traits) engine.Traits { t.HandsOff = false; return t }(fencedTraits)

// Election returns the election of that name. It sends nothing. [WithWatchdog] says how long the
// others wait for a leader that has died; the default is 30 s. [WithLease] and [WithMaxHold] limit
// a term. [WithWait], [WithCohort], [WithLinger] and [WithMinHold] have no effect. [WithOwner] is
// [ErrInvalid], because all candidates with one id would lead together. The first call of a method
// reports a bad name or option.
func (c *Client) Election(name string, opts ...Option) *Election {
	opts = append(slices.Clip(opts), WithCohort(0), WithLinger(0), WithMinHold(0), WithNonReentrant())
	l := c.newMutex(fencedKind, name, opts)
	l.res.Traits = &electionTraits
	if l.settings.Owner != "" {
		l.refuse(invalid("WithOwner for an election: candidates with one id would lead together"))
	}
	return &Election{lock: l}
}

// Name returns the user's name, without the client's prefix.
func (e *Election) Name() string { return e.lock.Name() }

const (
	// othersTurn is how long a candidate that has led stands back, so that waiting clients are
	// elected first. It is longer than the turn that clients of one lock leave to each other
	// (waitq.MaxTurn).
	othersTurn = 100 * time.Millisecond
	// The pauses between attempts that fail double from the first to the longest.
	firstElectionPause   = 20 * time.Millisecond
	longestElectionPause = time.Second
)

// Run stands for election until ctx ends. While this candidate leads, Run calls lead, in Run's own
// goroutine. lead must return soon after its context has ended. That context ends with ctx and its
// cause, or with [ErrLost] when the leadership is lost. It carries the hold ([HoldFrom]). Run gives
// the leadership back as soon as lead returns or panics, and another candidate leads one exchange
// with Redis later.
//
//   - lead returns nil: Run stands again, after the other candidates.
//   - lead returns an error: Run returns it. An error that only says that lead's context has ended
//     counts as nil.
//   - The leadership is lost: Run stands again, once lead has returned.
//   - ctx ends while lead runs: Run returns nil once lead has returned, or lead's error.
//   - ctx ends at another time: Run returns its cause.
//
// Outages, losses and refusals do not end Run. A permanent error does: [ErrInvalid], [ErrClosed],
// [ErrForeign], a missing permission, or a missing or wrong password when an attempt begins. The
// observer gets the events of a fenced lock.
func (e *Election) Run(ctx context.Context, lead func(ctx context.Context, term Term) error) error {
	pause := firstElectionPause
	for {
		hold, err := e.lock.acquire(ctx, nil, waitForever)
		switch {
		case err == nil:
			pause = firstElectionPause
			err = e.serve(ctx, hold, lead)
			if err != nil || ctx.Err() != nil {
				return err
			}
			if !errors.Is(context.Cause(hold.Context()), ErrLost) { // lead has resigned
				engine.Pause(ctx, othersTurn, e.lock.c.core.Closing())
			}
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case endsElection(err):
			return err
		default:
			engine.Pause(ctx, pause, e.lock.c.core.Closing())
			pause = min(2*pause, longestElectionPause)
		}
	}
}

// serve runs one term. The result is lead's error, unless that only says that lead's context has
// ended.
func (e *Election) serve(ctx context.Context, hold *Hold, lead func(context.Context, Term) error) error {
	// The observer learns of a failed release, which is then repeated in the background.
	defer func() { _ = hold.Release(ctx) }()
	term := hold.Context()
	err := lead(term, Term{Token: hold.Token(), Hold: hold})
	if saysEnded(term, err) {
		return nil
	}
	return err
}

// saysEnded reports whether err says that ctx has ended, and nothing else. It walks the tree of err
// as [errors.Is] does, except that all parts of a joined error must say so. An error of this
// library is one part: it may also say what the call had waited for.
func saysEnded(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	if cause == nil || err == nil {
		return false
	}
	_, isOurs := err.(*Error) //nolint:errorlint // each node by itself
	joined, isJoined := err.(interface{ Unwrap() []error })
	isCause := err == cause //nolint:errorlint // the very value
	inner := errors.Unwrap(err)
	switch {
	case isJoined && !isCause:
		saysMore := func(part error) bool { return !saysEnded(ctx, part) }
		return !slices.ContainsFunc(joined.Unwrap(), saysMore)
	case inner != nil && !isOurs && !isCause:
		return saysEnded(ctx, inner)
	}
	isLoss := errors.Is(err, ErrLost) && errors.Is(cause, ErrLost)
	return isLoss || errors.Is(err, cause) || errors.Is(err, ctx.Err())
}

// endsElection reports whether an attempt failed in a way that no later attempt can repair.
func endsElection(err error) bool {
	for _, final := range []error{ErrInvalid, ErrClosed, ErrForeign, redis.ErrClosed} {
		if errors.Is(err, final) {
			return true
		}
	}
	return redisutil.LacksRights(err) || redisutil.RefusesLogin(err)
}

package primitives

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// The options of acquisitions. An Option is a small value instead of a func, so that the options of
// a call need no allocation. [settings] merges the scopes into the engine's terms.

// Option sets how a primitive is acquired. There are three scopes: the client's defaults
// ([WithDefaults]), a handle, and a single call. The nearest scope wins, and within one scope the
// later option. A primitive ignores options that do not concern it, but their values are checked: a
// bad one makes the call fail with [ErrInvalid], and nothing is sent. The zero value does nothing.
type Option struct {
	kind   optionKind
	d, max time.Duration   // max is for WithPolling only
	n      int             // the argument of WithPermits
	s      string          // the argument of WithOwner
	ctx    context.Context //nolint:containedctx // the argument of WithHoldContext
}

type optionKind uint8

const (
	optNone optionKind = iota
	optWait
	optLease
	optWatchdog
	optMaxHold
	optPermits
	optOwner
	optNonReentrant
	optPolling
	optWaiterTimeout
	optCohort
	optLinger
	optMinHold
	optHoldContext
)

// Durations that are sent to Redis lie between these.
const (
	minDuration = time.Millisecond
	maxDuration = 100 * 365 * 24 * time.Hour
)

// WithWait limits how long an acquisition waits. It does not limit the hold. 0 tries once; a
// negative d is [ErrInvalid]. Default: wait until the context is done.
func WithWait(d time.Duration) Option { return Option{kind: optWait, d: d} }

// WithLease asks for a fixed lease, which is never renewed: the hold's context ends a safety margin
// before it does ([WithSafetyMargin]). It excludes [WithWatchdog]: the nearer scope decides, and
// within one scope the later option. From 1 ms to 100 years.
func WithLease(d time.Duration) Option { return Option{kind: optLease, d: d} }

// WithWatchdog renews a hold every ttl/3 until it is released. If its holder dies, the lock becomes
// free within ttl. It is the default, with 30 s, as in Redisson. From 1 ms to 100 years.
func WithWatchdog(ttl time.Duration) Option { return Option{kind: optWatchdog, d: ttl} }

// WithMaxHold limits how long a renewed hold lasts. After that it is lost, and its context ends
// with [ErrLost]. From 1 ms to 100 years. Default: no limit.
func WithMaxHold(d time.Duration) Option { return Option{kind: optMaxHold, d: d} }

// WithPermits sets how many permits of a semaphore to acquire, all or none. 0 succeeds and sends
// nothing. Default 1.
func WithPermits(n int) Option { return Option{kind: optPermits, n: n} }

// WithOwner acquires under an id that the caller manages, such as a Java thread's "<uuid>:<thread
// id>". Equal ids are one holder, in any process: they do not exclude each other, and the server
// counts their holds. The empty id, "mode" and ids that end in ":write" are [ErrInvalid], because
// Redisson's format gives them a meaning.
func WithOwner(id string) Option { return Option{kind: optOwner, s: id} }

// WithNonReentrant makes a nested acquisition fail with [ErrDeadlock].
func WithNonReentrant() Option { return Option{kind: optNonReentrant} }

// WithPolling waits by trying again, without pub/sub: first after min, then after twice as long
// each time up to max, with some jitter. It is Redisson's SpinLock. Use it where subscriptions are
// not allowed. Each waiter tries by itself, so many waiters send many commands. A writer tries at
// least twice a second while it keeps new readers out. Both are 1 ms to 100 years, and min is at
// most max.
func WithPolling(min, max time.Duration) Option { return Option{kind: optPolling, d: min, max: max} }

// WithWaiterTimeout sets how long a waiter of a FairLock keeps its place without a heartbeat. A
// crashed waiter delays the waiters behind it for no longer. Live clients send heartbeats at least
// every third of it, so a short one costs commands. Default 10 s. From 1 ms to 100 years.
func WithWaiterTimeout(d time.Duration) Option { return Option{kind: optWaiterTimeout, d: d} }

// WithCohort lets the waiters of one client pass a lock on among themselves without asking Redis,
// for up to d after the client acquired it. Then other clients, Java's included, go first: the lock
// is left to them until one of them has released it, or for as long as d, from 10 to 85 ms. It
// makes a contended lock many times faster within one process. Other clients wait for up to d
// longer. Default 0: every hand-off asks Redis. At most 100 years.
//
// It applies to [Client.Lock], [Client.FencedLock] and [RWLock.Writer]; others ignore it. A lock is
// passed on to a waiter with the same d, TTL and [WithPolling]. Both must be renewed: no
// [WithLease], [WithMaxHold], [WithMinHold], [WithOwner] or [WithReplicas], no joint lock. Other
// waiters get the lock by a command, when the cohort is over.
//
// The holds of a cohort have one id on the wire, [Hold.ID]. Do not give it to [WithOwner]: that
// hold would not exclude later members. Each member has a context and a fencing token of its own;
// tokens are reserved in blocks, so they rise in larger steps. [Hold.ValidUntil] is counted from
// the last command that Redis confirmed, as always.
//
// The price: a release within a cohort does not ask Redis, so it returns nil although the lock may
// have been taken by force, or forgotten by a failover, while the hold lasted. A later member finds
// that loss, or the next renewal does, and it ends the cohort. If each release must know, use
// [Client.FencedLock] and let the resource check the token, or do not use a cohort. (Lock
// cohorting: Dice, Marathe and Shavit, 2012.)
func WithCohort(d time.Duration) Option { return Option{kind: optCohort, d: d} }

// WithLinger lets a client keep a lock for up to d after the last release, if nobody is known to
// wait. The next acquisition of the same kind and name then takes it without asking Redis. It makes
// a lock that one client uses again and again, such as one for each partition or tenant, many times
// faster. Default 0: the last release frees the lock. At most 100 years. Waiters of the client pass
// the lock on among themselves without asking Redis, too, for up to d after the client acquired it,
// unless somebody else asks for it. With [WithCohort] as well, the cohort says for how long.
//
// It applies to [Client.Lock], [Client.FencedLock] and [RWLock.Writer]; others ignore it. Each hold
// has a context and a fencing token of its own. The hold before it has ended, and the lock goes on
// being renewed in between. As in a cohort ([WithCohort]), the holds share the id on the wire, and
// a loss may be found by a later hold than the one that had the lock then. An acquisition with
// another d, cohort or TTL, or with [WithLease], [WithMaxHold] or [WithOwner], asks Redis, and its
// hold may not linger. A hold with [WithReplicas] does not linger either, nor does a member of a
// joint lock.
//
// A waiting client of this library asks for the lock, and gets it at once. Redisson cannot ask: it
// waits until the lock was unused for d, or a cohort is over. TryAcquire of another client fails
// while the lock lingers. Close frees it. If the process crashes, it is free when its lease ends.
//
// The client listens for other clients that ask. If it cannot subscribe, nothing lingers.
func WithLinger(d time.Duration) Option { return Option{kind: optLinger, d: d} }

// WithMinHold keeps a lock from being free again before d after its acquisition, however soon it is
// released. It is for jobs that must run once although the clocks of their hosts differ: a job that
// takes a second, on hosts whose clocks differ by at most a minute, needs a d of some minutes.
// Default 0. From 1 ms to 100 years.
//
// A Release before that ends the hold as usual, and returns at once. But the key stays for the rest
// of d, under the hold's id, and nobody else acquires the lock. Waiters learn the new TTL, and
// acquire when it ends. If the process dies instead, or calls [Hold.Detach], the lock stays taken
// for d or for its lease, whichever is longer. [Lock.ForceRelease] and ReleaseID free it at once,
// and Adopt takes it over.
//
// It applies to all locks, and to [PermitExpirableSemaphore]; a plain semaphore ignores it. A
// reader keeps writers out, not other readers. d counts from the moment when the acquisition was
// confirmed, by the monotonic clock of its process. If d is longer than the lease, it counts from
// when Redis granted the lock: it may end early by as long as the answer was on its way. The
// outermost hold decides: nested holds ignore the option. With a [WithLease] or [WithMaxHold]
// shorter than d, the hold is lost as usual, and the key stays. Such a hold belongs to no cohort
// ([WithCohort]).
//
// With [WithOwner], an acquisition with the same id may enter during the rest, and the lock then
// stays taken until the lease of that acquisition ends. If the id has other holds when it is
// released, the last one decides.
func WithMinHold(d time.Duration) Option { return Option{kind: optMinHold, d: d} }

// WithHoldContext gives the hold a context of its own: [Hold.Context] has the values and the
// cancellation of ctx, instead of those of Acquire's context, which then bounds the wait only. Use
// it for a hold that outlasts its request, or that must end with something other than its request:
//
//	hold, err := lock.Acquire(request, primitives.WithHoldContext(leadership))
//
// Nothing else changes. The hold's context still ends with the hold, with the same causes, and
// carries the hold. Cancelling ctx neither releases the hold nor stops its renewal. ctx has no part
// in the acquisition: if it is done before or while the acquisition waits, the lock is acquired all
// the same, and the hold's context is done from the start.
//
// Acquire's context decides whether the acquisition nests. The hold's context does not carry the
// holds of Acquire's context, unless ctx does too. So acquiring an outer lock with the hold's
// context waits for the caller's own hold.
//
// It is an option of a call: of Acquire, TryAcquire, Do, TryDo and Adopt. As an option of a handle,
// a joint lock or a client it makes all calls fail with [ErrInvalid]. So does a nil ctx.
func WithHoldContext(ctx context.Context) Option { return Option{kind: optHoldContext, ctx: ctx} }

// settings are the options that apply to an acquisition, merged. It is a value: each scope copies
// the one around it and applies its own options.
type settings struct {
	engine.Terms

	err error // the error of the first option that was out of range
}

// defaultSettings returns the settings without any option. All defaults are here.
func defaultSettings() settings {
	return settings{Terms: engine.Terms{
		Wait: engine.Forever, TTL: 30 * time.Second, Renew: true, Permits: 1, WaiterTimeout: 10 * time.Second,
	}}
}

// and returns s or, for a handle with options of its own, a copy of s with these options.
func (s *settings) and(opts []Option) *settings {
	if len(opts) == 0 {
		return s
	}
	own := s.with(opts).shared("a handle")
	return &own
}

// shared returns s, the settings of something that many acquisitions share. They must not have the
// options of a call.
func (s settings) shared(by string) settings {
	s.check(s.HoldContext == nil, "WithHoldContext as an option of %s: give it to a call", by)
	return s
}

// with returns s with opts applied in order.
func (s settings) with(opts []Option) settings {
	for i := range opts {
		s.apply(&opts[i])
	}
	return s
}

// apply sets one option. A bad value is set, too, because err makes the call fail before the value
// is used.
func (s *settings) apply(o *Option) {
	switch o.kind {
	case optNone: // the zero Option changes nothing
	case optWait:
		s.check(o.d >= 0, "a negative wait, %v", o.d)
		s.Wait = max(o.d, 0)
	case optLease:
		s.checkDuration("lease", o.d)
		s.TTL = o.d
		s.Renew = false
	case optWatchdog:
		s.checkDuration("watchdog ttl", o.d)
		s.TTL = o.d
		s.Renew = true
	case optMaxHold:
		s.checkDuration("max hold", o.d)
		s.MaxHold = o.d
	case optPermits:
		s.check(o.n >= 0, "%d permits", o.n)
		s.Permits = o.n
	case optOwner:
		s.check(validOwner(o.s), badOwner, o.s)
		s.Owner = o.s
	case optNonReentrant:
		s.NonReentrant = true
	case optPolling:
		s.checkDuration("polling minimum", o.d)
		s.checkDuration("polling maximum", o.max)
		s.check(o.d <= o.max, "a polling minimum of %v above its maximum of %v", o.d, o.max)
		s.PollMin = o.d
		s.PollMax = o.max
	case optWaiterTimeout:
		s.checkDuration("waiter timeout", o.d)
		s.WaiterTimeout = o.d
	case optCohort:
		s.check(o.d >= 0 && o.d <= maxDuration, "a cohort of %v (from 0 to 100 years)", o.d)
		s.Cohort = o.d
	case optLinger:
		s.check(o.d >= 0 && o.d <= maxDuration, "a linger of %v (from 0 to 100 years)", o.d)
		s.Linger = o.d
	case optMinHold:
		s.MinHold = o.d
		if o.d != 0 {
			s.checkDuration("minimum hold", o.d)
		}
	case optHoldContext:
		s.check(o.ctx != nil, "a nil hold context")
		s.HoldContext = o.ctx
	}
}

// forMember returns s, the settings of a member of a joint lock, with the options that were given
// to the joint lock and to a call of it. owner is the owner of the joint lock.
func (s settings) forMember(owner string, given ...[]Option) settings {
	for _, opts := range given {
		for i := range opts {
			switch opts[i].kind {
			case optPermits, optCohort, optLinger, optHoldContext: // they do not concern members
			case optWait:
				s.Wait = engine.Forever // the joint lock itself waits no longer
			default:
				s.apply(&opts[i])
			}
		}
	}
	s.Owner = owner
	return s
}

// check notes an error unless ok is true. The first error stays. Options of the client use it, too.
func (s *settings) check(ok bool, format string, args ...any) {
	if !ok && s.err == nil {
		s.err = invalid(format, args...)
	}
}

// checkDuration checks a duration that is sent to Redis.
func (s *settings) checkDuration(what string, d time.Duration) {
	s.check(d >= minDuration && d <= maxDuration, "a %s of %v (from 1ms to 100 years)", what, d)
}

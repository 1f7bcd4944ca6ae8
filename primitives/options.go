package primitives

import (
	"strings"
	"time"
)

// Option sets how something is acquired. One type serves three scopes: the client's defaults ([WithDefaults]), a handle, and a
// single call; the nearest wins. An option that does not concern a primitive is ignored by it, but its value is
// checked. The zero value does nothing.
type Option struct {
	kind   optionKind
	d, max time.Duration
	n      int
	s      string
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
)

// Durations that are sent to Redis lie between these.
const (
	minDuration = time.Millisecond
	maxDuration = 100 * 365 * 24 * time.Hour
)

// WithWait limits the waiting, and only that: what is acquired lasts beyond it. 0 tries once. Default: until the context is done.
func WithWait(d time.Duration) Option { return Option{kind: optWait, d: d} }

// WithLease asks for a fixed lease, which is never renewed: the hold's context ends with it. It excludes [WithWatchdog]; the
// nearer scope decides, within one list the later. From 1 ms to 100 years.
func WithLease(d time.Duration) Option { return Option{kind: optLease, d: d} }

// WithWatchdog has a hold renewed every ttl/3 while it is held, so that the lock frees itself within ttl after its holder's
// death. The default, with 30 s, as in Redisson. From 1 ms to 100 years.
func WithWatchdog(ttl time.Duration) Option { return Option{kind: optWatchdog, d: ttl} }

// WithMaxHold is a ceiling for a renewed hold: it is lost then, renewed or not. From 1 ms to 100 years.
func WithMaxHold(d time.Duration) Option { return Option{kind: optMaxHold, d: d} }

// WithPermits is how many permits of a semaphore to acquire, all or none. 0 succeeds and touches nothing. Default 1.
func WithPermits(n int) Option { return Option{kind: optPermits, n: n} }

// WithOwner acquires under an identity that the caller manages, such as a Java thread's "<uuid>:<thread id>". Equal ids are one
// holder, wherever they are used. "", "mode" and what ends in ":write" cannot be owners: Redisson's format gives them a meaning.
func WithOwner(id string) Option { return Option{kind: optOwner, s: id} }

// WithNonReentrant makes a nested acquisition fail with [ErrDeadlock].
func WithNonReentrant() Option { return Option{kind: optNonReentrant} }

// WithPolling waits by asking again, first after min, then after twice as long up to max, with some jitter, without pub/sub:
// Redisson's SpinLock. Both from 1 ms to 100 years.
func WithPolling(min, max time.Duration) Option { return Option{kind: optPolling, d: min, max: max} }

// WithWaiterTimeout is how long a FairLock's waiter keeps its place without a sign of life: what a crashed one costs those
// behind it at the most. Default 10 s. From 1 ms to 100 years.
func WithWaiterTimeout(d time.Duration) Option { return Option{kind: optWaiterTimeout, d: d} }

// WithCohort is reserved for cohorts: a client's waiters that pass the lock on among themselves for up
// to d without asking Redis. They are not built yet. The value is checked and otherwise has no
// effect: every hand-off asks Redis. Default 0.
func WithCohort(d time.Duration) Option { return Option{kind: optCohort, d: d} }

// settings is what options add up to.
type settings struct {
	wait          time.Duration // negative: no limit
	ttl           time.Duration // of the lease, or of each renewal
	renew         bool
	maxHold       time.Duration // 0: none
	permits       int
	owner         string // "": an id of its own
	nonReentrant  bool
	pollMin       time.Duration // 0: wait by pub/sub
	pollMax       time.Duration
	waiterTimeout time.Duration
	err           error   // the first option that was out of range
	given         uint16  // the kinds of option that were given
	of            *bundle // that this is acquired for; nil: for a user
}

func defaultSettings() settings {
	return settings{wait: -1, ttl: 30 * time.Second, renew: true, permits: 1, waiterTimeout: 10 * time.Second}
}

// with is s changed by opts, in order.
func (s settings) with(opts []Option) settings {
	for i := range opts {
		s.apply(&opts[i])
	}
	return s
}

func (s *settings) apply(o *Option) {
	s.given |= 1 << o.kind
	switch o.kind {
	case optNone:
	case optWait:
		s.check(o.d >= 0, "a negative wait, %v", o.d)
		s.wait = max(o.d, 0)
	case optLease:
		s.checkDuration("lease", o.d)
		s.ttl, s.renew = o.d, false
	case optWatchdog:
		s.checkDuration("watchdog ttl", o.d)
		s.ttl, s.renew = o.d, true
	case optMaxHold:
		s.checkDuration("max hold", o.d)
		s.maxHold = o.d
	case optPermits:
		s.check(o.n >= 0, "%d permits", o.n)
		s.permits = o.n
	case optOwner:
		s.check(validOwner(o.s), "owner id %q", o.s)
		s.owner = o.s
	case optNonReentrant:
		s.nonReentrant = true
	case optPolling:
		s.checkDuration("polling minimum", o.d)
		s.checkDuration("polling maximum", o.max)
		s.check(o.d <= o.max, "a polling minimum of %v above its maximum of %v", o.d, o.max)
		s.pollMin, s.pollMax = o.d, o.max
	case optWaiterTimeout:
		s.checkDuration("waiter timeout", o.d)
		s.waiterTimeout = o.d
	case optCohort:
		s.check(o.d >= 0 && o.d <= maxDuration, "a cohort of %v (from 0 to 100 years)", o.d)
	}
}

// overlaid is s with what was given to a joint lock or to a call of it. How long to wait is the joint's own affair.
func (s settings) overlaid(over *settings) settings {
	has := func(k optionKind) bool { return over.given&(1<<k) != 0 }
	if has(optLease) || has(optWatchdog) {
		s.ttl, s.renew = over.ttl, over.renew
	}
	if has(optMaxHold) {
		s.maxHold = over.maxHold
	}
	if has(optNonReentrant) {
		s.nonReentrant = true
	}
	if has(optPolling) {
		s.pollMin, s.pollMax = over.pollMin, over.pollMax
	}
	if has(optWaiterTimeout) {
		s.waiterTimeout = over.waiterTimeout
	}
	if has(optWait) {
		s.wait = -1
	}
	s.owner = over.owner
	return s
}

func (s *settings) check(ok bool, format string, args ...any) {
	if !ok && s.err == nil {
		s.err = invalid(format, args...)
	}
}

func (s *settings) checkDuration(what string, d time.Duration) {
	s.check(d >= minDuration && d <= maxDuration, "a %s of %v (from 1ms to 100 years)", what, d)
}

// validOwner: Redisson's hashes give these a meaning of their own.
func validOwner(id string) bool {
	return id != "" && id != "mode" && !strings.HasSuffix(id, ":write")
}

// firstTTL is what an acquisition asks for: never beyond the ceiling.
func (s *settings) firstTTL() time.Duration {
	if s.renew && s.maxHold > 0 {
		return min(s.ttl, s.maxHold)
	}
	return s.ttl
}

// limit is how long the hold may last however well it is renewed; 0: no limit.
func (s *settings) limit() time.Duration {
	if !s.renew {
		return s.ttl
	}
	return s.maxHold
}

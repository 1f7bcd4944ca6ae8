package watchdog

import (
	"math"
	"sync/atomic"
	"time"
)

// instant is a point on the monotonic clock, in nanoseconds since the Dog's epoch.
type instant int64

const (
	never   instant = math.MaxInt64
	longAgo instant = math.MinInt64
)

// add saturates: 292 years ahead is never. Callers may therefore use TTLs of any length.
func (t instant) add(d time.Duration) instant {
	sum := t + instant(d)
	switch {
	case d > 0 && sum < t:
		return never
	case d < 0 && sum > t:
		return longAgo
	}
	return sum
}

const (
	maxAttempts   = 4                     // per lease: one per half a period, for a TTL of three periods
	minAnswerTime = 50 * time.Millisecond // an attempt does not become overdue earlier
	minBackoff    = 50 * time.Millisecond // or a tenth of a period, if that is less
	youngAttempt  = time.Second           // RenewNow does not replace a younger one
	endUnit       = time.Millisecond      // a TTL that is cut by End is a multiple of it
)

// Lease is what a Dog renews. The zero value is not registered. A Lease is meant to be a field of
// the keeper's struct, so that it needs no allocation. It must not be copied.
type Lease struct {
	dog   atomic.Pointer[Dog] // set once, by the first Keep
	until atomic.Int64        // the end of validity, an instant; written with dog.mu held
	late  atomic.Int64        // see Late; written with dog.mu held

	// dog.mu guards all fields below. Only notifyOne reads gen without it.

	gen       atomic.Uint32 // counts registrations and drops; older events are not delivered
	index     [2]int32      // by heapOrder: index in group.due and in dog.alarms, + 1; 0 if not in the heap
	failures  uint8         // failed attempts since the last confirmation
	events    event         // not delivered yet
	notifying bool          // a goroutine calls the keeper; it delivers later events too
	halvings  uint8         // how often TTL/3 is halved for the period

	keeper   Keeper
	err      error // belongs to eventUnknown
	group    *group
	ttl      time.Duration
	margin   time.Duration
	end      instant            // never if there is no limit
	heard    instant            // start of the last confirmed command, except one that extended beyond a TTL
	granted  instant            // confirmed by the server: the latest start + TTL
	next     instant            // when to make the next attempt
	due      instant            // when the next regular renewal is, or was, due
	overdue  instant            // start of the newest attempt that was reported as overdue
	attempts [maxAttempts]*call // calls whose answer still counts, queued ones included
}

// event is a set of events that the keeper has not received yet. A set merges equal events, so a
// slow keeper needs no queue. The bits are in the order of delivery: the loss comes last.
type event uint8

const (
	eventUnknown event = 1 << iota
	eventRenewed
	eventRefused
	eventExpired
)

// ValidUntil returns when the lease is lost unless a renewal is confirmed before: the start of the
// last confirmed command + TTL - Margin, and at most End. A dropped or lost lease keeps its last
// value. The result is zero for a lease that was never kept.
func (l *Lease) ValidUntil() time.Time {
	d := l.dog.Load()
	if d == nil {
		return time.Time{}
	}
	return d.epoch.Add(time.Duration(l.until.Load()))
}

// Late returns how late the latest renewal was: from when it was due, a period after the start of
// the last confirmed command, to its confirmation. It returns 0 if the renewal was early, or if
// there was none. A renewal that is late by two periods comes too late.
func (l *Lease) Late() time.Duration { return time.Duration(l.late.Load()) }

// Silent returns how long ago the last confirmed command was sent, or 0 for a lease that was never
// kept. A command that extended validity beyond a TTL does not count.
func (l *Lease) Silent() time.Duration {
	d := l.dog.Load()
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.now() - l.heard)
}

// valid returns the end of validity. It is atomic, so that ValidUntil needs no lock.
func (l *Lease) valid() instant { return instant(l.until.Load()) }

// alarmAt returns when the scheduler has to act: at the next attempt or at the end of validity.
func (l *Lease) alarmAt() instant { return min(l.next, l.valid()) }

// registered reports whether l is between Keep and its drop or loss.
func (l *Lease) registered() bool { return l.index[byAlarm] != 0 }

// reset clears the state of the last registration. Undelivered events are dropped: notifyOne sees
// the new gen.
func (l *Lease) reset(k Keeper) {
	l.gen.Add(1)
	l.keeper = k
	l.events = 0
	l.err = nil
	l.failures = 0
	l.granted = longAgo
	l.overdue = longAgo
	clear(l.attempts[:])
}

// extend records a confirmation: the server keeps the lease at least until granted. It never
// shortens validity, because a late answer may belong to an older attempt.
func (l *Lease) extend(granted instant) {
	l.granted = max(l.granted, granted)
	l.until.Store(int64(min(l.granted.add(-l.margin), l.end)))
}

// period is the time between regular renewals. At least two thirds of the TTL remain for retries.
func (l *Lease) period() time.Duration { return l.ttl / 3 >> l.halvings }

// answerTime is how long an attempt may take before it is overdue.
func (l *Lease) answerTime() time.Duration { return max(l.period()/2, minAnswerTime) }

// confirmedToEnd reports whether no renewal can extend the lease by endUnit or more. Renewals go on
// all the same, to find out if the lease is gone.
func (l *Lease) confirmedToEnd() bool { return l.granted >= l.end.add(-endUnit) }

// batchable reports whether l may join a batch now. A regular renewal may come a tenth of a period
// early to fill a batch. Retries and hedges come no earlier than planned, because they load a
// server that is in trouble.
func (l *Lease) batchable(now instant) bool {
	return l.next <= now || l.failures == 0 && !l.hasAttempt() && l.next.add(-l.period()/10) <= now
}

// requestTTL returns the TTL to request at now. It is not positive once End has come.
func (l *Lease) requestTTL(now instant) time.Duration {
	if left := l.end.add(-time.Duration(now)); left < instant(l.ttl) {
		return time.Duration(left).Truncate(endUnit)
	}
	return l.ttl
}

// backoff returns the delay after an attempt that has failed at now. It is short near the end of
// validity, so that another attempt still fits.
func (l *Lease) backoff(now instant, jitter float64) time.Duration {
	// The exponent is bounded, because the shift must not overflow.
	first := min(minBackoff, l.period()/10)
	wait := min(first<<min(max(l.failures, 1)-1, 16), l.period()/3)
	left := time.Duration(l.valid() - now)
	return time.Duration(jitter * float64(min(wait, max(first, left/2))))
}

// fail records an attempt without an answer. The keeper gets the latest error only.
func (l *Lease) fail(err error) {
	l.failures = max(l.failures, l.failures+1) // saturates at 255
	l.events |= eventUnknown
	l.err = err
}

// join adds c to l's attempts. If there are too many, the answer of the oldest one no longer
// counts: it has been in flight for two thirds of a TTL or more.
func (l *Lease) join(c *call) {
	oldest := 0
	for i, other := range l.attempts {
		if other == nil {
			oldest = i
			break
		}
		if other.start < l.attempts[oldest].start {
			oldest = i
		}
	}
	if other := l.attempts[oldest]; other != nil {
		l.leave(other)
	}
	l.attempts[oldest] = c
	c.leases++
}

// leave removes c from l's attempts: its answer no longer counts. It reports whether c was one of
// them.
func (l *Lease) leave(c *call) bool {
	for i := range l.attempts {
		if l.attempts[i] == c {
			l.attempts[i] = nil
			c.leaseLeft()
			return true
		}
	}
	return false
}

// hasAttempt reports whether an attempt is queued or in flight.
func (l *Lease) hasAttempt() bool { return l.latestStart() != longAgo }

// isAsking reports whether an attempt is in flight.
func (l *Lease) isAsking() bool {
	for _, c := range l.attempts {
		if c != nil && c.start != never {
			return true
		}
	}
	return false
}

// latestStart returns the start of the newest attempt: never for a queued one, longAgo if there is
// none.
func (l *Lease) latestStart() instant {
	latest := longAgo
	for _, c := range l.attempts {
		if c != nil {
			latest = max(latest, c.start)
		}
	}
	return latest
}

// hedgeAt returns when the newest attempt is overdue, so that a further one hedges it.
func (l *Lease) hedgeAt() instant { return l.latestStart().add(l.answerTime()) }

// takeEvent removes the next event to deliver from the set and returns it.
func (l *Lease) takeEvent() (e event, err error) {
	e = l.events & -l.events // the lowest bit
	l.events &^= e
	if e == eventUnknown {
		err = l.err
		l.err = nil
	}
	return e, err
}

// leaseHeap is a heap of leases. Each lease knows its index in it, so that it can be moved and
// removed in logarithmic time.
type leaseHeap struct {
	order  heapOrder
	leases []*Lease
}

// heapOrder says by which time a heap is ordered. A lease is in at most one heap of each order.
type heapOrder uint8

const (
	byNext  heapOrder = iota // the next attempt: the leases of a group
	byAlarm                  // when the scheduler has to act: all leases
)

func (h *leaseHeap) Len() int { return len(h.leases) }

func (h *leaseHeap) Less(i, j int) bool {
	if h.order == byAlarm {
		return h.leases[i].alarmAt() < h.leases[j].alarmAt()
	}
	return h.leases[i].next < h.leases[j].next
}

func (h *leaseHeap) Swap(i, j int) {
	h.leases[i], h.leases[j] = h.leases[j], h.leases[i]
	h.leases[i].index[h.order] = int32(i + 1)
	h.leases[j].index[h.order] = int32(j + 1)
}

func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
	h.leases = append(h.leases, l)
	l.index[h.order] = int32(len(h.leases))
}

func (h *leaseHeap) Pop() any {
	last := len(h.leases) - 1
	l := h.leases[last]
	h.leases[last] = nil
	h.leases = h.leases[:last]
	l.index[h.order] = 0
	return l
}

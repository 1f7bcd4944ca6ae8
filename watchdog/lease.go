package watchdog

import (
	"math"
	"sync/atomic"
	"time"
)

// instant is a point of the monotonic clock, in nanoseconds since the Dog's epoch.
type instant int64

const (
	never   instant = math.MaxInt64
	longAgo instant = math.MinInt64
)

// add saturates: what lies 292 years ahead is never.
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
	maxAttempts = 4                     // per lease: one at each TTL/6 from TTL/3 to the end of validity
	minLimit    = 50 * time.Millisecond // an attempt is not given up earlier
	minBackoff  = 50 * time.Millisecond // or a tenth of a period, if that is less
	cutUnit     = time.Millisecond      // a TTL cut by End is a multiple of it
)

// Lease is what a Dog keeps. Its zero value is not registered. It is meant to stand in the keeper's own struct, must
// not be copied, and costs no further allocation.
type Lease struct {
	dog   atomic.Pointer[Dog] // set once, by the first Keep
	until atomic.Int64        // validity's end as an instant; written under dog.mu

	// All below is guarded by dog.mu, but that telling compares gen without it.

	gen     atomic.Uint32 // counts registrations and drops: news of an older one is not told
	alarm   int32         // index in dog.alarms + 1; 0: not registered
	place   int32         // index in group.due + 1; 0: not in a group
	fails   uint8         // attempts that failed since the last confirmation
	news    news
	telling bool // a goroutine is calling the keeper; it will tell what is new, too

	keeper  Keeper
	err     error // goes with newsUnknown
	group   *group
	ttl     time.Duration
	margin  time.Duration
	end     instant            // never: no ceiling
	granted instant            // what the server confirmed: the latest start + TTL
	next    instant            // when to ask (again)
	late    instant            // start of the newest attempt that was told as overdue
	calls   [maxAttempts]*call // attempts that may still tell something, queued ones included
}

// news is a set: what the keeper has not been told yet.
type news uint8

const (
	newsUnknown news = 1 << iota
	newsRenewed
	newsRefused
	newsOver
)

// ValidUntil is the instant at which the lease is lost unless something is confirmed before: the start of the last
// confirmed command + TTL - Margin, and no later than End. It keeps its value when the lease is dropped or lost, and is
// zero for a lease that never was kept.
func (l *Lease) ValidUntil() time.Time {
	d := l.dog.Load()
	if d == nil {
		return time.Time{}
	}
	return d.epoch.Add(time.Duration(l.until.Load()))
}

func (l *Lease) valid() instant   { return instant(l.until.Load()) }
func (l *Lease) wake() instant    { return min(l.next, l.valid()) }
func (l *Lease) registered() bool { return l.alarm != 0 }

// reset forgets everything that belongs to a registration. What was found before is not told any more.
func (l *Lease) reset(k Keeper) {
	l.gen.Add(1)
	l.keeper, l.news, l.err, l.fails = k, 0, nil, 0
	l.granted, l.late = longAgo, longAgo
	clear(l.calls[:])
}

// extend takes a confirmation in: the server keeps the lease at least until granted.
func (l *Lease) extend(granted instant) {
	l.granted = max(l.granted, granted)
	l.until.Store(int64(min(l.granted.add(-l.margin), l.end)))
}

func (l *Lease) period() time.Duration { return l.ttl / 3 }
func (l *Lease) slice() time.Duration  { return l.period() / 10 }
func (l *Lease) limit() time.Duration  { return max(l.ttl/6, minLimit) }

// due is when the next regular renewal is: a period after the start of the last confirmed one. What lives until End needs
// none.
func (l *Lease) due() instant {
	if l.group == nil || l.end != never && l.granted >= l.end.add(-cutUnit) {
		return never
	}
	return l.granted.add(l.period() - l.ttl)
}

// ripe says whether l may go into a batch: it is due, or soon will be and nothing is wrong with it. Retries and hedges
// come no earlier than they have to.
func (l *Lease) ripe(now instant) bool {
	return l.next <= now || l.fails == 0 && !l.asked() && l.next.add(-l.slice()) <= now
}

// ask is the TTL to ask for at now; not above 0: none.
func (l *Lease) ask(now instant) time.Duration {
	if left := l.end.add(-time.Duration(now)); left < instant(l.ttl) {
		return time.Duration(left).Truncate(cutUnit)
	}
	return l.ttl
}

// backoff is how long to wait after the attempt that has just failed, at now. It leaves time for another one.
func (l *Lease) backoff(now instant, jitter float64) time.Duration {
	first := min(minBackoff, l.period()/10)
	wait := min(first<<min(max(l.fails, 1)-1, 16), l.period()/3)
	left := time.Duration(l.valid() - now)
	return time.Duration(jitter * float64(min(wait, max(first, left/2))))
}

// fail counts an attempt that told nothing.
func (l *Lease) fail(err error) {
	l.fails = max(l.fails, l.fails+1) // stays at 255
	l.news |= newsUnknown
	l.err = err
}

// join counts c among l's attempts; false: there are too many.
func (l *Lease) join(c *call) bool {
	for i := range l.calls {
		if l.calls[i] == nil {
			l.calls[i] = c
			c.live++
			return true
		}
	}
	return false
}

// leave says whether c was an attempt of l that could still tell something. It no longer is.
func (l *Lease) leave(c *call) bool {
	for i := range l.calls {
		if l.calls[i] == c {
			l.calls[i] = nil
			c.left()
			return true
		}
	}
	return false
}

func (l *Lease) in(c *call) bool {
	for _, other := range l.calls {
		if other == c {
			return true
		}
	}
	return false
}

// asked says whether an attempt is queued or under way.
func (l *Lease) asked() bool { return l.latest() != longAgo }

// latest is the start of the newest attempt: never for a queued one, longAgo if there is none.
func (l *Lease) latest() instant {
	latest := longAgo
	for _, c := range l.calls {
		if c != nil {
			latest = max(latest, c.start)
		}
	}
	return latest
}

// hedge is when the newest attempt will have been too long without an answer. Never, if no further one can be made.
func (l *Lease) hedge() instant {
	if !l.in(nil) {
		return never
	}
	return l.latest().add(l.limit())
}

// take gives the next of the news: failures first, the loss last.
func (l *Lease) take() (n news, err error) {
	n = l.news & -l.news
	l.news &^= n
	if n == newsUnknown {
		err, l.err = l.err, nil
	}
	return n, err
}

// alarms is a heap of leases by the instant at which something has to be done for them.
type alarms []*Lease

func (h alarms) Len() int           { return len(h) }
func (h alarms) Less(i, j int) bool { return h[i].wake() < h[j].wake() }
func (h alarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].alarm, h[j].alarm = int32(i+1), int32(j+1)
}

func (h *alarms) Push(x any) {
	l := x.(*Lease)
	*h = append(*h, l)
	l.alarm = int32(len(*h))
}

func (h *alarms) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.alarm = 0
	return l
}

// dues is a heap of one group's leases by the instant at which to ask for them.
type dues []*Lease

func (h dues) Len() int           { return len(h) }
func (h dues) Less(i, j int) bool { return h[i].next < h[j].next }
func (h dues) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = int32(i+1), int32(j+1)
}

func (h *dues) Push(x any) {
	l := x.(*Lease)
	*h = append(*h, l)
	l.place = int32(len(*h))
}

func (h *dues) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	l.place = 0
	return l
}

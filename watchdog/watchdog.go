package watchdog

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Batch is the largest number of leases in one call of [Renew].
const Batch = 100

var (
	// ErrClosed is returned by [Dog.Keep] after [Dog.Close].
	ErrClosed = errors.New("watchdog: closed")
	// ErrInvalid is returned by [Dog.Keep] for an invalid schedule, and for a lease of another Dog.
	ErrInvalid = errors.New("watchdog: invalid schedule")
	// ErrNoAnswer is passed to [Keeper.LeaseUnknown] when a renewal has not answered in time, or
	// has failed without an error.
	ErrNoAnswer = errors.New("watchdog: no answer")
)

// State is the answer for one lease of a batch.
type State uint8

const (
	// Unknown means that there is no answer. The Dog retries while the lease is valid.
	Unknown State = iota
	// Renewed means that the server has set the requested TTL.
	Renewed
	// Lost means that the server refused: another owner has the lease, or it is gone.
	Lost
)

// Renewal is the request to renew one lease of a batch.
type Renewal struct {
	Lease *Lease
	// Keeper is the keeper of the lease when the batch was made.
	Keeper Keeper
	// TTL is the TTL to set: the schedule's, or the time left until its End, in whole milliseconds.
	TTL time.Duration
}

// Renew asks the server to renew a batch of at most [Batch] leases of one group. It returns one
// state per lease, in order. A missing state is Unknown. err is passed to the keepers of Unknown
// leases.
//
// Attempts for one lease may overlap. The server may execute them in any order, also after they
// have timed out. A renewal must therefore never shorten the TTL on the server. ctx ends when no
// lease of the batch still needs the answer, or when the Dog is closed. Each call has its own
// goroutine and may block. It must not modify or retain batch.
type Renew func(ctx context.Context, group any, batch []Renewal) (states []State, err error)

// Keeper receives the events of a lease. Goroutines of the Dog call its methods, never two at a
// time for one lease. The methods must not block. An event that occurs during a call is delivered
// after it. Equal events that wait for delivery are merged, with the latest error. A Keeper may
// call Keep, Drop and Confirm, but not Close.
type Keeper interface {
	// LeaseRenewed reports a confirmed renewal. Validity does not change if it lasts longer
	// already.
	LeaseRenewed(l *Lease)
	// LeaseUnknown reports a renewal that failed with err (never nil), or that has not answered in
	// time (ErrNoAnswer). It is called at most once per attempt. The Dog continues to renew.
	LeaseUnknown(l *Lease, err error)
	// LeaseLost reports the loss of the lease: the server refused (true), or validity has ended
	// (false). It is called once, as the last event. The lease is no longer registered then.
	LeaseLost(l *Lease, refused bool)
}

// A Schedule says how a lease is kept.
type Schedule struct {
	// Group must be comparable. Leases of equal groups share batches: a script and a slot, for
	// example. If nil, the lease is never renewed, and the Dog only reports the end of its
	// validity.
	Group any
	// TTL is requested by each renewal. It must be positive unless Group is nil.
	TTL time.Duration
	// Period is the longest time between two renewals. Zero means TTL/3. If it is shorter than
	// that, TTL/3 is halved until it is not longer than Period.
	Period time.Duration
	// Margin is the time between the end of validity and the end of the TTL. It should be at most
	// half a TTL. A lease whose validity ends before its first renewal, after TTL/3, is lost.
	Margin time.Duration
	// End limits the lifetime of the lease. Zero means no limit. A renewal requests min(TTL,
	// End-now), so the server's TTL ends at End at the latest, and validity ends Margin earlier.
	// Renewals go on until then, also when End is confirmed. A validity passed to Keep or Confirm
	// is cut to End. A TTL that other commands have set on the server is not shortened.
	End time.Time
}

// halvings returns how often TTL/3 must be halved. A lease stores this byte instead of the period,
// to save memory: there may be many leases.
func (s Schedule) halvings() (n uint8) {
	for period := s.TTL / 3; s.Period > 0 && period > s.Period; period /= 2 {
		n++
	}
	return n
}

// Option configures a Dog.
type Option func(*Dog)

// WithLogger logs failed calls of Renew, one line per batch. The default discards them.
func WithLogger(l *slog.Logger) Option {
	return func(d *Dog) { d.log = l }
}

// Dog renews leases. It is safe for concurrent use.
type Dog struct {
	renew  Renew
	log    *slog.Logger
	epoch  time.Time // zero of all instants, on the monotonic clock
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}  // capacity 1: one pending wake-up is enough
	wg     sync.WaitGroup // Go is called with mu held on an open Dog, so Close misses no goroutine

	mu      sync.Mutex // never held while Renew or a keeper runs
	closed  bool
	running bool    // the scheduler runs; always true while there are alarms
	idle    bool    // the scheduler found no alarms and ends if there are none the next time
	armed   instant // when the scheduler wakes up unless wake is signaled before
	beat    instant // when the scheduler last went to sleep
	wakesAt instant // when it planned then to wake up
	stood   standstill
	alarms  leaseHeap // all registered leases
	groups  map[any]*group
	spare   *group // the last group that became empty, reused for the next one
}

// New returns a Dog that renews leases with renew. It starts no goroutine before the first Keep.
func New(renew Renew, opts ...Option) *Dog {
	d := &Dog{
		renew:  renew,
		log:    slog.New(slog.DiscardHandler),
		epoch:  time.Now(),
		wake:   make(chan struct{}, 1),
		groups: make(map[any]*group),
		alarms: leaseHeap{order: byAlarm},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for _, opt := range opts {
		opt(d)
	}
	return d
}

// Keep registers l. From then on the Dog renews l on schedule s and reports its events to k.
// validUntil is the validity from the command that acquired the lease: its start + TTL - Margin. If
// it has passed, another goroutine reports the loss at once.
//
// The first renewal is due a period after that command. If validity is longer than a TTL, because
// another command has extended it, the renewal is due a period from now, or when the former
// registration of the lease was due.
//
// Keep on a registered lease starts over with the new keeper, schedule and validity. Answers of
// attempts in flight are ignored. A lease belongs to the first Dog that keeps it: with another Dog
// Keep returns ErrInvalid. After Close it returns ErrClosed.
func (d *Dog) Keep(l *Lease, k Keeper, s Schedule, validUntil time.Time) error {
	switch {
	case s.Group != nil && s.TTL <= 0:
		return fmt.Errorf("%w: TTL %v", ErrInvalid, s.TTL)
	case s.Period < 0:
		return fmt.Errorf("%w: period %v", ErrInvalid, s.Period)
	case s.Margin < 0:
		return fmt.Errorf("%w: margin %v", ErrInvalid, s.Margin)
	}
	// Fields of a lease are guarded by the mu of its Dog, so a lease cannot change to another Dog.
	if !l.dog.CompareAndSwap(nil, d) && l.dog.Load() != d {
		return fmt.Errorf("%w: the lease belongs to another dog", ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	now, due := d.now(), never // due is the former registration's, if there is one
	if l.registered() {
		due = l.due
	}
	d.remove(l)
	l.reset(k)
	l.ttl = s.TTL
	l.halvings = s.halvings()
	l.margin = s.Margin
	l.end = never
	if !s.End.IsZero() {
		l.end = d.instant(s.End)
	}
	l.extend(d.instant(validUntil).add(s.Margin))
	l.next = never
	l.due = never
	start := l.granted.add(-l.ttl)
	if start <= now {
		l.heard = start
	} else if due == never {
		l.heard = now // it may be earlier, but nobody knows; a former registration's value is kept
	}
	if s.Group != nil {
		l.group = d.groupOf(s.Group)
		if start > now { // valid for longer than a TTL: it is unknown when the last command was sent
			start = now
		} else {
			due = never
		}
		l.next = min(start.add(l.period()), due)
		l.due = max(l.next, now) // a new schedule may be due at once, and is not late for that
		heap.Push(&l.group.due, l)
	}
	heap.Push(&d.alarms, l) // after next is set: the heap orders by it
	d.arm()
	return nil
}

// Drop unregisters l. After it no renewal of l starts, and no call of its keeper: a loss that was
// found but not delivered is dropped too. A call of the keeper that has started may still run when
// Drop returns. Drop does not wait for it, so the keeper may call Drop, and so may a caller that
// holds locks that the keeper takes. A renewal in flight may still reach the server: Drop returns
// the TTL that it sets, or 0 if there is none. Drop is idempotent.
func (d *Dog) Drop(l *Lease) (inFlight time.Duration) {
	if l.dog.Load() != d {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.isAsking() {
		inFlight = l.ttl
	}
	d.remove(l)
	l.reset(nil)
	d.arm()
	return inFlight
}

// Confirm reports that another confirmed command has extended l's validity to until. It never
// shortens validity, and an extension beyond a TTL does not postpone the next renewal. It does
// nothing for a lease that is not registered or whose validity has ended.
func (d *Dog) Confirm(l *Lease, until time.Time) {
	if l.dog.Load() != d {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	granted := d.instant(until).add(l.margin)
	isValid := l.registered() && l.valid() > now
	if !isValid || granted <= l.granted {
		return
	}
	start := granted.add(-l.ttl)
	if start > now {
		start = longAgo // a longer extension than a TTL: leave the schedule as it is
	}
	d.confirm(l, start, granted)
	if l.group != nil {
		d.startQueued(l.group) // a call that only served l may have made room
	}
	d.arm()
}

// RenewNow renews leases at once, in batches, because the server may have lost its data. It does
// nothing for leases that are not registered or have no group. If there is no answer, retries begin
// with the shortest delay again. A renewal in flight may have been sent on a broken connection, so
// it counts as overdue, unless it is younger than a second. RenewNow does not wait for the
// renewals.
func (d *Dog) RenewNow(leases ...*Lease) {
	for chunk := range slices.Chunk(leases, 10*Batch) { // others may use the Dog in between
		d.mu.Lock()
		now := d.now()
		for _, l := range chunk {
			isOurs := l.dog.Load() == d && l.registered()
			if !isOurs || l.group == nil {
				continue
			}
			if l.latestStart() > now.add(-youngAttempt) {
				continue // queued attempts are young, too
			}
			for _, c := range l.attempts {
				if c != nil {
					c.free()
				}
			}
			l.failures = 0
			d.plan(l, now)
		}
		d.arm()
		d.mu.Unlock()
	}
}

// Len returns the number of registered leases.
func (d *Dog) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.alarms.leases)
}

// Close stops all renewals, delivers no more events and cancels the calls in flight. It waits for
// all goroutines, for as long as Renew and the keepers take to return. Close is idempotent.
func (d *Dog) Close() {
	d.mu.Lock()
	d.closed = true
	for _, l := range d.alarms.leases {
		l.index = [2]int32{}
		l.group = nil
		l.reset(nil)
	}
	d.alarms.leases = nil
	d.groups = nil
	d.spare = nil
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
}

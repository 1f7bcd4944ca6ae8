package watchdog

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Batch is the largest number of leases in one call of [Renew].
const Batch = 100

var (
	// ErrClosed is returned by [Dog.Keep] after [Dog.Close].
	ErrClosed = errors.New("watchdog: closed")
	// ErrInvalid is returned by [Dog.Keep] for terms that cannot be kept.
	ErrInvalid = errors.New("watchdog: invalid terms")
	// ErrNoAnswer is told to [Keeper.LeaseUnknown] when a renewal has not answered in time, or gave no reason.
	ErrNoAnswer = errors.New("watchdog: no answer")
)

// State is the answer for one lease of a batch.
type State uint8

const (
	// Unknown is no answer: the lease is asked for again while its validity lasts.
	Unknown State = iota
	// Renewed: the server keeps the lease for the TTL asked for.
	Renewed
	// Lost: the server refused. The lease is somebody else's, or gone.
	Lost
)

// Ask is one lease in a batch: keep Lease for TTL from now on.
type Ask struct {
	Lease  *Lease
	Keeper Keeper // the lease's when the batch was made
	// TTL is that of the lease's Terms, or what is left until their End, in whole milliseconds.
	TTL time.Duration
}

// Renew asks the server for a batch of leases of one group, at most [Batch] long, and answers per lease, in order; a
// missing answer is Unknown. err is what Unknown leases are told.
//
// Attempts for one lease may overlap and be executed in any order, also after they were given up: a renewal must never
// shorten what the server has granted. ctx ends when no lease of the batch is of interest any more, or the Dog closes.
// Renew runs in a goroutine of its own and may block; it must not change or retain batch.
type Renew func(ctx context.Context, group any, batch []Ask) (states []State, err error)

// Keeper is told of its lease. Calls come from the Dog's goroutines, never two at once for one lease, and must not
// block. News that comes while a call is under way is told after it. What repeats itself before it could be told is told
// once, with the latest reason. A Keeper may call Keep, Drop and Confirm, but not Close.
type Keeper interface {
	// LeaseRenewed: validity has moved on.
	LeaseRenewed(l *Lease)
	// LeaseUnknown: a renewal failed, for the reason err (never nil), or did not answer in time (ErrNoAnswer). Told at
	// most once for each attempt. Renewal goes on.
	LeaseUnknown(l *Lease, err error)
	// LeaseLost is called once, as the last call for this lease, which is not registered any more: refused by the server
	// (true), or validity ran out (false).
	LeaseLost(l *Lease, refused bool)
}

// Terms say how a lease is kept.
type Terms struct {
	// Group is comparable: leases of equal groups share batches (a script and a slot, say). nil: the lease is never
	// renewed, only watched until its validity ends.
	Group any
	// TTL is what each renewal asks for. Above 0, unless Group is nil.
	TTL time.Duration
	// Margin is how long before the TTL validity ends. It should be at most half a TTL: a lease whose validity ends before
	// its first renewal, after TTL/3, is lost.
	Margin time.Duration
	// End is a ceiling, zero for none. A renewal asks for min(TTL, End-now), so that what the server grants lasts until End
	// and not longer, and validity ends Margin before; once that is confirmed nothing more is asked. Validity that was given
	// to Keep or Confirm ends at End at the latest. What the server granted by other commands is not shortened to End.
	End time.Time
}

func (t Terms) check() error {
	switch {
	case t.Group != nil && t.TTL <= 0:
		return fmt.Errorf("%w: TTL %v", ErrInvalid, t.TTL)
	case t.Margin < 0:
		return fmt.Errorf("%w: margin %v", ErrInvalid, t.Margin)
	}
	return nil
}

// Option sets up a Dog.
type Option func(*Dog)

// WithLogger logs calls of Renew that failed, one line a batch. Default: discard.
func WithLogger(l *slog.Logger) Option {
	return func(d *Dog) { d.log = l }
}

// Dog keeps leases. Its methods may be called from many goroutines at once.
type Dog struct {
	renew  Renew
	log    *slog.Logger
	epoch  time.Time // instants count from here, on the monotonic clock
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}  // capacity 1: one nudge is enough
	wg     sync.WaitGroup // Go only under mu and before closed

	mu      sync.Mutex
	closed  bool
	running bool    // a scheduler is there; always so while alarms are
	idle    bool    // it found none, and will end if it finds none again
	armed   instant // when the scheduler looks again by itself
	alarms  alarms  // all registered leases
	groups  map[any]*group
	spare   *group // the last one that became empty, for the next
}

// New makes a Dog that renews by calling renew. It starts no goroutine before the first Keep.
func New(renew Renew, opts ...Option) *Dog {
	d := &Dog{
		renew:  renew,
		log:    slog.New(slog.DiscardHandler),
		epoch:  time.Now(),
		wake:   make(chan struct{}, 1),
		groups: make(map[any]*group),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	for _, opt := range opts {
		opt(d)
	}
	return d
}

// Keep registers l: from now on it is renewed on terms t, or only watched, and k is told of it. validUntil is what the
// command that took the lease gives: its start + TTL - Margin. When it has passed, k is told of the loss at once, from
// another goroutine.
//
// A registered lease may be kept again: everything starts anew with the new keeper, terms and validity, and answers of
// attempts under way do not count. A lease stays with the Dog that kept it first: with another one Keep gives
// ErrInvalid. After Close it gives ErrClosed.
func (d *Dog) Keep(l *Lease, k Keeper, t Terms, validUntil time.Time) error {
	if err := t.check(); err != nil {
		return err
	}
	if !l.dog.CompareAndSwap(nil, d) && l.dog.Load() != d {
		return fmt.Errorf("%w: the lease is another dog's", ErrInvalid)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	d.remove(l)
	l.reset(k)
	l.ttl, l.margin, l.end = t.TTL, t.Margin, never
	if !t.End.IsZero() {
		l.end = d.instant(t.End)
	}
	l.extend(d.instant(validUntil).add(t.Margin))
	l.next = never
	if t.Group != nil {
		l.group = d.groupOf(t.Group)
		l.next = l.due()
		heap.Push(&l.group.due, l)
	}
	heap.Push(&d.alarms, l)
	d.settle()
	return nil
}

// Drop unregisters l. No renewal is begun for it any more, and no call of its keeper: a loss found before, but not yet
// told, is not told. A call of the keeper that has begun by then may still be running when Drop returns; Drop does not
// wait for it, so that it may be called with locks held that the keeper takes, and by the keeper itself. A renewal under
// way may still reach the server. Dropping a lease that is not registered does nothing.
func (d *Dog) Drop(l *Lease) {
	if l.dog.Load() != d {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(l)
	l.reset(nil)
	d.settle()
}

// Confirm says that another confirmed command moved l's validity to until. It never shortens. A lease that is not
// registered, or whose validity has ended, stays lost.
func (d *Dog) Confirm(l *Lease, until time.Time) {
	if l.dog.Load() != d {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	granted := d.instant(until).add(l.margin)
	if !l.registered() || l.valid() <= now || granted <= l.granted {
		return
	}
	d.confirm(l, granted, now)
	if l.group != nil {
		d.launch(l.group)
	}
	d.settle()
}

// Len is the number of registered leases.
func (d *Dog) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.alarms)
}

// Close stops renewing without telling anybody, ends the context of the calls under way, and waits for all goroutines:
// as long as Renew and the keepers take to return. It may be called more than once.
func (d *Dog) Close() {
	d.mu.Lock()
	d.closed = true
	for _, l := range d.alarms {
		l.alarm, l.place, l.group = 0, 0, nil
		l.reset(nil)
	}
	d.alarms, d.groups, d.spare = nil, nil, nil
	d.mu.Unlock()
	d.cancel()
	d.wg.Wait()
}

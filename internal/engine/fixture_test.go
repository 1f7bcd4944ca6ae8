package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	testTTL     = 30 * time.Second
	testTimeout = 3 * time.Second // of a command
)

// client is a core on a server.
type client struct {
	*Core
	s  *server
	id string

	hurried, stopped chan struct{}
	owners           atomic.Uint64
	closeBegun       atomic.Bool   // close was called
	closed           chan struct{} // closed when it has returned
	waiting          atomic.Int64  // WaitBegan less WaitEnded

	mu     sync.Mutex
	events []Event
	logs   strings.Builder
}

// client returns a new client. When the test ends it is closed, and nothing may be left in it.
func (s *server) client(t testing.TB, id string, options ...func(*Config)) *client {
	c := s.newClient(id, options...)
	t.Cleanup(func() {
		if !c.closeBegun.Load() {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_ = c.close(ended)
		}
		<-c.closed
		assert.Empty(t, c.leftovers())
	})
	return c
}

// newClient returns a client that the caller closes.
func (s *server) newClient(id string, options ...func(*Config)) *client {
	c := &client{s: s, id: id, hurried: make(chan struct{}), stopped: make(chan struct{}), closed: make(chan struct{})}
	config := Config{
		Renew:      c.renewBatch,
		Ready:      func(context.Context) error { return nil },
		Classify:   classify,
		Unanswered: unanswered,
		CutShort:   cutShort,
		NewOwner: func() Owner {
			n := c.owners.Add(1)
			return Owner{ID: fmt.Sprintf("%s:%d", id, n), Number: n}
		},
		Lost:     func(l Loss) error { return &lossError{l} },
		Describe: func(r *Resource, op string, err error) error { return fmt.Errorf("%s %s: %w", op, r.Name, err) },
		Observe: func(e Event) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.events = append(c.events, e)
		},
		HolderTag:      func(id string) string { return strings.SplitN(id, ":", 2)[0] },
		HoldAdded:      func() {},
		CanLinger:      func(context.Context) bool { return true },
		Ask:            func(_ *Resource, holder string) { s.ask(holder) },
		WaitBegan:      func() { c.waiting.Add(1) },
		WaitEnded:      func() { c.waiting.Add(-1) },
		Logger:         slog.New(slog.NewTextHandler(c, nil)),
		Margin:         -1,
		CommandTimeout: testTimeout,
		Memory:         time.Minute,
		RepeatFor:      50 * time.Second,
		LateCopies:     5 * time.Minute,
	}
	for _, o := range options {
		o(&config)
	}
	c.Core = NewCore(config)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// leftovers lists the waiters, queues, leases and holds that are left in a client after its last use.
func (c *client) leftovers() (left []string) {
	for _, part := range []struct {
		name string
		n    int
	}{
		{"waiters", c.Waiters()},
		{"wait queues", len(c.queues.open)},
		{"calls of WaitBegan without WaitEnded", int(c.waiting.Load())},
		{"leases", c.dog.Len()},
	} {
		if part.n != 0 {
			left = append(left, fmt.Sprintf("%d %s", part.n, part.name))
		}
	}
	if c.holds.all.First != nil {
		left = append(left, "holds")
	}
	return left
}

// Write receives the core's log.
func (c *client) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logs.Write(p)
}

func (c *client) logged() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logs.String()
}

func (c *client) close(ctx context.Context) error {
	c.closeBegun.Store(true)
	defer close(c.closed)
	return c.Close(ctx, func() { close(c.hurried) }, func(bool) { close(c.stopped) })
}

// kinds returns the kinds of all events so far except those listed.
func (c *client) kinds(except ...EventKind) []EventKind {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds := []EventKind{}
	for _, e := range c.events {
		if !slices.Contains(except, e.Kind) {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

// event returns the last event of a kind.
func (c *client) event(t testing.TB, kind EventKind) Event {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range slices.Backward(c.events) {
		if e.Kind == kind {
			return e
		}
	}
	require.Fail(t, "no event", "%s", kind)
	return Event{}
}

// lossError is the error of a loss.
type lossError struct{ Loss }

func (e *lossError) Error() string        { return fmt.Sprintf("%s lost: %s", e.Resource.Name, e.Reason) }
func (e *lossError) Is(target error) bool { return target == ErrLost }
func (e *lossError) Unwrap() []error      { return e.Members }

// lossOf returns the loss in err.
func lossOf(t testing.TB, err error) Loss {
	t.Helper()
	var loss *lossError
	require.ErrorAs(t, err, &loss)
	return loss.Loss
}

// terms returns the terms of a renewed hold.
func terms(options ...func(*Terms)) *Terms {
	t := &Terms{Wait: -1, TTL: testTTL, Renew: true, Permits: 1}
	t.ForMember = func(int) *Terms { return t }
	for _, o := range options {
		o(t)
	}
	return t
}

func ttl(d time.Duration) func(*Terms)        { return func(t *Terms) { t.TTL = d } }
func fixedLease(d time.Duration) func(*Terms) { return func(t *Terms) { t.TTL, t.Renew = d, false } }
func maxHold(d time.Duration) func(*Terms)    { return func(t *Terms) { t.MaxHold = d } }
func lingering(d time.Duration) func(*Terms)  { return func(t *Terms) { t.Linger = d } }
func inCohort(d time.Duration) func(*Terms)   { return func(t *Terms) { t.Cohort = d } }
func permits(n int) func(*Terms)              { return func(t *Terms) { t.Permits = n } }
func owner(id string) func(*Terms)            { return func(t *Terms) { t.Owner = id } }
func nonReentrant(t *Terms)                   { t.NonReentrant = true }
func polling(first, longest time.Duration) func(*Terms) {
	return func(t *Terms) { t.PollMin, t.PollMax = first, longest }
}

// noWait and forever are limits of an acquisition.
const (
	noWait  = time.Duration(0)
	forever = time.Duration(-1)
)

// acquire acquires with no limit, and fails the test if that fails.
func acquire(t testing.TB, ctx context.Context, r *Resource, options ...func(*Terms)) *Hold {
	t.Helper()
	hold, err := r.Acquire(ctx, terms(options...), forever)
	require.NoError(t, err)
	return hold
}

// release releases a hold, and fails the test if that fails.
func release(t testing.TB, h *Hold) {
	t.Helper()
	require.NoError(t, h.Release(t.Context()))
}

// carry returns a context that carries a hold.
func carry(h *Hold) context.Context { return h.Context(nil) }

// call is a call that runs in a goroutine.
type call struct {
	t    testing.TB
	done chan struct{}
	hold *Hold
	err  error
	at   time.Time // when it returned
}

// start calls f in a goroutine, and waits until all goroutines are blocked.
func start(t testing.TB, f func() (*Hold, error)) *call {
	c := &call{t: t, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.hold, c.err = f()
		c.at = time.Now()
	}()
	synctest.Wait()
	return c
}

// startAcquire acquires in a goroutine, with no limit.
func startAcquire(t testing.TB, ctx context.Context, r *Resource, options ...func(*Terms)) *call {
	return start(t, func() (*Hold, error) { return r.Acquire(ctx, terms(options...), forever) })
}

// startRelease releases in a goroutine.
func startRelease(t testing.TB, h *Hold) *call {
	return start(t, func() (*Hold, error) { return nil, h.Release(t.Context()) })
}

// returned reports whether the call has returned when all goroutines are blocked.
func (c *call) returned() bool {
	synctest.Wait()
	return isClosed(c.done)
}

// wait waits for the hold of an acquisition that succeeds.
func (c *call) wait() *Hold {
	c.t.Helper()
	c.end()
	require.NoError(c.t, c.err)
	return c.hold
}

// fail waits for the error of a call that fails.
func (c *call) fail() error {
	c.t.Helper()
	c.end()
	require.Error(c.t, c.err)
	return c.err
}

// end waits until the call has returned. Renewals never end, so a call that hangs would hang the test.
func (c *call) end() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Hour):
		require.Fail(c.t, "the call does not return")
	}
}

// sleep lets fake time pass, and waits until all goroutines are blocked.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

package enginetest

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

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/joint"
	"github.com/redlatch/redlatch/internal/logqueue"
	"github.com/redlatch/redlatch/internal/turns"
)

const (
	DefaultTTL     = 30 * time.Second
	CommandTimeout = 3 * time.Second // of a command
)

// Client is a core on a server.
type Client struct {
	*engine.Core
	s     *Server
	ID    string
	turns *turns.Turns

	Hurried, stopped chan struct{}
	Cut              atomic.Bool
	owners           atomic.Uint64
	closeBegun       atomic.Bool   // close was called
	Closed           chan struct{} // closed when it has returned
	Waiting          atomic.Int64  // WaitBegan less WaitEnded

	Mu     sync.Mutex
	Events []engine.Event
	logs   strings.Builder
}

// Client returns a new client. When the test ends it is closed, and nothing may be left in it.
func (s *Server) Client(t testing.TB, id string, options ...func(*engine.Config)) *Client {
	c := s.NewClient(id, options...)
	t.Cleanup(func() {
		if !c.closeBegun.Load() {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			_ = c.Shut(ended)
		}
		<-c.Closed
		if c.Cut.Load() {
			time.Sleep(24 * time.Hour) // until functions of the test that ignore their context have returned
		}
		assert.Empty(t, c.Leftovers())
	})
	return c
}

// NewClient returns a client that the caller closes.
func (s *Server) NewClient(id string, options ...func(*engine.Config)) *Client {
	c := &Client{s: s, ID: id, Hurried: make(chan struct{}), stopped: make(chan struct{}), Closed: make(chan struct{})}
	config := engine.Config{
		Commands: engine.Commands{
			Renew:  c.renewBatch,
			Try:    func(ctx context.Context) context.Context { return ctx },
			Server: func(*engine.Resource) any { return nil },
		},
		Owners: engine.Owners{
			New: func() engine.Owner {
				n := c.owners.Add(1)
				return engine.Owner{ID: fmt.Sprintf("%s:%d", id, n), Number: n}
			},
			IsOwn: func(id string) (own, known bool) {
				maker, _, known := strings.Cut(id, ":")
				return maker == c.ID, known
			},
			TagOf: func(id string) string { return strings.SplitN(id, ":", 2)[0] },
		},
		Errors: engine.Errors{
			Describe: func(r *engine.Resource, op string, err error) error { return fmt.Errorf("%s %s: %w", op, r.Name, err) },
			Explain:  func(_ *engine.Resource, err error) error { return err },
			Address:  func(*engine.Resource) string { return "" },
			Lost:     func(l engine.Loss) error { return &lossError{l} },
		},
		Presence: engine.Presence{
			HoldAdded:   func() {},
			WaitBegan:   func(*engine.Resource) { c.Waiting.Add(1) },
			WaitEnded:   func(*engine.Resource) { c.Waiting.Add(-1) },
			CanLinger:   func(context.Context) bool { return true },
			Ask:         func(r *engine.Resource, holder string) { s.ask(r.Name, holder) },
			HoldListens: func() {},
		},
		Observe: func(e engine.Event) {
			c.Mu.Lock()
			defer c.Mu.Unlock()
			c.Events = append(c.Events, e)
		},
		Logger:         logqueue.New(slog.New(slog.NewTextHandler(c, nil))).Logger(),
		Margin:         -1,
		CommandTimeout: CommandTimeout,
		RepeatFor:      50 * time.Second,
		LateCopies:     5 * time.Minute,
	}
	for _, o := range options {
		o(&config)
	}
	c.Core = engine.NewCore(config)
	c.turns = turns.New(c.Core)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Leftovers lists the queues, requests, leases and holds that are left in a client after its last
// use.
func (c *Client) Leftovers() (left []string) {
	in := c.Usage()
	for _, part := range []struct {
		name string
		n    int
	}{
		{"wait queues", in.WaitQueues},
		{"calls of WaitBegan without WaitEnded", int(c.Waiting.Load())},
		{"requests that expect asks", in.Expecting},
		{"leases", in.Leases},
		{"holds", in.Holds},
		{"names of which users take turns", c.turns.Len()},
	} {
		if part.n != 0 {
			left = append(left, fmt.Sprintf("%d %s", part.n, part.name))
		}
	}
	return left
}

// Write receives the core's log.
func (c *Client) Write(p []byte) (int, error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.logs.Write(p)
}

func (c *Client) Logged() string {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.logs.String()
}

func (c *Client) Shut(ctx context.Context) error {
	c.closeBegun.Store(true)
	defer close(c.Closed)
	panicked, err := c.Close(ctx, engine.CloseHooks{
		Hurry: func() { close(c.Hurried) }, Cut: func() { c.Cut.Store(true) }, Stop: func(error) { close(c.stopped) },
	})
	if panicked != nil {
		panic(panicked)
	}
	return err
}

// Kinds returns the kinds of all events so far except those listed.
func (c *Client) Kinds(except ...engine.EventKind) []engine.EventKind {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	kinds := []engine.EventKind{}
	for _, e := range c.Events {
		if !slices.Contains(except, e.Kind) {
			kinds = append(kinds, e.Kind)
		}
	}
	return kinds
}

// Event returns the last event of a kind.
func (c *Client) Event(t testing.TB, kind engine.EventKind) engine.Event {
	t.Helper()
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, e := range slices.Backward(c.Events) {
		if e.Kind == kind {
			return e
		}
	}
	require.Fail(t, "no event", "%s", kind)
	return engine.Event{}
}

// lossError is the error of a loss.
type lossError struct{ engine.Loss }

func (e *lossError) Error() string        { return fmt.Sprintf("%s lost: %s", e.Resource.Name, e.Reason) }
func (e *lossError) Is(target error) bool { return target == engine.ErrLost }
func (e *lossError) Unwrap() []error      { return e.Members }

// LossOf returns the loss in err.
func LossOf(t testing.TB, err error) engine.Loss {
	t.Helper()
	var loss *lossError
	require.ErrorAs(t, err, &loss)
	return loss.Loss
}

// NewTerms returns the terms of a renewed hold.
func NewTerms(options ...func(*engine.Terms)) *engine.Terms {
	t := &engine.Terms{Wait: -1, TTL: DefaultTTL, Renew: true, Permits: 1}
	t.ForMember = func(int) *engine.Terms { return t }
	for _, o := range options {
		o(t)
	}
	return t
}

func TTL(d time.Duration) func(*engine.Terms) { return func(t *engine.Terms) { t.TTL = d } }
func FixedLease(d time.Duration) func(*engine.Terms) {
	return func(t *engine.Terms) { t.TTL, t.Renew = d, false }
}
func MaxHold(d time.Duration) func(*engine.Terms)   { return func(t *engine.Terms) { t.MaxHold = d } }
func Lingering(d time.Duration) func(*engine.Terms) { return func(t *engine.Terms) { t.Linger = d } }
func InCohort(d time.Duration) func(*engine.Terms)  { return func(t *engine.Terms) { t.Cohort = d } }
func PermitsOf(n int) func(*engine.Terms)           { return func(t *engine.Terms) { t.Permits = n } }
func OwnedBy(id string) func(*engine.Terms)         { return func(t *engine.Terms) { t.Owner = id } }
func NonReentrant(t *engine.Terms)                  { t.NonReentrant = true }
func Polling(first, longest time.Duration) func(*engine.Terms) {
	return func(t *engine.Terms) { t.PollMin, t.PollMax = first, longest }
}

// Acquire acquires with no limit, and fails the test if that fails.
func Acquire(t testing.TB, ctx context.Context, r *engine.Resource, options ...func(*engine.Terms)) *engine.Hold {
	t.Helper()
	hold, err := r.Acquire(ctx, NewTerms(options...), engine.Forever)
	require.NoError(t, err)
	return hold
}

// Release releases holds in that order, and fails the test if one of them fails.
func Release(t testing.TB, holds ...*engine.Hold) {
	t.Helper()
	for i, h := range holds {
		require.NoError(t, h.Release(t.Context()), "hold %d of %d", i+1, len(holds))
	}
}

// ErrOf returns only the error of a call that returns two values.
func ErrOf[T any](_ T, err error) error { return err }

// Carry returns a context that carries a hold.
func Carry(h *engine.Hold) context.Context { return h.Context(nil) }

// Call is a call that runs in a goroutine.
type Call struct {
	t    testing.TB
	done chan struct{}
	Hold *engine.Hold
	Err  error
	At   time.Time // when it returned
}

// Start calls f in a goroutine, and waits until all goroutines are blocked.
func Start(t testing.TB, f func() (*engine.Hold, error)) *Call {
	c := &Call{t: t, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.Hold, c.Err = f()
		c.At = time.Now()
	}()
	synctest.Wait()
	return c
}

// StartAcquire acquires in a goroutine, with no limit.
func StartAcquire(t testing.TB, ctx context.Context, r *engine.Resource, options ...func(*engine.Terms)) *Call {
	return Start(t, func() (*engine.Hold, error) { return r.Acquire(ctx, NewTerms(options...), engine.Forever) })
}

// StartRelease releases in a goroutine.
func StartRelease(t testing.TB, h *engine.Hold) *Call {
	return Start(t, func() (*engine.Hold, error) { return nil, h.Release(t.Context()) })
}

// Returned reports whether the call has returned when all goroutines are blocked.
func (c *Call) Returned() bool {
	synctest.Wait()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// AwaitHold waits for the hold of an acquisition that succeeds.
func (c *Call) AwaitHold() *engine.Hold {
	c.t.Helper()
	c.Await()
	require.NoError(c.t, c.Err)
	return c.Hold
}

// AwaitErr waits for the error of a call that fails.
func (c *Call) AwaitErr() error {
	c.t.Helper()
	c.Await()
	require.Error(c.t, c.Err)
	return c.Err
}

// Await waits until the call has returned. Renewals never end, so a call that hangs would hang the
// test.
func (c *Call) Await() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Hour):
		require.Fail(c.t, "the call does not return")
	}
}

// Sleep lets fake time pass, and waits until all goroutines are blocked.
func Sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Settle waits until all goroutines are blocked. No time passes.
func Settle() { synctest.Wait() }

// MultiOf returns a multilock of locks with these names.
func (c *Client) MultiOf(names ...string) *engine.Resource {
	var members []*engine.Resource
	for _, name := range names {
		members = append(members, c.Lock(name))
	}
	return c.Joint("multi", joint.NewMulti, members...)
}

// Joint returns a resource for a joint lock of c, and sets it up.
func (c *Client) Joint(kind string, setUp func(*joint.Lock), members ...*engine.Resource) *engine.Resource {
	var name strings.Builder
	for _, m := range members {
		name.WriteString(m.Name)
	}
	r := c.Resource(kind, name.String(), nil)
	setUp(&joint.Lock{Resource: r, Members: members})
	return r
}

// Turns returns the layer in which the client's users take turns.
func (c *Client) Turns() *turns.Turns { return c.turns }

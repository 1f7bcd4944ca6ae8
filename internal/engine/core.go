package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// Config is what a [Core] is given by its client.
type Config struct {
	// Renew extends leases in batches: see [watchdog.Renew]. The keeper of each is an [*Ownership].
	Renew watchdog.Renew
	// Ready prepares the client for its first command. Every call that needs the server waits for it.
	Ready func(ctx context.Context) error
	// Classify says what a driver's error tells about the command that failed.
	Classify func(err error) Failure
	// Unanswered makes the error of an operation for which the engine stopped waiting. Classify reports
	// it as in doubt.
	Unanswered func(cause error) error
	// NewOwner makes an owner that no other acquisition has or will have.
	NewOwner func() Owner
	// Describe adds to an error what failed, and on what.
	Describe func(r *Resource, operation string, err error) error
	// Observe receives every event; nil if nobody listens. It is called from many goroutines.
	Observe func(Event)
	// HolderTag groups the holds whose takeovers are announced together; "" for none.
	HolderTag func(ownerID string) string
	// HoldAdded is called for each new hold, and WaitBegan and WaitEnded for each acquisition that
	// waits. They must not block.
	HoldAdded, WaitBegan, WaitEnded func()

	Logger *slog.Logger
	// NeedsReplicas: replicas must confirm an acquisition, so no request acquires for another.
	NeedsReplicas bool
	// Margin is how long before its end a lease is no longer trusted. Negative: TTL/100 + 2 ms.
	Margin time.Duration
	// CommandTimeout is how long a call waits for the server's answer.
	CommandTimeout time.Duration
	// Memory is how long the server remembers a request, and RepeatFor how long after its first attempt a
	// command that it remembers may be repeated.
	Memory, RepeatFor time.Duration
	// LateCopies is how long a copy of an acquisition of unknown outcome may still arrive.
	LateCopies time.Duration
}

// Core is the machinery of one client: its watchdog, its wait queues, its holds, and the goroutines
// that finish its work in the background. It is safe for concurrent use.
type Core struct {
	Config

	born   time.Time // instants count from here
	dog    *watchdog.Dog
	queues waitQueues
	holds  holdList

	closing  chan struct{} // closed when Close begins: nothing new is acquired, nobody waits any more
	stopping chan struct{} // closed when Close has waited for all calls: background work ends

	mu         sync.RWMutex // guards refuses and dead; held while a call or a goroutine registers
	refuses    bool         // no more calls
	dead       bool         // no more background goroutines
	calls      sync.WaitGroup
	background sync.WaitGroup
}

// NewCore returns a core. It starts no goroutine.
func NewCore(config Config) *Core {
	c := &Core{
		Config: config, born: time.Now(),
		closing: make(chan struct{}), stopping: make(chan struct{}),
	}
	c.dog = watchdog.New(config.Renew)
	c.holds = holdList{drained: make(chan struct{}), tagOf: config.HolderTag}
	return c
}

// Enter registers a call that Close waits for. The caller ends it with [Core.Leave]. After Close it
// fails with [ErrClosed].
func (c *Core) Enter() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.refuses {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

// Leave ends a call that Enter or Begin registered.
func (c *Core) Leave() { c.calls.Done() }

// Begin is Enter for a call that needs the server.
func (c *Core) Begin(ctx context.Context) error {
	if err := c.Enter(); err != nil {
		return err
	}
	err := c.Ready(ctx)
	if err != nil {
		c.Leave()
	}
	return err
}

// Spawn runs f in a goroutine that Close waits for. After Close it does nothing.
func (c *Core) Spawn(f func()) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.dead {
		c.background.Go(f)
	}
}

// failure classifies an error; nil is no failure.
func (c *Core) failure(err error) Failure {
	if err == nil {
		return Failure{}
	}
	return c.Classify(err)
}

// Closing is closed when Close begins.
func (c *Core) Closing() <-chan struct{} { return c.closing }

// Stopping is closed when Close ends background work.
func (c *Core) Stopping() <-chan struct{} { return c.stopping }

// IsClosing reports whether Close has begun: nothing new may be acquired.
func (c *Core) IsClosing() bool { return isClosed(c.closing) }

// Close refuses new acquisitions, ends waiting ones, and waits until all holds are released or ctx is
// done. It abandons the holds that are left: their contexts end with [ErrClosed], and nothing renews
// their leases. Then it waits for calls and background work. hurry is called if ctx ends while calls
// are still under way; stop, when no call is left, must end everything that background work waits for.
// Close returns ctx's error if holds were left. It must be called once.
func (c *Core) Close(ctx context.Context, hurry func(), stop func(abandoned bool)) error {
	c.holds.seal() // before closing: a call that still acquires gives its lock back
	close(c.closing)
	var left error
	select {
	case <-c.holds.drained:
	case <-ctx.Done():
		if c.holds.abandon() {
			left = ctx.Err()
		}
	}
	c.mu.Lock()
	c.refuses = true
	c.mu.Unlock()
	hurrying := context.AfterFunc(ctx, hurry)
	c.calls.Wait() // nobody waits for a lock any more, and commands end within the client's timeouts
	hurrying()
	close(c.stopping)
	c.dog.Close()
	stop(left != nil)
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	c.background.Wait()
	return left
}

// Instant is a point of the monotonic clock, counted from the creation of the core; 0 is none. Holds
// store many, and a time.Time is three times as large.
type Instant time.Duration

// Instant converts a time.
func (c *Core) Instant(t time.Time) Instant { return Instant(t.Sub(c.born)) }

// Time converts an instant.
func (c *Core) Time(i Instant) time.Time { return c.born.Add(time.Duration(i)) }

// MarginOf is how long before its end a lease of ttl is no longer trusted: never more than half of it.
func (c *Core) MarginOf(ttl time.Duration) time.Duration {
	margin := c.Margin
	if margin < 0 {
		margin = ttl/100 + 2*time.Millisecond
	}
	return min(margin, ttl/2)
}

// Pause waits for d. It returns early when ctx ends, or when done is closed.
func Pause(ctx context.Context, d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-done:
	}
}

// Signal wakes one goroutine. Signals that nobody has received yet count as one.
type Signal chan struct{}

// NewSignal returns a signal that was not sent.
func NewSignal() Signal { return make(Signal, 1) }

// Send never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

package primitives

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

// noCopy makes `go vet` report copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Client is one participant: an id on the wire, one subscription for all who wait, one watchdog for all who hold. Make one
// per process and Redis, and share it; it is safe for concurrent use.
type Client struct {
	_ noCopy

	id       string
	life     string    // an id of this life of the client: no other has it, even one that was given the same id
	born     time.Time // instants count from here
	rdb      redis.UniversalClient
	cluster  bool
	prefix   string
	defaults settings
	logger   *slog.Logger
	observe  func(Event)
	margin   time.Duration // negative: a hundredth of the TTL and 2 ms
	replicas replication
	sharded  *bool

	run             *scripts.Runner
	timeout         time.Duration // how long a call waits for Redis's answer
	remembered      any           // how long scripts remember a request, ms: an argument
	rememberedLong  any           // the same for an acquisition of which a copy may still arrive
	hub             *pubsub.Hub
	dog             *watchdog.Dog
	last            atomic.Uint64 // the number of the latest acquisition
	asked, spublish atomic.Bool   // whether the cluster has been asked, and answered, for sharded pub/sub
	askMu           sync.Mutex
	asking          *publishQuestion // guarded by askMu; nil: nobody asks
	slotted         atomic.Bool      // rdb is no cluster client, but Redis has refused keys of two slots
	rooms           rooms
	queues          fairQueues
	holds           holdList
	presence        presence

	closing    chan struct{} // closed when Close begins: no new work, no more waiting
	stopping   chan struct{} // closed when it stops waiting for holds: background releases end
	closer     sync.Once
	left       error        // what Close returns
	mu         sync.RWMutex // a call registers in calls, a goroutine in background, under it
	shut       bool         // no more calls
	dead       bool         // no more background goroutines
	calls      sync.WaitGroup
	background sync.WaitGroup
}

// ClientOption sets up a [Client]. The zero value does nothing.
type ClientOption struct{ apply func(*Client) error }

// WithDefaults sets options for all that the client acquires; a handle's and a call's own are nearer.
func WithDefaults(opts ...Option) ClientOption {
	return ClientOption{func(c *Client) error {
		c.defaults = c.defaults.with(opts)
		return c.defaults.err
	}}
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// WithClientID sets the uuid that stands on the wire, in lower case; by default it is random. Two
// clients must not use one at the same time. One after the other may, such as the lives of a process:
// each numbers its acquisitions from a random start, so it never meets what an earlier one left.
func WithClientID(uuid string) ClientOption {
	return ClientOption{func(c *Client) error {
		if !uuidForm.MatchString(uuid) {
			return invalid("client id %q is no lower-case uuid", uuid)
		}
		c.id = uuid
		c.last.Store(randomStart())
		return nil
	}}
}

// WithPrefix puts prefix before every name: Redisson's name mapper, as a prefix.
func WithPrefix(prefix string) ClientOption {
	return ClientOption{func(c *Client) error { c.prefix = prefix; return nil }}
}

// WithLogger logs what no caller can see. Default: discard.
func WithLogger(l *slog.Logger) ClientOption {
	return ClientOption{func(c *Client) error {
		if l == nil {
			return invalid("a nil logger")
		}
		c.logger = l
		return nil
	}}
}

// WithObserver has observe told of every [Event], from many goroutines at once, never after Close has returned.
func WithObserver(observe func(Event)) ClientOption {
	return ClientOption{func(c *Client) error { c.observe = observe; return nil }}
}

// WithReplicas confirms each acquisition with WAIT: fewer than n replicas within timeout, and the lock is given back and
// [ErrNotReplicated] returned. It narrows the window in which a failover forgets a lock; it does not close it.
func WithReplicas(n int, timeout time.Duration) ClientOption {
	return ClientOption{func(c *Client) error {
		if n < 0 || timeout < 0 || (n > 0 && timeout < time.Millisecond) {
			return invalid("%d replicas within %v", n, timeout)
		}
		c.replicas = replication{n, timeout}
		return nil
	}}
}

// WithSafetyMargin has loss told d before the TTL ends. Default: a hundredth of the TTL and 2 ms, Redlock's allowance for clock
// drift. A margin is never more than half a TTL.
func WithSafetyMargin(d time.Duration) ClientOption {
	return ClientOption{func(c *Client) error {
		if d < 0 {
			return invalid("a negative margin, %v", d)
		}
		c.margin = d
		return nil
	}}
}

// WithShardedPubSub chooses sharded pub/sub (SPUBLISH) in a cluster. All clients on a cluster must agree. Default: as Redisson's AUTO,
// sharded if the cluster knows it.
func WithShardedPubSub(on bool) ClientOption {
	return ClientOption{func(c *Client) error { c.sharded = &on; return nil }}
}

// WithCommandTimeout limits how long a call waits for Redis's answer, repetitions and dials included:
// then it fails with the transport error, and what may have been done is rolled back in the
// background. A call returns earlier when its context, or an acquisition's wait, ends. More than 50 s
// have no further effect: Redis remembers requests for a minute. Default 5 s. From 1 ms to 100 years.
func WithCommandTimeout(d time.Duration) ClientOption {
	return ClientOption{func(c *Client) error {
		if d < minDuration || d > maxDuration {
			return invalid("a command timeout of %v (from 1ms to 100 years)", d)
		}
		c.timeout = d
		return nil
	}}
}

// New makes a client on rdb, which it does not own: closing the client leaves rdb open. No I/O; a bad option is [ErrInvalid].
// A *redis.Ring has no one place for a key and is refused.
func New(rdb redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	if isNil(rdb) {
		return nil, fmt.Errorf("redlatch: new client: %w", invalid("a nil redis client"))
	}
	if _, ok := rdb.(*redis.Ring); ok {
		return nil, fmt.Errorf("redlatch: new client: %w", invalid("a *redis.Ring"))
	}
	c := &Client{
		id: newUUID(), life: newUUID(), born: time.Now(), rdb: rdb, cluster: isCluster(rdb), defaults: defaultSettings(), logger: slog.New(slog.DiscardHandler), margin: -1,
		holds: holdList{drained: make(chan struct{})}, presence: presence{name: defaultClientName()}, closing: make(chan struct{}), stopping: make(chan struct{}),
	}
	for _, o := range opts {
		if o.apply == nil {
			continue
		}
		if err := o.apply(c); err != nil {
			return nil, fmt.Errorf("redlatch: new client: %w", err)
		}
	}
	if c.sharded != nil && *c.sharded && !c.cluster {
		return nil, fmt.Errorf("redlatch: new client: %w", invalid("sharded pub/sub without a cluster"))
	}
	c.run = scripts.NewRunner(rdb, c.timeout)
	c.timeout = c.run.Timeout()
	c.remembered, c.rememberedLong = millis(c.run.Memory()), millis(c.run.MaxMemory())
	c.hub = pubsub.New(rdb, pubsub.Config{Sharded: c.sharded, Logger: c.logger})
	c.dog = watchdog.New(c.renew)
	c.presence.init(c)
	return c, nil
}

func isNil(rdb redis.UniversalClient) bool {
	switch c := rdb.(type) {
	case nil:
		return true
	case *redis.Client:
		return c == nil
	case *redis.ClusterClient:
		return c == nil
	}
	return false
}

func isCluster(rdb redis.UniversalClient) bool {
	_, ok := rdb.(interface{ Options() *redis.ClusterOptions })
	return ok
}

// ID is the uuid that stands on the wire before every id of this client.
func (c *Client) ID() string { return c.id }

// mint makes an id that no other acquisition has or will have.
func (c *Client) mint() string { return c.minted(c.next()) }

// next is a number that no other acquisition of this client has or will have.
func (c *Client) next() uint64 { return c.last.Add(1) }

// minted is the id of an acquisition of its own.
func (c *Client) minted(number uint64) string { return numbered("", c.id, ":", number) }

func numbered(prefix, id, mark string, number uint64) string {
	var digits [20]byte
	return prefix + id + mark + string(strconv.AppendUint(digits[:0], number, 10))
}

// randomStart is where a client begins to number its acquisitions if its id may have had earlier lives.
// It leaves room for as many acquisitions as anybody will ever make.
func randomStart() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:]) >> 2
}

// newUUID makes a random (version 4) uuid.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// publish is the command by which scripts publish. A call that needs Redis has asked ready before.
func (c *Client) publish() any {
	if c.spublish.Load() {
		return "spublish"
	}
	return "publish"
}

// ready finds out, once, what the whole cluster must agree on: by which command to publish. Calls that
// come meanwhile wait for the same answer, but none for longer than its context or the command timeout.
func (c *Client) ready(ctx context.Context) error {
	if !c.cluster || c.asked.Load() {
		return nil
	}
	q := c.askPublish()
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	err := errNoAnswer
	select {
	case <-q.answered:
		if q.err == nil {
			return nil
		}
		err = q.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
	}
	return &scripts.Error{Script: "pubsub shardnumsub", Outcome: scripts.NotExecuted, Err: err}
}

var errNoAnswer = errors.New("no answer within the command timeout")

// publishQuestion is one question to the cluster, for all who ask at the same time.
type publishQuestion struct {
	answered chan struct{} // closed when err is set
	err      error
}

func (c *Client) askPublish() *publishQuestion {
	c.askMu.Lock()
	defer c.askMu.Unlock()
	if c.asking != nil {
		return c.asking
	}
	q := &publishQuestion{answered: make(chan struct{})}
	c.asking = q
	c.spawn(func() {
		sharded, err := c.hub.Sharded(context.Background())
		if err == nil {
			c.spublish.Store(sharded)
			c.asked.Store(true)
		}
		c.askMu.Lock()
		c.asking = nil
		c.askMu.Unlock()
		q.err = err
		close(q.answered)
	})
	return q
}

// instant is a point of the monotonic clock, from when the client was made; 0: none. Holds have many, and a time.Time is three times as large.
type instant time.Duration

func (c *Client) instant(t time.Time) instant { return instant(t.Sub(c.born)) }
func (c *Client) time(i instant) time.Time    { return c.born.Add(time.Duration(i)) }

// marginOf is how long before its end a TTL is no longer trusted.
func (c *Client) marginOf(ttl time.Duration) time.Duration {
	margin := c.margin
	if margin < 0 {
		margin = ttl/100 + 2*time.Millisecond
	}
	return min(margin, ttl/2)
}

// enter registers a call that Close waits for; the caller ends it by c.calls.Done.
func (c *Client) enter() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.shut {
		return ErrClosed
	}
	c.calls.Add(1)
	return nil
}

// begin is enter for a call that needs Redis.
func (c *Client) begin(ctx context.Context) error {
	if err := c.enter(); err != nil {
		return err
	}
	err := c.ready(ctx)
	if err != nil {
		c.calls.Done()
	}
	return err
}

// isClosing tells whether Close has begun: nothing new may be acquired.
func (c *Client) isClosing() bool { return isClosed(c.closing) }

// spawn runs f in a goroutine that Close waits for; after Close it does nothing.
func (c *Client) spawn(f func()) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if !c.dead {
		c.background.Go(f)
	}
}

// Close refuses new acquisitions ([ErrClosed]) and ends those that wait, then waits until all holds are released or ctx is
// done. Holds that are left have their contexts ended with [ErrClosed] and are renewed no more: their locks free themselves
// when the lease ends, not before, as their sections may still run. When Close has returned no goroutine of the client is
// left, and nothing is sent any more; for that it awaits commands under way, beyond ctx too, for as long as the redis client's own
// timeouts let one attempt take. It returns nil, or ctx's error if holds were left, and the same when called again.
func (c *Client) Close(ctx context.Context) error {
	c.closer.Do(func() { c.close(ctx) })
	return c.left
}

func (c *Client) close(ctx context.Context) {
	c.holds.seal() // before closing: whoever still acquires gives back
	close(c.closing)
	c.rooms.close()
	select {
	case <-c.holds.drained:
	case <-ctx.Done():
		if c.holds.abandon() {
			c.left = ctx.Err()
		}
	}
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
	hasty := context.AfterFunc(ctx, c.run.Stop)
	c.calls.Wait() // nobody waits for a lock any more, and commands end within the redis client's limits
	hasty()
	close(c.stopping)
	c.presence.close()
	c.dog.Close()
	c.hub.Close()
	c.run.Close()
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	c.background.Wait()
}

package primitives

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/logqueue"
	"github.com/redlatch/redlatch/internal/presence"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/internal/turns"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// The client: its options, and the parts that it puts together. The engine core waits, holds and
// works in the background. It knows no Redis, so [New] gives it functions for that. The runner
// sends all commands. The hub has the subscriptions. The presence keeps the client's name and hears
// of takeovers.
//
// Mutexes: a mutex on the left may be held while a mutex on its right is taken. No other pair of
// this package is nested.
//
//	Locker.local  -> any other; it is a channel, which is full while the Locker is locked
//	fairQueues.mu -> Contact.mu and Core.mu of package engine, Hub.mu of package pubsub
//
// Keyed.mu and multiListener.mu are innermost. The package comments of engine, turns, joint,
// presence, duty, logqueue, scripts, pubsub and watchdog list their mutexes and goroutines. The
// observer is called with no mutex held, except Locker.local.
//
// Goroutines: Core.Spawn of package engine starts all of them. They refresh the fair queues, and
// renew one by one the leases of a batch that Redis has refused.

// noCopy makes `go vet` report copies of the types that contain it.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Client is one participant. It has an id on the wire, shared subscriptions for all its waiters,
// and one watchdog for all its holds. Make one per process and Redis deployment, and share it. It
// is safe for concurrent use. Call [Client.Close] when the process needs it no longer.
type Client struct {
	_ noCopy

	// The fields without a synchronization type are set by New and never change, except closeErr.

	base        redis.UniversalClient // the client of go-redis that New was given, or that it embeds
	id          string
	tag         []byte // the beginning of the ids of its permits
	life        string // unique to this client, even if another client was given the same id
	cluster     bool
	prefix      string
	name        string   // the name that people see; "" if there is none
	defaults    settings // its err is the error of any option of the client
	logger      *slog.Logger
	observe     []func(Event)
	margin      time.Duration // negative for a hundredth of the TTL and 2 ms
	replicas    int           // how many replicas must confirm an acquisition; may be 0
	waitTimeout time.Duration // the timeout of WAIT, for these replicas
	sharded     *bool
	timeout     time.Duration // how long a call waits for an answer from Redis

	core           *engine.Core
	run            *scripts.Runner
	calls          scripts.Sender // sends scripts that no replica needs to confirm
	confirmed      scripts.Sender // sends scripts that replicas confirm, if the client asks for that
	once           scripts.Sender // sends scripts that the caller repeats
	hub            *pubsub.Hub
	acquisitions   atomic.Uint64 // the number of the latest acquisition
	numbersBegin   uint64        // an earlier life of the same id may have used the numbers up to this one
	slotted        atomic.Bool   // base is not a cluster client, but Redis has refused keys of two slots
	queues         fairQueues    // the waiters for fair locks
	multiListeners sync.Map      // each *multiListener, by the name of a multilock for which requests wait
	presence       *presence.Presence
	knowsPublish   atomic.Bool // ready has asked whether the cluster has sharded pub/sub

	logs     *logqueue.Queue
	ending   atomic.Bool             // Close was called
	ended    chan struct{}           // closed when the first call of Close returns
	closing  context.Context         // the context of Close, which ends with the context of any of its callers
	hurry    context.CancelCauseFunc // ends closing
	closeErr error                   // the result of Close, after ended
}

// ClientOption sets up a [Client]. The zero value does nothing. A bad value makes [New] fail with
// [ErrInvalid].
type ClientOption struct{ apply func(*Client) }

// WithDefaults sets options for everything that the client acquires. A handle's and a call's own
// options take precedence.
func WithDefaults(opts ...Option) ClientOption {
	return ClientOption{func(c *Client) { c.defaults = c.defaults.with(opts).shared("a client") }}
}

// WithClientID sets the client's uuid on the wire, in lower case. Default: random. Two clients must
// not use the same one at the same time. Successive lives of a process may. Each numbers its
// acquisitions from a random start, so that it never meets the remembered requests of an earlier
// life.
func WithClientID(uuid string) ClientOption {
	return ClientOption{func(c *Client) {
		c.defaults.check(uuidForm.MatchString(uuid), "client id %q is no lower-case uuid", uuid)
		c.id = uuid
		c.acquisitions.Store(rand.Uint64N(1 << 62)) //nolint:gosec // leaves enough numbers for any client
	}}
}

// WithPrefix adds prefix to every name on the wire. It equals a name mapper of Redisson that adds
// the same prefix. Name methods, Info, errors and events show the name without it. Default: none.
func WithPrefix(prefix string) ClientOption {
	return ClientOption{func(c *Client) { c.prefix = prefix }}
}

// WithLogger logs losses, leaked holds, failed renewals and failures that no caller can see at
// Warn, and what works again at Info. It logs changes of state, and repeats a line at most once a
// minute. One goroutine calls the handler, so a slow handler delays nothing. Close drops records
// that the handler has not written in time. nil is ErrInvalid. Default: discard.
func WithLogger(l *slog.Logger) ClientOption {
	return ClientOption{func(c *Client) {
		c.defaults.check(l != nil, "a nil logger")
		c.logger = l
	}}
}

// WithObserver calls observe with every [Event], from many goroutines at once. It should return
// quickly, because calls wait for it. It is not called after Close has returned. If the option is
// given several times, each observer gets every event, in the order of the options. nil is ignored.
// An observer must not panic. A panic in the background ends the process, and a panic in Acquire
// releases the lock.
func WithObserver(observe func(Event)) ClientOption {
	return ClientOption{func(c *Client) {
		if observe != nil {
			c.observe = append(c.observe, observe)
		}
	}}
}

// WithSafetyMargin reports a loss d before the TTL ends. Default: a hundredth of the TTL plus 2 ms,
// which is Redlock's allowance for clock drift. A margin is never more than half a TTL.
func WithSafetyMargin(d time.Duration) ClientOption {
	return ClientOption{func(c *Client) {
		c.defaults.check(d >= 0, "a negative margin, %v", d)
		c.margin = d
	}}
}

// WithShardedPubSub chooses sharded pub/sub (SPUBLISH) on a cluster. All clients of a cluster must
// agree. Default: as Redisson's AUTO, sharded if the cluster supports it.
func WithShardedPubSub(on bool) ClientOption {
	return ClientOption{func(c *Client) { c.sharded = &on }}
}

// WithCommandTimeout limits how long a call waits for an answer from Redis, including repetitions
// and dials. After that the call fails with the transport error, and an acquisition that may have
// succeeded is rolled back in the background. A call returns earlier when its context, or an
// acquisition's wait, ends.
//
// Default 5 s. From 1 ms to 100 years. Values above 50 s act like 50 s, because Redis remembers
// requests for 3 minutes, and copies of a command may arrive up to 2 minutes after it was sent.
func WithCommandTimeout(d time.Duration) ClientOption {
	return ClientOption{func(c *Client) {
		c.defaults.checkDuration("command timeout", d)
		c.timeout = d
	}}
}

// New returns a client on rdb: a single server, a Sentinel setup or a cluster. It sends nothing. It
// does not own rdb: closing the client leaves rdb open. It returns [ErrInvalid] for a bad option,
// and for a *redis.Ring, because the keys of a server that leaves the ring move to another one, and
// locks would be forgotten. Use a *redis.ClusterClient, or a client for each server and
// [NewRedLock].
//
// rdb may be a type of yours that embeds a *redis.Client or *redis.ClusterClient, directly or in an
// interface such as [redis.UniversalClient]. Commands are sent by its methods Pipeline and Process.
// Subscriptions, and what a cluster's nodes are asked directly, use the client that it embeds. A
// type that embeds no client is [ErrInvalid].
//
// New adds a hook to rdb, once, so that commands of the library can end with a deadline of their
// own. If a hook of yours must see all commands of the library, add it before.
func New(rdb redis.UniversalClient, opts ...ClientOption) (*Client, error) {
	c, err := configure(rdb, opts)
	if err != nil {
		return nil, fmt.Errorf("redlatch: new client: %w", err)
	}
	c.closing, c.hurry = context.WithCancelCause(context.Background())
	c.ended = make(chan struct{})
	c.logs = logqueue.New(c.logger)
	c.run = scripts.NewRunner(rdb, c.timeout)
	c.timeout = c.run.Timeout()
	c.calls = c.run.Sender()
	c.once = c.run.OnceSender()
	c.confirmed = c.run.ReplicatedSender(c.replicas, c.waitTimeout)
	c.queues.open = map[string]*fairQueue{}
	hub := pubsub.Config{Sharded: c.sharded, Logger: c.logs.Logger(), LinkLost: c.linkLost}
	node, ok := c.base.(interface{ Options() *redis.Options })
	isSentinel := ok && node.Options().Addr == "FailoverClient" // as go-redis names it
	hub.Server = c.run.Place
	if isSentinel {
		hub.Server = c.run.Master
	}
	c.hub = pubsub.New(c.base, hub)
	c.tag, _ = hex.DecodeString(presence.ClientTag(c.id))
	c.presence = presence.New(presence.Config{
		ID: c.id, Name: c.name, Prefix: c.prefix, Runner: c.run, Hub: c.hub, Logger: c.logs.Logger(),
		Renew:   c.renew,
		Probe:   func(o *engine.Ownership) []any { return driverOf(o).probe(o) },
		ManyIDs: func(kind string) bool { return kind == permitsKind },
		Holders: holderIDs, AnyWait: c.anyWait,
	})
	c.run.OnReturn(c.redisReturned)
	config := engine.Config{
		Commands: engine.Commands{Renew: c.renew, Try: scripts.Try, Server: c.server},
		Owners:   engine.Owners{New: c.newOwner, IsOwn: c.isOwn, TagOf: presence.TagOf},
		Errors: engine.Errors{
			Describe: failed, Lost: newLossError, Address: c.address,
			Explain: func(r *engine.Resource, err error) error { return describeForeign(r.Kind, err) },
		},
		Presence: engine.Presence{
			HoldAdded: c.presence.Wake, WaitBegan: c.presence.WaitBegan, WaitEnded: c.presence.WaitEnded,
			StaysTaken: c.presence.StaysTaken, CanLinger: c.presence.CanLinger, NameOf: c.presence.NameOf,
			Ask: c.presence.Ask, HoldListens: c.presence.HoldListens,
		},
		Observe: c.observer(), Logger: c.logs.Logger(), NeedsReplicas: c.replicas > 0,
		Margin: c.margin, CommandTimeout: c.timeout, RepeatFor: c.run.Repeatable(), LateCopies: c.run.Memory(),
	}
	if c.cluster {
		config.Commands.Ready = c.ready
	}
	c.core = engine.NewCore(config)
	turns.New(c.core)
	c.presence.Use(c.core)
	return c, nil
}

// redisReturned is called when Redis answers again, perhaps another server than before. It does not
// block.
func (c *Client) redisReturned() {
	c.hub.Look()
	c.presence.RecheckAll()
}

// configure returns a client that has its options, but not its parts.
func configure(rdb redis.UniversalClient, opts []ClientOption) (*Client, error) {
	base, err := redisutil.Underlying(rdb)
	if err != nil {
		return nil, invalid("%w: pass the *redis.Client or *redis.ClusterClient itself; its AddHook sees the commands", err)
	}
	if _, isRing := base.(interface{ Options() *redis.RingOptions }); isRing {
		return nil, invalid("a *redis.Ring: when a server leaves the ring, its keys move to another one, and locks are " +
			"forgotten; use a *redis.ClusterClient, or one client for each server and NewRedLock")
	}
	_, isCluster := base.(interface{ Options() *redis.ClusterOptions })
	c := &Client{
		base: base, id: newUUID(), life: newUUID(), cluster: isCluster, defaults: defaultSettings(),
		logger: slog.New(slog.DiscardHandler), margin: -1, name: presence.DefaultName(),
	}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(c)
		}
	}
	c.numbersBegin = c.acquisitions.Load()
	c.defaults.check(c.sharded == nil || !*c.sharded || c.cluster, "sharded pub/sub without a cluster")
	return c, c.defaults.err
}

// begin registers a call that Close waits for, unless ctx has ended. If it succeeds, the caller
// ends the call with core.Leave.
func (c *Client) begin(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return c.core.EnterReady(ctx)
}

// during runs f as a call that Close waits for. If ctx has ended, f does not run.
func (c *Client) during(ctx context.Context, f func() error) error {
	if err := c.begin(ctx); err != nil {
		return err
	}
	defer c.core.Leave()
	return f()
}

// ID returns the uuid with which every owner id of this client begins on the wire.
func (c *Client) ID() string { return c.id }

// newOwner returns an owner whose id no other acquisition has or will have. Its number is also part
// of the keys by which Redis remembers it.
func (c *Client) newOwner() engine.Owner {
	n := c.acquisitions.Add(1)
	return engine.Owner{ID: numbered(nil, c.id, n), Number: n}
}

// isOwn implements [engine.Owners].IsOwn. An earlier life of the client id has given out other
// numbers.
func (c *Client) isOwn(ownerID string) (own, known bool) {
	if !presence.IsPrivate(ownerID) {
		return false, false
	}
	of, number, _ := strings.Cut(ownerID, ":")
	n, err := strconv.ParseUint(number, 10, 64)
	isOfClient := err == nil && of == c.id
	wasGivenOut := n > c.numbersBegin && n <= c.acquisitions.Load()
	return isOfClient && wasGivenOut, true
}

// rememberFor returns how long Redis must remember the release or rollback of o. If an attempt to
// acquire o is in doubt, a late copy of that attempt must not acquire again after the release.
// Otherwise a short time is enough, because only repetitions of the release need its answer, and
// later copies find nothing to do.
func (c *Client) rememberFor(o *engine.Owner) time.Duration {
	if o.InDoubt {
		return c.run.Memory()
	}
	return c.run.AnswerMemory()
}

// rememberDoubt is like rememberFor, for kinds where copies of a private owner's release find
// nothing to release. If a repetition gets that answer, the engine assumes that the first copy has
// released: see [engine.Released]. Redis therefore remembers nothing unless there is a doubt.
func (c *Client) rememberDoubt(o *engine.Owner) time.Duration {
	if !o.Shared && !o.InDoubt {
		return 0
	}
	return c.rememberFor(o)
}

// Close refuses new acquisitions ([ErrClosed]) and ends waiting ones. Then it waits until all holds
// are released or ctx is done. Give ctx a deadline: without one, Close waits for a forgotten hold
// for ever.
//
// The contexts of holds that are left end with [ErrClosed], and nothing renews them. Their locks
// become free when their leases end, not before, because their critical sections may still run.
//
// When Close returns, no goroutine of the client is left, and it sends nothing more. For that it
// waits for commands in flight, even after ctx has ended, though no longer than the command
// timeout, whatever Redis does. (If a cluster is silent while its slot map is read, it waits for
// the timeouts of the redis client.) Rollbacks and releases that Redis has not answered by then are
// dropped. These locks become free when their leases end.
//
// Close may be called by an observer, by a log handler and by a hook of the redis client. It waits
// for none of them longer than one command timeout after the end of ctx, or than two after the last
// hold. A goroutine that is in such code by then ends when that code returns. It sends nothing
// more, and calls neither the observer nor the log handler again. Records that the log handler has
// not written by then are dropped.
//
// Close returns nil, or an error that matches ctx's error and names the holds that were left. If an
// observer or a hook has not returned in time, the error says so. Later calls return the same
// result. Calls at the same time end together, as soon as one of their contexts allows it.
func (c *Client) Close(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { c.hurry(ctx.Err()) })()
	if c.ending.CompareAndSwap(false, true) {
		defer close(c.ended)
		c.end()
	} else {
		<-c.ended
	}
	return c.closeErr
}

// end closes the client, for the first call of Close.
func (c *Client) end() {
	var contextEnded atomic.Pointer[time.Time]
	defer context.AfterFunc(c.closing, func() {
		now := time.Now()
		contextEnded.Store(&now)
	})()
	panicked, err := c.core.Close(c.closing, engine.CloseHooks{
		Hurry: c.run.Stop,
		Cut: func() {
			c.hub.Stop()
			c.run.Refuse()
		},
		Stop: func(holdsErr error) {
			// The presence goes first, because it sends and subscribes. The runner goes last.
			c.presence.Close(holdsErr != nil)
			c.hub.Close()
			c.run.Close()
		},
	})
	if err != nil {
		c.closeErr = fmt.Errorf("redlatch: close client: %w", err)
	}
	limit := c.timeout
	if at := contextEnded.Load(); at != nil {
		limit -= time.Since(*at)
	}
	c.logs.Close(max(limit, 0))
	if panicked != nil { // the observer has panicked
		panic(panicked)
	}
}

// address implements [engine.Errors].Address. It returns the address that the user has configured,
// if that is one server. With Sentinel it returns the address of the master, as far as it is known.
// On a cluster it returns the address of the node that has the name.
func (c *Client) address(r *engine.Resource) string {
	switch rdb := c.base.(type) {
	case interface{ Options() *redis.Options }:
		if addr := rdb.Options().Addr; addr != "FailoverClient" {
			return addr
		}
		return c.run.Address()
	case interface{ Options() *redis.ClusterOptions }:
		if node, ok := c.run.Server(c.prefix + r.Name).(*redis.Client); ok && node != nil {
			return node.Options().Addr
		}
		return strings.Join(rdb.Options().Addrs, ",")
	}
	return ""
}

// server implements [engine.Commands].Server.
func (c *Client) server(r *engine.Resource) any {
	if r.Identity != nil { // r is a joint lock, whose members have servers
		return r
	}
	return c.run.Server(c.prefix + r.Name)
}

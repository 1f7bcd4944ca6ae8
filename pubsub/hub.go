package pubsub

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrClosed is the Err of a subscription whose hub was closed.
var ErrClosed = errors.New("pubsub: hub is closed")

// ErrUnsupported is returned for sharded pub/sub without a cluster, and for clients that do not
// expose their connection options.
var ErrUnsupported = errors.New("pubsub: not supported by this client")

// Signal is what a listener receives.
type Signal struct {
	Resubscribed bool   // the connection was replaced: messages may have been missed
	Payload      string // the message; "" when Resubscribed
}

// Config configures a hub. The zero value is ready to use.
type Config struct {
	// Sharded selects sharded pub/sub (SSUBSCRIBE). If nil, the hub asks a cluster whether it
	// supports sharded pub/sub, as Redisson's AUTO does, and uses plain pub/sub everywhere else.
	Sharded *bool
	// Logger receives lost links, refused channels, and channels without a server. Nil discards
	// them. The hub's goroutines call its handler, with no mutex held. The handler may subscribe
	// and close subscriptions. It must not wait for a Confirmed, and must not close the hub.
	Logger *slog.Logger
	// LinkLost, if not nil, is called for each link that has failed, or could not be made, while
	// channels were on it. A new link for them follows. The same conditions apply as for Logger.
	LinkLost func(err error)
	// Server, if not nil, returns the address of the server to which the client's commands go now,
	// or "" if it is not known, and a number that changes when commands have met a former primary.
	// When the address or the number changes, a link to another server is replaced: a former
	// primary keeps its connections, but may get no messages. A cluster client ignores Server. It
	// must only compute.
	Server func() (addr string, moves int64)

	limits limits
}

// limits are the timeouts of a link.
type limits struct {
	quiet   time.Duration // a link on which nothing has arrived for this long sends a PING
	answer  time.Duration // how long it then waits for any data; also bounds each write
	connect time.Duration // dial and handshake together
	idle    time.Duration // how long a link without channels stays open
	leave   time.Duration // how long a channel stays subscribed after CloseSoon
	look    time.Duration // how often a link checks that its server is still the right one
}

// silence is how long a link without incoming data stays open.
func (l limits) silence() time.Duration { return l.quiet + l.answer }

// A link that goes silent is replaced within about 10 s: 7 s until the PING, 3 s for the answer,
// and a new dial. That is soon enough, because a lost wake-up costs a waiter no more than a poll
// interval, a second. Therefore the PING only has to save the link from staying silent for ever,
// and a waiting client sends hardly more than its polls.
var defaultLimits = limits{
	quiet:   7 * time.Second,
	answer:  3 * time.Second,
	connect: 5 * time.Second,
	idle:    300 * time.Millisecond,
	leave:   10 * time.Millisecond,
	look:    time.Second,
}

// Bounds of the delay before a server is dialed again, and before a channel that could not be
// placed is tried again.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// Hub shares a few connections among many listeners. It is safe for concurrent use.
type Hub struct {
	rdb    redis.UniversalClient
	cfg    Config
	logger *slog.Logger

	ctx    context.Context // ends with Close; bounds all I/O
	cancel context.CancelFunc
	// tasks counts the hub's goroutines. Its Go method is called with mu held on an open hub, or
	// from a goroutine that is counted already, so Close cannot miss a goroutine.
	tasks      sync.WaitGroup
	wakePlacer chan struct{} // capacity 1: one pending wake-up is enough

	mu       sync.Mutex // never held during I/O, or while a listener or the log handler runs
	closed   bool
	router   router                // nil until the pub/sub mode is known
	choosing *choice               // the choice of the router that is under way; nil if there is none
	channels map[string]*channel   // by name: channels with listeners or with unanswered commands
	links    map[string]*link      // by server name
	failures map[string]int        // by server name: failed links in a row, 0 after a confirmation
	states   map[string]*linkState // for the log, by server name
	unplaced []*channel            // to be placed at once
	retry    []*channel            // to be placed again at retryAt
	retryAt  time.Time
	placing  bool // the placer goroutine runs; always true while there are unplaced channels

	unsubscribeRefused bool // the server has refused an UNSUBSCRIBE, which was logged
}

// channel is one subscribed channel. Hub.mu guards all fields except name, which never changes.
//
// Replies carry only the channel name, so replies to repeated SUBSCRIBEs are told apart by
// counting. A channel therefore leaves a link only when none of its SUBSCRIBEs is unanswered there,
// or when the whole link ends.
type channel struct {
	name          string
	listeners     []*Subscription
	link          *link // nil while unplaced
	dirty         bool  // in link.dirty: the server's state may differ from the wanted state
	subscribeSent bool  // the last command sent for the channel was a SUBSCRIBE
	unanswered    int   // SUBSCRIBEs sent and not answered
	attempts      int   // failed placements since the last confirmation
}

// confirmed reports whether the server has answered the latest SUBSCRIBE and no UNSUBSCRIBE
// followed.
func (c *channel) confirmed() bool { return c.subscribeSent && c.unanswered == 0 }

// wanted reports whether the channel has listeners.
func (c *channel) wanted() bool { return len(c.listeners) > 0 }

// unplace detaches the channel from its link. Later replies of that link no longer count.
func (c *channel) unplace() {
	c.link = nil
	c.dirty = false
	c.subscribeSent = false
	c.unanswered = 0
}

func (c *channel) addListener(s *Subscription) {
	s.channel = c
	s.index = len(c.listeners)
	c.listeners = append(c.listeners, s)
}

// removeListener moves the last listener to the free position, so a removal takes constant time.
func (c *channel) removeListener(s *Subscription) {
	last := len(c.listeners) - 1
	c.listeners[s.index] = c.listeners[last]
	c.listeners[s.index].index = s.index
	c.listeners[last] = nil
	c.listeners = c.listeners[:last]
	s.channel = nil
}

// New returns a hub that connects as rdb does. It does no I/O and starts no goroutine before the
// first Subscribe.
func New(rdb redis.UniversalClient, cfg Config) *Hub {
	if cfg.limits == (limits{}) {
		cfg.limits = defaultLimits
	}
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Hub{
		rdb: rdb, cfg: cfg, logger: logger,
		ctx: ctx, cancel: cancel,
		wakePlacer: make(chan struct{}, 1),
		channels:   make(map[string]*channel),
		links:      make(map[string]*link),
		failures:   make(map[string]int),
		states:     make(map[string]*linkState),
	}
}

// Sharded reports whether the hub uses sharded pub/sub, and so whether to publish with SPUBLISH. On
// a cluster the first call asks the servers. Calls at the same time share the question, and the
// answer is cached. An error is not cached. The error is ErrUnsupported if sharded pub/sub is
// configured without a cluster, and the cause of ctx if ctx ends first.
func (h *Hub) Sharded(ctx context.Context) (bool, error) {
	r, err := h.resolveRouter(ctx)
	if err != nil {
		return false, err
	}
	return r.sharded(), nil
}

// choice is one attempt to choose the router. Its goroutine writes router and err before it closes
// done.
type choice struct {
	done   chan struct{}
	router router
	err    error
}

// resolveRouter returns the router. The first successful choice decides, so the mode never changes.
func (h *Hub) resolveRouter(ctx context.Context) (router, error) {
	h.mu.Lock()
	r := h.router
	c := h.choosing
	switch {
	case r != nil:
		h.mu.Unlock()
		return r, nil
	case h.closed:
		h.mu.Unlock()
		return nil, ErrClosed
	case c == nil:
		c = &choice{done: make(chan struct{})}
		h.choosing = c
		h.tasks.Go(func() { h.choose(c) })
	}
	h.mu.Unlock()
	select {
	case <-c.done:
		return c.router, c.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// choose is the goroutine of a choice. It ends with the hub, not with a caller's context, because
// other callers wait for the same choice.
func (h *Hub) choose(c *choice) {
	defer close(c.done)
	c.router, c.err = newRouter(h.ctx, h.tasks.Go, h.rdb, h.cfg)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.router = c.router
	h.choosing = nil
}

// Subscribe adds a listener to a channel and returns at once: see Confirmed. listen is called by a
// goroutine that also serves other channels, so it must not block, and must not close a
// subscription or the hub. It may subscribe. On a closed hub the subscription's Err is ErrClosed.
func (h *Hub) Subscribe(name string, listen func(Signal)) *Subscription {
	s := &Subscription{hub: h, listen: listen, confirmed: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.fail(ErrClosed)
		return s
	}
	c := h.channels[name]
	if c == nil {
		c = &channel{name: name}
		h.channels[name] = c
	}
	// An unplaced channel with listeners is already in unplaced or retry, or the placer has it.
	isNew := c.link == nil && !c.wanted()
	c.addListener(s)
	switch {
	case c.confirmed():
		s.confirm()
	case c.link != nil:
		c.link.markDirty(c) // an UNSUBSCRIBE may be on its way: the writer decides
	case isNew && h.links[plainServer] != nil:
		// Plain pub/sub has a single link, so there is no server to look up.
		h.links[plainServer].place(c)
	case isNew:
		h.unplaced = append(h.unplaced, c)
		h.startPlacer()
	}
	return s
}

// Listens reports whether this hub listens to a channel, or did so a moment ago, so that Redis may
// count it among the listeners.
func (h *Hub) Listens(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.channels[name] != nil
}

// Close closes all links, ends every subscription with ErrClosed and waits for all of the hub's
// goroutines. No listener is called after Close has returned. Close does not wait for silent
// servers. It may wait for a Dialer that ignores its context, and for a lookup of the right server
// by a cluster or Sentinel client. Close is idempotent. A listener must not call it.
func (h *Hub) Close() {
	h.Stop()
	h.tasks.Wait()
}

// Stop is Close without the wait for goroutines. It does not block.
func (h *Hub) Stop() {
	h.mu.Lock()
	h.closed = true // from here on no goroutine is added to tasks from outside
	for name, c := range h.channels {
		h.failListeners(c, ErrClosed)
		delete(h.channels, name)
	}
	for _, l := range h.links {
		l.stopTimers()
	}
	h.mu.Unlock()
	h.cancel()
}

// retryLater unplaces a channel that has no server now, or that its server does not serve now, and
// makes the placer place it again after a backoff. mu is held.
func (h *Hub) retryLater(c *channel) {
	c.unplace()
	c.attempts++
	at := time.Now().Add(backoff(c.attempts))
	// All retries happen together, at the earliest time: one refresh of the cluster map serves
	// them.
	if len(h.retry) == 0 || at.Before(h.retryAt) {
		h.retryAt = at
	}
	h.retry = append(h.retry, c)
	h.startPlacer()
}

// lastListenerClosed unsubscribes a channel without listeners, at once or soon. mu is held.
func (h *Hub) lastListenerClosed(c *channel, soon bool) {
	switch {
	case c.link == nil:
		h.remove(c) // the placer skips it
	case c.subscribeSent && soon:
		c.link.leave(c)
	case c.subscribeSent:
		c.link.markDirty(c)
	case c.unanswered == 0:
		c.link.remove(c) // nothing was sent, so there is nothing to undo
	}
	// Otherwise UNSUBSCRIBE was sent already. The reply to the earlier SUBSCRIBE removes the
	// channel.
}

// remove deletes an unplaced channel from the hub, once. mu is held.
func (h *Hub) remove(c *channel) { delete(h.channels, c.name) }

// failListeners ends all subscriptions of a channel. It returns the subscriptions that were
// confirmed before: they need a last signal. mu is held.
func (h *Hub) failListeners(c *channel, err error) (wasConfirmed []*Subscription) {
	for _, s := range c.listeners {
		s.channel = nil
		if s.isConfirmed {
			wasConfirmed = append(wasConfirmed, s)
		}
		s.fail(err)
	}
	c.listeners = nil
	return wasConfirmed
}

// startPlacer starts the placer, or wakes it up if it runs. mu is held.
func (h *Hub) startPlacer() {
	if h.closed {
		return
	}
	if !h.placing {
		h.placing = true
		h.tasks.Go(h.runPlacer)
	}
	select {
	case h.wakePlacer <- struct{}{}:
	default: // a wake-up is pending and covers this change too
	}
}

// Look makes all links check at once whether their server is still the right one. It does not
// block.
func (h *Hub) Look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.links {
		select {
		case l.lookNow <- struct{}{}:
		default: // a look is due already
		}
	}
}

// runPlacer places channels on links until none is left.
func (h *Hub) runPlacer() {
	for {
		h.mu.Lock()
		if h.closed || len(h.unplaced)+len(h.retry) == 0 {
			// placing changes under the same lock as the lists, so no channel is left behind.
			h.placing = false
			h.mu.Unlock()
			return
		}
		wait := time.Until(h.retryAt)
		batch := h.unplaced
		h.unplaced = nil
		if len(batch) == 0 && wait <= 0 {
			batch = h.retry
			h.retry = nil
		}
		retrying := len(h.retry) > 0
		r := h.router
		h.mu.Unlock()

		if len(batch) > 0 {
			h.placeAll(batch)
			continue
		}
		// The client's map of the cluster may be outdated. Reload it while the channels wait.
		if retrying && r != nil {
			r.refresh(h.ctx)
		}
		timer := time.NewTimer(wait)
		select {
		case <-h.wakePlacer:
		case <-timer.C:
		case <-h.ctx.Done():
		}
		timer.Stop()
	}
}

// placeAll places each channel of the batch on a link, or schedules its retry.
func (h *Hub) placeAll(batch []*channel) {
	// Servers are looked up without mu, because the client may do I/O.
	servers := make([]server, len(batch))
	errs := make([]error, len(batch))
	r, err := h.resolveRouter(h.ctx)
	for i, c := range batch {
		if err != nil {
			errs[i] = err
			continue
		}
		servers[i], errs[i] = r.serverFor(h.ctx, c.name)
	}
	for _, i := range h.applyLookups(batch, servers, errs) {
		// Without mu: the handler may use the hub.
		h.logger.LogAttrs(h.ctx, slog.LevelWarn, "no server for channel",
			slog.String("channel", batch[i].name), slog.Any("error", errs[i]))
	}
}

// applyLookups places the channels whose server was found. It returns the positions of the channels
// that have no server now and are tried again later.
func (h *Hub) applyLookups(batch []*channel, servers []server, errs []error) (retried []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range batch {
		err := errs[i]
		switch {
		case h.closed || !c.wanted() || c.link != nil:
			// The channel has changed during the lookup: nothing to do.
		case errors.Is(err, ErrUnsupported):
			h.failListeners(c, err) // none was ever confirmed, so no last signal is due
			h.remove(c)
		case err != nil:
			h.retryLater(c)
			retried = append(retried, i)
		default:
			h.linkTo(servers[i]).place(c)
		}
	}
	return retried
}

// linkTo returns the link to a server, and starts it if there is none. mu is held and the hub open.
func (h *Hub) linkTo(s server) *link {
	l := h.links[s.name]
	if l == nil {
		l = newLink(h, s)
		h.links[s.name] = l
		h.tasks.Go(l.run)
	}
	return l
}

// backoff returns the delay before attempt n, counted from 1. It doubles with each attempt, within
// bounds. Half of it is random, so that many clients do not retry in step.
func backoff(n int) time.Duration {
	d := min(minBackoff<<min(n-1, 10), maxBackoff)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter
}

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

// ErrUnsupported is returned for sharded pub/sub without a cluster, and for clients that tell no options to connect with.
var ErrUnsupported = errors.New("pubsub: not supported by this client")

// Signal is what a listener is told.
type Signal struct {
	Resubscribed bool   // the link was re-made: anything may have been missed
	Payload      string // of a message; "" when Resubscribed
}

// Config holds the choices of a hub. The zero value is ready to use.
type Config struct {
	// Sharded says whether channels are sharded (SSUBSCRIBE). Nil asks a cluster whether it can, as Redisson's AUTO does, and
	// is plain everywhere else.
	Sharded *bool
	// Logger hears of links that are lost and made anew and of channels that are refused. Nil discards.
	Logger *slog.Logger

	limits limits
}

// limits are the numbers of liveness.
type limits struct {
	ping    time.Duration // between two PINGs
	dead    time.Duration // of complete silence, then a link is dead
	connect time.Duration // for dialing and greeting together
	idle    time.Duration // a link without channels lives on
}

var defaultLimits = limits{ping: time.Second, dead: 3 * time.Second, connect: 5 * time.Second, idle: 300 * time.Millisecond}

// Bounds of the pauses before a server is dialed again and before a channel that was turned away is placed again.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// Hub shares few connections among many listeners. It is safe for concurrent use.
type Hub struct {
	rdb    redis.UniversalClient
	cfg    Config
	logger *slog.Logger

	ctx    context.Context // ends with Close; bounds all I/O
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines; grows under mu and only while the hub is open
	nudge  chan struct{}  // tells settle of a fresh channel

	mu       sync.Mutex // never held during I/O or a call to a listener
	closed   bool
	router   router              // nil until the mode is known
	channels map[string]*channel // those with listeners, and those that left but still have an answer to come
	links    map[string]*link    // by name of their server
	failures map[string]int      // by name of server: links in a row that ended badly; a link that served counts as none
	fresh    []*channel          // homeless: to be placed at once
	lost     []*channel          // homeless: to be placed at lostAt
	lostAt   time.Time
	settling bool // the settle goroutine runs; it does while there are homeless channels
}

// channel is guarded by Hub.mu, but for its name, which never changes. It leaves a link only when no SUBSCRIBE of it is
// unanswered there, or with the whole link: so answers can be told apart by counting them.
type channel struct {
	name       string
	listeners  []*Subscription
	link       *link // nil while homeless
	dirty      bool  // in link.dirty: what was sent may not be what is wanted
	sent       bool  // the last command sent for it was a SUBSCRIBE
	unanswered int   // SUBSCRIBEs sent and not answered
	tries      int   // placements since it was last confirmed
}

// confirmed reports whether the server has answered the latest SUBSCRIBE and nothing was sent since.
func (c *channel) confirmed() bool { return c.sent && c.unanswered == 0 }

// wanted reports whether anybody listens.
func (c *channel) wanted() bool { return len(c.listeners) > 0 }

// uproot makes a channel homeless. What its old link still has to say about it no longer counts.
func (c *channel) uproot() { c.link, c.dirty, c.sent, c.unanswered = nil, false, false, 0 }

func (c *channel) join(s *Subscription) {
	s.channel, s.index = c, len(c.listeners)
	c.listeners = append(c.listeners, s)
}

func (c *channel) leave(s *Subscription) {
	last := len(c.listeners) - 1
	c.listeners[s.index] = c.listeners[last]
	c.listeners[s.index].index = s.index
	c.listeners[last] = nil
	c.listeners = c.listeners[:last]
	s.channel = nil
}

// New makes a hub that connects as rdb does. It does no I/O and starts no goroutine before the first Subscribe.
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
		nudge:    make(chan struct{}, 1),
		channels: make(map[string]*channel),
		links:    make(map[string]*link),
		failures: make(map[string]int),
	}
}

// Sharded reports whether the hub uses sharded pub/sub, and so whether to publish with SPUBLISH. The first answer of the server is
// remembered; failing to get one is not. It returns an error that is ErrUnsupported if sharded pub/sub is asked for without a cluster.
func (h *Hub) Sharded(ctx context.Context) (bool, error) {
	r, err := h.resolve(ctx)
	if err != nil {
		return false, err
	}
	return r.sharded(), nil
}

// resolve returns the router, which it chooses on the first success.
func (h *Hub) resolve(ctx context.Context) (router, error) {
	h.mu.Lock()
	r := h.router
	h.mu.Unlock()
	if r != nil {
		return r, nil
	}
	r, err := newRouter(ctx, h.rdb, h.cfg.Sharded)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.router == nil { // of two that asked at once the first wins, for good
		h.router = r
	}
	return h.router, nil
}

// Subscribe adds a listener to a channel and returns at once; see Confirmed. A goroutine of the hub
// that serves other channels too calls listen. So listen must not block, and must close neither a
// subscription nor the hub. It may subscribe.
func (h *Hub) Subscribe(name string, listen func(Signal)) *Subscription {
	s := &Subscription{hub: h, listen: listen, confirmed: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		s.refuse(ErrClosed)
		return s
	}
	c := h.channels[name]
	if c == nil {
		c = &channel{name: name}
		h.channels[name] = c
	}
	newcomer := c.link == nil && !c.wanted()
	c.join(s)
	switch {
	case c.confirmed():
		s.confirm()
	case c.link != nil:
		c.link.touch(c)
	case newcomer:
		h.admit(c)
	}
	return s
}

// Close closes the links, ends every subscription with ErrClosed and waits for all goroutines of the hub: no listener is called
// once it has returned. It waits for no server, but for a Dialer of the client that ignores its context, and for a cluster client or
// Sentinel that is being asked for the right server. It may be called again. It must not be called by a listener.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for name, c := range h.channels {
		h.refuse(c, ErrClosed)
		delete(h.channels, name)
	}
	for _, l := range h.links {
		l.idle.Stop()
	}
	h.mu.Unlock()
	h.cancel()
	h.tasks.Wait()
}

// admit finds a home for a new channel. In plain mode that is the link, if there is one. mu is held.
func (h *Hub) admit(c *channel) {
	if l := h.links[plainServer]; l != nil {
		l.adopt(c)
		return
	}
	h.fresh = append(h.fresh, c)
	h.settleSoon()
}

// lose makes homeless, for a while, a channel that could not be placed, or that a server turned away. mu is held.
func (h *Hub) lose(c *channel) {
	c.uproot()
	c.tries++
	at := time.Now().Add(backoff(c.tries))
	if len(h.lost) == 0 || at.Before(h.lostAt) {
		h.lostAt = at
	}
	h.lost = append(h.lost, c)
	h.settleSoon()
}

// abandon cleans up behind the last listener. mu is held.
func (h *Hub) abandon(c *channel) {
	switch {
	case c.link == nil:
		h.forget(c)
	case c.sent:
		c.link.touch(c)
	case c.unanswered == 0:
		c.link.drop(c)
	}
}

// forget takes a homeless channel off the books; settle skips it. mu is held.
func (h *Hub) forget(c *channel) {
	if h.channels[c.name] == c {
		delete(h.channels, c.name)
	}
}

// refuse ends all subscriptions of a channel. It returns those that had been confirmed: they need a last signal. mu is held.
func (h *Hub) refuse(c *channel, err error) (bereft []*Subscription) {
	for _, s := range c.listeners {
		s.channel = nil
		if s.isConfirmed {
			bereft = append(bereft, s)
		}
		s.refuse(err)
	}
	c.listeners = nil
	return bereft
}

// settleSoon sees to it that settle runs and looks again. mu is held.
func (h *Hub) settleSoon() {
	if h.closed {
		return
	}
	if !h.settling {
		h.settling = true
		h.tasks.Go(h.settle)
	}
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

// settle finds homes for homeless channels until there are none.
func (h *Hub) settle() {
	for {
		h.mu.Lock()
		if h.closed || len(h.fresh)+len(h.lost) == 0 {
			h.settling = false
			h.mu.Unlock()
			return
		}
		wait := time.Until(h.lostAt)
		batch := h.fresh
		h.fresh = nil
		if len(batch) == 0 && wait <= 0 {
			batch, h.lost = h.lost, nil
		}
		stale := len(h.lost) > 0
		h.mu.Unlock()

		if len(batch) > 0 {
			h.house(batch)
			continue
		}
		if stale {
			h.refresh()
		}
		timer := time.NewTimer(wait)
		select {
		case <-h.nudge:
		case <-timer.C:
		case <-h.ctx.Done():
		}
		timer.Stop()
	}
}

// refresh has the map of the cluster read again while the lost channels wait.
func (h *Hub) refresh() {
	h.mu.Lock()
	r := h.router
	h.mu.Unlock()
	if r != nil {
		r.refresh(h.ctx)
	}
}

// house gives each channel of the batch a link, or makes it wait among the lost.
func (h *Hub) house(batch []*channel) {
	servers := make([]server, len(batch))
	errs := make([]error, len(batch))
	r, err := h.resolve(h.ctx)
	for i, c := range batch {
		if err != nil {
			errs[i] = err
			continue
		}
		servers[i], errs[i] = r.place(h.ctx, c.name)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range batch {
		switch err := errs[i]; {
		case h.closed || !c.wanted() || c.link != nil:
			// Left meanwhile.
		case errors.Is(err, ErrUnsupported):
			h.refuse(c, err)
			h.forget(c)
		case err != nil:
			h.logger.LogAttrs(h.ctx, slog.LevelWarn, "no server for channel", slog.String("channel", c.name), slog.Any("error", err))
			h.lose(c)
		default:
			h.linkTo(servers[i]).adopt(c)
		}
	}
}

// linkTo returns the link to a server, started if need be. mu is held and the hub open.
func (h *Hub) linkTo(s server) *link {
	l := h.links[s.name]
	if l == nil {
		l = newLink(h, s)
		h.links[s.name] = l
		h.tasks.Go(l.run)
	}
	return l
}

// backoff returns the pause before try n, n from 1: it doubles, within bounds, and half of it is random.
func backoff(n int) time.Duration {
	d := min(minBackoff<<min(n-1, 10), maxBackoff)
	return d/2 + rand.N(d/2) //nolint:gosec // jitter
}

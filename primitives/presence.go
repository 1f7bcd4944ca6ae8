package primitives

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// While a client holds or waits, it keeps its name in a key with a TTL. For holds that last, it subscribes
// to a channel on which takeovers are announced (takeover.go). Neither is part of an acquisition, and a
// failure of either affects none. Redisson has nothing like it.
//
//	redlatch_client:{<tag>}  string: the client's name, with a TTL of 30 s
//	redlatch_holder:{<tag>}  channel: notices of takeovers
//
// One goroutine per client does both. It starts with the first hold or waiter, and ends when the client
// has been idle for a while, or closes.

// Prefixes of the key of a client's name and of the channel of its holds.
const (
	clientName    = "redlatch_client"
	holderChannel = "redlatch_holder"
)

// Times of the presence. A hold that is older than listenAfter, plus the time of one subscribe command,
// learns of a takeover at once.
const (
	nameAfter    = 100 * time.Millisecond // a client that holds or waits for less never writes its name
	listenAfter  = 700 * time.Millisecond
	lookEvery    = 250 * time.Millisecond // pause between looks; shorter than listenAfter: see presence.wake
	confirmPause = 50 * time.Millisecond  // the same while a subscription is not confirmed
	listenRetry  = time.Minute            // after a refused subscription
	idleAfter    = time.Second            // an idle client deletes its name then
	nameTTL      = 30 * time.Second
	nameRefresh  = nameTTL / 3
	nameRetry    = time.Second
	nameTimeout  = 5 * time.Second        // of writing it
	nameRead     = 500 * time.Millisecond // bounds how long Info waits for names
	noticeLimit  = 100 * time.Millisecond // bounds how long a call waits for best-effort work
	pipelined    = 100                    // commands in one pipeline
)

// WithClientName sets the name that [Holder].Client shows to people. Default: host:pid. With "" the
// client does not show who it is.
//
// A client that holds or waits for longer than about 100 ms writes its name to a key of its own,
// redlatch_client:{<tag>}, in the background. The key has a TTL of 30 s, and the client deletes it
// once it has been idle for about a second. A failure, such as NOPERM, never affects an acquisition.
func WithClientName(name string) ClientOption {
	return ClientOption{func(c *Client) error { c.presence.name = name; return nil }}
}

// defaultClientName returns host:pid. It is computed once: neither changes while the process runs.
var defaultClientName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
})

// tagged is the key or channel of a tag.
func tagged(prefix, tag string) string { return prefix + ":{" + tag + "}" }

// presence is a client's name and its subscriptions to takeover notices. The client owns it. One goroutine
// (run) keeps both up to date while the client holds or waits.
type presence struct {
	c    *Client
	name string // set by an option before the client is used; "": none
	tag  string
	raw  []byte // the tag's bytes

	running atomic.Bool  // run runs
	waiting atomic.Int64 // acquisitions that wait
	since   atomic.Int64 // the instant at which the first of them began to wait

	// Only run uses these.
	idleSince engine.Instant        // since when the client neither holds nor waits; 0: it does
	subs      map[string]*listening // by tag
	unheard   bool                  // one of them is not confirmed
	notBefore engine.Instant        // no subscription is tried before; one was refused

	asking asking // about all holds, when Redis comes back

	mu          sync.Mutex                 // guards the rest
	closed      bool                       // no more names are written
	written     bool                       // the name may be in Redis
	writing     chan struct{}              // closed when the write under way has ended; nil: there is none
	due         engine.Instant             // when the name is to be written again
	warned      bool                       // a refused name has been logged
	notices     []string                   // of takeovers, not read yet
	noticeBytes int                        // in notices
	suspects    map[*engine.Ownership]bool // under check; true: to be checked once more
	lingering                              // locks that linger: see linger.go
}

// init is called by [New]. It sends nothing.
func (p *presence) init(c *Client) {
	p.c, p.tag = c, clientTag(c.id)
	p.raw, _ = hex.DecodeString(p.tag)
}

// wake starts the goroutine. It is called for each new hold and each waiter, so it costs one load when
// the goroutine runs. The goroutine looks often enough to find a hold before it is due to listen.
func (p *presence) wake() {
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		p.c.core.Spawn(p.run)
	}
}

// waitBegan and waitEnded are called for each acquisition that waits, in its caller's goroutine. They count
// waiters, so that the name is shown for clients that wait but hold nothing.
func (p *presence) waitBegan() {
	if p.waiting.Add(1) == 1 {
		p.since.Store(int64(p.now()))
	}
	p.wake()
}

// waitEnded: see waitBegan.
func (p *presence) waitEnded() { p.waiting.Add(-1) }

func (p *presence) now() engine.Instant { return p.c.core.Instant(time.Now()) }

// run is the presence's one goroutine; wake starts it. It looks when something is due, and at least every
// lookEvery. It ends in rest, when the client is idle, or when the core stops its background work.
func (p *presence) run() {
	timer := time.NewTimer(nameAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.c.core.Stopping():
			p.listen(nil)
			return
		}
		next := p.look()
		if next == 0 && p.rest() {
			return
		}
		timer.Reset(max(next, time.Millisecond))
	}
}

// look does what is due: it subscribes for holds that last, and has the name written. It returns the time
// until the next look; 0: the client has been idle for long enough.
func (p *presence) look() time.Duration {
	if !p.hears.Load() {
		p.c.core.EndLingering() // a lock that began to linger when the subscription ended: see rest
	}
	now := p.now()
	tags, oldest, next := p.c.core.HoldTags(now, listenAfter)
	p.listen(tags)
	busy := oldest
	if p.waiting.Load() > 0 {
		busy = min(busy, engine.Instant(p.since.Load()))
	}
	if busy == engine.Never {
		if p.idleSince == 0 {
			p.idleSince = now
		}
		left := idleAfter - time.Duration(now-p.idleSince)
		return max(min(left, lookEvery), 0)
	}
	p.idleSince = 0
	pause := lookEvery
	if p.unheard {
		pause = confirmPause
	}
	next = min(next, p.show(now, busy), now+engine.Instant(pause))
	return time.Duration(max(next-now, engine.Instant(time.Millisecond)))
}

// rest prepares the end of the goroutine of an idle client. It reports whether run should end. A hold or
// waiter that came meanwhile may have found it running, and so has not started another one. So rest looks
// once more after it has cleared the flag.
func (p *presence) rest() bool {
	p.idleSince = 0
	p.stopHearing()
	p.erase()
	p.running.Store(false)
	_, oldest, _ := p.c.core.HoldTags(p.now(), listenAfter)
	busy := oldest != engine.Never || p.waiting.Load() > 0
	return !busy || !p.running.CompareAndSwap(false, true) // another goroutine has been started
}

// show starts to write the name when it is due, and returns when it is due next. The client holds or waits
// since busy. At most one write is in flight. write sets when the next one is due, and the following look
// finds that.
func (p *presence) show(now, busy engine.Instant) engine.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := max(p.due, busy+engine.Instant(nameAfter))
	switch {
	case p.name == "" || p.closed || p.writing != nil:
		return engine.Never
	case now < due:
		return due
	}
	done := make(chan struct{})
	p.writing, p.written = done, true
	p.c.core.Spawn(func() { p.write(done) })
	return engine.Never
}

// write writes the name, in a goroutine of its own that show starts. It ends after nameTimeout at most. A
// refusal of Redis, such as NOPERM, is logged once.
func (p *presence) write(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	// PSETEX and GETDEL are used by no script, so INFO commandstats counts the names apart.
	_, err := p.c.run.Commands(ctx, []any{"psetex", tagged(clientName, p.tag), scripts.CeilMillis(nameTTL), p.name})
	pause, warn := nameRefresh, false
	failed, _ := errors.AsType[*scripts.Error](err)
	p.mu.Lock()
	switch {
	case failed == nil:
	case failed.Outcome != scripts.Executed:
		pause = nameRetry
	case !p.warned:
		p.warned, warn = true, true
	}
	p.writing = nil
	p.due = p.c.core.Instant(time.Now().Add(pause))
	p.mu.Unlock()
	close(done)
	if warn { // without the mutex: a handler may call back
		p.c.logger.Warn("client name refused", slog.String("key", tagged(clientName, p.tag)), slog.Any("error", err))
	}
}

// erase deletes the name. It is best effort, and not tried while Redis does not answer. If it fails, the
// TTL ends the name.
func (p *presence) erase() {
	p.mu.Lock()
	written, writing := p.written, p.writing
	silent := !p.c.run.Answering()
	p.written, p.due = false, 0
	p.mu.Unlock()
	if !written || silent {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), noticeLimit)
	defer cancel()
	if writing != nil {
		select {
		case <-writing:
		case <-ctx.Done():
			return // a deletion could overtake the write
		}
	}
	// Not DEL, which go-redis may split among the nodes of a cluster.
	_, _ = p.c.run.Commands(ctx, []any{"getdel", tagged(clientName, p.tag)})
}

// close ends the presence of a client that closes. If the client leaves holds behind, its name stays until
// its TTL ends, because it shows whose holds they are.
func (p *presence) close(holdsLeft bool) {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if !holdsLeft {
		p.erase()
	}
}

// listen subscribes to the channels of these tags, and to no others. Most clients have one tag, their own.
// Holds with the id of another client, or of a caller, have further ones. After a refused subscription it
// waits for listenRetry. Only run calls it.
func (p *presence) listen(tags []string) {
	if len(tags)+len(p.subs) == 0 {
		return
	}
	now := p.now()
	wanted := make(map[string]*listening, len(tags))
	for _, tag := range tags {
		l := p.subs[tag]
		if l != nil && l.sub.Err() != nil { // the hub has logged it
			p.notBefore, l = now+engine.Instant(listenRetry), nil
		}
		if l == nil && now >= p.notBefore {
			l = &listening{sub: p.c.hub.Subscribe(tagged(holderChannel, tag), p.receive)}
		}
		if l != nil {
			wanted[tag] = l
		}
	}
	p.unheard = false
	for tag, l := range p.subs {
		if wanted[tag] != l {
			l.sub.Close()
		}
	}
	for tag, l := range wanted {
		if !l.heard && isClosed(l.sub.Confirmed()) {
			l.heard = true
			p.askTag(tag) // Redis may have restarted between the acquisitions and now
		}
		p.unheard = p.unheard || !l.heard
	}
	p.subs = wanted
}

// listening is the subscription to the channel of one tag.
type listening struct {
	sub   *pubsub.Subscription
	heard bool // it was confirmed
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// nameClients fills in the names of the holders' clients. known, which may be nil, has names by tag that
// need not be read again. New names are added to it. The reads go in pipelines of up to 100. It is best
// effort, within nameRead: a name that cannot be read in time is "".
func (c *Client) nameClients(ctx context.Context, holders []Holder, known map[string]string) {
	if known == nil {
		known = map[string]string{}
	}
	var tags []string
	var commands [][]any
	for _, holder := range holders {
		tag := tagOf(holder.ID)
		if _, ok := known[tag]; !ok {
			known[tag] = ""
			tags = append(tags, tag)
			commands = append(commands, []any{"get", tagged(clientName, tag)})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, nameRead)
	defer cancel()
	for len(tags) > 0 {
		n := min(len(tags), pipelined)
		values, _ := c.run.Commands(ctx, commands[:n]...)
		if values == nil {
			break
		}
		for i, value := range values {
			known[tags[i]], _ = value.(string)
		}
		tags, commands = tags[n:], commands[n:]
	}
	for i := range holders {
		holders[i].Client = known[tagOf(holders[i].ID)]
	}
}

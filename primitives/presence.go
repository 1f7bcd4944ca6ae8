package primitives

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
)

// Presence is what a client tells others about itself while it holds or waits: its name, in a key
// with a TTL, and, for holds that last, a subscription to a channel on which a takeover is told
// (takeover.go). Neither is part of an acquisition. One goroutine per client sees to both. It starts
// with the first hold or waiter and ends when the client has been idle for a while.

// The key of a client's name and the channel of its holds. A client's tag follows, in braces.
const (
	clientName    = "redlatch_client"
	holderChannel = "redlatch_holder"
)

// When a presence acts. A hold that is older than listenAfter, plus the time of one subscribe
// command, is told of a takeover at once.
const (
	nameAfter   = 100 * time.Millisecond // a client that holds or waits for less never writes its name
	listenAfter = 700 * time.Millisecond
	lookEvery   = 250 * time.Millisecond // shorter than listenAfter: see presence.wake
	listenRetry = time.Minute            // after a refused subscription
	idleAfter   = time.Second            // an idle client deletes its name then
	nameTTL     = 30 * time.Second
	nameRefresh = nameTTL / 3
	nameRetry   = time.Second
	nameRead    = 500 * time.Millisecond // bounds how long Info waits for names
	noticeLimit = 100 * time.Millisecond // bounds how long a call waits for best-effort work
	pipelined   = 100                    // commands in one pipeline
)

// WithClientName sets the name that [Holder].Client shows to people. Default: host:pid. With "" the
// client tells nobody who it is.
//
// A client that holds or waits for longer than about 100 ms writes its name to a key of its own,
// redlatch_client:{<tag>}, in the background. The key has a TTL of 30 s, and the client deletes it
// once it has been idle for about a second. A failure, such as NOPERM, never affects an acquisition.
func WithClientName(name string) ClientOption {
	return ClientOption{func(c *Client) error { c.presence.name = name; return nil }}
}

// defaultClientName is host:pid.
var defaultClientName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
})

// tagDigits is the length of a client's tag: the first hexadecimal digits of its uuid.
const tagDigits = 16

// clientTag is the tag of a client uuid.
func clientTag(uuid string) string { return strings.ReplaceAll(uuid, "-", "")[:tagDigits] }

// tagOf is the tag of the client that made an id. An id that no client made, such as one of
// [WithOwner], has a tag of its own, which all users of that id compute alike.
func tagOf(id string) string {
	switch at := strings.IndexAny(id, ":,"); {
	case at == uuidLength && id[at] == ':' && isUUID(id[:at]):
		return clientTag(id[:at])
	case at < 0 && isHex(id, 2*permitBytes), at >= 0 && id[at] == ',' && isHex(id[:at], 2*permitBytes):
		return id[:tagDigits]
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(id))
	return fmt.Sprintf("%016x", sum.Sum64())
}

// uuidLength is the length of a uuid with its dashes.
const uuidLength = 36

func isUUID(s string) bool {
	return s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' && isHex(strings.ReplaceAll(s, "-", ""), 32)
}

// isHex reports whether s has n digits, hexadecimal and in lower case.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// tagged is the key or channel of a tag.
func tagged(prefix, tag string) string { return prefix + ":{" + tag + "}" }

// presence is the client's own. Its zero value, with c set, is idle.
type presence struct {
	c    *Client
	name string
	tag  string
	raw  []byte // the tag's bytes

	running atomic.Bool  // run runs
	waiting atomic.Int64 // acquisitions that wait
	since   atomic.Int64 // the instant at which the first of them began to wait

	// used by run alone
	idle instant                         // since when nobody holds or waits; 0: somebody does
	subs map[string]*pubsub.Subscription // by tag
	deaf instant                         // no subscription is tried before; one was refused

	mu       sync.Mutex
	closed   bool             // no name is written any more
	written  bool             // the name may be in Redis
	writing  chan struct{}    // closed when the write under way has ended; nil: there is none
	due      instant          // when the name is to be written again
	warned   bool             // a refused name has been logged
	notices  []string         // takeovers that have been told of, to be read by heed
	suspects map[*tenure]bool // under check; true: to be checked once more
}

func (p *presence) init(c *Client) {
	p.c, p.tag = c, clientTag(c.id)
	p.raw, _ = hex.DecodeString(p.tag)
}

// wake starts the goroutine. It is called for each new hold and each waiter, so it costs one load
// when the goroutine runs, which then looks by itself before the hold is due for a subscription.
func (p *presence) wake() {
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		p.c.spawn(p.run)
	}
}

// waits is told of an acquisition that begins to wait.
func (p *presence) waits() {
	if p.waiting.Add(1) == 1 {
		p.since.Store(int64(p.c.instant(time.Now())))
	}
	p.wake()
}

// waited is told of the end of each acquisition, with its wait.
func (p *presence) waited(w *wait) {
	if w.waited {
		p.waiting.Add(-1)
	}
}

// run is the goroutine.
func (p *presence) run() {
	timer := time.NewTimer(nameAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.c.stopping:
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

// look does what is due, and returns the time until the next look; 0: the client has been idle for
// long enough.
func (p *presence) look() time.Duration {
	now := p.c.instant(time.Now())
	tags, oldest, next := p.c.holds.age(now)
	p.listen(tags)
	busy := oldest
	if p.waiting.Load() > 0 {
		busy = min(busy, instant(p.since.Load()))
	}
	if busy == notYet {
		if p.idle == 0 {
			p.idle = now
		}
		left := idleAfter - time.Duration(now-p.idle)
		return max(min(left, lookEvery), 0)
	}
	p.idle = 0
	next = min(next, p.show(now, busy), now+instant(lookEvery))
	return time.Duration(max(next-now, instant(time.Millisecond)))
}

// rest ends the goroutine of an idle client, unless the client has become busy again.
func (p *presence) rest() bool {
	p.idle = 0
	p.erase()
	p.running.Store(false)
	_, oldest, _ := p.c.holds.age(p.c.instant(time.Now()))
	busy := oldest != notYet || p.waiting.Load() > 0
	return !busy || !p.running.CompareAndSwap(false, true) // somebody else has started another
}

// show writes the name when it is due, and returns when it is due next.
func (p *presence) show(now, busy instant) instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := max(p.due, busy+instant(nameAfter))
	switch {
	case p.name == "" || p.closed || p.writing != nil:
		return notYet
	case now < due:
		return due
	}
	done := make(chan struct{})
	p.writing, p.written = done, true
	p.c.spawn(func() { p.write(done) })
	return notYet
}

func (p *presence) write(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	// PSETEX and GETDEL are used by no script, so INFO commandstats counts the names apart.
	_, err := p.c.run.Commands(ctx, []any{"psetex", tagged(clientName, p.tag), millis(nameTTL), p.name})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writing = nil
	close(done)
	pause := nameRefresh
	failed, _ := errors.AsType[*scripts.Error](err)
	switch {
	case failed == nil:
	case failed.Outcome != scripts.Executed:
		pause = nameRetry
	case !p.warned:
		p.warned = true
		p.c.logger.Warn("client name refused", slog.String("key", tagged(clientName, p.tag)), slog.Any("error", err))
	}
	p.due = p.c.instant(time.Now().Add(pause))
}

// erase deletes the name. It is best effort, and not tried while Redis does not answer: the TTL is
// behind it.
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

// close ends the presence of a client that closes. A client that leaves holds behind leaves its name
// to its TTL too: it tells who left them.
func (p *presence) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if p.c.left == nil {
		p.erase()
	}
}

// listen subscribes to the channels of those tags, and to no others.
func (p *presence) listen(tags []string) {
	if len(tags)+len(p.subs) == 0 {
		return
	}
	now := p.c.instant(time.Now())
	wanted := make(map[string]*pubsub.Subscription, len(tags))
	for _, tag := range tags {
		sub := p.subs[tag]
		if sub != nil && sub.Err() != nil { // the hub has logged it
			p.deaf, sub = now+instant(listenRetry), nil
		}
		if sub == nil && now >= p.deaf {
			sub = p.c.hub.Subscribe(tagged(holderChannel, tag), func(sig pubsub.Signal) { p.hear(tag, sig) })
		}
		if sub != nil {
			wanted[tag] = sub
		}
	}
	for tag, sub := range p.subs {
		if wanted[tag] != sub {
			sub.Close()
		}
	}
	p.subs = wanted
}

// notYet is later than every instant.
const notYet = instant(1<<63 - 1)

// age counts the holds that have become old enough to listen, by tag. It returns the tags of all
// that are, since when the oldest hold lasts, and when the next becomes old enough; notYet if there
// is none. Holds are counted in the order in which they were added, so each is visited once.
func (l *holdList) age(now instant) (tags []string, oldest, next instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	oldest, next = notYet, notYet
	if l.tail != nil {
		oldest = l.tail.since
	}
	g := l.tail
	if l.aged != nil {
		g = l.aged.prev
	}
	for ; g != nil; g = g.prev {
		if old := g.since + instant(listenAfter); now < old {
			next = old
			break
		}
		l.aged, g.aged = g, true
		if tag := g.tag(); tag != "" {
			if l.tags == nil {
				l.tags = map[string]int{}
			}
			l.tags[tag]++
		}
	}
	for tag := range l.tags {
		tags = append(tags, tag)
	}
	return tags, oldest, next
}

// forget takes a hold out of the count. The next look unsubscribes from a channel that has lost its
// last hold. mu is held.
func (l *holdList) forget(g *grip) {
	if !g.aged {
		return
	}
	if l.aged == g {
		l.aged = g.next
	}
	tag := g.tag()
	if tag == "" {
		return
	}
	if l.tags[tag]--; l.tags[tag] == 0 {
		delete(l.tags, tag)
	}
}

// tag is the tag on whose channel a takeover of g is told; "" if g cannot be lost, or if its parts
// listen for it.
func (g *grip) tag() string {
	if t, ok := g.t.(*tenure); ok && t.leases() {
		return tagOf(t.publicID())
	}
	return ""
}

// identify fills in the names of the holders' clients. Names that are known need not be read. It is
// best effort: a name that cannot be read in time is "".
func (c *Client) identify(ctx context.Context, holders []Holder, known map[string]string) {
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

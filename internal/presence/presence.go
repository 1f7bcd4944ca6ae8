// Package presence makes a client visible to other clients, and hears from them about the client's
// holds. While a client holds or waits, it keeps its name in a key with a TTL. For holds that last,
// it subscribes to a channel on which takeovers are announced. Neither is part of an acquisition,
// and no acquisition fails because of them. Redisson has nothing like it.
//
//	redlatch_client:{<tag>}               string: the client's name, with a TTL of 30 s
//	redisson_unlock_latch:{<tag>}:client  string: its holds and their ages, and what it waits for
//	redlatch_holder:{<tag>}               channel: notices of takeovers, and requests for locks that linger
//
// # Goroutines
//
// One goroutine per client keeps the name and the subscriptions up to date. It starts with the
// first hold or waiter, and ends when the client has been idle for a while, or closes. Further
// goroutines write the name, read the names of holders, ask about holds, and read and send notices
// and requests. The engine's Core.Spawn starts all of them, and the client's Close waits for them.
//
// # Mutexes
//
// A mutex on the left may be held while a mutex on its right is taken. No other pair is nested.
//
//	Presence.mu -> Core.mu of package engine, Hub.mu of package pubsub
//	Presence.mu -> Presence.waitsMu, holdList.mu of package engine
//	rechecks.mu -> Core.mu
//
// # Files
//
//	presence.go   the name, the subscriptions, and the goroutine
//	state.go      what the client reports besides its name
//	notices.go    takeovers: announced, and checked by the holder's client
//	recheck.go    questions about all holds, when Redis comes back
//	holders.go    the names of others that hold what this client waits for
//	lingering.go  requests for locks that linger
//	wanted.go     requests for all locks, and the search for waiters that do not send any
//	tag.go        which client an id belongs to
package presence

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

// Prefixes of the key for a client's name and of the channel for its holds.
const (
	ClientName    = "redlatch_client"
	holderChannel = "redlatch_holder"
)

// Times of the presence. A hold that is older than listenAfter, plus the time of one subscribe
// command, learns of a takeover at once.
const (
	nameAfter    = 100 * time.Millisecond // a client that holds or waits for a shorter time never writes its name
	listenAfter  = 700 * time.Millisecond
	lookEvery    = 250 * time.Millisecond // pause between looks; shorter than listenAfter: see Presence.Wake
	confirmPause = 50 * time.Millisecond  // the pause between looks while a subscription is not confirmed
	listenRetry  = time.Minute            // the pause after a refused subscription
	idleAfter    = time.Second            // a client that is idle for this long deletes its name
	nameTTL      = 30 * time.Second
	nameRefresh  = nameTTL / 3
	nameRetry    = time.Second
	nameTimeout  = 5 * time.Second        // bounds the writing of the name
	nameRead     = 500 * time.Millisecond // bounds how long Info waits for names
	NoticeLimit  = 100 * time.Millisecond // bounds how long a call waits for best-effort work
	pipelined    = 100                    // commands in one pipeline
)

// DefaultName returns host:pid. It is computed once: neither changes while the process runs.
var DefaultName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + ":" + strconv.Itoa(os.Getpid())
})

// tagged is the key or channel of a tag.
func tagged(prefix, tag string) string { return prefix + ":{" + tag + "}" }

// Config is what a presence needs from its client. It does not change.
type Config struct {
	ID     string // the client's uuid
	Name   string // the name to show; "" if the client does not show who it is
	Prefix string // the prefix of every name on the wire

	Runner *scripts.Runner
	Hub    *pubsub.Hub
	Logger *slog.Logger
	// Renew extends leases. A question about a fixed lease is a renewal with a TTL below the
	// remaining one, so it changes nothing.
	Renew watchdog.Renew
	// Probe is a plain command whose reply is nil or 0 if Redis does not have the ownership.
	Probe func(o *engine.Ownership) []any
	// ManyIDs reports whether the ids of a kind's holds are lists, separated by commas.
	ManyIDs func(kind string) bool
	// Holders returns the ids that hold a resource.
	Holders func(ctx context.Context, r *engine.Resource) (ids []string, err error)
	// AnyWait reports for each resource whether other clients wait for it, as far as the server can
	// tell. It is best effort: without an answer nobody does.
	AnyWait func(ctx context.Context, resources []*engine.Resource) []bool
}

// Presence is a client's name and its subscriptions to takeover notices. The client makes one with
// [New], gives it its core with [Presence.Use], and ends it with [Presence.Close]. One goroutine
// (run) keeps both up to date while the client holds or waits.
type Presence struct {
	Config
	core *engine.Core
	tag  string

	running atomic.Bool  // the goroutine (run) is running
	waiting atomic.Int64 // the number of acquisitions that wait
	since   atomic.Int64 // the instant at which the first of them began to wait
	looking atomic.Bool  // a look for waiters is under way

	hurry chan struct{} // capacity 1; makes run look at once, because a hold begins to listen

	// Only run uses these fields.
	idleSince engine.Instant // the instant since which the client neither holds nor waits; 0 while it does
	unheard   bool           // a subscription that holds need is not confirmed yet

	rechecks rechecks // of the holds, when Redis comes back

	waitsMu sync.Mutex        // guards waits; innermost
	waits   map[string]*waits // by name

	mu          sync.Mutex                  // guards the rest
	subs        map[string]*tagSubscription // by tag
	notBefore   engine.Instant              // no subscription is tried before this instant, because one was refused
	closed      bool                        // no more names are written
	written     bool                        // the name may be in Redis
	writing     chan struct{}               // closed when the write under way has ended; nil if there is none
	due         engine.Instant              // the instant at which the name is to be written again
	refused     bool                        // the latest write failed: the state is not written before due
	lastState   string                      // the content of the state that was written last
	lastStateAt engine.Instant              // when it was written
	hasState    bool                        // the state may be in Redis
	takenUntil  map[string]engine.Instant   // by short id: when the rest of its minimum hold is over
	warned      bool                        // a refusal of the name has been logged
	unread      []string                    // the notices of takeovers that have not been read yet
	unreadBytes int                         // the total length of unread
	suspects    map[*engine.Ownership]bool  // the ownerships under check; true if one is to be checked once more
	holders     map[string]holderName       // the names of other clients, by tag: see holders.go
	lingering                               // the locks that linger: see lingering.go
}

// New returns the presence of a client. It sends nothing.
func New(config Config) *Presence {
	return &Presence{
		Config: config, tag: ClientTag(config.ID), subs: map[string]*tagSubscription{}, holders: map[string]holderName{},
		waits: map[string]*waits{}, takenUntil: map[string]engine.Instant{}, hurry: make(chan struct{}, 1),
	}
}

// Use sets the engine of the client, before any other method is called.
func (p *Presence) Use(core *engine.Core) { p.core = core }

// Wake starts the goroutine. It is called for each new hold and each waiter, so it costs one atomic
// load when the goroutine runs. The goroutine looks often enough to find a hold before the
// subscription for it is due.
func (p *Presence) Wake() {
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		p.core.Spawn(p.run)
	}
}

func (p *Presence) now() engine.Instant { return p.core.Instant(time.Now()) }

// run is the goroutine that Wake starts. It looks when something is due, and at least every
// lookEvery. It ends when stopIfIdle finds that the client is idle, or when the core stops its
// background work.
func (p *Presence) run() {
	timer := time.NewTimer(nameAfter) // nothing is due earlier
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.hurry:
		case <-p.core.Stopping():
			return // the hub ends the subscriptions
		}
		next := p.look()
		if next == 0 && p.stopIfIdle() {
			return
		}
		timer.Reset(max(next, time.Millisecond))
	}
}

// look does what is due: it subscribes for holds that last, and has the name written. It returns
// the time until the next look, or 0 if the client has been idle for long enough.
func (p *Presence) look() time.Duration {
	if !p.canHearAsks.Load() {
		p.core.GiveUpAllLingering() // a lock may have begun to linger when the subscription ended: see listen
	}
	clock := time.Now()
	now := p.core.Instant(clock)
	tags, oldest, next := p.core.HoldTags(now, listenAfter)
	p.listen(append(tags, p.core.ListeningTags()...))
	busy := oldest
	if p.waiting.Load() > 0 {
		busy = min(busy, engine.Instant(p.since.Load()))
	}
	p.nameHolders(now)
	if busy == engine.Never {
		if p.idleSince == 0 {
			p.idleSince = now
		}
		left := idleAfter - time.Duration(now-p.idleSince)
		return max(min(left, lookEvery), 0)
	}
	p.idleSince = 0
	pause := lookEvery
	if p.unheard { // so that the client asks about the holds soon after the confirmation
		pause = confirmPause
	}
	nextAsk := p.askHolders(clock)
	nextLook := p.lookForWaiters(clock)
	nextShow := p.show(now, busy)
	wanted := max(min(nextAsk, nextLook), now+engine.Instant(askPause))
	next = min(next, nextShow, now+engine.Instant(pause), wanted)
	return time.Duration(max(next-now, engine.Instant(time.Millisecond)))
}

// stopIfIdle prepares the end of an idle client's goroutine. It reports whether run should end. A
// hold, a waiter or a subscription that came meanwhile may have found the goroutine running, and so
// did not start another one. Therefore stopIfIdle looks once more after it has cleared the flag.
func (p *Presence) stopIfIdle() bool {
	p.idleSince = 0
	p.mu.Lock()
	p.wantsAsks = false // no lock lingers now: it would count as a hold
	p.mu.Unlock()
	p.listen(nil)
	p.erase() // new holds may begin while this takes a moment
	p.running.Store(false)
	_, oldest, _ := p.core.HoldTags(p.now(), listenAfter)
	p.mu.Lock()
	subscribes := p.wantsAsks
	p.mu.Unlock()
	busy := oldest != engine.Never || p.waiting.Load() > 0 || subscribes
	return !busy || !p.running.CompareAndSwap(false, true) // another goroutine has been started
}

// show starts to write the name and the state when they are due, and returns when they are due
// next. The client has held or waited since busy. At most one write is in flight. write sets when
// the next write is due, and the next look reads that.
func (p *Presence) show(now, busy engine.Instant) engine.Instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := max(p.due, busy+engine.Instant(nameAfter))
	mayWrite := p.Name != "" && !p.closed
	isDue := now >= due
	switch {
	case !mayWrite, p.writing != nil:
		return engine.Never
	case !isDue && !p.hasNews(now):
		return due
	}
	name, state := p.commands(now, isDue)
	done := make(chan struct{})
	p.writing = done
	p.written = true
	p.core.Spawn(func() { p.write(done, name, state) })
	return engine.Never
}

// hasNews reports whether the state has changed since it was written, and may be written again. mu
// is held.
func (p *Presence) hasNews(now engine.Instant) bool {
	mayWrite := p.written && !p.refused && now >= p.lastStateAt+engine.Instant(stateAgain)
	if !mayWrite {
		return false
	}
	told, _ := p.currentState(now)
	return told.content() != p.lastState
}

// write sends the commands that write the name and the state. A command that is nil is not due.
// write runs in a goroutine of its own that show starts, and ends after nameTimeout at most. If
// Redis refuses the name, for example with NOPERM, that is logged once. A refusal of the state is
// not logged: an ACL for an earlier version does not allow it.
func (p *Presence) write(done chan struct{}, name, state []any) {
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	commands := slices.DeleteFunc([][]any{name, state}, func(command []any) bool { return command == nil })
	replies, err := p.Runner.Commands(ctx, commands...)
	isRefused := err != nil
	isNamed := len(replies) > 0 && replies[0] != nil
	if name == nil || isNamed {
		err = nil
	}
	pause := nameRefresh
	warn := false
	outcome := failure.Of(err).Outcome
	p.mu.Lock()
	switch {
	case outcome == failure.None: // written
	case outcome != failure.Executed: // Redis has not refused the name, so the next write may succeed
		pause = nameRetry
	case !p.warned:
		p.warned = true
		warn = true
	}
	p.writing = nil
	p.refused = isRefused
	if name != nil {
		p.due = p.core.Instant(time.Now().Add(pause))
	}
	p.mu.Unlock()
	close(done)
	if warn { // without the mutex, because a handler may call back
		p.Logger.Warn("client name refused", slog.String("key", tagged(ClientName, p.tag)), slog.Any("error", err))
	}
}

// erase deletes the name and the state. If a lock stays taken for the rest of a minimum hold, erase
// leaves the name for that long instead. It is best effort, and it sends nothing while Redis does
// not answer. If it fails, the name disappears when its TTL ends.
func (p *Presence) erase() {
	p.mu.Lock()
	written := p.written
	writing := p.writing
	silent := !p.Runner.Answering()
	commands := p.minHoldCommands(p.now())
	staysTaken := commands != nil
	if !staysTaken {
		// Not DEL, which go-redis may split among the nodes of a cluster.
		commands = [][]any{{"getdel", tagged(ClientName, p.tag)}}
		if p.hasState {
			commands = append(commands, []any{"getdel", stateKey(p.tag)})
		}
	}
	// The next hold that lasts makes the client write them again.
	p.written = false
	p.due = 0
	p.hasState = p.hasState || staysTaken
	p.mu.Unlock()
	isUseless := !written && !staysTaken
	if isUseless || silent {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), NoticeLimit)
	defer cancel()
	if writing != nil {
		select {
		case <-writing:
		case <-ctx.Done():
			return // the deletion could overtake the write
		}
	}
	_, err := p.Runner.Commands(ctx, commands...)
	if err == nil && !staysTaken {
		p.mu.Lock()
		p.hasState = false
		p.mu.Unlock()
	}
}

// Close ends the presence of a client that closes. If the client leaves holds behind, its name
// stays until its TTL ends, because it shows whose holds they are.
func (p *Presence) Close(holdsLeft bool) {
	p.mu.Lock()
	p.closed = true // first, so that no write begins after the deletion
	p.mu.Unlock()
	if !holdsLeft {
		p.erase()
	}
}

// listen subscribes to the channels of these tags, whose holds have lasted for a while, and ends
// all other subscriptions. While the client's locks may linger, it keeps the subscription to the
// client's own channel. Most clients have one tag, which is their own. Holds with an id of another
// client, or of a caller, have further tags. After a refused subscription, listen waits for
// listenRetry before it tries another one. Only run calls it.
func (p *Presence) listen(tags []string) {
	var ended []*pubsub.Subscription
	var confirmed []string
	wanted := make(map[string]bool, len(tags)+1)
	for _, tag := range tags {
		wanted[tag] = true
	}
	p.mu.Lock()
	wanted[p.tag] = wanted[p.tag] || p.wantsAsks
	// Refusals are noted before anything is subscribed: a refused channel would be tried again at
	// once.
	for tag, l := range p.subs {
		refused := l.sub.Err() != nil // the hub has logged it
		if refused {
			p.notBefore = p.now() + engine.Instant(listenRetry)
		}
		if refused || !wanted[tag] {
			ended = append(ended, l.sub)
			delete(p.subs, tag)
		}
	}
	p.unheard = false
	for _, tag := range tags {
		l := p.subscribe(tag)
		if l == nil {
			continue
		}
		if !l.heard && engine.IsClosed(l.sub.Confirmed()) { // only once, because later connections signal Resubscribed
			l.heard = true
			confirmed = append(confirmed, tag)
		}
		p.unheard = p.unheard || !l.heard
	}
	if p.subs[p.tag] == nil {
		p.canHearAsks.Store(false) // look gives up the locks that have begun to linger meanwhile
	}
	p.mu.Unlock()
	for _, tag := range confirmed {
		p.recheckTag(tag) // Redis may have restarted between the acquisitions and now
	}
	for _, sub := range ended { // without the mutex, because the listener takes it
		sub.Close()
	}
}

// tagSubscription is the subscription to the channel of one tag.
type tagSubscription struct {
	sub   *pubsub.Subscription
	since engine.Instant
	heard bool // the subscription was confirmed, and the client asks about the tag's holds
}

// subscribe returns the subscription to the channel of a tag, and makes one if there is none. It
// returns nil if a subscription was refused a short time ago, or if the client has closed. mu is
// held.
func (p *Presence) subscribe(tag string) *tagSubscription {
	l := p.subs[tag]
	now := p.now()
	maySubscribe := !p.closed && now >= p.notBefore
	if l == nil && maySubscribe {
		l = &tagSubscription{sub: p.Hub.Subscribe(tagged(holderChannel, tag), p.Receive), since: now}
		p.subs[tag] = l
	}
	return l
}

// Names returns the names of the clients of these ids, in the same order. known contains names by
// tag that need not be read again, and Names adds the new ones to it. The reads are sent in
// pipelines of up to 100. Names is best effort, and takes nameRead at most: a name that cannot be
// read in time is "".
func (p *Presence) Names(ctx context.Context, ids []string, known map[string]string) []string {
	var tags []string
	var commands [][]any
	for _, id := range ids {
		tag := TagOf(id)
		if _, ok := known[tag]; !ok {
			known[tag] = "" // even if the read fails, because a list of locks would repeat it for each lock
			tags = append(tags, tag)
			commands = append(commands, []any{"get", tagged(ClientName, tag)})
		}
	}
	ctx, cancel := context.WithTimeout(ctx, nameRead)
	defer cancel()
	for len(tags) > 0 {
		n := min(len(tags), pipelined)
		values, _ := p.Runner.Reads(ctx, commands[:n]...)
		if values == nil { // there was no answer in time; a name that is merely missing is a nil value
			break
		}
		for i, value := range values {
			known[tags[i]], _ = value.(string)
		}
		tags = tags[n:]
		commands = commands[n:]
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = known[TagOf(id)]
	}
	return names
}

package scripts

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// batcher sends commands in goroutines of its own, so that a caller can return when its context or the command
// timeout ends: go-redis may take several times as long, on a new connection. When many goroutines send at
// once, the batcher puts their commands into one pipeline: a round trip costs more than most scripts.
//
// No command waits for others to join it. While at most maxDirect commands are in flight, each is
// sent alone. Further commands are queued. A worker sends the queue at once if fewer than
// maxInFlight batches are in flight; else the commands that arrive meanwhile form the next batch,
// in order of arrival. Batches share the commands evenly: with nearly all of them in one batch, the
// server would have nothing to do while the client reads the replies. A batch that takes longer than
// slotTimeout delays nobody: another worker gets its slot.
//
// Whatever is in flight occupies a connection, and many callers must not make many connections while the
// first ones are being dialed, or while the server stalls. Without a slot therefore at most maxOthers
// commands and batches are in flight. While they are, a slot passes on only quietPasses times in a command
// timeout, in case all connections are dead.
//
// A server that is silent must not collect goroutines either. After a batch without any answer, a slot
// passes on that seldom, too. Batches are small then: each only asks whether the server answers again.
// Commands whose callers give up meanwhile are withdrawn from the queue, and were never sent.
//
// On a cluster, each master has its own batcher; see shards.
//
// Invariant: while commands are queued, some worker has a slot and will take them. enter starts a
// worker if a slot is free. A worker gives its slot up only when the queue is empty, or to another
// worker. Each of these steps holds mu.
type batcher struct {
	r         *Runner
	plain     *pipelines // of the client of the server, with its own timeouts
	timed     *pipelines // that end with their context; plain, if the client is of a type that cannot do that
	hook      *punctual  // of timed; nil: the client cannot do that
	maxDirect int        // commands in flight alone; 0: all are sent alone
	maxOthers int        // commands alone and batches without a slot, in flight
	idle      sync.Pool  // of *pending
	probe     *prober    // of the server

	endsInTime bool // the client ends an attempt within the runner's timeout, once it has a connection

	latest   atomic.Pointer[deadline] // of the latest call; of a shard's batcher only
	hereEnds deadlines                // of attempts in callers' goroutines

	mu      sync.Mutex
	direct  int  // commands in flight alone
	full    bool // maxDirect was reached: all commands queue until few are queued
	slots   int  // slots that workers have
	batched int  // commands in the batches that have a slot
	late    int  // batches in flight that have lost their slot
	quiet   bool // the latest batch or command to end was not answered
	here    here
	queue   []*pending // in order of arrival
}

const (
	maxDirect   = 6                     // commands in flight alone, and maxOthers, on a single server
	maxInFlight = 2                     // batches in flight with a slot
	maxBatch    = 100                   // commands in a batch
	minShare    = 24                    // commands that a batch takes before it leaves any to another one
	slotTimeout = 10 * time.Millisecond // a batch that takes longer loses its slot

	quietPasses   = 5 // how often a slot passes on in a command timeout, without room or after a silence
	maxQuietBatch = 8 // commands in a batch then
)

// pending is one attempt at a call. It belongs to the caller until it is queued or sent, then to
// the goroutine that sends it, and to the caller again once done has a value.
type pending struct {
	call
	run   func()     // sends it alone; made once, so that starting a goroutine costs no closure
	cmd   *singleCmd // in a batch
	reply Reply
	err   error
	done  chan struct{} // capacity 1: gets one value when reply and err are set
}

func newBatcher(r *Runner, rdb redis.UniversalClient, maxDirect, maxOthers int) *batcher {
	b := &batcher{
		r: r, plain: newPipelines(rdb, false), maxDirect: maxDirect, maxOthers: maxOthers, probe: newProber(r, rdb),
	}
	b.timed = b.plain
	if node, ok := rdb.(*redis.Client); ok { // not a type that embeds one, and may override its methods
		b.hook, b.timed = punctualOf(node), newPipelines(node, true)
		o := node.Options()
		b.endsInTime = min(o.ReadTimeout, o.WriteTimeout) > 0 && max(o.ReadTimeout, o.WriteTimeout) <= r.timeout
	}
	return b
}

// piped returns the pipelines for an attempt whose context ends with its call. Normally the client's own timeouts
// end the attempt, if they are short enough. While the server is silent, and once the runner closes, the deadline
// of the context does, so that nothing stays in flight for longer.
func (b *batcher) piped() *pipelines {
	if b.endsInTime && !b.r.silent.Load() && !b.r.isStopped() {
		return b.plain
	}
	return b.timed
}

// answers reports whether the error of an attempt, or its absence, shows that the server has answered.
func answers(err error) bool {
	_, replied := errors.AsType[redis.Error](err)
	return err == nil || replied
}

// do makes one attempt at c. It returns when the attempt is answered, or when ctx or c.end ends
// before: the attempt is then withdrawn if it is still queued, else it goes on in its goroutine and
// its outcome is unknown. The caller is registered in running.
func (b *batcher) do(ctx context.Context, c call, failed *failures) (Reply, error) {
	r := b.r
	began := time.Now()
	if b.maySendHere(ctx, c.script, began) {
		reply, doubt, err := b.sendHere(ctx, c, began)
		failed.doubt = failed.doubt || doubt
		if err != errElsewhere { //nolint:errorlint // as sendHere returns it
			return reply, err
		}
	}
	// Another goroutine sends, because go-redis may block for longer than ctx lasts.
	p, ok := b.idle.Get().(*pending)
	if !ok {
		p = &pending{done: make(chan struct{}, 1)}
		p.run = func() { b.sendDirect(p) }
	}
	p.call = c
	if b.enter(p, began) {
		// The caller is still registered, so running is above zero here, and Close will wait for this
		// attempt too.
		r.running.Add(1)
		go p.run()
	}
	silent := b.probe.due(began)
	for slow, over := r.slots.slow(), false; !over; {
		select {
		case <-p.done:
			return b.finish(ctx, p, began)
		case <-silent:
			silent = nil
			b.probe.start()
		case <-slow: // then the next attempt finds the slot map up to date
			slow = nil
			r.slots.refresh()
		case <-ctx.Done():
			over = true
		case <-c.end.Done():
			over = true
		}
	}
	// The caller returns now. What is still queued must not be sent after that.
	err := b.probe.explain(interruption(ctx, began), began)
	if err.notSent = b.withdraw(p); err.notSent {
		return Reply{}, err
	}
	select {
	case <-p.done: // answered at the same time: the answer counts
		return b.finish(ctx, p, began)
	default:
		// p now belongs to the goroutine that sends it, so it does not go back to idle.
		r.noteAnswered(err)
		return Reply{}, err
	}
}

// finish returns the result of p, which began then, and puts p back into idle.
func (b *batcher) finish(ctx context.Context, p *pending, began time.Time) (Reply, error) {
	reply, err := p.reply, b.probe.noticed(ctx, p.end, p.err, began)
	*p = pending{done: p.done, run: p.run}
	b.idle.Put(p)
	b.r.noteAnswered(err)
	return reply, err
}

// enter reports whether a command may be sent alone, and counts it if so. The caller then sends it
// with sendDirect. If not, enter queues p, and starts a worker if a slot is free; the caller is
// registered in running.
func (b *batcher) enter(p *pending, now time.Time) (alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.maxDirect == 0 || !b.full && b.hasRoom(now) {
		b.direct++
		return true
	}
	b.queue = append(b.queue, p)
	b.full = true // keeps later commands behind p: those in the queue go first
	if b.slots < maxInFlight {
		b.slots++
		b.r.running.Go(b.work)
	}
	return false
}

// sendDirect makes one attempt at p alone, in a goroutine of its own. do has counted it in direct
// and in running.
func (b *batcher) sendDirect(p *pending) {
	defer b.r.running.Done()
	via := processor(b.r.rdb) // the pipelines of a type that hides a cluster client may tell a wrong outcome: see shards
	if b.maxDirect == maxDirect || b.hook != nil || b.plain.masters != nil {
		via = b.piped()
	}
	sent := time.Now()
	p.reply, p.err = b.r.attempt(p.ctx, via, p.call)
	if b.r.shards.cluster != nil && isMisrouted(p.err) && !isAbandoned(p.ctx) {
		p.reply, p.err = b.r.attempt(p.ctx, b.r.rdb, p.call)
	}
	b.mu.Lock() // before the caller continues: its next command finds the place free
	b.direct--
	b.quiet = !answers(p.err)
	b.here.note(!b.quiet, sent)
	b.mu.Unlock()
	p.done <- struct{}{}
}

// withdraw removes p from the queue. It reports false if a worker took p already: then p may be
// sent.
func (b *batcher) withdraw(p *pending) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.queue, p)
	if i < 0 {
		return false
	}
	b.queue = slices.Delete(b.queue, i, i+1)
	return true
}

// work is a worker: it sends batches until the queue is empty, or until it loses its slot.
func (b *batcher) work() {
	for batch := b.take(nil); len(batch) > 0; batch = b.take(batch) {
		if !b.keepsSlot(len(batch), func() { b.sendAll(batch) }) {
			return
		}
		// Let the callers that got their answers run first: their next commands can join the next batch.
		runtime.Gosched()
	}
}

// take replaces a worker's batch, which has been sent, with the oldest queued commands. If none is queued, it gives up
// the worker's slot.
func (b *batcher) take(batch []*pending) []*pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.batched -= len(batch)
	batch = batch[:0]
	b.updateFull()
	share := (len(b.queue) + b.batched + maxInFlight - 1) / maxInFlight
	n := min(len(b.queue), max(share, minShare), maxBatch)
	if b.quiet {
		n = min(n, maxQuietBatch)
	}
	if n == 0 {
		// In the same critical section as the look at the queue: a command that is queued later finds the
		// slot free and starts a worker.
		b.slots--
		return batch
	}
	b.batched += n
	batch = append(batch, b.queue[:n]...)
	b.queue = slices.Delete(b.queue, 0, n) // also clears the tail, so that sent commands can be freed
	return batch
}

// hasRoom reports whether one more command may be sent alone. The limit applies to all connections that are in use or
// being dialed, other than those of batches that have a slot. The caller holds mu.
func (b *batcher) hasRoom(now time.Time) bool {
	return b.direct < min(b.maxDirect, b.maxOthers-b.late-b.dialing(now))
}

// keepsSlot runs f, which sends n commands, and reports whether the worker still has its slot. If f takes longer
// than slotTimeout, the slot goes to another worker while f goes on, as soon as mayPass allows it.
func (b *batcher) keepsSlot(n int, f func()) bool {
	began, over, lost := time.Now(), false, false
	b.mu.Lock() // guards all three, and late
	var late *time.Timer
	late = time.AfterFunc(slotTimeout, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch now := time.Now(); {
		case over:
		case b.mayPass(now, began):
			lost = true
			b.batched -= n
			b.late++
			b.passSlot()
		default:
			late.Reset(slotTimeout)
		}
	})
	b.mu.Unlock()
	f()
	b.mu.Lock()
	defer b.mu.Unlock()
	over = true
	late.Stop()
	if lost {
		b.late--
	}
	return !lost
}

// mayPass reports whether a batch that began then, and takes longer than slotTimeout, loses its slot now.
// The caller holds mu.
func (b *batcher) mayPass(now, began time.Time) bool {
	crowded := b.direct+b.late+b.dialing(now) >= b.maxOthers
	return !b.quiet && !crowded || now.Sub(began) >= b.r.timeout/quietPasses
}

// passSlot gives a worker's slot to a new worker, or gives it up if the queue is empty. The caller holds mu.
func (b *batcher) passSlot() {
	b.updateFull()
	if len(b.queue) == 0 {
		b.slots--
		return
	}
	b.r.running.Go(b.work)
}

// updateFull lets commands be sent alone again when few are queued. The caller holds mu. Half of
// maxDirect is the threshold, so that full does not change with every command.
func (b *batcher) updateFull() { b.full = len(b.queue) > b.maxDirect/2 }

// sendAll makes one attempt at each command of a batch, as Runner.attempt does at one: by digest,
// again after loading what the server does not know, and then with the text.
func (b *batcher) sendAll(batch []*pending) {
	ctx := batch[0].end // of the oldest command: none may be sent long after its caller has returned
	pipe := b.piped()
	if batch = b.send(ctx, pipe, batch); len(batch) == 0 {
		return
	}
	loaded := map[*Script]bool{}
	for _, p := range batch {
		if !loaded[p.script] {
			loaded[p.script] = true
			_ = pipe.load(ctx, p.script) // if that fails, the third attempt sends the text
		}
	}
	if batch = b.send(ctx, pipe, batch); len(batch) == 0 {
		return
	}
	for _, p := range batch {
		p.args = p.evalArgs()
	}
	for _, p := range b.send(ctx, pipe, batch) {
		p.done <- struct{}{}
	}
}

// send sends a batch in one pipeline. It returns the commands whose script the server does not
// know, in the batch's own array; the others are done, and belong to their callers, or are sent
// again to another node.
func (b *batcher) send(ctx context.Context, pipe *pipelines, batch []*pending) []*pending {
	cmds := make([]redis.Cmder, len(batch))
	for i, p := range batch {
		p.cmd = newCmd(ctx, p.firstKey, p.args...)
		cmds[i] = p.cmd
	}
	sent := time.Now() // before the pipeline is written: a TTL counts from no later than this
	broken := pipe.batch(ctx, cmds)
	b.noteBatch(sent, batch, broken)
	// unknown fills the array that the loop reads. It never has more elements than were read.
	unknown := batch[:0]
	for _, p := range batch {
		p.reply, p.err = p.cmd.reply(sent, broken)
		b.r.contact.note(p.key, p.err)
		noScript := repliedWith(p.err, "NOSCRIPT")
		redirected := b.r.shards.cluster != nil && isMisrouted(p.err)
		switch {
		case !noScript && !redirected: // p has its result
		case isAbandoned(p.call.ctx):
			p.err = notSent(p.call.ctx, sent) // as in attempt
		case redirected:
			b.r.running.Go(func() { b.sendRedirected(p) })
			continue
		default:
			unknown = append(unknown, p)
			continue
		}
		p.done <- struct{}{} // from here on p belongs to its caller
	}
	return unknown
}

// noteBatch notes whether the server has answered any command of a batch.
func (b *batcher) noteBatch(sent time.Time, batch []*pending, broken error) {
	heard := slices.ContainsFunc(batch, func(p *pending) bool {
		_, err := p.cmd.reply(sent, broken)
		return answers(err)
	})
	b.mu.Lock()
	b.quiet = !heard
	b.here.note(heard, sent)
	b.mu.Unlock()
}

// sendRedirected sends p again, alone, after its node answered that another one serves the slot.
func (b *batcher) sendRedirected(p *pending) {
	p.reply, p.err = b.r.attempt(p.ctx, b.r.rdb, p.call)
	p.done <- struct{}{}
}

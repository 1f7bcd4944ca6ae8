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

	"github.com/redlatch/redlatch/internal/failure"
)

// batcher sends commands in goroutines of its own, so that a caller can return when its context or
// the command timeout ends. go-redis may take several times as long on a new connection. When many
// goroutines send at once, the batcher puts their commands into one pipeline, because a round trip
// costs more than most scripts.
//
// No command waits for others to join it. While at most maxDirect commands are in flight, each is
// sent alone. Further commands are queued. A worker sends the queue at once if fewer than
// maxInFlight batches are in flight. Otherwise the commands that arrive meanwhile form the next
// batch, in order of arrival. Batches share the commands evenly. If nearly all of them were in one
// batch, the server would have nothing to do while the client reads the replies. A batch that takes
// longer than slotTimeout delays no other one, because another worker gets its slot.
//
// Whatever is in flight occupies a connection, and many callers must not make many connections
// while the first ones are being dialed, or while the server stalls. Therefore at most maxOthers
// commands and batches without a slot are in flight. While that many are, a slot passes on only
// quietPasses times in a command timeout, in case all connections are dead.
//
// Goroutines must not pile up for a silent server either. After a batch without any answer, a slot
// also passes on only that often. Batches are small then, because each of them only asks whether
// the server answers again. Commands whose callers give up meanwhile are withdrawn from the queue,
// and are never sent.
//
// On a cluster, each master has its own batcher; see shards.
//
// Invariant: while commands are queued, some worker has a slot and will take them. enter starts a
// worker if a slot is free. A worker gives its slot up only when the queue is empty, or to another
// worker. Each of these steps holds mu.
type batcher struct {
	r         *Runner
	plain     *pipelines // the pipelines of the server's client, with its own timeouts
	timed     *pipelines // pipelines that end with their context; plain if the type of the client cannot do that
	hook      *punctual  // the hook of timed; nil if the client cannot do that
	ours      bool       // rdb is the client that has the hook, not a type that embeds it
	alone     processor  // sends the commands that are sent alone; if nil, timed does
	maxDirect int        // how many commands may be in flight alone; 0 if all are sent alone
	maxOthers int        // how many commands alone and batches without a slot may be in flight
	idle      sync.Pool  // each element is a *pending
	probe     *prober    // the prober of the server

	latest     atomic.Pointer[deadline] // the deadline of the latest call; only for the batcher of a shard
	inlineEnds deadlines                // the deadlines of attempts in callers' goroutines

	mu          sync.Mutex // guards the rest
	direct      int        // the number of commands in flight alone
	full        bool       // maxDirect was reached, so all commands queue until few are queued
	slots       int        // the number of slots that workers have
	batched     int        // the number of commands in the batches that have a slot
	lateBatches int        // the number of batches in flight that have lost their slot
	inline      inlineStats
	queue       []*pending // in order of arrival
}

const (
	maxDirect   = 6                     // how many commands are in flight alone, and maxOthers, on a single server
	maxInFlight = 2                     // how many batches with a slot are in flight
	maxBatch    = 100                   // how many commands are in a batch
	minShare    = 24                    // how many commands a batch takes before it leaves any to another one
	slotTimeout = 10 * time.Millisecond // a batch that takes longer loses its slot

	quietPasses   = 5 // how often a slot passes on in a command timeout, if there is no room or after a silence
	maxQuietBatch = 8 // how many commands are in a batch then
)

// pending is one attempt at a call. It belongs to the caller until it is queued or sent, then to
// the goroutine that sends it, and to the caller again once done has a value.
type pending struct {
	call
	run   func()     // sends the attempt alone; made once, so that starting a goroutine costs no closure
	cmd   *singleCmd // the command in a batch
	reply Reply
	err   error
	// done gets each attempt at the call when its reply and err are set. It has room for all of
	// them.
	done chan *pending
	// isRepetition means that done belongs to an earlier attempt, which may still use it.
	isRepetition bool
}

// maxAttempts is how many attempts at one call may be in flight at a time.
const maxAttempts = 8

// newBatcher returns a batcher that sends through rdb, which is or embeds base.
func newBatcher(r *Runner, rdb, base redis.UniversalClient, maxDirect, maxOthers int) *batcher {
	b := &batcher{
		r: r, plain: newPipelines(rdb, nil), maxDirect: maxDirect, maxOthers: maxOthers, probe: newProber(r, base),
	}
	b.timed = b.plain
	_, b.ours = rdb.(*redis.Client)
	if node, ok := base.(*redis.Client); ok {
		b.hook = punctualOf(node)
		b.timed = newPipelines(rdb, b.hook)
	}
	return b
}

// wasAnswered reports whether the error of an attempt, or its absence, shows that the server has
// answered.
func wasAnswered(err error) bool {
	_, replied := errors.AsType[redis.Error](err)
	return err == nil || replied
}

// errSlow is the error of do if another attempt should be made, while this one may still be
// answered.
var errSlow = errors.New("scripts: no answer yet")

// do makes one attempt at c. It returns when this attempt, or an earlier slow one, is answered. It
// also returns when ctx or c.end ends first. The attempt is then dropped if it was not sent.
// Otherwise it goes on in its goroutine, and its outcome is unknown. If the attempt takes longer
// than slowAfter, do adds it to failed.slow and returns errSlow, and the caller makes another one.
// The caller is registered in running.
func (b *batcher) do(ctx context.Context, c call, failed *failures) (Reply, error) {
	r := b.r
	began := time.Now()
	if len(failed.slow) == 0 && b.maySendInline(ctx, c.script, began) {
		reply, doubt, err := b.sendInline(ctx, c, began)
		failed.doubt = failed.doubt || doubt
		if !errors.Is(err, errElsewhere) {
			return reply, err
		}
	}
	c.mark.begin(c.ctx, c.script) // an earlier attempt of the same call may have left it with a context that has ended
	// Another goroutine sends, because go-redis may block for longer than ctx lasts.
	p := b.newPending(c, failed.slow)
	if b.enter(p, began) {
		// The caller is still registered, so running is above zero here, and Close will wait for
		// this attempt, too.
		r.running.Add(1)
		go p.run()
	}
	reply, isDone, err := b.await(ctx, p, failed, began)
	if isDone {
		return reply, err
	}
	return b.abandon(ctx, p, failed, began)
}

// await waits for the outcome of p, which began at began, or of an earlier slow attempt of the same
// call. isDone is false if ctx or the call's end has ended first. If p takes longer than
// slowAfter, the error is errSlow.
func (b *batcher) await(
	ctx context.Context, p *pending, failed *failures, began time.Time,
) (reply Reply, isDone bool, err error) {
	r := b.r
	silent := b.probe.due(began)
	tooSlow := r.slowAt(began)
	slow := r.slots.slow()
	for {
		select {
		case ended := <-p.done:
			reply, ok, err := b.finish(ctx, p, ended, failed, began)
			if ok {
				return reply, true, err
			}
		case <-tooSlow:
			tooSlow = nil
			mayRepeat := failed.counted < r.retries && len(failed.slow)+1 < maxAttempts
			if mayRepeat && !r.isStopped() {
				failed.slow = append(failed.slow, p)
				return Reply{}, true, errSlow
			}
		case <-silent:
			silent = nil
			b.probe.start()
		case <-slow: // read the slot map again, so that the next attempt finds it up to date
			slow = nil
			r.slots.refresh()
		case <-ctx.Done():
			return Reply{}, false, nil
		case <-p.end.Done():
			return Reply{}, false, nil
		}
	}
}

// abandon ends do without the outcome of p, unless that comes at the same time. A command that is
// still queued must not be sent after that.
func (b *batcher) abandon(ctx context.Context, p *pending, failed *failures, began time.Time) (Reply, error) {
	unanswered := b.probe.explain(failure.Interrupt(ctx, began), began)
	if b.withdraw(p) {
		failed.dropSlow()
		unanswered.NotSent = true
		return Reply{}, unanswered
	}
	for len(p.done) > 0 { // it was answered at the same time, so the answer counts
		ended := <-p.done
		reply, ok, err := b.finish(ctx, p, ended, failed, began)
		if ok {
			return reply, err
		}
	}
	failed.dropSlow()
	// p now belongs to the goroutine that sends it, so it does not go back to idle.
	unanswered.NotSent = p.mark.drop()
	b.r.noteAnswered(unanswered)
	return Reply{}, unanswered
}

// slowAt returns a channel that is closed when an attempt that began at began counts as slow, or
// nil if no attempt ever does.
func (r *Runner) slowAt(began time.Time) <-chan struct{} {
	if r.slowAfter == 0 {
		return nil
	}
	return r.slow.within(began, r.slowAfter-r.slowAfter/10, r.slowAfter).Done()
}

// newPending returns an attempt at c. It shares its channel with slow attempts of the same call.
func (b *batcher) newPending(c call, slow []*pending) *pending {
	var p *pending
	if len(slow) == 0 {
		p, _ = b.idle.Get().(*pending)
	}
	if p == nil {
		p = &pending{}
		p.run = func() { b.sendDirect(p) }
	}
	switch {
	case len(slow) > 0:
		p.done = slow[0].done
		p.isRepetition = true
	case p.done == nil:
		p.done = make(chan *pending, maxAttempts)
	}
	p.call = c
	return p
}

// tell passes the result of an attempt to its caller. From here on p belongs to the caller.
func (p *pending) tell() { p.done <- p }

// finish handles an attempt that has ended: p, which began at began, or an earlier slow attempt of
// the same call. It returns the call's result if it is known now. Otherwise ok is false. The result
// is p's, or the answer to the slow attempt. A slow attempt that has failed, or that Redis has
// refused for the moment, decides nothing.
func (b *batcher) finish(
	ctx context.Context, p, ended *pending, failed *failures, began time.Time,
) (reply Reply, ok bool, err error) {
	isSlow := ended != p
	if isSlow {
		failed.removeSlow(ended)
		if !wasAnswered(ended.err) || repliedWith(ended.err, temporaryRefusals...) {
			failed.doubt = failed.doubt || classify(ended.err).Outcome == failure.Unknown
			return Reply{}, false, nil
		}
		failed.slow = append(failed.slow, p)
		reply = ended.reply
		err = ended.err
	} else {
		reply = p.reply
		err = b.probe.noticed(ctx, p.call.end, p.err, began)
	}
	b.r.noteAnswered(err)
	if wasAnswered(err) {
		failed.dropSlow()
	}
	if !isSlow && !p.isRepetition {
		*p = pending{done: p.done, run: p.run}
		b.idle.Put(p)
	}
	return reply, true, err
}

// enter reports whether a command may be sent alone, and counts it if so. The caller then sends it
// with sendDirect. If not, enter queues p, and starts a worker if a slot is free. The caller is
// registered in running.
func (b *batcher) enter(p *pending, now time.Time) (alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mayGoAlone := b.maxDirect == 0 || !b.full && b.hasRoom(now)
	if mayGoAlone {
		b.direct++
		return true
	}
	b.queue = append(b.queue, p)
	b.full = true // this keeps later commands behind p, because the commands in the queue go first
	if b.slots < maxInFlight {
		b.slots++
		b.r.running.Go(b.work)
	}
	return false
}

// sendDirect makes one attempt at p alone, in a goroutine of its own. enter has counted it in
// direct, and do in running.
func (b *batcher) sendDirect(p *pending) {
	defer b.r.running.Done()
	via := b.alone
	if via == nil {
		via = b.timed
	}
	sent := time.Now()
	p.reply, p.err = b.r.attempt(p.ctx, via, p.call)
	wasRedirected := b.r.shards.cluster != nil && isMisrouted(p.err)
	if wasRedirected && !p.isAbandoned(p.ctx) {
		p.reply, p.err = b.r.attempt(p.ctx, b.r.rdb, p.call)
	}
	b.mu.Lock() // before the caller goes on, so that its next command finds the place free
	b.direct--
	b.inline.note(wasAnswered(p.err), sent)
	b.mu.Unlock()
	p.tell()
}

// withdraw removes p from the queue. It returns false if a worker has taken p already. Then p may
// be sent.
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

// work is the goroutine of a worker. It sends batches until the queue is empty, or until it loses
// its slot.
func (b *batcher) work() {
	for batch := b.take(nil); len(batch) > 0; batch = b.take(batch) {
		if !b.keepsSlot(len(batch), func() { b.sendAll(batch) }) {
			return
		}
		// Let the callers that got their answers run first: their next commands can join the next
		// batch.
		runtime.Gosched()
	}
}

// take replaces a worker's batch, which has been sent, with the oldest queued commands. If none is
// queued, it gives up the worker's slot.
func (b *batcher) take(batch []*pending) []*pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.batched -= len(batch)
	batch = batch[:0]
	b.updateFull()
	share := (len(b.queue) + b.batched + maxInFlight - 1) / maxInFlight
	n := min(len(b.queue), max(share, minShare), maxBatch)
	if b.inline.unanswered {
		n = min(n, maxQuietBatch)
	}
	if n == 0 {
		// This is in the same critical section as the look at the queue, so that a command that is
		// queued later finds the slot free and starts a worker.
		b.slots--
		return batch
	}
	b.batched += n
	batch = append(batch, b.queue[:n]...)
	b.queue = slices.Delete(b.queue, 0, n) // this also clears the tail, so that sent commands can be freed
	return batch
}

// hasRoom reports whether one more command may be sent alone. It counts the connections that are in
// use and those that are being dialed, but not those of batches with a slot. mu is held.
func (b *batcher) hasRoom(now time.Time) bool {
	return b.direct < min(b.maxDirect, b.maxOthers-b.lateBatches-b.dialing(now))
}

// keepsSlot runs f, which sends n commands, and reports whether the worker still has its slot. If f
// takes longer than slotTimeout, the slot goes to another worker while f goes on, as soon as
// mayPass allows it.
func (b *batcher) keepsSlot(n int, f func()) bool {
	began := time.Now()
	over := false
	lost := false
	b.mu.Lock() // guards over, lost and expiry
	var expiry *time.Timer
	expiry = time.AfterFunc(slotTimeout, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if over {
			return
		}
		if !b.mayPass(time.Now(), began) {
			expiry.Reset(slotTimeout)
			return
		}
		lost = true
		b.batched -= n
		b.lateBatches++
		b.passSlot()
	})
	b.mu.Unlock()
	f()
	b.mu.Lock()
	defer b.mu.Unlock()
	over = true
	expiry.Stop()
	if lost {
		b.lateBatches--
	}
	return !lost
}

// mayPass reports whether a batch that began at began, and takes longer than slotTimeout, loses its
// slot now. mu is held.
func (b *batcher) mayPass(now, began time.Time) bool {
	isCrowded := b.direct+b.lateBatches+b.dialing(now) >= b.maxOthers
	if !b.inline.unanswered && !isCrowded {
		return true
	}
	return now.Sub(began) >= b.r.timeout/quietPasses
}

// passSlot gives a worker's slot to a new worker, or gives it up if the queue is empty. The caller
// holds mu.
func (b *batcher) passSlot() {
	b.updateFull()
	if len(b.queue) == 0 {
		b.slots--
		return
	}
	b.r.running.Go(b.work)
}

// updateFull lets commands be sent alone again when few are queued. mu is held. Half of
// maxDirect is the threshold, so that full does not change with every command.
func (b *batcher) updateFull() { b.full = len(b.queue) > b.maxDirect/2 }

// sendAll makes one attempt at each command of a batch, as Runner.attempt does for one command. It
// sends the scripts by their digests, then again after loading those that the server does not know,
// and then with their texts.
func (b *batcher) sendAll(batch []*pending) {
	end := batch[0].call.end // the deadline of the oldest command
	ctx := &joinedContext{
		Context: end.sending, values: context.Background(), until: end.until, limits: &b.r.limits, mark: batch[0].mark,
	}
	pipe := b.timed
	batch = b.send(ctx, pipe, batch)
	if len(batch) == 0 {
		return
	}
	loaded := map[*Script]bool{}
	for _, p := range batch {
		if !loaded[p.script] {
			loaded[p.script] = true
			_ = pipe.load(ctx, p.script) // if that fails, the third attempt sends the text
		}
	}
	batch = b.send(ctx, pipe, batch)
	if len(batch) == 0 {
		return
	}
	for _, p := range batch {
		p.args = p.command(true)
	}
	for _, p := range b.send(ctx, pipe, batch) {
		p.tell()
	}
}

// send sends a batch in one pipeline. It returns the commands whose script the server does not
// know, in the batch's own array. The others are done and belong to their callers, or are sent
// again to another node.
func (b *batcher) send(ctx context.Context, pipe *pipelines, batch []*pending) []*pending {
	cmds := make([]redis.Cmder, len(batch))
	for i, p := range batch {
		p.mark.again()
		p.cmd = newCmd(ctx, p.firstKey, p.args...)
		cmds[i] = p.cmd
	}
	sent := time.Now() // before the pipeline is written, so that a TTL counts from no later than this
	broken := pipe.batch(ctx, cmds)
	b.noteBatch(sent, batch, broken)
	// unknown fills the array that the loop reads. It never has more elements than were read.
	unknown := batch[:0]
	for _, p := range batch {
		p.reply, p.err = p.cmd.reply(sent, broken)
		p.err = p.failed(p.err)
		b.r.recovery.note(p.key, p.err)
		noScript := repliedWith(p.err, "NOSCRIPT")
		redirected := b.r.shards.cluster != nil && isMisrouted(p.err)
		switch {
		case !noScript && !redirected: // p has its result
		case p.isAbandoned(p.call.ctx):
			p.err = notSent(p.call.ctx, sent) // as in attempt
		case redirected:
			b.r.running.Go(func() { b.sendRedirected(p) })
			continue
		default:
			unknown = append(unknown, p)
			continue
		}
		p.tell()
	}
	return unknown
}

// noteBatch notes whether the server has answered any command of a batch.
func (b *batcher) noteBatch(sent time.Time, batch []*pending, broken error) {
	heard := slices.ContainsFunc(batch, func(p *pending) bool {
		_, err := p.cmd.reply(sent, broken)
		return wasAnswered(err)
	})
	b.mu.Lock()
	b.inline.note(heard, sent)
	b.mu.Unlock()
}

// sendRedirected sends p again, alone, after its node answered that another one serves the slot.
func (b *batcher) sendRedirected(p *pending) {
	p.reply, p.err = b.r.attempt(p.ctx, b.r.rdb, p.call)
	p.tell()
}

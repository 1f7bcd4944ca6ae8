package scripts

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// batcher sends commands in goroutines other than their callers', so that a caller can leave when
// its time is over; a caller whose context never ends sends by itself. It also gathers commands when many goroutines send at once: a round trip costs
// more than most scripts.
//
// No command waits for company. As long as few commands are under way each goes by itself. Then
// commands queue; they leave at once unless enough batches are under way, and what has come meanwhile
// leaves together, in order of arrival. A batch that is not back soon holds nobody up: another takes
// its place.
//
// While commands are queued a worker has a slot and will come by: enqueue starts one if there is a
// slot, and a worker gives its slot up only when nothing is queued, or to another worker.
type batcher struct {
	r       *Runner
	enabled bool      // false: commands never go together; on a cluster a batch would wait for its slowest shard
	idle    sync.Pool // of *pending

	mu     sync.Mutex
	direct int  // commands under way by themselves
	full   bool // more came than may go that way: all queue
	slots  int  // that workers have
	queue  []*pending
}

const (
	maxDirect   = 8                     // commands under way by themselves
	maxInFlight = 2                     // batches under way that may be back soon
	maxBatch    = 100                   // commands in a batch
	slotTimeout = 10 * time.Millisecond // a batch that takes longer loses its slot
)

// pending is one command on its way.
type pending struct {
	call
	end   *deadline       // of its caller
	ctx   context.Context //nolint:containedctx // what is sent by itself is sent with it
	run   func()          // sends it by itself; made once, so that starting a goroutine costs no closure
	cmd   *once
	reply Reply
	err   error
	done  chan struct{} // capacity 1: gets one value when reply and err are there
}

// do makes one attempt at c. It returns when the attempt is answered, or when ctx or end comes first.
// The caller is registered in running.
func (b *batcher) do(ctx context.Context, end *deadline, c call) (Reply, error) {
	if ctx.Done() == nil && b.r.endsInTime && b.r.Answering() && b.enter() {
		// Nothing but the command timeout ends this call, and go-redis's own timeouts end its attempt by
		// then: handing it to another goroutine would gain nothing.
		reply, err := b.r.attempt(end.with(ctx), b.r.single, c)
		b.leave()
		b.r.heard(err == nil || classify(err).outcome != Unknown)
		return reply, err
	}
	p, ok := b.idle.Get().(*pending)
	if !ok {
		p = &pending{done: make(chan struct{}, 1)}
		p.run = func() { b.sendDirect(p) }
	}
	p.call, p.end, p.ctx = c, end, end.with(ctx)
	b.start(p)
	select {
	case <-p.done:
		return b.finish(ctx, p)
	case <-ctx.Done():
	case <-end.Done():
	}
	if b.withdraw(p) {
		err := interruption(ctx)
		err.notSent = true
		return Reply{}, err
	}
	select {
	case <-p.done: // at the same time: an answer counts
		return b.finish(ctx, p)
	default:
		b.r.heard(false)
		return Reply{}, interruption(ctx) // p stays with the goroutine that sends it
	}
}

// finish returns p's result and makes p available again.
func (b *batcher) finish(ctx context.Context, p *pending) (Reply, error) {
	reply, err := p.reply, p.err
	*p = pending{done: p.done, run: p.run}
	b.idle.Put(p)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = interruption(ctx) // go-redis noticed the end first
	}
	b.r.heard(err == nil || classify(err).outcome != Unknown)
	return reply, err
}

// enter reports whether a command may go by itself; leave follows.
func (b *batcher) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mayEnter()
}

// mayEnter is enter for callers that hold mu.
func (b *batcher) mayEnter() bool {
	if b.enabled && (b.full || b.direct >= maxDirect) {
		return false
	}
	b.direct++
	return true
}

func (b *batcher) leave() {
	b.mu.Lock()
	b.direct--
	b.mu.Unlock()
}

// start sends p by itself, or queues it.
func (b *batcher) start(p *pending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mayEnter() {
		b.r.running.Add(1)
		go p.run()
		return
	}
	b.queue = append(b.queue, p)
	b.full = true
	if b.slots < maxInFlight {
		b.slots++
		b.r.running.Go(b.work)
	}
}

// sendDirect makes one attempt at p by itself.
func (b *batcher) sendDirect(p *pending) {
	defer b.r.running.Done()
	p.reply, p.err = b.r.attempt(p.ctx, b.r.single, p.call)
	b.leave()
	p.done <- struct{}{}
}

// withdraw takes p out of the queue. It reports false if p has left the queue already.
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

// work sends batches until nothing is queued, or its slot is lost.
func (b *batcher) work() {
	pipe := b.r.rdb.Pipeline()
	for batch := b.take(nil); len(batch) > 0; batch = b.take(batch[:0]) {
		if !b.timely(func() { b.sendAll(pipe, batch) }) {
			return
		}
		runtime.Gosched() // the callers that were answered go first: what they send next can join the next batch
	}
}

// take appends to batch what has been queued longest. If nothing is queued it gives the slot up.
func (b *batcher) take(batch []*pending) []*pending {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updateFull()
	n := min(len(b.queue), maxBatch)
	if n == 0 {
		b.slots--
		return batch
	}
	batch = append(batch, b.queue[:n]...)
	b.queue = slices.Delete(b.queue, 0, n)
	return batch
}

// timely runs f, and reports whether the worker still has its slot.
func (b *batcher) timely(f func()) bool {
	lost := make(chan struct{})
	late := time.AfterFunc(slotTimeout, func() {
		b.yield()
		close(lost)
	})
	f()
	if late.Stop() {
		return true
	}
	<-lost // yield may start a worker, and running must not have come to zero by then
	return false
}

// yield gives a worker's slot to another worker, if anything is queued.
func (b *batcher) yield() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updateFull()
	if len(b.queue) == 0 {
		b.slots--
		return
	}
	b.r.running.Go(b.work)
}

// updateFull lets commands go by themselves again when few are queued. The caller holds mu.
func (b *batcher) updateFull() { b.full = len(b.queue) > maxDirect/2 }

// sendAll makes one attempt at each command of a batch, as Runner.attempt does at one.
func (b *batcher) sendAll(pipe redis.Pipeliner, batch []*pending) {
	ctx := batch[0].end // the oldest: no command may be sent long after its caller has left
	if batch = b.send(ctx, pipe, batch); len(batch) == 0 {
		return
	}
	b.load(ctx, batch)
	if batch = b.send(ctx, pipe, batch); len(batch) == 0 {
		return
	}
	for _, p := range batch {
		p.args = p.whole()
	}
	for _, p := range b.send(ctx, pipe, batch) {
		p.done <- struct{}{}
	}
}

// send sends a batch in one pipeline. It returns, in the same memory, the commands whose script the
// server does not know; the others are done.
func (b *batcher) send(ctx context.Context, pipe redis.Pipeliner, batch []*pending) []*pending {
	cmds := make([]redis.Cmder, len(batch))
	for i, p := range batch {
		p.cmd = newOnce(ctx, p.args)
		cmds[i] = p.cmd
	}
	_ = pipe.BatchProcess(ctx, cmds...)
	sent := time.Now()
	_, broken := pipe.Exec(ctx)
	unknown := batch[:0]
	for _, p := range batch {
		p.reply, p.err = p.cmd.read(sent, p.cmd.outcome(broken))
		if isNoScript(p.err) {
			unknown = append(unknown, p)
		} else {
			p.done <- struct{}{}
		}
	}
	return unknown
}

// load makes the scripts of a batch known to the server.
func (b *batcher) load(ctx context.Context, batch []*pending) {
	known := map[*Script]bool{}
	for _, p := range batch {
		if !known[p.script] {
			known[p.script] = true
			_ = b.r.load(ctx, p.call) // if that fails, the text will go along
		}
	}
}

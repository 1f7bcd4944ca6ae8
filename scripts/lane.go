package scripts

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lane is where commands gather when many goroutines send at once: a round trip costs more than most scripts. Nothing waits for
// company. As long as few commands are under way each goes from its caller's own goroutine; then commands are put here, leave at once
// unless enough batches are under way, and what has come meanwhile leaves together, in order of arrival. A batch that is not back soon
// keeps nobody waiting: another takes its place.
//
// While any shot waits, a worker has a place and will come by: put starts one if there is a place, and a worker gives its place up only when
// nothing waits, or to another worker.
type lane struct {
	r       *Runner
	gathers bool      // false: every command goes at once and by itself; on a cluster a batch would wait for its slowest shard
	idle    sync.Pool // of shots

	mu      sync.Mutex
	direct  int  // commands under way from their callers' own goroutines
	crowded bool // more came than may go that way: all wait
	places  int  // that are taken
	waiting []*shot
}

// Bounds of a lane.
const (
	few      = 8                     // commands under way from their callers' own goroutines
	abreast  = 2                     // places: batches under way that may be back soon
	together = 100                   // commands in a batch
	patience = 10 * time.Millisecond // a batch that takes longer loses its place
)

// shot is one command on its way by another goroutine than its caller's.
type shot struct {
	call
	cmd   *once
	reply Reply
	err   error
	done  chan struct{} // capacity 1: gets one value when reply and err are there
}

// enter tells whether the caller may send a command by itself; leave is to follow.
func (l *lane) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gathers && (l.crowded || l.direct >= few) {
		return false
	}
	l.direct++
	return true
}

func (l *lane) leave() {
	l.mu.Lock()
	l.direct--
	l.mu.Unlock()
}

// put has c sent. The caller is entered in running.
func (l *lane) put(c call) *shot {
	s, ok := l.idle.Get().(*shot)
	if !ok {
		s = &shot{done: make(chan struct{}, 1)}
	}
	s.call = c
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, s)
	l.crowded = true
	if !l.gathers || l.places < abreast {
		l.places++
		l.start()
	}
	return s
}

// settle takes back a shot whose done was received, and tells what it came to.
func (l *lane) settle(s *shot) (Reply, error) {
	reply, err := s.reply, s.err
	*s = shot{done: s.done}
	l.idle.Put(s)
	return reply, err
}

// start starts a worker in a place that is taken. Somebody is entered in running.
func (l *lane) start() { l.r.running.Go(l.work) }

// work sends batches until nothing waits, or its place is lost.
func (l *lane) work() {
	pipe := l.r.rdb.Pipeline()
	for batch := l.take(nil); len(batch) > 0; batch = l.take(batch[:0]) {
		if !l.timely(func() { l.volley(pipe, batch) }) {
			return
		}
		runtime.Gosched() // those who were answered go first: what they send next can go along
	}
}

// take appends to batch what has waited longest. If nothing waits the place is given up.
func (l *lane) take(batch []*shot) []*shot {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count()
	n := min(len(l.waiting), together)
	if !l.gathers {
		n = min(n, 1)
	}
	if n == 0 {
		l.places--
		return batch
	}
	batch = append(batch, l.waiting[:n]...)
	l.waiting = slices.Delete(l.waiting, 0, n)
	return batch
}

// timely does f, and tells whether the worker still has its place.
func (l *lane) timely(f func()) bool {
	lost := make(chan struct{})
	late := time.AfterFunc(patience, func() {
		l.yield()
		close(lost)
	})
	f()
	if late.Stop() {
		return true
	}
	<-lost // yield may start a worker, and running must not have come to zero by then
	return false
}

// yield gives a worker's place to another, if anything waits.
func (l *lane) yield() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count()
	if len(l.waiting) == 0 {
		l.places--
		return
	}
	l.start()
}

// count ends the crowd when few wait. The caller holds mu.
func (l *lane) count() { l.crowded = len(l.waiting) > few/2 }

// volley makes one attempt at each of the shots, as Runner.attempt does at one.
func (l *lane) volley(pipe redis.Pipeliner, shots []*shot) {
	if shots = l.send(pipe, shots); len(shots) == 0 {
		return
	}
	l.load(shots)
	if shots = l.send(pipe, shots); len(shots) == 0 {
		return
	}
	for _, s := range shots {
		s.args = s.whole()
	}
	for _, s := range l.send(pipe, shots) {
		s.done <- struct{}{}
	}
}

// send sends shots by one pipeline. It returns, in the same memory, those whose script the server does not know; the others are done.
func (l *lane) send(pipe redis.Pipeliner, shots []*shot) []*shot {
	ctx := context.Background()
	cmds := make([]redis.Cmder, len(shots))
	for i, s := range shots {
		s.cmd = newOnce(ctx, s.args)
		cmds[i] = s.cmd
	}
	_ = pipe.BatchProcess(ctx, cmds...)
	sent := time.Now()
	_, broken := pipe.Exec(ctx)
	unknown := shots[:0]
	for _, s := range shots {
		err := s.cmd.outcome(broken)
		l.r.piped(err)
		s.reply, s.err = l.r.read(s.cmd, sent, err)
		if isNoScript(s.err) {
			unknown = append(unknown, s)
		} else {
			s.done <- struct{}{}
		}
	}
	return unknown
}

// load makes the shots' scripts known.
func (l *lane) load(shots []*shot) {
	known := map[*Script]bool{}
	for _, s := range shots {
		if !known[s.script] {
			known[s.script] = true
			_ = l.r.load(context.Background(), s.call) // if that fails, the text will go along
		}
	}
}

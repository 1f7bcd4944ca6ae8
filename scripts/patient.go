package scripts

import (
	"context"
	"sync"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// Once makes one attempt, for callers that retry by themselves and run in a goroutine of their own.
// ctx bounds the time until the command is sent. The answer may take as long as a call may. Once
// waits for no batch. It uses go-redis's connections for pipelines, because other commands may
// occupy all other connections. On a cluster it returns early if the node does not answer and is
// replaced.
func (r *Runner) Once(ctx context.Context, s *Script, keys []any, args ...any) (Reply, error) {
	return r.once(ctx, Patience{}, s, keys, args)
}

// maxPatient is how many patient attempts at one server may be in flight at most, unless one is
// urgent.
const maxPatient = 8

// patientAttempts counts the patient attempts in flight at each server. Each node of a cluster has
// connections of its own. A connection may stay silent although the server answers on others. So
// half of the connections are left for further attempts.
type patientAttempts struct {
	connections int // how many there are to one server; does not change after NewRunner

	mu       sync.Mutex // guards inFlight
	inFlight map[any]int
}

// begin counts an attempt at a server if few are in flight there, and reports whether it did.
func (a *patientAttempts) begin(server any, urgent bool) bool {
	most := a.connections / 2
	if !urgent {
		most = min(most, maxPatient)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.inFlight[server] >= most {
		return false
	}
	if a.inFlight == nil {
		a.inFlight = map[any]int{}
	}
	a.inFlight[server]++
	return true
}

// end ends an attempt that begin has counted.
func (a *patientAttempts) end(server any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight[server]--
	if a.inFlight[server] == 0 {
		delete(a.inFlight, server)
	}
}

// node returns the node of a cluster that has a key. It returns nil if the node is not known, or
// without a cluster.
func (r *Runner) node(key any) any {
	if r.slots.client == nil {
		return nil
	}
	name, _ := key.(string)
	return r.Server(name)
}

// Patience says how long a patient attempt waits for its answer. The zero Patience stands for the
// runner's timeout.
type Patience struct {
	Until time.Time
	// Urgent means that the attempt may take a connection that other patient attempts must leave
	// free.
	Urgent bool
}

// once is Once with patience. A patient attempt waits longer for its answer than a call may take,
// if few attempts do so. Then once returns when ctx ends, and the attempt goes on in a goroutine of
// its own.
func (r *Runner) once(ctx context.Context, patience Patience, s *Script, keys, args []any) (Reply, error) {
	if err := r.register(ctx); err != nil {
		return Reply{}, err
	}
	defer r.running.Done()
	c := newCall(s, keys, args)
	end := r.ends.in(r.timeout)
	c.memory.joined = joinedContext{Context: ctx, values: ctx, until: end.until}
	c.ctx = &c.memory.joined
	r.bound(&c)
	attempt := func() (reply Reply, err error) {
		var met staleAnswers
		for {
			reply, err = r.slots.follow(ctx, c, func() (Reply, error) { return r.attempt(c.ctx, r.batch.timed, c) })
			repeats := met.isOld(r, err) && ctx.Err() == nil
			if !repeats {
				return reply, err
			}
		}
	}
	var reply Reply
	var err error
	var server any
	isPatient := false
	if patience.Until.After(end.until) && !r.isStopped() {
		server = r.node(c.key)
		isPatient = r.patient.begin(server, patience.Urgent)
	}
	if isPatient {
		c.memory.joined.until = patience.Until
		c.memory.joined.patient = true
		reply, err = r.oncePatiently(ctx, c, server, attempt)
	} else {
		reply, err = attempt()
	}
	if err != nil {
		got := classify(err)
		r.noteFailed(ctx, got)
		return Reply{}, newError(s.name, err, got.Outcome)
	}
	return reply, nil
}

// oncePatiently makes a patient attempt, which was counted for that server.
func (r *Runner) oncePatiently(
	ctx context.Context, c call, server any, attempt func() (Reply, error),
) (Reply, error) {
	type result struct {
		reply Reply
		err   error
	}
	began := time.Now()
	done := make(chan result, 1) // has room for the result, so that the goroutine ends in any case
	r.running.Go(func() {
		defer r.patient.end(server)
		reply, err := attempt()
		done <- result{reply, err}
	})
	select {
	case res := <-done:
		return res.reply, res.err
	case <-ctx.Done():
		err := failure.Interrupt(ctx, began)
		err.NotSent = c.mark.drop()
		return Reply{}, err
	}
}

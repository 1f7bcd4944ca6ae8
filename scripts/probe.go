package scripts

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/failure"
)

// prober finds out why a server does not answer. go-redis dials five times, 100 ms apart, before it
// reports that a connection was refused. A call that ends earlier could only say that its time is
// over.
//
// Therefore an attempt without an answer for failure.SilentAfter dials once, with the client's own
// dialer, and closes the connection at once. All attempts share the result. There is at most one
// dial at a time, and one in probePause.
type prober struct {
	r       *Runner
	options func() *redis.Options // the options of the client; nil if the prober never dials
	dialed  *lastDial             // the dials of the client; nil if they are unknown

	silent deadlines // the deadlines at which attempts count as silent

	mu    sync.Mutex
	busy  bool
	ended time.Time // when the last dial ended
	err   error     // the error of the last dial
}

const (
	probePause   = 250 * time.Millisecond
	probeTimeout = time.Second
	probeReserve = 20 * time.Millisecond // the time for a dialer to notice the end of its context
	probeSharing = 25 * time.Millisecond // attempts that begin within this time share a timer
)

// newProber returns a prober for the server that rdb connects to. For a cluster client it never
// dials, because each of the nodes has a prober.
func newProber(r *Runner, rdb redis.UniversalClient) *prober {
	p := &prober{r: r, dialed: r.dialed}
	if c, ok := rdb.(interface{ Options() *redis.Options }); ok {
		p.options = c.Options
	}
	return p
}

// due returns a channel that is closed failure.SilentAfter from now, or a little earlier. It
// returns nil if p never dials.
func (p *prober) due(now time.Time) <-chan struct{} {
	if p.options == nil {
		return nil
	}
	return p.silent.within(now, failure.SilentAfter-probeSharing, failure.SilentAfter).Done()
}

// start dials, unless a dial is under way, or has ended a moment ago. It does not block. The caller
// is registered in running.
func (p *prober) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	hasJustEnded := time.Since(p.ended) < probePause
	if p.busy || hasJustEnded {
		return
	}
	if p.r.isStopped() {
		return
	}
	p.busy = true
	p.r.running.Go(p.dial)
}

// soon starts a dial, if p ever dials, and returns how long to wait before isBack is asked.
func (p *prober) soon() time.Duration {
	if p.options == nil {
		return 0
	}
	p.start()
	return probeSharing
}

// isBack reports whether the latest dial succeeded, a moment ago.
func (p *prober) isBack() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err == nil && !p.busy && time.Since(p.ended) < 2*probePause
}

// dial dials once. It ends early when the runner stops.
func (p *prober) dial() {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	p.r.running.Go(func() {
		select {
		case <-p.r.closing:
			cancel()
		case <-ctx.Done():
		}
	})
	o := p.options()
	done := make(chan error, 1)
	go func() { // the application's dialer may ignore its context
		conn, err := o.Dialer(ctx, o.Network, o.Addr)
		if err == nil {
			_ = conn.Close()
		}
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(probeReserve):
			err = ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = false
	p.ended = time.Now()
	p.err = err
}

// explain adds to the error of an attempt that began at began why a dial failed meanwhile, if one
// did. With Sentinel the client's own dials may tell more than the prober's. The prober's dial has
// to wait for them, and times out while go-redis is still asking the Sentinels.
func (p *prober) explain(i *failure.Interrupted, began time.Time) *failure.Interrupted {
	if i.Silent < failure.SilentAfter {
		return i
	}
	p.mu.Lock()
	err := p.err
	ended := p.ended
	p.mu.Unlock()
	if p.dialed != nil {
		failed := p.dialed.failed.Load()
		saysMore := errors.Is(err, context.DeadlineExceeded) || (failed != nil && failed.at.After(ended))
		if failed != nil && saysMore {
			err = failed.err
			ended = failed.at
		}
	}
	isReason := err != nil && !errors.Is(err, context.Canceled)
	if isReason && ended.After(began.Add(-probePause)) {
		i.Why = err
	}
	return i
}

// ends are the errors that go-redis returns when it notices the end of a call. A read that ends
// with the call's deadline returns the last one.
var ends = []error{context.DeadlineExceeded, context.Canceled, os.ErrDeadlineExceeded}

// noticed returns the error of an attempt that began at began. If go-redis has noticed the end of
// the call before the caller did, the error is an interruption. The error of a dial that timed out
// looks the same, so the call must really be at its end. A dial has a timer of its own, which may
// fire a little before the context's.
func (p *prober) noticed(ctx context.Context, end *deadline, err error, began time.Time) error {
	if err == nil || !slices.ContainsFunc(ends, func(end error) bool { return errors.Is(err, end) }) {
		return err
	}
	until := end.until
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	if ctx.Err() == nil { // end may be over: it ends at its until
		if time.Until(until) > probeSharing {
			return err
		}
		select { // it ends at once, or in a moment
		case <-ctx.Done():
		case <-end.Done():
		}
	}
	if _, ok := errors.AsType[*failure.Interrupted](err); ok {
		return err
	}
	i := failure.Interrupt(ctx, began)
	_, i.NotSent = errors.AsType[*unsent](err)
	return p.explain(i, began)
}

// close stops the timer.
func (p *prober) close() { p.silent.close() }

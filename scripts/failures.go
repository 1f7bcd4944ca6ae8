package scripts

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// repeatedTries is how often a call with a context of Try repeats a command that Redis refuses for
// the moment.
const repeatedTries = 1

// elsewhere lists the prefixes of refusals that name another server. A call then asks that server.
var elsewhere = []string{"MOVED ", "ASK "}

// failures contains what a call knows about its failed attempts.
type failures struct {
	attempts int
	counted  int        // the attempts that use up the configured retries: all except temporary refusals
	refusals int        // the attempts that Redis has refused for the moment
	doubt    bool       // an attempt has an unknown outcome
	reason   error      // why the latest finished attempt failed
	slow     []*pending // earlier attempts that may still be answered
	former   staleAnswers
}

// removeSlow removes an attempt that has ended.
func (f *failures) removeSlow(ended *pending) {
	f.slow = slices.DeleteFunc(f.slow, func(p *pending) bool { return p == ended })
}

// dropSlow drops the slow attempts, and notes whether one of them was or may be executed. Their
// answers are not used.
func (f *failures) dropSlow() {
	for ended := f.nextEnded(); ended != nil; ended = f.nextEnded() {
		wasRefused := ended.err != nil && wasAnswered(ended.err)
		if !wasRefused && !ended.mark.drop() {
			f.doubt = true
		}
	}
	for _, p := range f.slow {
		if !p.mark.drop() {
			f.doubt = true
		}
	}
}

// nextEnded removes and returns a slow attempt that has ended. It returns nil if there is none.
func (f *failures) nextEnded() *pending {
	if len(f.slow) == 0 {
		return nil
	}
	select {
	case ended := <-f.slow[0].done:
		f.removeSlow(ended)
		return ended
	default:
		return nil
	}
}

// errAwaitSlow says that no further attempt is made, and that a slow one may still be answered.
var errAwaitSlow = errors.New("scripts: only slow attempts are left")

// afterFailure decides what follows when an attempt at c failed with err. It notes err in failed.
// If it returns nil, it has paused if it had to, and the caller makes another attempt now. If it
// returns errAwaitSlow, the caller waits for a slow attempt. Otherwise the call has failed, and
// afterFailure returns its [*failure.Error]. probe belongs to the server that was asked, if it is
// known.
func (r *Runner) afterFailure(
	ctx context.Context, c call, probe *prober, failed *failures, err error,
) error {
	got := classify(err)
	rereading := r.noteFailed(ctx, got)
	failed.doubt = failed.doubt || got.Outcome == failure.Unknown
	if failed.former.isOld(r, err) && ctx.Err() == nil {
		failed.reason = err
		return nil
	}
	if got.NotNow {
		failed.refusals++
	} else {
		failed.counted++
	}
	isLast := failed.counted > r.retries
	if isLast && dialedNothing(err, failed.reason) && r.sleep(ctx, c.end, probe.soon(), nil) {
		isLast = !probe.isBack()
	}
	interrupted, isInterrupted := errors.AsType[*failure.Interrupted](err)
	mayHelp := got.Retry() && !isInterrupted // another attempt
	if mayHelp && isLast && len(failed.slow) > 0 {
		return errAwaitSlow
	}
	isRefused := failed.refusals > repeatedTries && isTry(ctx) && !repliedWith(err, elsewhere...)
	isOver := !mayHelp || isLast || isRefused
	if isOver || !r.pause(ctx, c.end, failed.attempts, err, rereading) {
		// Add why the previous attempt failed. classify looks at the interruption first, so the
		// previous failure does not decide what the error means.
		if isInterrupted && failed.reason != nil {
			interrupted.Follow(failed.reason)
		}
		failed.dropSlow()
		outcome := got.Outcome
		if failed.doubt { // an earlier attempt may have been executed, whatever the last one says
			outcome = failure.Unknown
		}
		return newError(c.script.name, err, outcome)
	}
	failed.attempts++
	failed.reason = err
	return nil
}

// dialedNothing reports whether go-redis has returned the error of an earlier dial once more. When
// many dials have failed, go-redis dials only once a second, and the server may be back by now.
func dialedNothing(err, before error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	earlier, _ := errors.AsType[*net.OpError](before)
	return ok && dial == earlier && dial.Op == "dial"
}

// minRefusalDelay is the shortest delay after a temporary refusal, before jitter. The client may be
// configured without delays, and only the end of the call limits these attempts.
const minRefusalDelay = 10 * time.Millisecond

// pause waits before another attempt, after one that failed with err, and reports whether it may
// still be made. The delay doubles with each attempt, with jitter, so that clients do not retry in
// step. If the slot map is being read, pause waits briefly for the result: a retry on the old node
// would probably be wasted.
func (r *Runner) pause(ctx context.Context, end *deadline, attempt int, err error, rereading *reading) bool {
	if ctx.Err() != nil {
		return false
	}
	longest := r.maxDelay
	if repliedWith(err, "TRYAGAIN ") {
		longest = min(longest, maxMovingDelay)
	} else if isFormer(err) {
		longest = min(longest, maxFormerDelay)
	}
	delay := min(r.minDelay<<min(attempt, 20), longest)
	isUncounted := repliedWith(err, temporaryRefusals...) && !repliedWith(err, elsewhere...)
	if isUncounted {
		delay = max(delay, minRefusalDelay)
	}
	if delay > 0 {
		delay = delay/2 + rand.N(delay) //nolint:gosec // jitter
	}
	began := time.Now()
	if rereading != nil && !r.sleep(ctx, end, maxRerouting, rereading.done) {
		return false
	}
	return r.sleep(ctx, end, delay-time.Since(began), nil)
}

// sleep waits for d or until wake is closed. It returns false if the call ends or the runner stops
// before.
func (r *Runner) sleep(ctx context.Context, end *deadline, d time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-wake:
		return true
	case <-ctx.Done():
	case <-end.Done():
	case <-r.closing:
	}
	return false
}

package scripts

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// A caller sends its command by itself, in its own goroutine, while the server answers quickly.
// Another goroutine would cost more than the script for a free lock, because it wakes threads for
// the command and for the answer.
//
// The caller cannot return before go-redis does. The attempt therefore ends within inlineTimeout,
// whatever happens. Without an answer by then its outcome is unknown, and another goroutine sends
// the same command again at once. For the caller, and for the configured number of retries, that is
// the same attempt.
//
// Only a client that sends many commands gains from this. It soon has enough answers to tell that
// the server is quick. On a busy machine a few answers are slow although the server is quick, so
// they count only if there are more. Scripts that may be slow on a quick server are always sent by
// other goroutines.
//
// Without an answer go-redis closes the connection. A batcher uses few connections at a time, but a
// server that stalls again and again, or a process that is stopped again and again, would cost
// these connections each time. After such an attempt all commands are therefore sent by other
// goroutines for herePause, and for twice as long each time, up to maxHerePause. After hereReset
// without such an attempt, and after each manyAnswers quick answers, the pause is herePause again,
// because a new connection costs less than so many commands by other goroutines.
const (
	inlineTimeout = 30 * time.Millisecond // well below the 50 ms in which a call returns after its context has ended
	quickAnswer   = 5 * time.Millisecond
	quickAnswers  = 32 // the score of a server that is quick; the highest score is twice that
	slowCost      = 16 // how many quick answers it takes to make up for a slow one
	manyAnswers   = 10_000
	herePause     = 100 * time.Millisecond
	maxHerePause  = 30 * time.Second
	hereReset     = 2 * maxHerePause
)

// inlineStats is what the latest attempts say about the server: whether it answers, and whether it
// answers so quickly that callers may send by themselves. It is guarded by the batcher's mu.
type inlineStats struct {
	unanswered bool // the latest batch or command that has ended was not answered

	quick int           // a score: 1 more for each quick answer, slowCost less for each slow one
	count int           // the number of quick answers since it last reached manyAnswers
	until time.Time     // before this instant no caller sends by itself
	pause time.Duration // the length of the latest pause
	dials int           // the attempts that ended while go-redis dialed for them, since that pause began
}

// note counts the answer, or the lack of one, to an attempt that was sent at sent.
func (h *inlineStats) note(answered bool, sent time.Time) {
	h.unanswered = !answered
	switch {
	case !answered:
		h.quick = 0
	case time.Since(sent) >= quickAnswer:
		h.quick = max(h.quick-slowCost, 0)
	default:
		h.quick = min(h.quick+1, 2*quickAnswers)
		h.count++
		if h.count >= manyAnswers {
			h.count = 0
			h.pause = 0
		}
	}
}

// allowed reports whether callers may send by themselves now.
func (h *inlineStats) allowed(now time.Time) bool {
	return h.quick >= quickAnswers && !now.Before(h.until)
}

// dialing returns how many dials may go on for attempts that have ended, because go-redis keeps the
// connection for later commands. After the pause, only as many count as the client has under way.
// mu is held.
func (b *batcher) dialing(now time.Time) int {
	if b.inline.dials == 0 || now.Before(b.inline.until) {
		return b.inline.dials
	}
	return min(b.inline.dials, int(b.hook.dials.Load()))
}

// noteTimeout notes that an attempt in a caller's goroutine got no answer in time, or no
// connection. Several attempts at once begin one pause.
func (h *inlineStats) noteTimeout(now time.Time, connected bool) {
	if !now.Before(h.until) {
		h.beginPause(now)
	}
	if !connected {
		h.dials++
	}
}

// beginPause begins a pause.
func (h *inlineStats) beginPause(now time.Time) {
	h.pause = min(2*h.pause, maxHerePause)
	if h.pause == 0 || now.Sub(h.until) > hereReset {
		h.pause = herePause
	}
	h.until = now.Add(h.pause)
	h.dials = 0
}

// maySendInline reports whether a caller may send a command by itself now, and counts it in direct
// if so. The caller then calls sendInline.
func (b *batcher) maySendInline(ctx context.Context, s *Script, now time.Time) bool {
	isShort := b.r.timeout <= 2*inlineTimeout // the command timeout leaves no time for another goroutine's attempt
	if s.slow || isShort {
		return false
	}
	if !b.ours || b.r.isStopped() {
		return false
	}
	if end, ok := ctx.Deadline(); ok && end.Sub(now) <= inlineTimeout {
		return false // the connection would have to be dialed again, or the end of ctx would be missed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	isBatching := b.full || b.slots+b.lateBatches > 0 // then a command may wait until many others have been executed
	if isBatching || !b.hasRoom(now) {
		return false
	}
	if !b.inline.allowed(now) {
		return false
	}
	b.direct++
	return true
}

// errElsewhere is the error of sendInline if the command must be sent by another goroutine.
var errElsewhere = errors.New("scripts: to be sent by another goroutine")

// sendInline makes one attempt at c, which began at began, in the caller's goroutine. If it returns
// errElsewhere, the attempt goes on in another goroutine, and doubt says whether the command may
// have been executed already.
func (b *batcher) sendInline(ctx context.Context, c call, began time.Time) (reply Reply, doubt bool, err error) {
	end := b.inlineEnds.within(began, inlineTimeout*3/4, inlineTimeout)
	c.memory.inline = joinedContext{Context: end, values: ctx, until: end.until}
	c.mark.begin(&c.memory.inline, c.script)
	cmd := newCmd(&c.memory.inline, c.firstKey, c.args...)
	var returned, answered, late bool
	sent := time.Now() // before the command is written, so that a TTL that it sets counts from no later than this
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.direct--
		if !returned { // a hook of go-redis has panicked, which says nothing about the server
			return
		}
		b.inline.note(answered, sent)
		if late {
			b.inline.noteTimeout(time.Now(), doubt)
		}
	}()
	reply, err = cmd.reply(sent, b.timed.Process(&c.memory.inline, cmd))
	returned = true
	answered = wasAnswered(err)
	b.r.recovery.note(c.key, err)
	late = errors.Is(err, os.ErrDeadlineExceeded) || // the error of a read or a write
		errors.Is(err, context.DeadlineExceeded) // the error of the wait for a connection
	doubt = late && c.mark.wasWritten()
	switch {
	case late && ctx.Err() != nil:
		ended := failure.Interrupt(ctx, began)
		ended.NotSent = !doubt
		return Reply{}, doubt, ended
	case late:
		return Reply{}, doubt, errElsewhere
	case repliedWith(err, unknownScript, "MOVED ", "ASK "): // it was not executed
		if ctx.Err() != nil {
			return Reply{}, false, notSent(ctx, began)
		}
		return Reply{}, false, errElsewhere
	}
	b.r.noteAnswered(err)
	return reply, false, c.failed(err)
}

package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

var (
	// ErrClosed is the error of calls on a closed [Runner]. Nothing was sent.
	ErrClosed = errors.New("scripts: runner closed")
	// ErrOutcomeUnknown matches every [*Error] of unknown outcome. The command may have been executed,
	// or may still be.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNoAnswer is the cause of calls that ended with the command timeout, not with their context. It
	// matches [os.ErrDeadlineExceeded].
	ErrNoAnswer error = noAnswer{}

	errReplaced = errors.New("scripts: another node has replaced the one that did not answer")

	// ErrNotReplicated is the cause of [Reply].Unconfirmed: fewer replicas confirmed than were asked for.
	ErrNotReplicated = errors.New("not replicated")
)

// SilentAfter is how long an attempt waits for its answer, or for a connection, until Redis counts as
// silent. An attempt that its caller ends earlier says nothing about Redis.
const SilentAfter = 100 * time.Millisecond

// noAnswer is the type of ErrNoAnswer.
type noAnswer struct{}

func (noAnswer) Error() string        { return "no answer within the command timeout" }
func (noAnswer) Timeout() bool        { return true }
func (noAnswer) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// Outcome is what the runner knows about a command that did not succeed.
type Outcome uint8

const (
	// Unknown: the command was or may have been sent and got no answer. It may have been executed, or
	// may still be.
	Unknown Outcome = iota
	// NotExecuted: the command has had no effect and will have none.
	NotExecuted
	// Executed: Redis answered with an error of its own, such as WRONGTYPE or OOM.
	Executed
)

func (o Outcome) String() string {
	return [...]string{"outcome unknown", "not executed", "executed"}[o]
}

// Error is the error of all methods of [Runner].
type Error struct {
	Script  string
	Outcome Outcome // the outcome of all attempts together; Unknown if one of them is
	NotNow  bool    // Redis refused for a temporary reason, such as LOADING, and has not answered since
	Closed  bool    // the redis client is closed, so no later command can succeed
	// Answered: Redis answered the last attempt with an error of its own, whatever became of the attempts before it.
	Answered bool
	// Denied: the script was stopped halfway, because the user may not run one of its commands, or the server does not
	// have it. What it had written stays.
	Denied bool
	// Ended: the caller's context ended the call, and no attempt of it had failed before.
	Ended bool
	// Silent is how long the last attempt of a call that Ended had waited without an answer.
	Silent time.Duration
	Err    error
}

// Error does not name the script, because users know the operation, and not how it is done.
func (e *Error) Error() string {
	if e.Outcome == Unknown {
		return e.Err.Error() + " (outcome unknown)"
	}
	return e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is ErrOutcomeUnknown and the outcome is Unknown.
func (e *Error) Is(target error) bool {
	return target == ErrOutcomeUnknown && e.Outcome == Unknown
}

// failure returns the error of a call whose last attempt ended with err.
func failure(script string, err error, outcome Outcome) *Error {
	e := &Error{
		Script: script, Outcome: outcome, NotNow: classify(err).notNow, Closed: isClosed(err), Err: withoutScript(err),
	}
	switch u := e.Err.(type) { //nolint:errorlint // as attempts return it
	case *unsent:
		e.Err = u.cause
		e.NotNow = isTurnedAway(u.cause)
	case *unmapped:
		e.NotNow = e.NotNow || isTurnedAway(u.cause)
	}
	_, inScript := e.Err.(*scriptError) //nolint:errorlint // else the script was not run, or it has refused
	e.Denied = inScript && redisutil.LacksRights(err)
	if missing := lacking(script, err); missing != nil {
		e.Err = missing
		e.Denied = missing.inScript
	}
	if i, ok := errors.AsType[*interrupted](err); ok {
		e.Ended = i.ended && i.before == nil
		if e.Ended {
			e.Silent = i.silent
		}
		e.NotNow = !i.ended && i.before != nil && classify(i.before).notNow
	}
	return e
}

// isClosed reports whether an attempt failed because the redis client was closed. A caller's context
// may have redis.ErrClosed as its cause, which says nothing about the client.
func isClosed(err error) bool {
	_, own := errors.AsType[*interrupted](err)
	return !own && errors.Is(err, redis.ErrClosed)
}

// scriptSuffix matches the text that Redis adds to an error inside a script. Older servers put a similar text in front.
var (
	scriptSuffix = regexp.MustCompile(`,? script: [0-9a-zA-Z_]+, on @?[a-z_]+:\d+\.?$`)
	scriptPrefix = regexp.MustCompile(`^(-?ERR )?Error (running|compiling) script \(.*?\): (@[a-z_]+: ?\d+: )+`)
)

// withoutScript removes from the text of an error reply where in a script it occurred. The result wraps
// the reply and is an error of Redis, too.
func withoutScript(err error) error {
	reply, ok := err.(redis.Error) //nolint:errorlint // as go-redis returns it
	if !ok {
		return err
	}
	text := scriptPrefix.ReplaceAllString(scriptSuffix.ReplaceAllString(reply.Error(), ""), "")
	if text == reply.Error() {
		return err
	}
	return &scriptError{text, err}
}

// scriptError is an error reply to a script, without the place in the script.
type scriptError struct {
	text string
	err  error
}

func (e *scriptError) Error() string { return e.text }
func (e *scriptError) Unwrap() error { return e.err }

// RedisError makes it a [redis.Error].
func (e *scriptError) RedisError() {}

// CutShort returns the error of a call whose context ended for cause when it had waited that long.
func CutShort(cause error, silent time.Duration) error {
	i := &interrupted{cause: cause, ended: true, limit: !errors.Is(cause, context.Canceled), silent: silent}
	return failure("", i, Unknown)
}

// OutcomeOf returns the outcome in an error of [Runner]; NotExecuted for any other error and for
// nil.
func OutcomeOf(err error) Outcome {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	return NotExecuted
}

// IsRefusal reports whether err is an answer of Redis that another attempt would get, too, such as WRONGPASS.
func IsRefusal(err error) bool { return classify(err).outcome == Executed }

// interrupted is the error of an attempt whose caller stopped waiting.
type interrupted struct {
	cause   error
	notSent bool          // the command was not sent and will not be
	ended   bool          // the caller's context has ended it, and not the command timeout
	limit   bool          // a deadline has ended it, and not a cancellation
	silent  time.Duration // how long the attempt had waited
	why     error         // why there was no answer, as far as that is known
	before  error         // why the attempt before it failed; nil if there was none
}

// endedEarly reports whether the caller has stopped waiting before the lack of an answer says anything about the
// server.
func (e *interrupted) endedEarly() bool { return e.ended && e.silent < SilentAfter }

// Error names the silence first, because that is the problem to solve.
func (e *interrupted) Error() string {
	if e.ended && e.silent >= SilentAfter {
		text := "no answer for " + e.silent.Round(time.Millisecond).String()
		if e.why != nil {
			text += ": " + e.why.Error()
		}
		return text + ": " + e.cause.Error()
	}
	if e.why != nil {
		return e.cause.Error() + ": " + e.why.Error()
	}
	return e.cause.Error()
}

func (e *interrupted) Unwrap() []error {
	if e.why != nil {
		return []error{e.cause, e.why}
	}
	return []error{e.cause}
}

// follows notes why the attempt before it failed. The text of that appears once.
func (e *interrupted) follows(before error) {
	e.before = before
	switch {
	case e.why == nil:
		e.why = fmt.Errorf("before that: %w", before)
	case e.why.Error() != before.Error():
		e.why = fmt.Errorf("%w: before that: %w", e.why, before)
	}
}

// Is reports whether target is [os.ErrDeadlineExceeded] and a time limit ended a silence.
func (e *interrupted) Is(target error) bool {
	return target == os.ErrDeadlineExceeded && e.limit && e.silent >= SilentAfter
}

// interruption returns the error of a call that ended before its attempt, which began then. The call ended with the
// cause of ctx or, if ctx has not ended, with the command timeout.
func interruption(ctx context.Context, began time.Time) *interrupted {
	err := &interrupted{cause: ErrNoAnswer, silent: time.Since(began)}
	if cause := context.Cause(ctx); cause != nil {
		err.cause, err.ended, err.limit = cause, true, isTimeLimit(ctx.Err()) || isTimeLimit(cause)
		if until, ok := ctx.Deadline(); ok && err.limit { // a busy machine may notice the end late
			err.silent = max(0, min(err.silent, until.Sub(began)))
		}
	}
	return err
}

// isTimeLimit reports whether err, which is the error or the cause of a context, says that a time was over.
func isTimeLimit(err error) bool {
	limit, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && limit.Timeout()
}

// notSent returns the error of a call that ended before its command was sent, or before it was sent again after an
// answer that it was not executed. began is when the call began to wait.
func notSent(ctx context.Context, began time.Time) *interrupted {
	if joined, ok := ctx.(*joinedContext); ok {
		ctx = joined.values // the caller's own, which may have ended without a cause that joined can see
	}
	err := interruption(ctx, began)
	err.notSent = true
	return err
}

// unsent is the error of an attempt whose command was not written to a connection, because the dial or the handshake
// has failed, a limiter or a hook has refused it, or no connection was free.
type unsent struct{ cause error }

func (e *unsent) Error() string { return e.cause.Error() }
func (e *unsent) Unwrap() error { return e.cause }

// isTurnedAway reports whether a server, or a load balancer before it, has closed a new connection, because it has too
// many clients, or no backend at the moment.
func isTurnedAway(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// unmapped is the error of an attempt for which the slot map could not be read.
type unmapped struct{ cause error }

func (e *unmapped) Error() string { return "read the slot map: " + e.cause.Error() }
func (e *unmapped) Unwrap() error { return e.cause }

// errorClass says what the error of one attempt means.
type errorClass struct {
	outcome   Outcome
	transient bool // another attempt may succeed
	notNow    bool // it is a temporary refusal, so the call retries until it ends, however often
}

// temporaryRefusals lists the prefixes of Redis errors which say that a command was not executed and may be tried
// later.
var temporaryRefusals = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "MISCONF ", "BUSY ", "MOVED ",
	"ASK ", "ERR max number of clients", "max number of clients",
}

// repliedWith reports whether err is an error reply of Redis that begins with one of the prefixes.
func repliedWith(err error, prefixes ...string) bool {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return false
	}
	text := reply.Error()
	if strings.HasPrefix(text, "ERR Error running script") { // the error of a command in the script, before Redis 7
		text = strings.TrimPrefix(scriptPrefix.ReplaceAllString(text, ""), "-")
	}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// classify returns the class of a non-nil error of one attempt. redis.Nil is an answer, not an
// error, and is not passed here.
func classify(err error) errorClass {
	// This is checked first, because the cause may be any error of the caller, such as redis.ErrClosed.
	if i, ok := errors.AsType[*interrupted](err); ok {
		if i.notSent {
			return errorClass{NotExecuted, false, false}
		}
		return errorClass{Unknown, false, false}
	}
	if repliedWith(err, temporaryRefusals...) {
		return errorClass{NotExecuted, true, true}
	}
	if u, ok := errors.AsType[*unmapped](err); ok {
		class := classify(u.cause)
		if class.outcome == Unknown {
			class.outcome = NotExecuted // only the result of the reading is in doubt
		}
		return class
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return errorClass{Executed, false, false}
	}
	if u, ok := errors.AsType[*unsent](err); ok {
		return errorClass{NotExecuted, !errors.Is(u.cause, redis.ErrClosed), false}
	}
	// Without a connection nothing was sent.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return errorClass{NotExecuted, true, false}
	}
	switch {
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return errorClass{NotExecuted, true, false}
	case errors.Is(err, redis.ErrClosed):
		return errorClass{NotExecuted, false, false}
	}
	// Any other error, such as a broken connection, may have come after the command was sent.
	return errorClass{Unknown, true, false}
}

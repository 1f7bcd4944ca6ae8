package scripts

import (
	"context"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/redisutil"
)

// What the errors of go-redis, and the answers of Redis, say about a command. Package failure has
// the types.
//
//	the error                                                 the outcome   repeated
//	a reply of Redis, such as WRONGTYPE, OOM or NOPERM        executed      no
//	LOADING, READONLY, MOVED, CLUSTERDOWN and the like        not executed  yes, while the call lasts
//	the command was not written (sending.go): a dial or a
//	  handshake failed, no connection was free, a limiter
//	  or a hook refused                                       not executed  yes
//	the context ended while the command was still queued      not executed  no
//	the context or the command timeout ended after the
//	  command was written                                     unknown       no
//	the client of go-redis is closed                          not executed  no, neither by waiters nor in the background
//	any other transport error                                 unknown       yes
//
// If one attempt has an unknown outcome, so has the call, unless a later attempt succeeds.

var errReplaced = errors.New("scripts: another node has replaced the one that did not answer")

// newError returns the error of a call whose last attempt ended with err. outcome covers all its
// attempts.
func newError(script string, err error, outcome failure.Outcome) *failure.Error {
	last := classify(err)
	e := &failure.Error{Failure: last, Err: withoutScript(err)}
	e.Outcome = outcome
	e.Answered = last.Outcome == failure.Executed
	switch u := e.Err.(type) { //nolint:errorlint // as attempts return it
	case *unsent:
		e.Err = u.cause
		e.NotNow = isTurnedAway(u.cause)
	case *unmapped:
		e.NotNow = e.NotNow || isTurnedAway(u.cause)
	}
	_, inScript := e.Err.(*scriptError) //nolint:errorlint // otherwise the script was not run, or it has refused
	e.Denied = inScript && redisutil.LacksRights(err)
	if missing := lacking(script, err); missing != nil {
		e.Err = missing
		e.Denied = missing.inScript
	}
	e.Final = e.Answered && isFinal(e.Err)
	if i, ok := errors.AsType[*failure.Interrupted](err); ok {
		e.CallerEnded = i.Ended && i.Before == nil
		if e.CallerEnded {
			e.Waited = i.Silent
		}
		e.NotNow = !i.Ended && i.Before != nil && classify(i.Before).NotNow
	}
	return e
}

// ForeignReply is how the scripts' errors for keys with another program's data begin. See
// scripts/lib/holder.lua.
const ForeignReply = "FOREIGN "

// IsForeign reports whether err is such an error.
func IsForeign(err error) bool { return err != nil && redis.HasErrorPrefix(err, ForeignReply) }

// IsWrongType reports whether a key holds another type than a script expects. The text of miniredis
// is different.
func IsWrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// isFinal reports whether an answer of Redis stays the same until a person changes a key or a
// permission. Other errors may pass by themselves: a full memory, a password that is being rotated,
// or a proxy without a server.
func isFinal(err error) bool {
	return IsForeign(err) || IsWrongType(err) || redisutil.LacksRights(err)
}

// scriptSuffix matches the text that Redis adds to an error inside a script. Older servers put a
// similar text in front.
var (
	scriptSuffix = regexp.MustCompile(`,? script: [0-9a-zA-Z_]+, on @?[a-z_]+:\d+\.?$`)
	scriptPrefix = regexp.MustCompile(`^(-?ERR )?Error (running|compiling) script \(.*?\): (@[a-z_]+: ?\d+: )+`)
)

// withoutScript removes from the text of an error reply where in a script it occurred. The result
// wraps the reply and is an error of Redis, too.
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

// Refused returns the error of a command that Redis has refused with err, and would refuse again,
// for example with WRONGPASS. isRefusal is false for other errors.
func Refused(err error) (refused *failure.Error, isRefusal bool) {
	f := classify(err)
	f.Answered = true
	f.Final = isFinal(err)
	return &failure.Error{Failure: f, Err: err}, f.Outcome == failure.Executed
}

// notSent returns the error of a call that ended before its command was sent, or before it was sent
// again after an answer that it was not executed. began is when the call began to wait.
func notSent(ctx context.Context, began time.Time) *failure.Interrupted {
	if joined, ok := ctx.(*joinedContext); ok {
		ctx = joined.values // the caller's own context may have ended with a cause that joined does not have
	}
	err := failure.Interrupt(ctx, began)
	err.NotSent = true
	return err
}

// unsent is the error of an attempt whose command was not written to a connection, because the dial
// or the handshake has failed, a limiter or a hook has refused it, or no connection was free.
type unsent struct{ cause error }

func (e *unsent) Error() string { return e.cause.Error() }
func (e *unsent) Unwrap() error { return e.cause }

// isTurnedAway reports whether a server, or a load balancer in front of it, has closed a new
// connection, because it has too many clients, or no backend at the moment.
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

// temporaryRefusals lists the prefixes of Redis errors which say that a command was not executed
// and may be tried later.
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
	if strings.HasPrefix(text, "ERR Error running script") { // a command's error inside a script, before Redis 7
		text = strings.TrimPrefix(scriptPrefix.ReplaceAllString(text, ""), "-")
	}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
}

// classify returns what a non-nil error of one attempt means, as far as its own call needs that:
// the outcome, whether it is a temporary refusal (NotNow), for which the call retries until it
// ends, and whether the client is closed. redis.Nil is an answer, not an error, and is not passed
// here.
func classify(err error) failure.Failure {
	// This is checked first, because the cause may be any error of the caller, such as
	// redis.ErrClosed.
	if i, ok := errors.AsType[*failure.Interrupted](err); ok {
		if i.NotSent {
			return failure.Failure{Outcome: failure.NotExecuted}
		}
		return failure.Failure{Outcome: failure.Unknown}
	}
	f := failure.Failure{Outcome: outcomeOf(err), Closed: errors.Is(err, redis.ErrClosed)}
	f.NotNow = repliedWith(err, temporaryRefusals...)
	return f
}

// outcomeOf returns the outcome of an attempt that ended with err, which is not an interruption.
func outcomeOf(err error) failure.Outcome {
	if repliedWith(err, temporaryRefusals...) {
		return failure.NotExecuted
	}
	if u, ok := errors.AsType[*unmapped](err); ok {
		outcome := outcomeOf(u.cause)
		if outcome == failure.Unknown {
			return failure.NotExecuted // only the result of the reading is in doubt
		}
		return outcome
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return failure.Executed
	}
	if _, ok := errors.AsType[*unsent](err); ok {
		return failure.NotExecuted
	}
	// Without a connection nothing was sent.
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return failure.NotExecuted
	}
	for _, never := range []error{redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrClosed} {
		if errors.Is(err, never) {
			return failure.NotExecuted
		}
	}
	// Any other error, such as a broken connection, may have come after the command was sent.
	return failure.Unknown
}

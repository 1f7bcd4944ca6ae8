package scripts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrClosed is the error of calls on a closed [Runner]. Nothing was sent.
	ErrClosed = errors.New("scripts: runner closed")
	// ErrOutcomeUnknown matches every [*Error] of unknown outcome: the command may have been executed,
	// or may still be.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNoAnswer is the cause of calls that ended with the command timeout, not with their context.
	ErrNoAnswer = errors.New("no answer within the command timeout")

	errReplaced = errors.New("scripts: another node has replaced the one that did not answer")

	// ErrNotReplicated is the cause of [Reply].Unconfirmed: fewer replicas confirmed than were asked for.
	ErrNotReplicated = errors.New("not replicated")
)

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
	Outcome Outcome // of all attempts: Unknown if one of them is
	NotNow  bool    // Redis refused for a temporary reason, such as LOADING
	Closed  bool    // the redis client is closed: no later command can succeed
	Err     error
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%s): %v", e.Script, e.Outcome, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is ErrOutcomeUnknown and the outcome is Unknown.
func (e *Error) Is(target error) bool {
	return target == ErrOutcomeUnknown && e.Outcome == Unknown
}

// failure makes the error of a call whose last attempt ended with err.
func failure(script string, err error, outcome Outcome) *Error {
	return &Error{
		Script: script, Outcome: outcome, NotNow: classify(err).notNow, Closed: isClosed(err), Err: err,
	}
}

// isClosed reports whether an attempt failed because the redis client was closed. A caller's context
// may have redis.ErrClosed as its cause, which says nothing about the client.
func isClosed(err error) bool {
	_, own := errors.AsType[*interrupted](err)
	return !own && errors.Is(err, redis.ErrClosed)
}

// OutcomeOf returns the outcome in an error of [Runner]; NotExecuted for any other error and for
// nil.
func OutcomeOf(err error) Outcome {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	return NotExecuted
}

// interrupted is the error of an attempt whose caller stopped waiting.
type interrupted struct {
	cause   error
	notSent bool // the command was not sent and will not be
}

func (e *interrupted) Error() string { return e.cause.Error() }
func (e *interrupted) Unwrap() error { return e.cause }

// interruption returns the error of a call that ended before its attempt: with ctx's cause, or, if
// ctx has not ended, with the command timeout.
func interruption(ctx context.Context) *interrupted {
	if cause := context.Cause(ctx); cause != nil {
		return &interrupted{cause: cause}
	}
	return &interrupted{cause: ErrNoAnswer}
}

// notSent returns the error of a call that ended before its command was sent, or sent again after an answer
// that it was not executed.
func notSent(ctx context.Context) *interrupted {
	err := interruption(ctx)
	err.notSent = true
	return err
}

// unmapped is the error of an attempt for which the slot map could not be read.
type unmapped struct{ cause error }

func (e *unmapped) Error() string { return "read the slot map: " + e.cause.Error() }
func (e *unmapped) Unwrap() error { return e.cause }

// errorClass says what the error of one attempt means.
type errorClass struct {
	outcome   Outcome
	transient bool // another attempt may succeed
	notNow    bool // a temporary refusal: retry until the call ends, however often
}

// temporaryRefusals lists the prefixes of Redis errors that say: not executed, try again later.
var temporaryRefusals = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "BUSY ", "MOVED ", "ASK ",
	"ERR max number of clients", "max number of clients",
}

// repliedWith reports whether err is an error reply of Redis that begins with one of the prefixes.
func repliedWith(err error, prefixes ...string) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(reply.Error(), prefix)
	})
}

// classify returns the class of a non-nil error of one attempt. redis.Nil is an answer, not an
// error, and is not passed here.
func classify(err error) errorClass {
	// Check this first: the cause may be any error of the caller's, such as redis.ErrClosed.
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
			class.outcome = NotExecuted // only the reading is in doubt
		}
		return class
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return errorClass{Executed, false, false}
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

package scripts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrClosed is what a closed [Runner] answers. Nothing was sent.
	ErrClosed = errors.New("scripts: runner closed")
	// ErrOutcomeUnknown matches every [*Error] of unknown outcome: the command may have been executed,
	// or may still be.
	ErrOutcomeUnknown = errors.New("outcome unknown")

	errNoConn   = errors.New("scripts: this redis client cannot pin a connection for WAIT")
	errNoAnswer = errors.New("no answer within the command timeout")
)

// Outcome is what is known of a command that did not succeed.
type Outcome uint8

const (
	// Unknown: sent, perhaps executed, perhaps still to be executed. No answer came.
	Unknown Outcome = iota
	// NotExecuted: certain to have had no effect, now or later.
	NotExecuted
	// Executed: Redis answered with an error of its own, such as WRONGTYPE or OOM.
	Executed
)

func (o Outcome) String() string {
	return [...]string{"outcome unknown", "not executed", "executed"}[o]
}

// Error is how [Runner.Do] fails.
type Error struct {
	Script  string
	Outcome Outcome // over all attempts: one of unknown outcome makes the whole unknown
	NotNow  bool    // Redis refused for a reason that will pass, such as LOADING
	Err     error
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%s): %v", e.Script, e.Outcome, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is ErrOutcomeUnknown and the outcome is.
func (e *Error) Is(target error) bool {
	return target == ErrOutcomeUnknown && e.Outcome == Unknown
}

func failure(script string, err error, outcome Outcome) *Error {
	return &Error{Script: script, Outcome: outcome, NotNow: classify(err).notNow, Err: err}
}

// OutcomeOf reads the outcome from an error of [Runner.Do]; of any other error it is NotExecuted.
func OutcomeOf(err error) Outcome {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	return NotExecuted
}

// interrupted ends an attempt that its caller does not wait for any longer.
type interrupted struct {
	cause   error
	notSent bool // and never will be
}

func (e *interrupted) Error() string { return e.cause.Error() }
func (e *interrupted) Unwrap() error { return e.cause }

// interruption tells why a call ended before its attempt: ctx's cause, or else the command timeout.
func interruption(ctx context.Context) *interrupted {
	if cause := context.Cause(ctx); cause != nil {
		return &interrupted{cause: cause}
	}
	return &interrupted{cause: errNoAnswer}
}

// reading is how one attempt's error reads.
type reading struct {
	outcome   Outcome
	transient bool // worth another attempt
	notNow    bool // a refusal that will pass: worth attempts for as long as the call lasts
}

// passing lists the server's own refusals to execute anything just now.
var passing = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "BUSY ", "MOVED ", "ASK ",
	"ERR max number of clients", "max number of clients",
}

// classify reads a non-nil error of one attempt. redis.Nil is no error and does not come here.
func classify(err error) reading {
	if i, ok := errors.AsType[*interrupted](err); ok { // whatever its cause is
		if i.notSent {
			return reading{NotExecuted, false, false}
		}
		return reading{Unknown, false, false}
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		for _, prefix := range passing {
			if strings.HasPrefix(reply.Error(), prefix) {
				return reading{NotExecuted, true, true}
			}
		}
		return reading{Executed, false, false}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return reading{NotExecuted, true, false}
	}
	switch {
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return reading{NotExecuted, true, false}
	case errors.Is(err, redis.ErrClosed), errors.Is(err, errNoConn):
		return reading{NotExecuted, false, false}
	}
	return reading{Unknown, true, false}
}

func isNoScript(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && strings.HasPrefix(reply.Error(), "NOSCRIPT")
}

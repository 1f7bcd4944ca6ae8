package scripts

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrClosed is what a closed [Runner] answers. Nothing was sent.
var ErrClosed = errors.New("scripts: runner closed")

// errNoConn: the redis client is of a kind that cannot pin a connection.
var errNoConn = errors.New("scripts: this redis client cannot pin a connection for WAIT")

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
	Err     error
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%s): %v", e.Script, e.Outcome, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// OutcomeOf reads the outcome from an error of [Runner.Do]; of any other error it is NotExecuted.
func OutcomeOf(err error) Outcome {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	return NotExecuted
}

// interrupted is what ends an attempt that its caller waited for no longer.
type interrupted struct{ cause error }

func (e *interrupted) Error() string { return e.cause.Error() }
func (e *interrupted) Unwrap() error { return e.cause }

// reading is how one attempt's error reads.
type reading struct {
	outcome   Outcome
	transient bool // worth another attempt
}

// passing are the server's own refusals to execute anything just now.
var passing = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "BUSY ", "MOVED ", "ASK ",
	"ERR max number of clients", "max number of clients",
}

// classify reads a non-nil error of one attempt. redis.Nil is no error and does not come here.
func classify(err error) reading {
	if _, ok := errors.AsType[*interrupted](err); ok { // whatever its cause is
		return reading{Unknown, false}
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		for _, prefix := range passing {
			if strings.HasPrefix(reply.Error(), prefix) {
				return reading{NotExecuted, true}
			}
		}
		return reading{Executed, false}
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return reading{NotExecuted, true}
	}
	switch {
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return reading{NotExecuted, true}
	case errors.Is(err, redis.ErrClosed), errors.Is(err, errNoConn):
		return reading{NotExecuted, false}
	}
	return reading{Unknown, true}
}

func isNoScript(err error) bool {
	reply, ok := errors.AsType[redis.Error](err)
	return ok && strings.HasPrefix(reply.Error(), "NOSCRIPT")
}

package primitives

import (
	"errors"
	"fmt"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// The errors that callers act upon, for [errors.Is].
var (
	// ErrNotAcquired: not acquired before the wait or the context ended. Transport errors and errors of
	// Redis do not match it by themselves; the last one that was met while waiting is joined to it.
	ErrNotAcquired = engine.ErrNotAcquired
	// ErrLost: the hold ended before it was released. Somebody else may hold the lock.
	ErrLost = engine.ErrLost
	// ErrNotHeld: that holder has nothing to give back.
	ErrNotHeld = engine.ErrNotHeld
	// ErrReleased: this hold was released or detached before. It matches ErrNotHeld too.
	ErrReleased = engine.ErrReleased
	// ErrDeadlock: the caller would wait for itself.
	ErrDeadlock = engine.ErrDeadlock
	// ErrUnsupported: this primitive has no such operation.
	ErrUnsupported = engine.ErrUnsupported
	// ErrClosed: the client is closed, or closing.
	ErrClosed = engine.ErrClosed
	// ErrInvalid: a name, an option or an argument is out of range. Nothing was sent to Redis.
	ErrInvalid = engine.ErrInvalid
	// ErrNotReplicated: fewer replicas than WithReplicas asks for confirmed the acquisition. It was rolled
	// back.
	ErrNotReplicated = errors.New("not replicated")
	// ErrOutcomeUnknown: Redis did not answer, so the command may have been executed, or may still be.
	// It accompanies the transport error. The library itself rolls back what a failed acquisition may
	// have taken.
	ErrOutcomeUnknown = scripts.ErrOutcomeUnknown
)

// Error says what failed, and on which primitive. It unwraps to the reason.
type Error struct {
	Op   string // such as "acquire"
	Kind string // such as "fair"
	Name string // the user's name
	Err  error
}

func (e *Error) Error() string {
	return fmt.Sprintf("redlatch: %s %s %q: %v", e.Op, e.Kind, e.Name, e.Err)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// failed adds the operation and the primitive to an error. A closed runner is a closed client.
func failed(r *engine.Resource, op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, scripts.ErrClosed) {
		err = ErrClosed
	}
	return &Error{Op: op, Kind: r.Kind, Name: r.Name, Err: err}
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// classify implements [engine.Config].Classify.
func classify(err error) engine.Failure {
	f := engine.Failure{Closed: errors.Is(err, scripts.ErrClosed)}
	if failure, ok := errors.AsType[*scripts.Error](err); ok {
		f.InDoubt = failure.Outcome == scripts.Unknown
		f.NotNow = failure.NotNow
		f.Retry = !f.Closed && (failure.Outcome != scripts.Executed || failure.NotNow)
	}
	// Redis executed the command; without the replicas' confirmation the acquisition does not count.
	f.InDoubt = f.InDoubt || errors.Is(err, ErrNotReplicated)
	return f
}

// unanswered implements [engine.Config].Unanswered.
func unanswered(cause error) error {
	return &scripts.Error{Script: "engine", Outcome: scripts.Unknown, Err: cause}
}

// isPassing reports whether err is a failure to reach Redis, or a refusal for the moment. A waiter rides
// it out.
func isPassing(err error) bool { return classify(err).Retry }

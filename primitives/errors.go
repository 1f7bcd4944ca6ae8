package primitives

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlatch/redlatch/scripts"
)

// The facts that callers act upon, for [errors.Is].
var (
	// ErrNotAcquired: not had before the wait or the context ended. Transport errors and Redis's own refusals do not match it by
	// themselves; one that was met while waiting is joined to it.
	ErrNotAcquired = errors.New("not acquired")
	// ErrLost: the hold ended before it was released. Somebody else may be inside.
	ErrLost = errors.New("lost")
	// ErrNotHeld: that holder has nothing to give back.
	ErrNotHeld = errors.New("not held")
	// ErrReleased: this hold was released or detached before. It matches ErrNotHeld too.
	ErrReleased error = releasedError{}
	// ErrDeadlock: waiting could never end, as the one to wait for is the caller.
	ErrDeadlock = errors.New("would deadlock")
	// ErrUnsupported: this primitive has no such operation.
	ErrUnsupported = errors.New("unsupported")
	// ErrClosed: the client is closed, or closing.
	ErrClosed = errors.New("client closed")
	// ErrInvalid: a name, an option or an argument is out of range. Redis was not touched.
	ErrInvalid = errors.New("invalid")
	// ErrNotReplicated: fewer replicas than WithReplicas wants confirmed the acquisition. It was given back.
	ErrNotReplicated = errors.New("not replicated")
	// ErrOutcomeUnknown: Redis did not answer, so the command may have been executed, or may still be.
	// It accompanies the transport error. The library itself rolls back what a failed acquisition may
	// have taken.
	ErrOutcomeUnknown = scripts.ErrOutcomeUnknown
)

type releasedError struct{}

func (releasedError) Error() string        { return "released" }
func (releasedError) Is(target error) bool { return target == ErrNotHeld }

// Error says what failed, and of which primitive. It unwraps to the fact.
type Error struct {
	Op   string // such as "acquire"
	Kind string // such as "fair"
	Name string // the user's name
	Err  error
}

func (e *Error) Error() string {
	return fmt.Sprintf("redlatch: %s %s %q: %v", e.Op, e.Kind, e.Name, e.Err)
}
func (e *Error) Unwrap() error { return e.Err }

// failed dresses an error for the caller. A closed runner is a closed client.
func (h *handle) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, scripts.ErrClosed) {
		err = ErrClosed
	}
	return &Error{Op: op, Kind: h.kind, Name: h.name, Err: err}
}

// gaveUp joins ErrNotAcquired with the context's cause, if it is the context that ended, and with what was met on the way.
func gaveUp(ctx context.Context, met error) error {
	err := ErrNotAcquired
	if cause := context.Cause(ctx); cause != nil && cause != errWaitOver { //nolint:errorlint // the very value
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if met != nil {
		err = fmt.Errorf("%w (%w)", err, met)
	}
	return err
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

package primitives

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/scripts"
)

// Every error of a method that needs Redis is an *Error around one of these, around an error of
// Redis, or around a transport error. Each states one fact, because callers act differently on
// each.

// The errors that callers act upon, for [errors.Is].
var (
	// ErrNotAcquired means that somebody else held it, or was earlier in the queue, when the wait
	// or the context ended. Redis has said so. If Redis has fallen silent since, the error matches
	// ErrUnavailable too.
	//
	// It is also the error of a wait or a context that was too short for an answer: below 100 ms,
	// nothing is known to be wrong.
	ErrNotAcquired = engine.ErrNotAcquired
	// ErrUnavailable means that Redis did not answer: an attempt failed, or had waited for 100 ms
	// or more for its answer or for a connection. The error also matches the reason, such as
	// [syscall.ECONNREFUSED] or [os.ErrDeadlineExceeded]. Redis also counts as not answering while
	// it refuses all commands, such as with LOADING or CLUSTERDOWN.
	ErrUnavailable = engine.ErrUnavailable
	// ErrLost means that the hold ended before it was released. Somebody else may hold the lock. A
	// [*LossError] says why.
	ErrLost = engine.ErrLost
	// ErrNotHeld means that the given id holds nothing, so there is nothing to release or adopt.
	ErrNotHeld = engine.ErrNotHeld
	// ErrReleased means that this hold was released or detached before. It matches ErrNotHeld too.
	ErrReleased = engine.ErrReleased
	// ErrDeadlock means that the caller would wait for itself: as a reader that wants to write, or
	// by a nested acquisition with [WithNonReentrant].
	ErrDeadlock = engine.ErrDeadlock
	// ErrUnsupported means that this primitive has no such operation, or that the server lacks a
	// command that the library needs, such as PUBLISH or EVALSHA: the error names it.
	ErrUnsupported = engine.ErrUnsupported
	// ErrClosed means that the client is closed, or closing.
	ErrClosed = engine.ErrClosed
	// ErrInvalid means that a name, an option or an argument is out of range. Nothing was sent to
	// Redis.
	ErrInvalid = engine.ErrInvalid
	// ErrNotReplicated means that fewer replicas confirmed than [WithReplicas] asks for. An
	// acquisition was rolled back. After Extend, the hold is valid as long as it was before. After
	// Adopt, nobody holds.
	ErrNotReplicated = failure.ErrNotReplicated
	// ErrForeign means that the key holds data of another program, such as a hash that is no lock.
	// The error says what it is. Nothing was changed. It is final: use another name.
	ErrForeign = errors.New("the key holds data of another program")
	// ErrOutcomeUnknown means that Redis did not answer, so the command may have been executed, or
	// may still be. The error wraps the transport error too. The library itself rolls back a failed
	// acquisition.
	ErrOutcomeUnknown = failure.ErrOutcomeUnknown
)

// Error says what failed, and on which primitive. It unwraps to the reason. For its fields use
// [errors.As]; for the reason, [errors.Is].
type Error struct {
	Op   string // such as "acquire"
	Kind string // such as "fair": see [Info].Kind
	Name string // the user's name
	Err  error
}

// Error returns a line such as: redlatch: acquire lock "orders:42": not acquired.
func (e *Error) Error() string {
	why := e.Err.Error()
	loss, isLoss := e.Err.(*LossError) //nolint:errorlint // this one
	if isLoss && loss.isOf(e.Kind, e.Name) {
		why = loss.text() // without naming the primitive again
	}
	return fmt.Sprintf("redlatch: %s %s %q: %s", e.Op, e.Kind, e.Name, why)
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// failed adds the operation and the primitive to an error. A nil error stays nil. It implements
// [engine.Errors].Describe. A closed runner is a closed client.
func failed(r *engine.Resource, op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, failure.ErrClosed) {
		err = ErrClosed
	}
	if _, lacks := errors.AsType[*scripts.LackingError](err); lacks && !errors.Is(err, ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if r.Core != nil {
		err = r.Core.Unavailable(err)
	}
	return &Error{Op: op, Kind: r.Kind, Name: r.Name, Err: describeForeign(r.Kind, err)}
}

// isTaken reports whether an acquisition failed with err because Redis said that somebody else
// holds it. A semaphore without a count gives no permits, but nobody has them either.
func isTaken(err error) bool {
	failed, ok := err.(*Error) //nolint:errorlint // of this acquisition
	return ok && engine.IsTaken(failed.Err) && !errors.Is(failed.Err, errNoCount)
}

// foreignError is an error of Redis that matches [ErrForeign].
type foreignError struct {
	text string // says what the key holds
	err  error
}

func (e *foreignError) Error() string        { return e.text }
func (e *foreignError) Is(target error) bool { return target == ErrForeign }
func (e *foreignError) Unwrap() error        { return e.err }

// describeForeign turns Redis's answer that a key does not hold what the primitive stores there
// into an error that says what the key holds. It returns other errors unchanged.
func describeForeign(kind string, err error) error {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok || errors.Is(err, ErrForeign) {
		return err
	}
	text := reply.Error()
	switch {
	case strings.HasPrefix(text, scripts.ForeignReply):
		return &foreignError{strings.TrimPrefix(text, scripts.ForeignReply), err}
	case scripts.IsWrongType(reply):
		return &foreignError{err.Error(), err}
	case isCounter(kind) && strings.Contains(text, "value is not an integer"):
		return &foreignError{holds("a string that is not an integer"), err}
	}
	return err
}

// isCounter reports whether the main key of a kind is a number, and not a hash.
func isCounter(kind string) bool {
	return kind == "semaphore" || kind == permitsKind || kind == "latch"
}

// holds returns a text that says what a key holds, in the words of the scripts.
func holds(what string) string { return "the key holds " + what + "; use another name" }

// notHeldBy returns [ErrNotHeld] with the id that holds nothing.
func notHeldBy(id string) error { return fmt.Errorf("%w by %q", ErrNotHeld, id) }

// invalid returns [ErrInvalid] with a reason.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

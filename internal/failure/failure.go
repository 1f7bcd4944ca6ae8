// Package failure says what a command's error means. Package scripts, which sends all commands,
// makes the errors. Callers pass them to [Of], which answers these questions:
//
//	Was the command executed, or may it still be?  Outcome, InDoubt, Denied, Unconfirmed
//	Has Redis answered?                            Answered, IsOutage
//	Is it worth repeating?                         Retry, NotNow, Final, Closed
//	For how long has Redis been silent?            Silent, if the caller Ended the command
//
// doc/decisions/silence.md compares this with the other places that notice whether Redis answers.
package failure

import (
	"context"
	"errors"
	"os"
	"time"
)

// SilentAfter is how long a command waits for its answer, or for a connection, until Redis counts
// as silent. A command that its caller ends earlier says nothing about Redis.
const SilentAfter = 100 * time.Millisecond

var (
	// ErrClosed is the error of commands after the client was closed. Nothing was sent.
	ErrClosed = errors.New("scripts: runner closed")
	// ErrOutcomeUnknown matches every [*Error] of unknown outcome. The command may have been
	// executed, or may still be.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNoAnswer is the cause of calls that ended with the command timeout, not with their
	// context. It matches [os.ErrDeadlineExceeded].
	ErrNoAnswer error = noAnswer{}
	// ErrNotReplicated says that a command was executed, and that fewer replicas confirmed it than
	// were asked for.
	ErrNotReplicated = errors.New("not replicated")
)

// noAnswer is the type of ErrNoAnswer.
type noAnswer struct{}

func (noAnswer) Error() string        { return "no answer within the command timeout" }
func (noAnswer) Timeout() bool        { return true }
func (noAnswer) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// Outcome is what is known about the execution of a command that did not succeed.
type Outcome uint8

const (
	// None: the error is not a command's. It comes from a reply that was read, or from this
	// library.
	None Outcome = iota
	// Unknown: the command was or may have been sent and got no answer. It may have been executed,
	// or may still be.
	Unknown
	// NotExecuted: the command has had no effect and will have none.
	NotExecuted
	// Executed: Redis answered with an error of its own, such as WRONGTYPE or OOM.
	Executed
)

func (o Outcome) String() string {
	return [...]string{"no command", "outcome unknown", "not executed", "executed"}[o]
}

// Failure is what a command's error means. The zero value stands for an error that is not a
// command's: nothing is in doubt, and another attempt would not help.
type Failure struct {
	Outcome Outcome // of all attempts together; Unknown if one of them is
	// Answered: Redis answered the last attempt with an error of its own, whatever became of the
	// attempts before it.
	Answered bool
	// Denied: Redis stopped the script halfway, because the user may not run one of its commands,
	// or the server does not have it. What the script had written stays.
	Denied bool
	// Unconfirmed: Redis executed the command, but too few replicas have confirmed it. A failover
	// may forget it.
	Unconfirmed bool
	// NotNow: Redis refused for a reason that will pass soon, such as LOADING, and has not answered
	// since.
	NotNow bool
	// Final: Redis has answered, and would give every repetition the same answer, until a person
	// changes something: the key holds data of another program, or the user lacks a permission.
	Final bool
	// Closed: the client is closed, so no later command can succeed.
	Closed bool
	// CallerEnded: the caller's context ended the command, and no attempt of it had failed before.
	CallerEnded bool
	// Waited is how long the last attempt had waited for an answer when the caller ended it.
	Waited time.Duration
}

// InDoubt reports whether the command may have been executed, or may still be, although it counts
// as failed. If so, it must be rolled back.
func (f Failure) InDoubt() bool { return f.Outcome == Unknown || f.Unconfirmed }

// Retry reports whether another attempt may succeed, because the server was not reached, or refuses
// for the moment. A waiter keeps waiting.
func (f Failure) Retry() bool {
	wasRefused := f.Outcome == Executed || f.Outcome == None
	return !wasRefused && !f.Closed
}

// IsOutage reports whether the failure says that the server does not answer, because an attempt
// failed, or waited for a long time. grace is how much longer than its caller's time the attempt
// was allowed to wait.
func (f Failure) IsOutage(grace time.Duration) bool {
	endedEarly := f.CallerEnded && f.Waited-grace < SilentAfter
	return f.Retry() && !f.Answered && !endedEarly
}

// Of returns what an error means. If several errors are joined, the first one of a command counts.
// A nil error is no failure.
func Of(err error) Failure {
	var f Failure
	if e, ok := errors.AsType[*Error](err); ok {
		f = e.Failure
	}
	f.Closed = f.Closed || errors.Is(err, ErrClosed)
	f.Unconfirmed = f.Unconfirmed || errors.Is(err, ErrNotReplicated)
	return f
}

// Error is a command's error. Its text does not name the script, because users know the operation,
// not how it is done.
type Error struct {
	Failure
	Err error
}

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

// Unanswered returns the error of a command whose caller stopped waiting because of cause. The
// command is still under way, so it is in doubt.
func Unanswered(cause error) error {
	return &Error{Failure{Outcome: Unknown}, cause}
}

// Silence returns the error of a command whose server counts as silent, however long the command
// has waited. If err says nothing about a command, the command counts as in doubt.
func Silence(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return Unanswered(err)
	}
	silent := *e
	silent.CallerEnded = false
	return &silent
}

// CutShort returns the error of a command that ctx has ended, and that has waited for an answer
// since began. The command is still under way, so it is in doubt.
func CutShort(ctx context.Context, began time.Time) error {
	i := Interrupt(ctx, began)
	i.Limit = !errors.Is(i.Cause, context.Canceled) // any cause of the caller's own counts as a limit
	return &Error{Failure{Outcome: Unknown, CallerEnded: i.Ended, Waited: i.Silent}, i}
}

// WithoutDoubt returns a command's error without its doubt, for a request that is rolled back
// whatever became of the command.
func WithoutDoubt(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Outcome != Unknown {
		return err
	}
	known := *e
	known.Outcome = NotExecuted
	return &known
}

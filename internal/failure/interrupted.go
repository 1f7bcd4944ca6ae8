package failure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Interrupted is the error of an attempt whose caller stopped waiting.
type Interrupted struct {
	Cause   error
	NotSent bool          // the command was not sent and will not be
	Ended   bool          // the caller's context has ended it, not the command timeout
	Limit   bool          // a deadline has ended it, not a cancellation
	Silent  time.Duration // how long the attempt had waited
	Why     error         // why there was no answer, as far as that is known
	Before  error         // why the previous attempt failed; nil if there was none
}

// Interrupt returns the error of a call that ended before its attempt, which began at began. The
// call ended with the cause of ctx or, if ctx has not ended, with the command timeout.
func Interrupt(ctx context.Context, began time.Time) *Interrupted {
	err := &Interrupted{Cause: ErrNoAnswer, Silent: time.Since(began)}
	if cause := context.Cause(ctx); cause != nil {
		err.Cause = cause
		err.Ended = true
		err.Limit = isTimeLimit(ctx.Err()) || isTimeLimit(cause)
		if until, ok := ctx.Deadline(); ok && err.Limit { // a busy machine may notice the end late
			err.Silent = max(0, min(err.Silent, until.Sub(began)))
		}
	}
	return err
}

// isTimeLimit reports whether err, which is the error or the cause of a context, says that a time
// limit was over.
func isTimeLimit(err error) bool {
	limit, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && limit.Timeout()
}

// Follow notes why the previous attempt failed. If both reasons have the same text, it appears
// once.
func (e *Interrupted) Follow(before error) {
	e.Before = before
	switch {
	case e.Why == nil:
		e.Why = fmt.Errorf("before that: %w", before)
	case e.Why.Error() != before.Error():
		e.Why = fmt.Errorf("%w: before that: %w", e.Why, before)
	}
}

// EndedEarly reports whether the caller stopped waiting before the lack of an answer said anything
// about the server.
func (e *Interrupted) EndedEarly() bool { return e.Ended && e.Silent < SilentAfter }

// Error names the silence first, because that is the problem to solve.
func (e *Interrupted) Error() string {
	if e.Ended && e.Silent >= SilentAfter {
		text := SilenceError(e.Silent).Error()
		if e.Why != nil {
			text += ": " + e.Why.Error()
		}
		return text + ": " + e.Cause.Error()
	}
	if e.Why != nil {
		return e.Cause.Error() + ": " + e.Why.Error()
	}
	return e.Cause.Error()
}

func (e *Interrupted) Unwrap() []error {
	if e.Why != nil {
		return []error{e.Cause, e.Why}
	}
	return []error{e.Cause}
}

// Is reports whether target is [os.ErrDeadlineExceeded] and a time limit ended a silence.
func (e *Interrupted) Is(target error) bool {
	return target == os.ErrDeadlineExceeded && e.Limit && e.Silent >= SilentAfter
}

// SilenceError is the error of an attempt that is still under way, and has waited that long.
type SilenceError time.Duration

// Is reports whether target is the error of a time limit.
func (d SilenceError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

func (d SilenceError) Error() string {
	return "no answer for " + time.Duration(d).Round(time.Millisecond).String()
}

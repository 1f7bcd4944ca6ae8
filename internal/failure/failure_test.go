package failure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The answers to the questions of the package comment.
func TestOf(t *testing.T) {
	fails := func(f Failure) error { return fmt.Errorf("acquire: %w", &Error{f, io.EOF}) }
	for name, tt := range map[string]struct {
		err                      error
		inDoubt, retry, isOutage bool
	}{
		"no error":                  {nil, false, false, false},
		"not of a command":          {io.EOF, false, false, false},
		"not sent":                  {fails(Failure{Outcome: NotExecuted}), false, true, true},
		"no answer":                 {fails(Failure{Outcome: Unknown}), true, true, true},
		"an answer":                 {fails(Failure{Outcome: Executed, Answered: true}), false, false, false},
		"no answer, then an answer": {fails(Failure{Outcome: Unknown, Answered: true}), true, true, false},
		"ended early": {
			fails(Failure{Outcome: Unknown, CallerEnded: true, Waited: SilentAfter - 1}), true, true, false,
		},
		"ended after a silence": {
			fails(Failure{Outcome: Unknown, CallerEnded: true, Waited: SilentAfter}), true, true, true,
		},
		"closed while under way": {fails(Failure{Outcome: Unknown, Closed: true}), true, false, false},
		"closed":                 {ErrClosed, false, false, false},
		"too few replicas":       {fmt.Errorf("%w: 0 of 1", ErrNotReplicated), true, false, false},
		"joined: the first one": {
			errors.Join(io.EOF, fails(Failure{Outcome: NotExecuted}), fails(Failure{})), false, true, true,
		},
		"no answer, and rolled back":  {WithoutDoubt(fails(Failure{Outcome: Unknown})), false, true, true},
		"an answer, and rolled back":  {WithoutDoubt(fails(Failure{Outcome: Executed})), false, false, false},
		"unconfirmed, no longer used": {WithoutDoubt(ErrNotReplicated), true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := Of(tt.err)
			assert.Equal(t, tt.inDoubt, f.InDoubt(), "in doubt")
			assert.Equal(t, tt.retry, f.Retry(), "another attempt may help")
			assert.Equal(t, tt.isOutage, f.IsOutage(0), "an outage")
		})
	}
	late := Failure{Outcome: Unknown, CallerEnded: true, Waited: SilentAfter + time.Millisecond}
	require.True(t, late.IsOutage(time.Millisecond))
	require.False(t, late.IsOutage(2*time.Millisecond), "it was given more time than its caller has waited")
	require.True(t, Of(ErrClosed).Closed)
}

func TestErrorReportsAnUnknownOutcome(t *testing.T) {
	unknown := Unanswered(io.EOF)
	require.EqualError(t, unknown, "EOF (outcome unknown)")
	require.ErrorIs(t, unknown, ErrOutcomeUnknown)
	require.ErrorIs(t, unknown, io.EOF)
	require.NotErrorIs(t, unknown, io.ErrNoProgress)
	known := WithoutDoubt(fmt.Errorf("acquire: %w", unknown))
	require.EqualError(t, known, "EOF")
	require.NotErrorIs(t, known, ErrOutcomeUnknown)
	require.NotErrorIs(t, ErrNoAnswer, io.EOF)
	require.ErrorIs(t, ErrNoAnswer, os.ErrDeadlineExceeded)
	require.Equal(t, "executed", Executed.String())
}

// The text of an interruption begins with the silence, if it was long enough to be one.
func TestTextOfAnInterruption(t *testing.T) {
	for _, tt := range []struct {
		err  Interrupted
		want string
	}{
		{Interrupted{Cause: context.Canceled, Ended: true, Silent: SilentAfter}, "no answer for 100ms: context canceled"},
		{Interrupted{Cause: context.Canceled, Ended: true, Silent: SilentAfter - 1}, "context canceled"},
		{
			Interrupted{Cause: context.Canceled, Ended: true, Silent: time.Second, Why: io.EOF},
			"no answer for 1s: EOF: context canceled",
		},
		{Interrupted{Cause: context.Canceled, Ended: true, Why: io.EOF}, "context canceled: EOF"},
		{Interrupted{Cause: ErrNoAnswer, Silent: time.Second}, "no answer within the command timeout"},
		{Interrupted{Cause: ErrNoAnswer, Silent: time.Second, Why: io.EOF}, "no answer within the command timeout: EOF"},
	} {
		require.EqualError(t, &tt.err, tt.want)
	}
	for _, tt := range []struct {
		why  error
		want string
	}{
		{nil, "before that: EOF"},
		{errors.New("EOF"), "EOF"},
		{io.ErrNoProgress, "multiple Read calls return no data or error: before that: EOF"},
	} {
		err := &Interrupted{Cause: ErrNoAnswer, Why: tt.why}
		err.Follow(io.EOF)
		require.Equal(t, io.EOF, err.Before)
		require.EqualError(t, err.Why, tt.want)
	}
}

// A command that was cut short matches os.ErrDeadlineExceeded if it was silent, and if its caller
// did not just cancel.
func TestInterruptionThatIsATimeout(t *testing.T) {
	limited := func(ctx context.Context, d time.Duration) context.Context {
		ctx, cancel := context.WithTimeoutCause(ctx, d, io.EOF)
		time.AfterFunc(time.Hour, cancel)
		return ctx
	}
	canceled := func(cause error) func(context.Context, time.Duration) context.Context {
		return func(ctx context.Context, d time.Duration) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(d, func() { cancel(cause) })
			return ctx
		}
	}
	for name, tt := range map[string]struct {
		open  func(context.Context, time.Duration) context.Context
		after time.Duration
		want  bool
	}{
		"deadline":                       {limited, SilentAfter, true},
		"early deadline":                 {limited, SilentAfter - 1, false},
		"cancelled":                      {canceled(nil), time.Second, false},
		"cancelled for a reason":         {canceled(io.EOF), time.Second, true},
		"cancelled because of a timeout": {canceled(os.ErrDeadlineExceeded), time.Second, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, began := tt.open(t.Context(), tt.after), time.Now()
			<-ctx.Done()
			err := CutShort(ctx, began)
			require.Equal(t, tt.want, errors.Is(err, os.ErrDeadlineExceeded), name)
			require.NotErrorIs(t, err, net.ErrClosed)
			require.ErrorIs(t, err, context.Cause(ctx))
			require.Equal(t, Failure{Outcome: Unknown, CallerEnded: true, Waited: tt.after}, Of(err))
		})
	}
}

// A process that notices the end of a context late counts as waiting only until the deadline.
func TestSilenceEndsWithTheContext(t *testing.T) {
	far := func(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Hour)
	}
	soon := func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(ctx, d, io.EOF)
	}
	never := func(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
		return context.WithCancel(ctx)
	}
	for name, tt := range map[string]struct {
		open             func(context.Context, time.Duration) (context.Context, context.CancelFunc)
		late             time.Duration // the attempt begins that long after the context was made
		noticed, silent  time.Duration
		cancel           bool
		laterThanItsEnd  bool
		ended, isLimited bool
		cause            error
	}{
		"deadline, noticed late": {soon, 0, 3 * time.Second, time.Second, false, false, true, true, io.EOF},
		"deadline before":        {soon, 2 * time.Second, time.Second, 0, false, false, true, true, io.EOF},
		"an own type":            {soon, 0, 3 * time.Second, 3 * time.Second, false, true, true, true, io.EOF},
		"cancelled":              {never, 0, 2 * time.Second, 2 * time.Second, true, false, true, false, context.Canceled},
		"cancelled earlier":      {far, 0, 2 * time.Second, 2 * time.Second, true, false, true, false, context.Canceled},
		"command timeout":        {far, 0, 2 * time.Second, 2 * time.Second, false, false, false, false, ErrNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := tt.open(t.Context(), time.Second)
				defer cancel()
				if tt.laterThanItsEnd {
					ctx = lateDeadline{ctx}
				}
				time.Sleep(tt.late)
				began := time.Now()
				time.Sleep(tt.noticed)
				if tt.cancel {
					cancel()
				}
				got := Interrupt(ctx, began)
				require.Equal(t, &Interrupted{Cause: tt.cause, Ended: tt.ended, Limit: tt.isLimited, Silent: tt.silent}, got)
			})
		})
	}
}

// lateDeadline is a context that ends before the deadline that it reports.
type lateDeadline struct{ context.Context }

func (lateDeadline) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }

package scripts

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The error of a call says what is known: whether Redis may be asked later, who ended the call, and how long it had
// waited in vain by then.
func TestFailureTellsWhatIsKnown(t *testing.T) {
	const place = " script: 0123abc, on @user_script:7."
	again := reply("TRYAGAIN later")
	for _, tt := range []struct {
		err  error
		want Error
	}{
		{io.EOF, Error{}},
		{again, Error{NotNow: true}},
		{redis.ErrClosed, Error{Closed: true}},
		{&interrupted{cause: redis.ErrClosed}, Error{}},
		{&interrupted{cause: io.EOF, ended: true, silent: time.Second}, Error{Ended: true, Silent: time.Second}},
		{&interrupted{cause: io.EOF, ended: true, silent: time.Second, before: io.EOF}, Error{}},
		{&interrupted{cause: io.EOF, ended: true, before: again}, Error{}},
		{&interrupted{cause: ErrNoAnswer, silent: time.Second}, Error{}},
		{&interrupted{cause: ErrNoAnswer, before: again}, Error{NotNow: true}},
		{&interrupted{cause: ErrNoAnswer, before: io.EOF}, Error{}},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), Error{}},
		{reply("ERR The user executing the script can't run this command or subcommand" + place), Error{Denied: true}},
		{reply("WRONGTYPE Operation against a key" + place), Error{}},
	} {
		got := failure("name", tt.err, NotExecuted)
		require.ErrorIs(t, got, tt.err)
		got.Err = nil
		tt.want.Script, tt.want.Outcome = "name", NotExecuted
		require.Equal(t, &tt.want, got, "%v", tt.err)
	}
	require.NotErrorIs(t, failure("name", io.EOF, Unknown), io.ErrNoProgress)
	require.NotErrorIs(t, ErrNoAnswer, io.EOF)
	require.ErrorIs(t, ErrNoAnswer, os.ErrDeadlineExceeded)
}

// An error reply loses the place in the script, whatever version of Redis has added it. Any other error stays as it is.
func TestErrorWithoutItsPlaceInTheScript(t *testing.T) {
	for text, want := range map[string]string{
		"WRONGTYPE kind script: 0123abc, on @user_script:7.":                                            "WRONGTYPE kind",
		"ERR Error running script (call to f_0123abc): @user_script:7: WRONGTYPE kind":                  "WRONGTYPE kind",
		"ERR Error running script (call to f_0123abc): @user_script:7: @user_script: 9: ERR wrong kind": "ERR wrong kind",
	} {
		err := withoutScript(reply(text))
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, reply(text))
		require.Implements(t, (*redis.Error)(nil), err)
	}
	for _, err := range []error{reply("WRONGTYPE wrong kind"), io.EOF} {
		require.Equal(t, err, withoutScript(err))
	}
}

// The text of an interruption begins with the silence, if it was long enough to be one.
func TestTextOfAnInterruption(t *testing.T) {
	for _, tt := range []struct {
		err  interrupted
		want string
	}{
		{interrupted{cause: context.Canceled, ended: true, silent: SilentAfter}, "no answer for 100ms: context canceled"},
		{interrupted{cause: context.Canceled, ended: true, silent: SilentAfter - 1}, "context canceled"},
		{
			interrupted{cause: context.Canceled, ended: true, silent: time.Second, why: io.EOF},
			"no answer for 1s: EOF: context canceled",
		},
		{interrupted{cause: context.Canceled, ended: true, why: io.EOF}, "context canceled: EOF"},
		{interrupted{cause: ErrNoAnswer, silent: time.Second}, "no answer within the command timeout"},
		{interrupted{cause: ErrNoAnswer, silent: time.Second, why: io.EOF}, "no answer within the command timeout: EOF"},
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
		err := &interrupted{cause: ErrNoAnswer, why: tt.why}
		err.follows(io.EOF)
		require.Equal(t, io.EOF, err.before)
		require.EqualError(t, err.why, tt.want)
	}
}

// An interruption matches os.ErrDeadlineExceeded only if a time limit ended a silence.
func TestInterruptionThatIsATimeout(t *testing.T) {
	for _, tt := range []struct {
		cause  error
		silent time.Duration
		want   bool
	}{
		{context.DeadlineExceeded, SilentAfter, true},
		{context.DeadlineExceeded, SilentAfter - 1, false},
		{context.Canceled, time.Second, false},
	} {
		err := CutShort(tt.cause, tt.silent)
		require.Equal(t, tt.want, errors.Is(err, os.ErrDeadlineExceeded), "%v after %v", tt.cause, tt.silent)
		require.NotErrorIs(t, err, net.ErrClosed)
		failed, ok := errors.AsType[*Error](err)
		require.True(t, ok)
		require.Equal(t, []any{Unknown, true, tt.silent}, []any{failed.Outcome, failed.Ended, failed.Silent})
	}
}

// A process that notices the end of a context late has not waited for an answer until then.
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
					ctx = &joinedContext{ctx, ctx, time.Now().Add(time.Hour)}
				}
				time.Sleep(tt.late)
				began := time.Now()
				time.Sleep(tt.noticed)
				if tt.cancel {
					cancel()
				}
				got := interruption(ctx, began)
				require.Equal(t, &interrupted{cause: tt.cause, ended: tt.ended, limit: tt.isLimited, silent: tt.silent}, got)
			})
		})
	}
}

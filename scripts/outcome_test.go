package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
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
					ctx = &joinedContext{Context: ctx, values: ctx, until: time.Now().Add(time.Hour)}
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

// A failed call reports what is known about the command, after the configured number of attempts.
func TestFailureReportsItsOutcome(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		fault    func(w *env)
		timeouts func(*redis.Options)
		outcome  Outcome
		tries    int // number of EVALSHA commands that were sent; -1: any
		want     string
	}{
		{"refused", func(w *env) { w.refuseAll(); w.p.Record() }, longTimeouts, NotExecuted, 0, "refused"},
		{"swallowed", func(w *env) { w.p.DropCommands(100, evals) }, longTimeouts, Unknown, 4, ""},
		{"reply lost", func(w *env) { w.p.DropReplies(100, evals) }, longTimeouts, Unknown, 4, ""},
		{"silence", func(w *env) { w.p.BlackHole(true) }, fastRetries, Unknown, -1, "timeout"},
		{"lost once, then refused", func(w *env) {
			w.p.DropReplies(1, evals)
			w.p.Refuse(true)
		}, longTimeouts, Unknown, 1, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, w *env) {
				key := redistest.Name(t)
				// Another client loads the script: so this client only has the connection for pipelines.
				require.NoError(t, w.s.Client(t).ScriptLoad(t.Context(), check.Text()).Err())
				_, err := w.r.Do(t.Context(), check, []any{key}, "x")
				require.NoError(t, err)
				w.p.Record()
				tt.fault(w)
				_, err = w.r.Do(t.Context(), check, []any{key}, "x")
				require.Error(t, err)
				require.Equal(t, tt.outcome, OutcomeOf(err), err)
				require.ErrorContains(t, err, tt.want)
				require.Equal(t, tt.outcome == Unknown, strings.HasSuffix(err.Error(), "(outcome unknown)"), err)
				if tt.tries >= 0 {
					require.Equal(t, tt.tries, w.sent("evalsha"))
				}
				w.p.Heal()
				w.p.Reset()
				_, err = w.r.Do(t.Context(), check, []any{key}, "x")
				require.NoError(t, err)
			}, dialsOnce, tt.timeouts)
		})
	}
	t.Run("error of Redis", func(t *testing.T) {
		info := Load("lock/info")
		eachServer(t, func(t *testing.T, w *env) {
			key := redistest.Name(t)
			require.NoError(t, w.s.Client(t).Set(t.Context(), key, 1, time.Minute).Err())
			answered := func(err error) bool {
				failed, ok := errors.AsType[*Error](err)
				return ok && failed.Answered
			}
			_, err := w.r.Do(t.Context(), info, []any{key})
			require.Error(t, err)
			w.p.Record()
			_, err = w.r.Do(t.Context(), info, []any{key})
			require.Equal(t, Executed, OutcomeOf(err))
			require.True(t, answered(err))
			require.ErrorContains(t, err, "WRONGTYPE")
			require.Equal(t, 1, w.sent("evalsha"), "no retry")
			w.p.Record()
			w.p.DropReplies(1, evals)
			_, err = w.r.Do(t.Context(), info, []any{key})
			require.Equal(t, Unknown, OutcomeOf(err), "one attempt of unknown outcome makes the whole unknown")
			require.ErrorContains(t, err, "WRONGTYPE")
			require.True(t, answered(err))
			w.p.DropReplies(100, evals)
			_, err = w.r.Do(t.Context(), info, []any{key})
			require.Equal(t, Unknown, OutcomeOf(err))
			require.False(t, answered(err))
		})
	})
	require.Equal(t, NotExecuted, OutcomeOf(nil))
	require.Equal(t, NotExecuted, OutcomeOf(io.EOF))
}

// The error of a call that ran out of time says why its earlier attempts failed.
func TestTimeoutTellsTheFailureBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, fastRetries), time.Second)
		defer r.Close()
		_, err := r.Do(t.Context(), check, []any{"k"}, "x")
		require.NoError(t, err)
		p.DropReplies(1, evals)
		p.Refuse(true)
		time.AfterFunc(100*time.Millisecond, func() {
			p.Refuse(false)
			p.BlackHole(true)
		})
		_, err = r.Do(t.Context(), check, []any{"k"}, "x")
		require.ErrorIs(t, err, ErrNoAnswer)
		require.ErrorIs(t, err, ErrOutcomeUnknown)
		require.ErrorContains(t, err, "before that: EOF")
		p.Heal()
	})
}

// A call whose command timeout ends an attempt, after Redis has said "not now", is not over for a caller that
// waits.
func TestTimeoutAfterARefusalIsNotNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		rdb := inMemory(t, func(command string) string {
			switch {
			case !strings.Contains(command, "evalsha"):
				return "-ERR unknown command\r\n"
			case sent.Add(1) > 2: // the third one gets no answer
				return ""
			}
			return "-TRYAGAIN later\r\n"
		})
		r := NewRunner(rdb, 300*time.Millisecond)
		defer r.Close()
		_, err := r.Do(t.Context(), check, []any{"key"}, "x")
		failed, ok := errors.AsType[*Error](err)
		require.True(t, ok)
		require.ErrorContains(t, err, "TRYAGAIN")
		require.ErrorIs(t, err, ErrNoAnswer)
		require.Equal(t, Unknown, failed.Outcome)
		require.True(t, failed.NotNow)

		sent.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = r.Do(ctx, check, []any{"key"}, "x")
		failed, ok = errors.AsType[*Error](err)
		require.True(t, ok)
		require.ErrorContains(t, err, "TRYAGAIN")
		require.False(t, failed.NotNow, "its caller ended it")
	})
}

func TestClassify(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want errorClass
	}{
		{&net.OpError{Op: "dial", Err: io.EOF}, errorClass{NotExecuted, true, false}},
		{&net.OpError{Op: "read", Err: io.EOF}, errorClass{Unknown, true, false}},
		{io.EOF, errorClass{Unknown, true, false}},
		{context.DeadlineExceeded, errorClass{Unknown, true, false}},
		{fmt.Errorf("x: %w", redis.ErrPoolTimeout), errorClass{NotExecuted, true, false}},
		{redis.ErrPoolExhausted, errorClass{NotExecuted, true, false}},
		{redis.ErrClosed, errorClass{NotExecuted, false, false}},
		{&interrupted{cause: redis.ErrClosed}, errorClass{Unknown, false, false}},
		{&interrupted{cause: redis.ErrClosed, notSent: true}, errorClass{NotExecuted, false, false}},
		{reply("READONLY You can't write against a read only replica."), errorClass{NotExecuted, true, true}},
		{reply("ERR Error running script (call to f_0): @user_script:8: @user_script: 8: " +
			"-READONLY You can't write against a read only replica."), errorClass{NotExecuted, true, true}},
		{reply("LOADING Redis is loading the dataset in memory"), errorClass{NotExecuted, true, true}},
		{reply("MASTERDOWN Link with MASTER is down"), errorClass{NotExecuted, true, true}},
		{reply("CLUSTERDOWN The cluster is down"), errorClass{NotExecuted, true, true}},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), errorClass{NotExecuted, true, true}},
		{reply("NOREPLICAS Not enough good replicas to write."), errorClass{NotExecuted, true, true}},
		{reply("MISCONF Redis is configured to save RDB snapshots"), errorClass{NotExecuted, true, true}},
		{reply("BUSY Redis is busy running a script."), errorClass{NotExecuted, true, true}},
		{reply("ERR max number of clients reached"), errorClass{NotExecuted, true, true}},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), errorClass{Executed, false, false}},
		{reply("NOAUTH Authentication required."), errorClass{Executed, false, false}},
		{reply("ERR anything"), errorClass{Executed, false, false}},
		{&unmapped{io.EOF}, errorClass{NotExecuted, true, false}}, // only the reading is in doubt
		{&unmapped{&interrupted{cause: io.EOF}}, errorClass{Unknown, false, false}},
		{&unmapped{reply("LOADING Redis is loading the dataset in memory")}, errorClass{NotExecuted, true, true}},
		{&unmapped{reply("NOAUTH Authentication required.")}, errorClass{Executed, false, false}},
	} {
		require.Equal(t, tt.want, classify(tt.err), "%v", tt.err)
	}
}

// Only the error of an earlier dial, returned once more, tells that nothing was dialed.
func TestErrorOfAnEarlierDial(t *testing.T) {
	dial, another := &net.OpError{Op: "dial", Err: io.EOF}, &net.OpError{Op: "dial", Err: io.EOF}
	read := &net.OpError{Op: "read", Err: io.EOF}
	require.True(t, dialedNothing(fmt.Errorf("wrapped: %w", dial), dial))
	require.False(t, dialedNothing(dial, another))
	require.False(t, dialedNothing(read, read))
	require.False(t, dialedNothing(dial, nil))
	require.False(t, dialedNothing(io.EOF, nil))
}

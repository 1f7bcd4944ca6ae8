package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The error of a call says what is known: whether Redis may be asked later, who ended the call, and how long it had
// waited in vain by then.
func TestFailureTellsWhatIsKnown(t *testing.T) {
	const place = " script: 0123abc, on @user_script:7."
	again := reply("TRYAGAIN later")
	type fails = failure.Failure
	for _, tt := range []struct {
		err  error
		want fails
	}{
		{io.EOF, fails{}},
		{again, fails{NotNow: true}},
		{redis.ErrClosed, fails{Closed: true}},
		{&failure.Interrupted{Cause: redis.ErrClosed}, fails{}},
		{&failure.Interrupted{Cause: io.EOF, Ended: true, Silent: time.Second}, fails{CallerEnded: true, Waited: time.Second}},
		{&failure.Interrupted{Cause: io.EOF, Ended: true, Silent: time.Second, Before: io.EOF}, fails{}},
		{&failure.Interrupted{Cause: io.EOF, Ended: true, Before: again}, fails{}},
		{&failure.Interrupted{Cause: failure.ErrNoAnswer, Silent: time.Second}, fails{}},
		{&failure.Interrupted{Cause: failure.ErrNoAnswer, Before: again}, fails{NotNow: true}},
		{&failure.Interrupted{Cause: failure.ErrNoAnswer, Before: io.EOF}, fails{}},
		{reply("ERR anything"), fails{Answered: true}},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), fails{Answered: true, Final: true}},
		{
			reply("ERR The user executing the script can't run this command or subcommand" + place),
			fails{Answered: true, Final: true, Denied: true},
		},
		{reply("WRONGTYPE Operation against a key" + place), fails{Answered: true, Final: true}},
		{reply("FOREIGN the key holds a counter" + place), fails{Answered: true, Final: true}},
	} {
		got := newError("name", tt.err, failure.NotExecuted)
		require.ErrorIs(t, got, tt.err)
		tt.want.Outcome = failure.NotExecuted
		require.Equal(t, tt.want, got.Failure, "%#v", tt.err)
	}
	require.NotErrorIs(t, newError("name", io.EOF, failure.Unknown), io.ErrNoProgress)
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

// A failed call reports what is known about the command, after the configured number of attempts.
func TestFailureReportsItsOutcome(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		fault    func(w *env)
		timeouts func(*redis.Options)
		outcome  failure.Outcome
		tries    int // number of EVALSHA commands that were sent; -1: any
		want     string
	}{
		{"refused", func(w *env) { w.refuseAll(); w.p.Record() }, longTimeouts, failure.NotExecuted, 0, "refused"},
		{"swallowed", func(w *env) { w.p.DropCommands(100, evals) }, longTimeouts, failure.Unknown, 4, ""},
		{"reply lost", func(w *env) { w.p.DropReplies(100, evals) }, longTimeouts, failure.Unknown, 4, ""},
		{"silence", func(w *env) { w.p.BlackHole(true) }, fastRetries, failure.Unknown, -1, "timeout"},
		{"lost once, then refused", func(w *env) {
			w.p.DropReplies(1, evals)
			w.p.Refuse(true)
		}, longTimeouts, failure.Unknown, 1, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachServer(t, func(t *testing.T, w *env) {
				key := redistest.Name(t)
				// Another client loads the script: so this client only has the connection for pipelines.
				require.NoError(t, w.s.Client(t).ScriptLoad(t.Context(), check.Text()).Err())
				require.NoError(t, errOf(w.r.Do(t.Context(), check, []any{key}, "x")))
				w.p.Record()
				tt.fault(w)
				_, err := w.r.Do(t.Context(), check, []any{key}, "x")
				require.Error(t, err)
				require.Equal(t, tt.outcome, failure.Of(err).Outcome, err)
				require.ErrorContains(t, err, tt.want)
				require.Equal(t, tt.outcome == failure.Unknown, strings.HasSuffix(err.Error(), "(outcome unknown)"), err)
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
				failed, ok := errors.AsType[*failure.Error](err)
				return ok && failed.Answered
			}
			require.Error(t, errOf(w.r.Do(t.Context(), info, []any{key})))
			w.p.Record()
			_, err := w.r.Do(t.Context(), info, []any{key})
			require.Equal(t, failure.Executed, failure.Of(err).Outcome)
			require.True(t, answered(err))
			require.ErrorContains(t, err, "WRONGTYPE")
			require.Equal(t, 1, w.sent("evalsha"), "no retry")
			w.p.Record()
			w.p.DropReplies(1, evals)
			_, err = w.r.Do(t.Context(), info, []any{key})
			require.Equal(t, failure.Unknown, failure.Of(err).Outcome, "one attempt of unknown outcome makes the whole unknown")
			require.ErrorContains(t, err, "WRONGTYPE")
			require.True(t, answered(err))
			w.p.DropReplies(100, evals)
			_, err = w.r.Do(t.Context(), info, []any{key})
			require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
			require.False(t, answered(err))
		})
	})
}

// The error of a call that ran out of time says why its earlier attempts failed.
func TestTimeoutTellsTheFailureBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, fastRetries), time.Second)
		defer r.Close()
		require.NoError(t, errOf(r.Do(t.Context(), check, []any{"k"}, "x")))
		p.DropReplies(1, evals)
		p.Refuse(true)
		time.AfterFunc(100*time.Millisecond, func() {
			p.Refuse(false)
			p.BlackHole(true)
		})
		_, err := r.Do(t.Context(), check, []any{"k"}, "x")
		require.ErrorIs(t, err, failure.ErrNoAnswer)
		require.ErrorIs(t, err, failure.ErrOutcomeUnknown)
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
		failed, ok := errors.AsType[*failure.Error](err)
		require.True(t, ok)
		require.ErrorContains(t, err, "TRYAGAIN")
		require.ErrorIs(t, err, failure.ErrNoAnswer)
		require.Equal(t, failure.Unknown, failed.Outcome)
		require.True(t, failed.NotNow)

		sent.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = r.Do(ctx, check, []any{"key"}, "x")
		failed, ok = errors.AsType[*failure.Error](err)
		require.True(t, ok)
		require.ErrorContains(t, err, "TRYAGAIN")
		require.False(t, failed.NotNow, "its caller ended it")
	})
}

func TestClassify(t *testing.T) {
	unknown, executed := failure.Failure{Outcome: failure.Unknown}, failure.Failure{Outcome: failure.Executed}
	notExecuted := failure.Failure{Outcome: failure.NotExecuted}
	notNow := failure.Failure{Outcome: failure.NotExecuted, NotNow: true}
	closed := failure.Failure{Outcome: failure.NotExecuted, Closed: true}
	for _, tt := range []struct {
		err  error
		want failure.Failure
	}{
		{&net.OpError{Op: "dial", Err: io.EOF}, notExecuted},
		{&net.OpError{Op: "read", Err: io.EOF}, unknown},
		{io.EOF, unknown},
		{context.DeadlineExceeded, unknown},
		{fmt.Errorf("x: %w", redis.ErrPoolTimeout), notExecuted},
		{redis.ErrPoolExhausted, notExecuted},
		{redis.ErrClosed, closed},
		{&failure.Interrupted{Cause: redis.ErrClosed}, unknown},
		{&failure.Interrupted{Cause: redis.ErrClosed, NotSent: true}, notExecuted},
		{reply("READONLY You can't write against a read only replica."), notNow},
		{reply("ERR Error running script (call to f_0): @user_script:8: @user_script: 8: " +
			"-READONLY You can't write against a read only replica."), notNow},
		{reply("LOADING Redis is loading the dataset in memory"), notNow},
		{reply("MASTERDOWN Link with MASTER is down"), notNow},
		{reply("CLUSTERDOWN The cluster is down"), notNow},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), notNow},
		{reply("NOREPLICAS Not enough good replicas to write."), notNow},
		{reply("MISCONF Redis is configured to save RDB snapshots"), notNow},
		{reply("BUSY Redis is busy running a script."), notNow},
		{reply("ERR max number of clients reached"), notNow},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), executed},
		{reply("NOAUTH Authentication required."), executed},
		{reply("ERR anything"), executed},
		{&unmapped{io.EOF}, notExecuted}, // only the reading is in doubt
		{&unmapped{&failure.Interrupted{Cause: io.EOF}}, unknown},
		{&unmapped{reply("LOADING Redis is loading the dataset in memory")}, notNow},
		{&unmapped{reply("NOAUTH Authentication required.")}, executed},
	} {
		require.Equal(t, tt.want, classify(tt.err), "%#v", tt.err)
	}
}

// Only the error of an earlier dial, returned once more, shows that nothing was dialed.
func TestErrorOfAnEarlierDial(t *testing.T) {
	dial, another := &net.OpError{Op: "dial", Err: io.EOF}, &net.OpError{Op: "dial", Err: io.EOF}
	read := &net.OpError{Op: "read", Err: io.EOF}
	require.True(t, dialedNothing(fmt.Errorf("wrapped: %w", dial), dial))
	require.False(t, dialedNothing(dial, another))
	require.False(t, dialedNothing(read, read))
	require.False(t, dialedNothing(dial, nil))
	require.False(t, dialedNothing(io.EOF, nil))
}

package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The error of a call says what is known: whether Redis may be asked later, who ended the call, and
// how long it had waited in vain by then.
func TestFailureOfEachError(t *testing.T) {
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
		{
			&failure.Interrupted{Cause: io.EOF, Ended: true, Silent: time.Second},
			fails{CallerEnded: true, Waited: time.Second},
		},
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

// An error reply loses the place in the script, whatever version of Redis has added it. Any other
// error stays as it is.
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
				// Another client loads the script: so this client only has the connection for
				// pipelines.
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
				w.p.Recover()
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
func TestTimeoutErrorWrapsTheFailureBeforeIt(t *testing.T) {
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

// A call whose command timeout ends an attempt, after Redis has said "not now", is not over for a
// caller that waits.
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

// A library calls the command that a script passes to it. The error names the line of the library.
func TestLackingCommandOfALibraryIsNamed(t *testing.T) {
	for script, command := range map[string]string{
		"lock/check": "HGET", "lock/renew": "HGET", "lock/release_all": "HDEL", "lock/renew_shared": "HEXISTS",
	} {
		line := 0
		for i, l := range strings.Split(Load(script).text, "\n") {
			if strings.Contains(l, "redis.call(command") {
				line = i + 1
			}
		}
		require.Positive(t, line, script)
		e := newError(script, reply(fmt.Sprint(
			"ERR Unknown Redis command called from script script: 33b7, on @user_script:", line, ".")), failure.Executed)
		assert.ErrorContains(t, e, "this server has no "+command+" command", script)
	}
	text := "ERR Unknown Redis command called from script script: 33b7, on @user_script:9."
	unknown := newError("", reply(text), failure.Executed)
	assert.NotContains(t, unknown.Error(), "user_script")
}

// What servers and proxies answer instead of running a command, and the command that the error
// names.
func TestLackingCommandIsNamed(t *testing.T) {
	lines := strings.Split(Load("lock/acquire").text, "\n")
	line := func(part string) int {
		return 1 + slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, part) })
	}
	acl, hset := line("acl_check_cmd"), line("redis.call('hset'")
	require.Positive(t, acl)
	require.Positive(t, hset)
	for _, tt := range []struct {
		reply, command string
		caught         bool
	}{
		{"ERR unknown command 'evalsha', with args beginning with: '33b7' '4' 'l' ", "EVALSHA", false},
		{"ERR unknown command `publish`, with args beginning with: ", "PUBLISH", false},
		{"ERR unknown command 'SCRIPT|LOAD'", "SCRIPT|LOAD", false},
		{"ERR unsupported command 'wait'", "WAIT", false},
		{"ERR Command is not available: 'eval'. See the manual", "EVAL", false},
		{"ERR Could not find scripting engine 'lua'", lua, false},
		{
			fmt.Sprint("ERR Invalid command passed to redis.acl_check_cmd() script: 33b7, on @user_script:", acl, "."),
			"PUBLISH", false,
		},
		{fmt.Sprint("ERR Unknown Redis command called from script script: 33b7, on @user_script:", hset, "."), "HSET", false},
		{fmt.Sprintf("ERR Error running script (call to f_33b7): @user_script:%d: @user_script: %d: "+
			"Unknown Redis command called from Lua script", hset, hset), "HSET", false},
		{"ERR the counter of fencing tokens x: Unknown Redis command called from script", "INCRBY", true},
		{"ERR Unknown Redis command called from script script: 33b7, on @user_script:9999.", "", false},
	} {
		e := newError("lock/acquire", reply(tt.reply), failure.Executed)
		missing, ok := errors.AsType[*LackingError](e)
		if assert.True(t, ok, tt.reply) {
			if tt.caught { // the script names no line
				assert.Contains(t, missing.Command, tt.command, tt.reply)
			} else {
				assert.Equal(t, tt.command, missing.Command, tt.reply)
			}
			assert.Contains(t, e.Error(), tt.command)
		}
		assert.Equal(t, strings.Contains(tt.reply, "script"), e.Denied || tt.command == lua, tt.reply)
	}
	for _, other := range []string{
		"ERR value is not an integer", "NOPERM no", "WRONGTYPE Operation", "NOSCRIPT No matching",
	} {
		_, ok := errors.AsType[*LackingError](newError("lock/acquire", reply(other), failure.Executed))
		assert.False(t, ok, other)
	}
	_, ok := errors.AsType[*LackingError](newError("no script", reply("ERR unknown command 'wait'"), failure.Executed))
	assert.True(t, ok)
}

// Each case is a failure, and whether the next answer means that Redis has come back.
func TestReturnIsTheFirstAnswerAfterABrokenConnection(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true},
		{net.ErrClosed, true},
		{reply("LOADING Redis is loading the dataset in memory"), true},
		{reply("READONLY You can't write against a read only replica."), true},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, false},
		{context.DeadlineExceeded, false},
		{context.Canceled, false},
		{&failure.Interrupted{Cause: io.EOF}, false},
		{&net.OpError{Op: "dial", Err: context.Canceled}, false},
		{redis.ErrPoolTimeout, false},
		{redis.ErrPoolExhausted, false},
		{redis.ErrClosed, false},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), false},
	} {
		returns := 0
		c := &recovery{cluster: true, returned: func() { returns++ }, server: func(string) any { return nil }}
		c.note("a", nil)
		c.note("a", tt.err)
		c.note("a", tt.err)
		c.note("b", nil) // of another slot
		require.Zero(t, returns)
		c.note("a", nil)
		c.note("a", nil)
		require.Equal(t, tt.want, returns == 1, "%v", tt.err)
	}
}

// On a cluster each server returns by itself, with all its slots. As long as it is not known which
// server has a slot, the slot returns by itself. Without a cluster, all keys are of the same
// server.
func TestReturnOfSeveralSlots(t *testing.T) {
	returns := 0
	servers := map[string]any{}
	c := &recovery{
		cluster: true, returned: func() { returns++ }, server: func(key string) any { return servers[key] },
	}
	for _, tt := range []struct {
		a, b any // the servers of these keys
		want int
	}{{"1", "1", 1}, {"1", "2", 2}, {nil, nil, 2}, {"1", nil, 2}} {
		returns = 0
		servers["a"] = tt.a
		servers["b"] = tt.b
		c.note("a", io.EOF)
		c.note("b", io.EOF)
		c.note("c", nil)
		require.Zero(t, returns, "another slot")
		c.note("a", nil)
		require.Equal(t, 1, returns)
		c.note("b", nil)
		require.Equal(t, tt.want, returns, "%v and %v", tt.a, tt.b)
		require.Zero(t, c.broken.Load())
	}
	returns = 2
	c.cluster = false
	c.note("a", io.EOF)
	c.note("b", nil)
	require.Equal(t, 3, returns)
}

// Redis is out of reach, and then back. All ways to send a command notice it.
func TestReturnIsNoticedByEachCommand(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		returns := make(chan struct{}, 100)
		r := NewRunner(w.p.Client(t, fastRetries, dialsOnce), time.Second)
		defer r.Close()
		r.OnReturn(func() { returns <- struct{}{} })
		key := redistest.Name(t)
		for name, send := range map[string]func() error{
			"Do":   func() error { _, err := r.Do(t.Context(), check, []any{key}, "x"); return err },
			"Once": func() error { _, err := r.Once(t.Context(), check, []any{key}, "x"); return err },
			"Commands": func() error {
				_, err := r.Commands(t.Context(), []any{"get", key})
				return err
			},
		} {
			require.NoError(t, send(), name)
			require.Empty(t, returns, name)
			w.p.Cut()
			require.Error(t, send(), name)
			w.p.Heal()
			require.Empty(t, returns, name)
			redistest.WaitFor(t, 10*time.Second, func() bool { return send() == nil }, "answered")
			require.Len(t, returns, 1, name)
			<-returns
		}
	})
}

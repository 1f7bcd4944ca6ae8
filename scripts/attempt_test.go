package scripts

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Do returns when its context ends; the attempt goes on, and Close waits for it.
func TestAttemptOutlivesItsCall(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), func(o *redis.Options) { o.ReadTimeout = 5 * time.Second })
	answer, err := w.r.Do(t.Context(), check, []any{"k"}, "x")
	require.NoError(t, err)
	require.Equal(t, int64(0), answer.Value)
	free := w.p.HoldReplies(evals)
	ctx, cancel := context.WithCancelCause(t.Context())
	returned := make(chan error, 1)
	go func() {
		_, err := w.r.Do(ctx, check, []any{"k"}, "x")
		returned <- err
	}()
	redistest.WaitFor(t, testTimeout, func() bool { return w.p.Held() == 1 }, "in flight")
	cancel(io.ErrNoProgress)
	err = <-returned
	require.ErrorIs(t, err, io.ErrNoProgress)
	require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
	closed := make(chan struct{})
	go func() {
		w.r.Close()
		close(closed)
	}()
	<-w.r.closing
	select {
	case <-closed:
		require.Fail(t, "Close did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	free()
	<-closed
}

// A caller gives up before the server answers that it does not know the script. The command is not
// sent again: it could be executed after the caller's rollback.
func TestAbandonedCallIsNotSentAgain(t *testing.T) {
	for _, mode := range []string{"alone", "in a batch"} {
		t.Run(mode, func(t *testing.T) {
			s := redistest.Fresh(t)
			w := newEnv(t, s, longTimeouts)
			key := redistest.Name(t)
			require.NoError(t, s.Client(t).ScriptFlush(t.Context()).Err())
			vacate := func() {}
			if mode == "in a batch" {
				vacate = occupyBatcher(t, w.r.batch, maxDirect, 0)
			}
			w.p.Record()
			answer := w.p.HoldReplies(evals)
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				_, err := w.r.Do(ctx, counted, []any{key}, "late")
				failed <- err
			}()
			redistest.WaitFor(t, testTimeout, func() bool { return w.p.Held() == 1 }, "the command is on its way")
			cancel()
			require.ErrorIs(t, <-failed, context.Canceled)
			answer()
			vacate()
			w.r.Close() // waits for the attempt
			require.Equal(t, 1, w.sent("evalsha")+w.sent("eval"))
			require.Zero(t, s.Client(t).Exists(t.Context(), key).Val())
		})
	}
}

// answered answers every command with an error.
type answered struct {
	err    error
	before func()
}

func (a answered) Process(context.Context, redis.Cmder) error {
	a.before()
	return a.err
}

type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT No matching script." }
func (noScript) RedisError()   {}

// The error of an abandoned call says why it ended, not that the server did not know the script.
func TestAbandonedCallReportsItsEnd(t *testing.T) {
	w := newEnv(t, redistest.Fresh(t))
	ctx, cancel := context.WithCancelCause(t.Context())
	unknown := answered{noScript{}, func() { cancel(io.EOF) }}
	_, err := w.r.attempt(ctx, unknown, newCall(counted, []any{"key"}, nil))
	require.ErrorIs(t, err, io.EOF)
	require.NotContains(t, err.Error(), "NOSCRIPT")

	require.False(t, isAbandoned(t.Context()))
	joined := &joinedContext{Context: t.Context(), values: ended{t.Context()}}
	_, err = w.r.attempt(joined, answered{noScript{}, func() {}}, newCall(counted, []any{"key"}, nil))
	require.ErrorIs(t, err, io.EOF)
	require.NotErrorIs(t, err, failure.ErrNoAnswer)
}

// ended is a context of a type of its own, which has ended.
type ended struct{ context.Context }

func (ended) Err() error { return io.EOF }

// A batch whose script the server does not know is not sent again for a caller that has returned.
func TestAbandonedCommandOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t), 0)
		defer r.Close()
		ctx, cancel := context.WithCancel(t.Context())
		p := &pending{call: newCall(counted, []any{"k"}, []any{"x"}), done: make(chan *pending, 1)}
		p.call.end, p.call.ctx = r.ends.after(ctx, r.timeout, &p.memory.joined)
		cancel()
		require.Empty(t, r.batch.send(t.Context(), r.batch.timed, []*pending{p}))
		<-p.done
		require.ErrorIs(t, p.err, context.Canceled)
		require.Equal(t, failure.Failure{Outcome: failure.NotExecuted}, classify(p.err))
	})
}

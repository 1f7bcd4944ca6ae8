package scripts

import (
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// senders is a hook that counts scripts by whether their caller's goroutine sends them.
type senders struct {
	inline, elsewhere atomic.Int32
	panics            atomic.Bool // in the caller's goroutine
}

func (s *senders) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s *senders) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (s *senders) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		stack := make([]byte, 16<<10)
		if cmds[0].Name() != "evalsha" { // the handshake of a connection, or a script to be loaded
			return next(ctx, cmds)
		}
		if strings.Contains(string(stack[:runtime.Stack(stack, false)]), "sendInline") {
			s.inline.Add(1)
			if s.panics.Load() {
				panic("hook")
			}
		} else {
			s.elsewhere.Add(1)
		}
		return next(ctx, cmds)
	}
}

// newSenders returns a runner whose scripts are counted.
func newSenders(t *testing.T, w *env, timeout time.Duration, tweaks ...func(*redis.Options)) (*Runner, *senders) {
	var s senders
	rdb := w.p.Client(t, append([]func(*redis.Options){fastRetries}, tweaks...)...)
	rdb.AddHook(&s)
	r := NewRunner(rdb, timeout)
	t.Cleanup(r.Close)
	return r, &s
}

// warm loads the script and dials.
func (s *senders) warm(t *testing.T, w *env, r *Runner) {
	t.Helper()
	require.NoError(t, w.s.Client(t).ScriptLoad(t.Context(), check.Text()).Err())
	s.do(t, t.Context(), r, 0, 1)
}

// letSend makes the latest answers count as quick, so that the next caller sends by itself.
func letSend(r *Runner) {
	r.batch.mu.Lock()
	defer r.batch.mu.Unlock()
	r.batch.inline.quick = quickAnswers
}

// do runs a script, and requires where it was sent from. If that includes the caller's goroutine,
// the latest answers count as quick, however busy this machine is.
func (s *senders) do(t *testing.T, ctx context.Context, r *Runner, inline, elsewhere int32) Reply {
	t.Helper()
	if inline > 0 {
		letSend(r)
	}
	beforeInline, beforeElsewhere := s.inline.Load(), s.elsewhere.Load()
	reply, err := r.Do(ctx, check, []any{"k"}, "x")
	require.NoError(t, err)
	require.Equal(t, []int32{inline, elsewhere},
		[]int32{s.inline.Load() - beforeInline, s.elsewhere.Load() - beforeElsewhere})
	return reply
}

// turnsSlow makes the server count as slow after each command that a caller sends by itself.
type turnsSlow struct {
	senders

	runner *Runner
}

func (s *turnsSlow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	next = s.senders.ProcessPipelineHook(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer func() {
			s.runner.batch.mu.Lock()
			defer s.runner.batch.mu.Unlock()
			s.runner.batch.inline.quick = 0
		}()
		return next(ctx, cmds)
	}
}

// A caller sends a command by itself, and Redis refuses it for the moment. Another goroutine
// repeats it, when the limit of the caller's own attempt has passed: the command is executed.
func TestRepetitionOfACommandThatItsCallerSent(t *testing.T) {
	refusedOnce := newScript("refusedOnce", `
		if redis.call('incr', KEYS[1]) == 1 then
			return redis.error_reply('TRYAGAIN for a moment')
		end
		return ARGV[1]`)
	eachServer(t, func(t *testing.T, w *env) {
		var s turnsSlow
		rdb := w.p.Client(t, func(o *redis.Options) {
			o.MinRetryBackoff, o.MaxRetryBackoff = 4*inlineTimeout, 4*inlineTimeout
		})
		rdb.AddHook(&s)
		r := NewRunner(rdb, 0)
		s.runner = r
		t.Cleanup(r.Close)
		require.NoError(t, w.s.Client(t).ScriptLoad(t.Context(), refusedOnce.Text()).Err())
		require.NoError(t, rdb.Ping(t.Context()).Err()) // dials
		letSend(r)
		reply, err := r.Do(t.Context(), refusedOnce, []any{redistest.Name(t)}, "done")
		require.NoError(t, err)
		require.Equal(t, "done", reply.Value)
		require.Equal(t, []int32{1, 1}, []int32{s.inline.Load(), s.elsewhere.Load()})
	})
}

// A caller sends by itself while the server answers quickly, and nothing forbids it.
func TestCallerSendsWhileAnswersAreQuick(t *testing.T) {
	far, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eachServer(t, func(t *testing.T, w *env) {
		for name, ctx := range map[string]context.Context{"no deadline": t.Context(), "far deadline": far} {
			t.Run(name, func(t *testing.T) {
				r, s := newSenders(t, w, 0)
				s.warm(t, w, r)
				s.do(t, ctx, r, 1, 0)
			})
		}
		t.Run("near deadline", func(t *testing.T) {
			r, s := newSenders(t, w, 0)
			s.warm(t, w, r)
			r.batch.inline.quick = quickAnswers
			near, cancel := context.WithTimeout(t.Context(), inlineTimeout)
			defer cancel()
			_, _ = r.Do(near, check, []any{"k"}, "x")
			require.Zero(t, s.inline.Load())
		})
		t.Run("short command timeout", func(t *testing.T) {
			r, s := newSenders(t, w, 2*inlineTimeout)
			r.batch.inline.quick = quickAnswers
			_, _ = r.Do(t.Context(), check, []any{"k"}, "x")
			_, _ = r.Do(t.Context(), check, []any{"k"}, "x")
			require.Zero(t, s.inline.Load())
		})
		t.Run("slow answers", func(t *testing.T) {
			r, s := newSenders(t, w, 0)
			w.p.Delay(quickAnswer)
			s.do(t, t.Context(), r, 0, 1)
			s.do(t, t.Context(), r, 0, 1)
			w.p.Heal()
			redistest.WaitFor(t, testTimeout, func() bool {
				_, err := r.Do(t.Context(), check, []any{"k"}, "x")
				return err == nil && s.inline.Load() > 0
			}, "the server is quick again")
		})
	})
}

// A caller sends nothing by itself that may take long: beside batches, or with a script that may be
// slow.
func TestCallerSendsNothingThatMayTakeLong(t *testing.T) {
	r := newEnv(t, redistest.Redis(t)).r
	b := r.batch
	may := func(s *Script) bool {
		b.inline.quick, b.direct = quickAnswers, 0
		return b.maySendInline(t.Context(), s, time.Now())
	}
	require.True(t, may(check))
	require.True(t, may(Load("rwlock/read_acquire")))
	require.False(t, may(Load("rwlock/read_release")), "it may look at all readers")
	for _, busy := range []*int{&b.slots, &b.lateBatches} {
		*busy = 1
		require.False(t, may(check))
		*busy = 0
	}
	b.full = true
	require.False(t, may(check))
	b.full = false
	require.True(t, may(check))
	b.direct = maxDirect
	require.False(t, b.maySendInline(t.Context(), check, time.Now()), "no room")
	b.direct = 0
	now := time.Now()
	for left, want := range map[time.Duration]bool{inlineTimeout: false, inlineTimeout + 1: true} {
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(left))
		require.Equal(t, want, b.maySendInline(ctx, check, now), "%v left", left)
		cancel()
		b.direct = 0
	}
	r.Stop()
	require.False(t, may(check))
	b.direct = 0
}

// Without an answer the same command is sent again at once, by another goroutine, and so are the
// next ones. None of this counts as a retry.
func TestLateAnswerInTheCallersGoroutine(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		for name, fault := range map[string]struct {
			inject func()
			doubt  bool
		}{
			"silent server": {func() { w.p.HoldReplies(evals) }, true},
			"no connection": {func() { w.p.Refuse(true); w.p.Reset(); time.Sleep(10 * time.Millisecond) }, false},
		} {
			t.Run(name, func(t *testing.T) {
				r, s := newSenders(t, w, 0, func(o *redis.Options) { o.MaxRetries = -1; longTimeouts(o) })
				s.warm(t, w, r)
				fault.inject()
				go func() {
					for s.elsewhere.Load() == 1 {
						time.Sleep(time.Millisecond)
					}
					w.p.Heal()
				}()
				reply := s.do(t, t.Context(), r, 1, 1)
				require.Equal(t, fault.doubt, reply.Doubt)
				require.Equal(t, herePause, r.batch.inline.pause)
				r.batch.inline.quick, r.batch.inline.until = quickAnswers, r.batch.inline.until.Add(time.Minute)
				require.False(t, s.do(t, t.Context(), r, 0, 1).Doubt, "a pause, though the server is quick again")
				r.batch.inline = inlineStats{quick: quickAnswers} // as if the pause were over
				s.do(t, t.Context(), r, 1, 0)
			})
		}
	})
}

// A call returns soon after its context has ended, although its goroutine waits for the answer.
func TestCallerThatSendsReturnsInTime(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		r, s := newSenders(t, w, 0, longTimeouts)
		s.warm(t, w, r)
		w.p.HoldReplies(evals)
		r.batch.inline.quick = quickAnswers
		ctx, cancel := context.WithCancelCause(t.Context())
		stalls, began := redistest.WatchStalls(t), time.Now()
		time.AfterFunc(5*time.Millisecond, func() { cancel(io.ErrNoProgress) })
		_, err := r.Do(ctx, check, []any{"k"}, "x")
		took := time.Since(began)
		require.ErrorIs(t, err, io.ErrNoProgress)
		require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		require.Less(t, took, 2*inlineTimeout+stalls.Since(began))
		w.p.Heal()
		r.Close()
		require.Equal(t, int32(1), s.inline.Load())
		require.Equal(t, int32(1), s.elsewhere.Load(), "not sent again")
	})
}

// A few slow answers among many quick ones do not stop callers that send, as on a busy machine.
// More of them do.
func TestFewSlowAnswersStopNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a busy machine would make quick answers slow
		var h inlineStats
		now := time.Now()
		note := func(n int, after time.Duration) {
			for range n {
				h.note(true, time.Now().Add(-after))
			}
		}
		note(quickAnswers-1, 0)
		require.False(t, h.allowed(now))
		note(1, 0)
		require.True(t, h.allowed(now))
		note(10*quickAnswers, 0)
		note(quickAnswers/slowCost, quickAnswer)
		require.True(t, h.allowed(now))
		note(1, quickAnswer)
		require.False(t, h.allowed(now))
		note(slowCost, 0)
		require.True(t, h.allowed(now))
		for range 10 * quickAnswers {
			note(slowCost-1, 0)
			note(1, quickAnswer)
		}
		require.False(t, h.allowed(now), "every sixteenth answer is slow")
		note(10*quickAnswers, 0)
		h.note(false, time.Now())
		require.False(t, h.allowed(now), "no answer")
	})
}

// After many quick answers the pauses begin with the shortest again.
func TestManyQuickAnswersEndTheDoublingOfPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // all answers are quick, however busy the machine is
		h := inlineStats{pause: maxHerePause}
		for n := range 2 * manyAnswers {
			h.note(n%2 == 0, time.Now())
			require.Equal(t, n < 2*(manyAnswers-1), h.pause > 0, "%d attempts, of which half were answered", n+1)
		}
	})
}

// A script that the server does not know is loaded by another goroutine, without doubt.
func TestCallerMeetsAnUnknownScript(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		r, s := newSenders(t, w, 0)
		s.warm(t, w, r)
		require.NoError(t, w.s.Client(t).ScriptFlush(t.Context()).Err())
		require.False(t, s.do(t, t.Context(), r, 1, 2).Doubt, "sent here, and elsewhere before and after it was loaded")
	})
}

// Each attempt that was late doubles the pause, several at once count as one, and a good time ends
// the doubling.
func TestPausesOfCallersThatSend(t *testing.T) {
	start := time.Now()
	var h inlineStats
	at := func(after time.Duration) time.Time { return start.Add(after) }
	for _, tt := range []struct {
		after, pause time.Duration
	}{
		{0, herePause},
		{time.Millisecond, herePause}, // at the same time
		{2 * time.Second, 2 * herePause},
		{10 * time.Second, 4 * herePause},
		{20 * time.Second, 8 * herePause},
		{30 * time.Second, 16 * herePause},
		{40 * time.Second, 32 * herePause},
		{50 * time.Second, 64 * herePause},
		{60 * time.Second, 128 * herePause},
		{75 * time.Second, 256 * herePause},
		{85*time.Second + maxHerePause, maxHerePause},
		{85*time.Second + 2*maxHerePause, maxHerePause},
		{85*time.Second + 3*maxHerePause + hereReset + time.Second, herePause},
	} {
		h.noteTimeout(at(tt.after), true)
		require.Equal(t, tt.pause, h.pause, tt.after)
	}
}

// A dial goes on when the attempt for which it began has ended. Until the pause is over it counts
// as in flight, so that no further connection is dialed for a command that is sent alone.
func TestDialsOfCallersThatSend(t *testing.T) {
	p := redistest.Redis(t).Proxy(t)
	var dials atomic.Int32
	hang := make(chan struct{})
	mend := sync.OnceFunc(func() { close(hang); p.Heal() })
	r := NewRunner(p.Client(t, longTimeouts, func(o *redis.Options) {
		dial := redis.NewDialer(o)
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) > 1 {
				<-hang
			}
			return dial(ctx, network, addr)
		}
	}), 0)
	t.Cleanup(r.Close)
	t.Cleanup(mend)
	b := r.batch
	run := func() {
		_, err := r.Do(t.Context(), check, []any{"k"}, "x")
		assert.NoError(t, err)
	}
	run()
	p.HoldReplies(evals)
	var calls sync.WaitGroup
	calls.Go(run) // occupies the only connection
	redistest.WaitFor(t, testTimeout, func() bool { return p.Held() == 1 }, "occupied")
	b.mu.Lock()
	b.inline.quick = quickAnswers
	b.mu.Unlock()
	for range maxDirect - 1 { // few, since others wait while commands are queued
		calls.Go(run)
	}
	dialing := func(late time.Duration) int { // that long after the pause
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.dialing(b.inline.until.Add(late))
	}
	redistest.WaitFor(t, testTimeout, func() bool { return dialing(-1) > 0 }, "they are late")
	for range maxDirect { // during the pause, and after it
		calls.Go(run)
		time.Sleep(herePause / 3)
	}
	const probe = 1 // asks why the server is silent
	require.LessOrEqual(t, dials.Load(), int32(maxDirect+maxInFlight+probe))
	require.Positive(t, dialing(0), "the pause is over, but no dial")
	mend()
	calls.Wait()
	require.Positive(t, dialing(-1))
	redistest.WaitFor(t, testTimeout, func() bool { return dialing(0) == 0 }, "all dials have ended")
	b.inline.noteTimeout(b.inline.until, true)
	require.Zero(t, dialing(-1), "in the next pause")
}

// Hooks see the commands that callers send. If one is added later, callers send nothing by
// themselves.
func TestHooksOfAClientWhoseCallersSend(t *testing.T) {
	w := newEnv(t, redistest.Redis(t))
	r, first := newSenders(t, w, 0)
	rdb := r.rdb.(*redis.Client)
	first.warm(t, w, r)
	first.do(t, t.Context(), r, 1, 0)

	other := NewRunner(rdb, 0)
	defer other.Close()
	require.Same(t, r.batch.hook, other.batch.hook, "one hook for each client")
	require.NoError(t, errOf(rdb.AutoPipeline()))
	require.NoError(t, rdb.Watch(t.Context(), func(tx *redis.Tx) error { return tx.Ping(t.Context()).Err() }))
	first.do(t, t.Context(), r, 1, 0)

	var later senders
	rdb.AddHook(&later)
	first.do(t, t.Context(), r, 1, 0)
	require.Equal(t, int32(1), later.inline.Load(), "a hook that was added later sees it, too")
	var last senders
	rdb.AddHook(&last)
	first.do(t, t.Context(), r, 1, 0)
	require.Equal(t, []int32{2, 1}, []int32{later.inline.Load(), last.inline.Load()})
}

// A hook may panic in the caller's goroutine, and the caller may recover. Its command is not in
// flight after that.
func TestAHookThatPanicsWhileItsCallerSends(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		r, s := newSenders(t, w, 0)
		s.warm(t, w, r)
		s.do(t, t.Context(), r, 1, 0)
		for range 2 * maxDirect {
			letSend(r)
			s.panics.Store(true)
			require.PanicsWithValue(t, "hook", func() { _, _ = r.Do(t.Context(), check, []any{"k"}, "x") })
			s.panics.Store(false)
			require.GreaterOrEqual(t, r.batch.inline.quick, quickAnswers, "it says nothing about the server")
			s.do(t, t.Context(), r, 1, 0)
		}
	})
}

// On a cluster the node's client sends. Pipelines of the application do not matter.
func TestCallerSendsToANodeOfACluster(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	rdb := redistest.Cluster(t).ClusterClient(t)
	r := NewRunner(rdb, 0)
	defer r.Close()
	key := redistest.Name(t)
	for range 3 {
		require.NoError(t, errOf(r.Do(t.Context(), check, []any{key}, "x")))
	}
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Get(t.Context(), key).Err() })
	require.ErrorIs(t, err, redis.Nil)
	node, err := rdb.MasterForKey(t.Context(), key)
	require.NoError(t, err)
	b := (*r.shards.batches.Load())[node]
	require.NotNil(t, b)
	b.inline.quick = quickAnswers
	require.True(t, b.maySendInline(t.Context(), check, time.Now()))
	b.mu.Lock()
	b.direct-- // it is not sent
	b.mu.Unlock()
}

// The context of a call ends while its goroutine sends. An answer counts nevertheless. An answer
// that the command was not executed ends the call: nothing is sent after that. Without a connection
// nothing was sent.
func TestContextEndsWhileItsCallerSends(t *testing.T) {
	for name, tt := range map[string]struct {
		fault   func(t *testing.T, p *redistest.Proxy, rdb *redis.Client)
		after   time.Duration // the call returns
		ok      bool
		outcome failure.Outcome
		sent    int
	}{
		"answered": {
			func(_ *testing.T, p *redistest.Proxy, _ *redis.Client) { p.Delay(inlineTimeout / 3) },
			inlineTimeout / 3, true, 0, 1,
		},
		"unknown script": {func(t *testing.T, p *redistest.Proxy, rdb *redis.Client) {
			require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
			p.Delay(inlineTimeout / 3)
		}, inlineTimeout / 3, false, failure.NotExecuted, 1},
		"no answer": {
			func(_ *testing.T, p *redistest.Proxy, _ *redis.Client) { p.BlackHole(true) },
			inlineTimeout, false, failure.Unknown, -1,
		},
	} {
		redistest.RunBubble(t, name, func(t *testing.T) {
			p := redistest.Embedded(t).Proxy(t)
			rdb := p.Client(t, longTimeouts)
			r := NewRunner(rdb, 0)
			require.NoError(t, errOf(r.Do(t.Context(), check, []any{"k"}, "x")))
			tt.fault(t, p, rdb)
			r.batch.inline.quick = quickAnswers
			p.Record()
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Millisecond, func() { cancel(io.ErrNoProgress) })
			began := time.Now()
			_, err := r.Do(ctx, check, []any{"k"}, "x")
			require.InDelta(t, tt.after, time.Since(began), float64(time.Millisecond))
			if tt.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, io.ErrNoProgress)
				require.Equal(t, tt.outcome, failure.Of(err).Outcome)
			}
			p.Heal()
			requireIdle(t, r)
			if tt.sent >= 0 {
				require.Equal(t, tt.sent, sentTo(p, "evalsha", ""))
			}
			require.Zero(t, sentTo(p, "eval", ""))
		})
	}
}

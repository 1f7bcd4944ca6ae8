package scripts

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestDoRetriesAsConfigured(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, retries := range []int{-1, 1, 5} {
			w := newEnv(t, s, func(o *redis.Options) { o.MaxRetries = retries })
			key := redistest.Name(t)
			require.NoError(t, errOf(w.r.Do(t.Context(), check, []any{key}, "x")))
			w.p.DropReplies(max(retries, 0), evals)
			before := time.Now()
			answer, err := w.r.Do(t.Context(), check, []any{key}, "x")
			require.NoError(t, err)
			require.Equal(t, int64(0), answer.Value)
			require.WithinRange(t, answer.Sent, before, time.Now())
			w.p.DropReplies(max(retries, 0)+1, evals)
			_, err = w.r.Do(t.Context(), check, []any{key}, "x")
			require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
			w.p.Heal()
			w.p.DropReplies(1, evals)
			_, err = w.r.Once(t.Context(), check, []any{key}, "x")
			require.Equal(t, failure.Unknown, failure.Of(err).Outcome, "Once does not retry")
		}
	})
}

// Sent is the start of the answered attempt, not of the first one.
func TestSentIsOfTheAnsweredAttempt(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), func(o *redis.Options) {
		o.MinRetryBackoff, o.MaxRetryBackoff = 100*time.Millisecond, 100*time.Millisecond
	})
	require.NoError(t, errOf(w.r.Do(t.Context(), check, []any{"k"}, "x")))
	before := time.Now()
	w.p.DropReplies(1, evals)
	answer, err := w.r.Do(t.Context(), check, []any{"k"}, "x")
	require.NoError(t, err)
	require.GreaterOrEqual(t, answer.Sent.Sub(before), 50*time.Millisecond)
}

// A call whose context has ended sends nothing, and says so.
func TestDoneContextSendsNothing(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		done, cancel := context.WithCancelCause(t.Context())
		cancel(io.ErrNoProgress)
		key := redistest.Name(t)
		w.p.Record()
		_, run := w.r.Do(done, check, []any{key}, "x")
		_, once := w.r.Once(done, check, []any{key}, "x")
		_, replicated := w.r.RunReplicated(done, 1, time.Second, check, []any{key}, "x")
		_, commands := w.r.Commands(done, []any{"get", key})
		var scanned error
		for _, err := range w.r.Hashes(done, "*") {
			scanned = err
		}
		for _, err := range []error{run, once, replicated, commands, scanned} {
			require.ErrorIs(t, err, io.ErrNoProgress)
			require.Equal(t, failure.NotExecuted, failure.Of(err).Outcome)
		}
		require.Empty(t, w.p.Commands())
	})
}

// A reply reports that an earlier attempt of the same call is in doubt: its copy may still run.
func TestReplyReportsEarlierDoubt(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		key := redistest.Name(t)
		reply, err := w.r.Do(t.Context(), check, []any{key}, "x")
		require.NoError(t, err)
		require.False(t, reply.Doubt)
		w.p.DropReplies(1, evals)
		reply, err = w.r.Do(t.Context(), check, []any{key}, "x")
		require.NoError(t, err)
		require.True(t, reply.Doubt)
		w.refuseAll()
		go func() {
			time.Sleep(time.Millisecond)
			w.p.Heal()
		}()
		reply, err = w.r.Do(t.Context(), check, []any{key}, "x")
		if err == nil {
			require.False(t, reply.Doubt, "a refused dial leaves no doubt")
		}
	}, longTimeouts)
}

func TestClosedRunnerSendsNothing(t *testing.T) {
	w := newEnv(t, redistest.Redis(t))
	w.r.Close()
	w.r.Close()
	w.p.Record()
	_, run := w.r.Do(t.Context(), check, []any{"k"}, "x")
	_, once := w.r.Once(t.Context(), check, []any{"k"}, "x")
	_, replicated := w.r.RunReplicated(t.Context(), 1, time.Second, check, []any{"k"}, "x")
	var scanned error
	for _, err := range w.r.Hashes(t.Context(), "*") {
		scanned = err
	}
	for _, err := range []error{run, once, replicated, scanned} {
		require.ErrorIs(t, err, failure.ErrClosed)
		require.Equal(t, failure.NotExecuted, failure.Of(err).Outcome)
	}
	require.Empty(t, w.p.Commands())
}

// Close ends the pause between two attempts.
func TestCloseEndsRetries(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), func(o *redis.Options) {
		o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 1000, time.Hour, time.Hour
	})
	w.p.DropReplies(1000, evals)
	failed := make(chan error, 1)
	w.p.Record()
	go func() {
		_, err := w.r.Do(context.Background(), check, []any{"k"}, "x")
		failed <- err
	}()
	redistest.WaitFor(t, testTimeout, func() bool { return w.sent("evalsha") > 0 }, "under way")
	w.r.Close()
	require.Equal(t, failure.Unknown, failure.Of(<-failed).Outcome)
}

func TestUnknownScriptIsLoaded(t *testing.T) {
	for _, s := range []*redistest.Server{redistest.Miniredis(t), redistest.Fresh(t)} {
		t.Run(s.Name(), func(t *testing.T) {
			w := newEnv(t, s)
			admin := s.Client(t)
			run := func() {
				require.NoError(t, errOf(w.r.Do(t.Context(), check, []any{"k"}, "x")))
			}
			w.p.Record()
			run()
			require.Equal(t, []int{2, 1, 0}, []int{w.sent("evalsha"), w.sent("script"), w.sent("eval")})
			w.p.Record()
			run()
			require.Equal(t, []int{1, 0, 0}, []int{w.sent("evalsha"), w.sent("script"), w.sent("eval")})
			// If SCRIPT LOAD fails, the script is sent with its text.
			require.NoError(t, admin.ScriptFlush(t.Context()).Err())
			w.p.DropCommands(10, redistest.Named("script"))
			w.p.Record()
			run()
			require.Equal(t, 1, w.sent("eval"))
			require.Equal(t, check.SHA(), admin.ScriptLoad(t.Context(), check.Text()).Val())
			w.p.Heal()
			run()
		})
	}
}

// Every kind of reply is an answer, nil too.
func TestAnswersOfAllKinds(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		for code, want := range map[string]any{
			"return nil": nil, "return false": nil, "return 7": int64(7), "return 'a'": "a",
			"return {7, 'a'}": []any{int64(7), "a"},
		} {
			s := newScript("answer", code)
			for range 2 { // unknown to the server, then known
				answer, err := w.r.Do(t.Context(), s, []any{redistest.Name(t)})
				require.NoError(t, err)
				require.Equal(t, want, answer.Value)
			}
			for _, res := range runInOneBatch(t, w.r.batch, []request{
				func() (Reply, error) { return w.r.Do(t.Context(), s, []any{redistest.Name(t)}) },
			}) {
				require.NoError(t, res.err)
				require.Equal(t, want, res.reply.Value)
			}
		}
	})
}

func TestMemoryOutlivesCopies(t *testing.T) {
	for _, tt := range []struct {
		tweak   func(*redis.Options)
		timeout time.Duration
		want    time.Duration
	}{
		{func(*redis.Options) {}, 0, 3 * time.Minute},
		{fastRetries, time.Second, 3 * time.Minute},
		{func(*redis.Options) {}, time.Hour, 3 * time.Minute},
		// Longer than that: the timeout, the read timeout, and 2 minutes.
		{func(o *redis.Options) { o.ReadTimeout = 2 * time.Minute }, 0, 4*time.Minute + 5*time.Second},
	} {
		r := NewRunner(redistest.Miniredis(t).Client(t, tt.tweak), tt.timeout)
		require.Equal(t, tt.want, r.Memory())
		const lastRetransmission = 102 * time.Second // of Linux, for a connection that was closed
		require.Greater(t, r.Memory()-r.Repeatable(), lastRetransmission)
		require.LessOrEqual(t, r.Timeout(), r.Repeatable())
	}
}

// A type of the user's own may have options that go-redis has not completed.
func TestRunnerReadsItsOptions(t *testing.T) {
	rdb := redistest.Miniredis(t).Client(t, func(o *redis.Options) { o.PoolSize = 3 })
	r := NewRunner(rdb, time.Second)
	defer r.Close()
	require.Equal(t, Publish, r.Publish())
	require.Equal(t, 3, cap(r.watches))
	require.Equal(t, time.Second+rdb.Options().ReadTimeout+answerReserve, r.AnswerMemory())
	require.False(t, r.recovery.cluster)

	own := NewRunner(ownOptions{rdb, &redis.Options{MaxRetries: -1, ReadTimeout: -time.Hour}}, time.Second)
	defer own.Close()
	require.Equal(t, 1, cap(own.watches))
	require.Zero(t, own.retries)
	require.Equal(t, time.Second+answerReserve, own.AnswerMemory())

	cluster := NewRunner(&clusterOfOne{UniversalClient: rdb}, time.Second)
	defer cluster.Close()
	require.Nil(t, cluster.watches)
	require.Zero(t, cluster.retries)
	require.Equal(t, time.Second+DefaultTimeout+answerReserve, cluster.AnswerMemory())
	require.True(t, cluster.recovery.cluster)
}

// ownOptions is a client with options of its own.
type ownOptions struct {
	redis.UniversalClient
	options *redis.Options
}

func (c ownOptions) Options() *redis.Options { return c.options }

func TestRunnerOnCluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t)
	r := NewRunner(servers.ClusterClient(t), 0)
	defer r.Close()
	unknown := newScript("unknown", "return #KEYS -- "+redistest.Name(t)) // to all nodes
	for i := range 20 {
		reply, err := r.Do(t.Context(), unknown, []any{fmt.Sprint("k", i)})
		require.NoError(t, err)
		require.EqualValues(t, 1, reply.Value)
	}
	reply, err := r.RunReplicated(t.Context(), 1, 50*time.Millisecond, check, []any{"k"}, "x")
	require.NoError(t, err)
	require.ErrorIs(t, reply.Unconfirmed, failure.ErrNotReplicated)
}

// A dial that times out within the call's time is a dial that failed: nothing was sent, and the
// call tries again. Its error looks as if a context's deadline had passed.
func TestDialTimeoutIsRetried(t *testing.T) {
	for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"in the caller's goroutine": func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"in another goroutine":      func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			var timeouts atomic.Int32
			w := newEnv(t, redistest.Redis(t), func(o *redis.Options) {
				dial := redis.NewDialer(o)
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					if timeouts.Add(1) <= 2 {
						return net.DialTimeout(network, addr, time.Nanosecond)
					}
					return dial(ctx, network, addr)
				}
			})
			ctx, cancel := ctx()
			defer cancel()
			require.NoError(t, errOf(w.r.Do(ctx, check, []any{redistest.Name(t)}, "x")))
			require.Greater(t, timeouts.Load(), int32(2))
		})
	}
}

// When as many dials have failed as the pool has connections, go-redis returns the latest error
// without dialing, and dials once a second. A server that is back is found by the first call.
func TestFirstCallAfterRefusedDials(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), dialsOnce, func(o *redis.Options) { o.PoolSize = 2 })
	w.p.Cut()
	stalls := redistest.WatchStalls(t)
	for range 3 {
		began := time.Now()
		_, err := w.r.Do(t.Context(), check, []any{redistest.Name(t)}, "x")
		took := time.Since(began)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Less(t, took, 500*time.Millisecond+stalls.Since(began))
	}
	w.p.Heal()
	time.Sleep(probePause)
	require.NoError(t, errOf(w.r.Do(t.Context(), check, []any{redistest.Name(t)}, "x")))
}

// Answering is false after a call that nobody has answered, until Redis answers again, even with an
// error. A command that was not sent says nothing.
func TestAnsweringAfterASilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, longTimeouts), time.Second)
		defer r.Close()
		wrong := newScript("wrong", `return redis.error_reply('WRONGTYPE '  .. KEYS[1])`)
		run := func(s *Script) error {
			_, err := r.Do(t.Context(), s, []any{"k"}, "x")
			return err
		}
		require.True(t, r.Answering())
		for name, answer := range map[string]func(){
			"by another goroutine": func() { require.NoError(t, run(check)) },
			"with an error":        func() { require.ErrorContains(t, run(wrong), "WRONGTYPE") },
			"in the caller's goroutine": func() {
				require.NoError(t, run(check)) // dials
				synctest.Wait()                // the attempt that nobody has answered ends, and sets the score to 0
				r.batch.inline = inlineStats{quick: quickAnswers}
				r.silent.Store(true)
				require.NoError(t, run(check))
				require.Equal(t, quickAnswers+1, r.batch.inline.quick, "this answer, too, was quick")
			},
		} {
			answer()
			require.True(t, r.Answering(), name)
			p.BlackHole(true)
			require.EqualError(t, run(check), "no answer within the command timeout (outcome unknown)")
			require.False(t, r.Answering(), name)
			p.Recover()
			answer()
			require.True(t, r.Answering(), name)
		}
		p.BlackHole(true)
		for wait, answering := range map[time.Duration]bool{failure.SilentAfter - 1: true, failure.SilentAfter: false} {
			r.silent.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			_, err := r.Do(ctx, check, []any{"k"}, "x")
			cancel()
			require.NotEqual(t, failure.Executed, failure.Of(err).Outcome, wait)
			require.Equal(t, answering, r.Answering(), "its caller ended it after %v", wait)
		}
		p.Recover()
		require.NoError(t, run(check))
		vacate := occupyBatcher(t, r.batch, maxDirect, maxInFlight)
		require.Equal(t, failure.NotExecuted, failure.Of(run(check)).Outcome)
		require.True(t, r.Answering(), "it was not sent")
		vacate()
	})
}

// Deadlines are shared for a hundredth of their time, and none is later than the final one.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const d = time.Second
		var ds deadlines
		defer ds.close()
		start, joined := time.Now(), joinedContext{}
		first := ds.in(d)
		require.Equal(t, start.Add(d), first.until)
		require.Same(t, first, ds.in(d))
		time.Sleep(d / 100)
		require.Same(t, first, ds.in(d))
		shared, _ := ds.after(t.Context(), d, &joined)
		require.Same(t, first, shared)
		time.Sleep(time.Nanosecond)
		second := ds.in(d)
		require.Equal(t, time.Now().Add(d), second.until)
		require.Equal(t, time.Now().Add(d/2), ds.in(d/2).until, "no later than asked for")

		for _, tt := range []struct {
			until time.Duration // of the caller's context
			first bool          // it ends before the deadline
		}{{d / 2, true}, {2 * d, false}} {
			ctx, cancel := context.WithTimeout(t.Context(), tt.until)
			end, attempts := ds.after(ctx, d, &joined)
			require.Same(t, &joined, attempts)
			until, _ := attempts.Deadline()
			require.Equal(t, end.until, until)
			cancel()
			require.Equal(t, tt.first, attempts.Err() != nil)
		}
		_, attempts := ds.after(t.Context(), d, &joined)
		require.NoError(t, attempts.Err())

		ds.last(d)
		final := time.Now().Add(d)
		time.Sleep(d / 2)
		require.Equal(t, final, ds.in(d).until)
		require.Equal(t, time.Now().Add(d/4), ds.in(d/4).until, "before the final one")
		time.Sleep(d)
		require.Error(t, ds.in(d).Err(), "it has passed")
	})
}

// Once the runner is stopped, calls end within its timeout, including those that begin later. Close
// leaves no timer.
func TestCallsEndSoonAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, longTimeouts), time.Second)
		require.NoError(t, errOf(r.Do(t.Context(), check, []any{"k"}, "x")))
		p.BlackHole(true)
		r.Stop()
		stopped := time.Now()
		time.Sleep(r.timeout / 2)
		require.ErrorIs(t, errOf(r.Do(t.Context(), check, []any{"k"}, "x")), failure.ErrNoAnswer)
		require.Equal(t, r.timeout, time.Since(stopped))
		r.Close()
		require.Equal(t, r.timeout, time.Since(stopped), "attempts end then, too")
		for _, end := range []*deadline{r.ends.latest.Load(), r.ends.final.Load()} {
			require.Error(t, end.Err())
		}
	})
}

// The pause between two attempts doubles up to a limit, with jitter. It waits for a reading of the
// slot map, but not for long.
func TestPausesBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t, func(o *redis.Options) {
			o.MinRetryBackoff, o.MaxRetryBackoff = 8*time.Millisecond, time.Second
		}), 0)
		defer r.Close()
		end := (&deadlines{}).newDeadline(time.Now().Add(24 * time.Hour))
		defer end.stop()
		pauseAfter := func(attempt int, err error, rereading *reading) time.Duration {
			began := time.Now()
			require.True(t, r.pause(t.Context(), end, attempt, err, rereading))
			return time.Since(began)
		}
		pause := func(attempt int, rereading *reading) time.Duration { return pauseAfter(attempt, io.EOF, rereading) }
		exact := 0
		for attempt := range 100 {
			want := time.Second
			if attempt < 7 {
				want = 8 * time.Millisecond << attempt
			}
			took := pause(attempt, nil)
			require.GreaterOrEqual(t, took, want/2, "attempt %d", attempt)
			require.Less(t, took, want/2+want, "attempt %d", attempt)
			if took == want {
				exact++
			}
		}
		require.Less(t, exact, 10, "clients must not retry in step")
		for attempt := range 20 {
			took := pauseAfter(attempt, reply("TRYAGAIN Multiple keys request during rehashing of slot"), nil)
			require.Less(t, took, maxMovingDelay*3/2, "a slot that moves may soon be whole")
		}
		r.minDelay = 0
		require.Zero(t, pause(3, nil))
		refused := pauseAfter(3, reply("LOADING Redis is loading the dataset in memory"), nil)
		require.GreaterOrEqual(t, refused, 5*time.Millisecond, "the attempts after a refusal are not counted")
		require.Equal(t, maxRerouting, pause(0, &reading{done: make(chan struct{})}))
		soon := &reading{done: make(chan struct{})}
		time.AfterFunc(time.Millisecond, func() { close(soon.done) })
		require.Equal(t, time.Millisecond, pause(0, soon))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		began := time.Now()
		require.False(t, r.pause(ctx, end, 0, io.EOF, &reading{done: make(chan struct{})}))
		require.Equal(t, time.Millisecond, time.Since(began))
	})
}

// A script may have no keys.
func TestScriptWithoutKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, onCluster := newClusterOfOne(t)
		defer onCluster.Close()
		single := NewRunner(redistest.Embedded(t).Client(t), 0)
		defer single.Close()
		s := newScript("without", "return #KEYS")
		for _, r := range []*Runner{single, onCluster} {
			reply, err := r.Do(t.Context(), s, nil)
			require.NoError(t, err)
			require.EqualValues(t, 0, reply.Value)
			reply, err = r.Once(t.Context(), s, nil)
			require.NoError(t, err)
			require.EqualValues(t, 0, reply.Value)
		}
	})
}

// A server that never knows a script, even with its text, gets it three times. Its answer ends the
// call.
func TestServerThatNeverKnowsAScript(t *testing.T) {
	for _, mode := range []string{"alone", "in a batch"} {
		redistest.RunBubble(t, mode, func(t *testing.T) {
			var sent atomic.Int32
			r := NewRunner(inMemory(t, func(command string) string {
				if !strings.Contains(command, "eval") {
					return "-ERR unknown command\r\n"
				}
				sent.Add(1)
				return "-NOSCRIPT No matching script.\r\n"
			}), 0)
			call := func() (Reply, error) { return r.Do(t.Context(), check, []any{"k"}, "x") }
			var err error
			want := int32(2)
			if mode == "alone" {
				_, err = call()
			} else {
				err, want = runInOneBatch(t, r.batch, []request{call})[0].err, 3
			}
			require.ErrorContains(t, err, "NOSCRIPT")
			require.Equal(t, want, sent.Load())
			requireIdle(t, r)
		})
	}
}

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
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// testTimeout bounds waits for events that take milliseconds on an idle machine.
const testTimeout = 10 * time.Second

var check = Load("lock/check") // reads: KEYS[1], ARGV[1]

// fastRetries configures a client with three immediate retries and short timeouts.
func fastRetries(o *redis.Options) {
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 3, time.Microsecond, time.Millisecond
	o.ReadTimeout, o.WriteTimeout = 150*time.Millisecond, 150*time.Millisecond
	o.DialTimeout, o.PoolTimeout = 150*time.Millisecond, 150*time.Millisecond
}

// env is a runner, connected to a server through a proxy.
type env struct {
	s *redistest.Server
	p *redistest.Proxy
	r *Runner
}

func newEnv(t *testing.T, s *redistest.Server, tweaks ...func(*redis.Options)) *env {
	w := &env{s: s, p: s.Proxy(t)}
	w.r = NewRunner(w.p.Client(t, append([]func(*redis.Options){fastRetries}, tweaks...)...), 0)
	t.Cleanup(w.r.Close)
	return w
}

func eachServer(t *testing.T, f func(t *testing.T, w *env), tweaks ...func(*redis.Options)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { f(t, newEnv(t, s, tweaks...)) })
}

// dialsOnce makes a refused dial fail at once. go-redis would dial five times.
func dialsOnce(o *redis.Options) { o.DialerRetries = 1 }

// sent counts the commands with that name since Record.
func (w *env) sent(name string) (n int) {
	for _, c := range w.p.Commands() {
		if strings.EqualFold(c.Args[0], name) {
			n++
		}
	}
	return n
}

var evals = redistest.Named("evalsha", "eval")

// A failed call reports what is known about the command, after the configured number of attempts.
func TestFailureReportsItsOutcome(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		fault   func(w *env)
		outcome Outcome
		tries   int // number of EVALSHA commands that were sent; -1: any
		want    string
	}{
		{"refused", func(w *env) { w.p.Refuse(true); w.p.Reset() }, NotExecuted, 0, "refused"},
		{"swallowed", func(w *env) { w.p.DropCommands(100, evals) }, Unknown, 4, ""},
		{"reply lost", func(w *env) { w.p.DropReplies(100, evals) }, Unknown, 4, ""},
		{"silence", func(w *env) { w.p.BlackHole(true) }, Unknown, -1, "timeout"},
		{"lost once, then refused", func(w *env) {
			w.p.DropReplies(1, evals)
			w.p.Refuse(true)
		}, Unknown, 1, "refused"},
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
			}, dialsOnce)
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
		p.BlackHole(true)
		_, err = r.Do(t.Context(), check, []any{"k"}, "x")
		require.ErrorIs(t, err, ErrNoAnswer)
		require.ErrorIs(t, err, ErrOutcomeUnknown)
		require.ErrorContains(t, err, "before that")
		require.ErrorContains(t, err, "i/o timeout")
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

// inMemory returns a client of a server in the bubble of a test. answer returns the reply to what a connection has
// received, in lower case; "" is none.
func inMemory(t *testing.T, answer func(received string) string) *redis.Client {
	var mu sync.Mutex
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true, PoolSize: 1, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				defer func() { _ = server.Close() }()
				received := make([]byte, 1<<16)
				for {
					n, err := server.Read(received)
					if err != nil {
						return
					}
					mu.Lock()
					text := answer(strings.ToLower(string(received[:n])))
					mu.Unlock()
					_, _ = io.WriteString(server, text)
				}
			}()
			return client, nil
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

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

func TestDoRetriesAsConfigured(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, retries := range []int{-1, 1, 5} {
			w := newEnv(t, s, func(o *redis.Options) { o.MaxRetries = retries })
			key := redistest.Name(t)
			_, err := w.r.Do(t.Context(), check, []any{key}, "x")
			require.NoError(t, err)
			w.p.DropReplies(max(retries, 0), evals)
			before := time.Now()
			answer, err := w.r.Do(t.Context(), check, []any{key}, "x")
			require.NoError(t, err)
			require.Equal(t, int64(0), answer.Value)
			require.WithinRange(t, answer.Sent, before, time.Now())
			w.p.DropReplies(max(retries, 0)+1, evals)
			_, err = w.r.Do(t.Context(), check, []any{key}, "x")
			require.Equal(t, Unknown, OutcomeOf(err))
			w.p.Heal()
			w.p.DropReplies(1, evals)
			_, err = w.r.Once(t.Context(), check, []any{key}, "x")
			require.Equal(t, Unknown, OutcomeOf(err), "Once does not retry")
		}
	})
}

// Sent is the start of the answered attempt, not of the first one.
func TestSentIsOfTheAnsweredAttempt(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), func(o *redis.Options) {
		o.MinRetryBackoff, o.MaxRetryBackoff = 100*time.Millisecond, 100*time.Millisecond
	})
	_, err := w.r.Do(t.Context(), check, []any{"k"}, "x")
	require.NoError(t, err)
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
			require.Equal(t, NotExecuted, OutcomeOf(err))
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
		w.p.Refuse(true)
		w.p.Reset()
		go func() {
			time.Sleep(time.Millisecond)
			w.p.Heal()
		}()
		reply, err = w.r.Do(t.Context(), check, []any{key}, "x")
		if err == nil {
			require.False(t, reply.Doubt, "a refused dial leaves no doubt")
		}
	})
}

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
	require.Equal(t, Unknown, OutcomeOf(err))
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
		require.ErrorIs(t, err, ErrClosed)
		require.Equal(t, NotExecuted, OutcomeOf(err))
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
	require.Equal(t, Unknown, OutcomeOf(<-failed))
}

func TestUnknownScriptIsLoaded(t *testing.T) {
	for _, s := range []*redistest.Server{redistest.Miniredis(t), redistest.Fresh(t)} {
		t.Run(s.Name(), func(t *testing.T) {
			w := newEnv(t, s)
			admin := s.Client(t)
			run := func() {
				_, err := w.r.Do(t.Context(), check, []any{"k"}, "x")
				require.NoError(t, err)
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
	require.False(t, r.contact.cluster)

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
	require.True(t, cluster.contact.cluster)
}

// ownOptions is a client with options of its own.
type ownOptions struct {
	redis.UniversalClient
	options *redis.Options
}

func (c ownOptions) Options() *redis.Options { return c.options }

func TestHashes(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) redis.UniversalClient{
		"miniredis": func(t *testing.T) redis.UniversalClient { return redistest.Miniredis(t).Client(t) },
		"redis":     func(t *testing.T) redis.UniversalClient { return redistest.Redis(t).Client(t) },
		"cluster":   func(t *testing.T) redis.UniversalClient { return redistest.Cluster(t).ClusterClient(t) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := open(t)
			r := NewRunner(rdb, 0)
			defer r.Close()
			prefix := redistest.Name(t)
			var want []string
			var wg sync.WaitGroup
			for i := range 30 {
				want = append(want, fmt.Sprint(prefix, i))
				wg.Go(func() {
					_ = rdb.HSet(t.Context(), fmt.Sprint(prefix, i), "f", 1).Err()
					_ = rdb.Set(t.Context(), fmt.Sprint(prefix, i, "s"), 1, time.Minute).Err()
				})
			}
			wg.Wait()
			var got []string
			for key, err := range r.Hashes(t.Context(), prefix+"*") {
				require.NoError(t, err)
				got = append(got, key)
			}
			slices.Sort(got)
			slices.Sort(want)
			require.Equal(t, want, slices.Compact(got))
			for _, err := range r.Hashes(t.Context(), prefix+"*") {
				require.NoError(t, err)
				break
			}
			done, cancel := context.WithCancel(t.Context())
			cancel()
			for key, err := range r.Hashes(done, prefix+"*") {
				require.Empty(t, key)
				require.ErrorIs(t, err, context.Canceled)
			}
			for _, key := range want {
				require.NoError(t, rdb.Del(t.Context(), key).Err())
			}
		})
	}
}

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
	require.ErrorIs(t, reply.Unconfirmed, ErrNotReplicated)
}

// Plain commands are not retried.
func TestCommands(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		key := redistest.Name(t)
		w.p.DropReplies(1, redistest.Named("set"))
		_, err := w.r.Commands(t.Context(), []any{"set", key, "v", "px", 60_000})
		require.Equal(t, Unknown, OutcomeOf(err))
		set := []any{"set", key, "v", "px", 60_000}
		values, err := w.r.Commands(t.Context(), set, []any{"get", key}, []any{"get", key + "-"})
		require.NoError(t, err)
		require.Equal(t, []any{"OK", "v", nil}, values)
		values, err = w.r.Commands(t.Context(), []any{"get", key})
		require.NoError(t, err)
		require.Equal(t, []any{"v"}, values)
		_, err = w.r.Commands(t.Context(), []any{"hkeys", key})
		require.Equal(t, Executed, OutcomeOf(err))
		w.r.Close()
		_, err = w.r.Commands(t.Context(), []any{"get", key})
		require.ErrorIs(t, err, ErrClosed)
	}, longTimeouts)
}

// Commands returns when its context ends. Its attempt ends with the read timeout.
func TestCommandsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, fastRetries), 0)
		_, err := r.Commands(t.Context(), []any{"get", "k"})
		require.NoError(t, err)
		p.BlackHole(true)
		const limit = 20 * time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(limit, cancel)
		began := time.Now()
		_, err = r.Commands(ctx, []any{"get", "k"})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, Unknown, OutcomeOf(err))
		require.Equal(t, limit, time.Since(began))
		r.Close()
		require.LessOrEqual(t, time.Since(began), r.rdb.(*redis.Client).Options().ReadTimeout, "it is not repeated")
	})
}

// A caller gives up before the server answers that it does not know the script. The command is not sent
// again: it could be executed after the caller's rollback.
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

// The error of an abandoned call says why it ended. That the server did not know the script is nobody's concern.
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
	require.NotErrorIs(t, err, ErrNoAnswer)
}

// ended is a context of a type of its own, which has ended.
type ended struct{ context.Context }

func (ended) Err() error { return io.EOF }

// A dial that times out within the call's time is a dial that failed: nothing was sent, and the call tries
// again. Its error looks like that of a context whose deadline has passed.
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
			_, err := w.r.Do(ctx, check, []any{redistest.Name(t)}, "x")
			require.NoError(t, err)
			require.Greater(t, timeouts.Load(), int32(2))
		})
	}
}

// When as many dials have failed as the pool has connections, go-redis returns the latest error without dialing, and
// dials once a second. A server that is back is found by the first call.
func TestFirstCallAfterRefusedDials(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), dialsOnce, func(o *redis.Options) { o.PoolSize = 2 })
	w.p.Refuse(true)
	w.p.Reset()
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
	_, err := w.r.Do(t.Context(), check, []any{redistest.Name(t)}, "x")
	require.NoError(t, err)
}

// Answering is false after a call that nobody has answered, until Redis answers again, even with an error. A
// command that was not sent says nothing.
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
				r.batch.here = here{quick: quickAnswers}
				r.silent.Store(true)
				require.NoError(t, run(check))
				require.Equal(t, quickAnswers+1, r.batch.here.quick, "this answer, too, was quick")
			},
		} {
			answer()
			require.True(t, r.Answering(), name)
			p.BlackHole(true)
			require.EqualError(t, run(check), "no answer within the command timeout (outcome unknown)")
			require.False(t, r.Answering(), name)
			p.Heal()
			p.Reset()
			answer()
			require.True(t, r.Answering(), name)
		}
		p.BlackHole(true)
		for wait, answering := range map[time.Duration]bool{SilentAfter - 1: true, SilentAfter: false} {
			r.silent.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			_, err := r.Do(ctx, check, []any{"k"}, "x")
			cancel()
			require.Equal(t, Unknown, OutcomeOf(err), wait)
			require.Equal(t, answering, r.Answering(), "its caller ended it after %v", wait)
		}
		p.Heal()
		p.Reset()
		require.NoError(t, run(check))
		vacate := occupyBatcher(t, r.batch, maxDirect, maxInFlight)
		require.Equal(t, NotExecuted, OutcomeOf(run(check)))
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

// Once the runner is stopped, calls end within its timeout, including those that begin later. Close leaves no timer.
func TestCallsEndSoonAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, longTimeouts), time.Second)
		_, err := r.Do(t.Context(), check, []any{"k"}, "x")
		require.NoError(t, err)
		p.BlackHole(true)
		r.Stop()
		stopped := time.Now()
		time.Sleep(r.timeout / 2)
		_, err = r.Do(t.Context(), check, []any{"k"}, "x")
		require.ErrorIs(t, err, ErrNoAnswer)
		require.Equal(t, r.timeout, time.Since(stopped))
		r.Close()
		require.Equal(t, r.timeout, time.Since(stopped), "attempts end then, too")
		for _, end := range []*deadline{r.ends.latest.Load(), r.ends.final.Load()} {
			require.Error(t, end.Err())
		}
	})
}

// The pause between two attempts doubles up to a limit, with jitter. It waits for a reading of the slot map, but not
// for long.
func TestPausesBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t, func(o *redis.Options) {
			o.MinRetryBackoff, o.MaxRetryBackoff = 8*time.Millisecond, time.Second
		}), 0)
		defer r.Close()
		end := newDeadline(time.Now().Add(24 * time.Hour))
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

// A batch whose script the server does not know is not sent again for a caller that has returned.
func TestAbandonedCommandOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t), 0)
		defer r.Close()
		ctx, cancel := context.WithCancel(t.Context())
		p := &pending{call: newCall(counted, []any{"k"}, []any{"x"}), done: make(chan struct{}, 1)}
		p.end, p.call.ctx = r.ends.after(ctx, r.timeout, &p.memory.joined)
		cancel()
		require.Empty(t, r.batch.send(t.Context(), r.batch.piped(), []*pending{p}))
		<-p.done
		require.ErrorIs(t, p.err, context.Canceled)
		require.Equal(t, errorClass{NotExecuted, false, false}, classify(p.err))
	})
}

// A server that never knows a script, even with its text, gets it three times. Its answer ends the call.
func TestServerThatNeverKnowsAScript(t *testing.T) {
	for _, mode := range []string{"alone", "in a batch"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}

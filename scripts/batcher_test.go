package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

var (
	// counted counts requests in KEYS[1] and returns the count. A copy of request ARGV[1] is not
	// counted again and gets the first answer.
	counted = newScript("counted", `
local n = redis.call('hget', KEYS[1], ARGV[1])
if not n then
  n = redis.call('hincrby', KEYS[1], 'n', 1)
  redis.call('hset', KEYS[1], ARGV[1], n)
end
return tonumber(n)`)
	other = newScript("other", `return redis.call('hincrby', KEYS[1], 'n', 1)`)
)

// result is the result of a call.
type result struct {
	reply Reply
	err   error
}

// occupyBatcher waits until b has no worker, and then makes it count that many commands and batches
// as in flight, until vacate.
func occupyBatcher(t testing.TB, b *batcher, direct, slots int) (vacate func()) {
	redistest.WaitFor(t, testTimeout, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.slots == 0
	}, "no worker")
	add := func(direct, slots int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.direct += direct
		b.slots += slots
	}
	add(direct, slots)
	return func() {
		b.r.running.Add(1)
		defer b.r.running.Done()
		add(-direct, 0)
		b.mu.Lock()
		defer b.mu.Unlock()
		for range slots {
			b.passSlot()
		}
	}
}

// runInOneBatch queues calls in b, at most minShare, in their order, then has them sent in one
// pipeline, and returns their results.
func runInOneBatch(t testing.TB, b *batcher, calls []request) []result {
	results := make([]result, len(calls))
	vacate := occupyBatcher(t, b, b.maxDirect, maxInFlight)
	var wg sync.WaitGroup
	for i, call := range calls { // each is queued before the next
		wg.Go(func() { results[i].reply, results[i].err = call() })
		redistest.WaitFor(t, testTimeout, func() bool { return queued(b) == i+1 }, "queued")
	}
	vacate()
	wg.Wait()
	return results
}

func queued(b *batcher) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// requireIdle closes r and requires that its batchers count nothing as in flight.
func requireIdle(t testing.TB, r *Runner) {
	r.Close()
	batchers := []*batcher{r.batch}
	for _, b := range *r.shards.batches.Load() {
		batchers = append(batchers, b)
	}
	for _, b := range batchers {
		require.Empty(t, b.queue, "queue")
		require.Zero(t, b.direct, "direct")
		require.Zero(t, b.slots, "slots")
		require.Zero(t, b.batched, "batched")
		require.Zero(t, b.lateBatches, "late batches")
		require.False(t, b.full, "full")
	}
}

type request = func() (Reply, error)

// countedCalls returns n calls of counted, each a request of its own.
func countedCalls(r *Runner, key string, n int) (calls []request) {
	for i := range n {
		calls = append(calls, func() (Reply, error) {
			return r.Do(context.Background(), counted, []any{key}, fmt.Sprint("request", i))
		})
	}
	return calls
}

// Queued commands are sent in one pipeline, in order of arrival.
func TestBatchKeepsOrderOfArrival(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w, key := newEnv(t, s, longTimeouts), redistest.Name(t)
		require.NoError(t, errOf(w.r.Do(t.Context(), counted, []any{key}, "warm")))
		w.p.Record()
		runInOneBatch(t, w.r.batch, countedCalls(w.r, key, 20))
		conns := map[int]bool{}
		var requests, want []string
		for _, c := range w.p.Commands() {
			if evals(c.Args) {
				conns[c.Conn] = true
				requests = append(requests, c.Args[4])
			}
		}
		for i := range 20 {
			want = append(want, fmt.Sprint("request", i))
		}
		require.Equal(t, want, requests)
		require.Len(t, conns, 1)
		requireIdle(t, w.r)
	})
}

// A long queue is shared by the batches that may be in flight.
func TestBatchesShareTheCommands(t *testing.T) {
	tests := []struct {
		queued, inOther int
		quiet           bool
		want            int
	}{
		{1, 0, false, 1},
		{minShare, 0, false, minShare}, // not worth another batch
		{60, 0, false, 30},
		{61, 0, false, 31},
		{40, 20, false, 30},
		{30, 60, false, 30},
		{10, 60, false, 10},
		{2*maxBatch + 50, 0, false, maxBatch},
		{60, 0, true, maxQuietBatch},
		{maxQuietBatch - 1, 0, true, maxQuietBatch - 1},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%d queued, %d in the other batch", test.queued, test.inOther), func(t *testing.T) {
			b := &batcher{slots: maxInFlight, batched: test.inOther + 3, inline: inlineStats{unanswered: test.quiet}}
			for range test.queued {
				b.queue = append(b.queue, new(pending))
			}
			sent := make([]*pending, 3) // the worker's latest batch, which no longer counts
			taken := b.take(sent)
			require.Len(t, taken, test.want)
			require.Equal(t, test.inOther+test.want, b.batched)
			require.Len(t, b.queue, test.queued-test.want)
		})
	}
}

// Sent is the time when the batch was written, not when the command was queued.
func TestSentIsWhenTheBatchIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t), 0)
		vacate := occupyBatcher(t, r.batch, maxDirect, maxInFlight)
		var came sync.WaitGroup
		var written time.Time
		for _, call := range countedCalls(r, "k", 4) {
			came.Go(func() {
				reply, err := call()
				require.NoError(t, err)
				require.Equal(t, written, reply.Sent)
			})
		}
		time.Sleep(time.Second)
		written = time.Now()
		vacate()
		came.Wait()
		requireIdle(t, r)
	})
}

// When the connection of a batch breaks, the answered commands keep their answers, and the outcome
// of the others is unknown. With retries, each is counted once.
func TestBrokenBatch(t *testing.T) {
	const n = 12
	for _, tt := range []struct {
		name string
		cut  func(w *env)
	}{
		{"reply lost", func(w *env) { w.p.DropReplies(1, redistest.Mentions("request5")) }},
		{"command lost", func(w *env) { w.p.DropCommands(1, redistest.Mentions("request5")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for _, retries := range []int{-1, 3} {
					w := newEnv(t, s, longTimeouts, func(o *redis.Options) { o.MaxRetries = retries })
					key := redistest.Name(t)
					_, err := w.r.Do(t.Context(), counted, []any{key}, "warm") // loads the script
					require.NoError(t, err)
					tt.cut(w)
					results := runInOneBatch(t, w.r.batch, countedCalls(w.r, key, n))
					seen := map[any]bool{}
					for i, res := range results {
						if retries < 0 && i >= 5 {
							require.Equal(t, failure.Unknown, failure.Of(res.err).Outcome, "request %d", i)
							require.ErrorIs(t, res.err, io.EOF)
							continue
						}
						require.NoError(t, res.err, "request %d", i)
						require.False(t, seen[res.reply.Value], "two requests got %v", res.reply.Value)
						seen[res.reply.Value] = true
						if i < 5 {
							require.EqualValues(t, i+2, res.reply.Value)
						}
					}
					if retries > 0 {
						require.Equal(t, fmt.Sprint(n+1), s.Client(t).HGet(t.Context(), key, "n").Val())
					}
					requireIdle(t, w.r)
				}
			})
		})
	}
}

// Each of 64 goroutines' requests is counted exactly once, although 2 % of the replies are lost.
func TestExactlyOnceUnderLoadWithLostReplies(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), func(o *redis.Options) { o.MaxRetries = 100 })
	key := redistest.Name(t)
	const goroutines, rounds = 64, 10
	w.p.DropRepliesRandomly(0.02, 1, evals)
	var mu sync.Mutex
	seen := map[any]int{}
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds {
				reply, err := w.r.Do(t.Context(), counted, []any{key}, fmt.Sprint(g, "-", i))
				mu.Lock()
				seen[reply.Value]++
				mu.Unlock()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, goroutines*rounds)
	for i := range goroutines * rounds {
		require.Equal(t, 1, seen[int64(i+1)], "answer %d", i+1)
	}
	requireIdle(t, w.r)
}

// Only the commands whose script the server does not know are sent again, after the script is
// loaded.
func TestBatchLoadsUnknownScripts(t *testing.T) {
	for _, s := range []*redistest.Server{redistest.Miniredis(t), redistest.Fresh(t)} {
		t.Run(s.Name(), func(t *testing.T) {
			for _, tt := range []struct {
				name  string
				fault func(w *env)
				want  []int // evalsha, script, eval
			}{
				{"loaded", func(*env) {}, []int{9, 1, 0}},
				{"loading fails", func(w *env) { w.p.DropCommands(10, redistest.Named("script")) }, []int{9, -1, 3}},
			} {
				t.Run(tt.name, func(t *testing.T) {
					w := newEnv(t, s, longTimeouts)
					admin := s.Client(t)
					require.NoError(t, admin.ScriptFlush(t.Context()).Err())
					known, unknown := redistest.Name(t), redistest.Name(t)
					require.NoError(t, errOf(w.r.Do(t.Context(), counted, []any{known}, "warm")))
					calls := countedCalls(w.r, known, 3)
					for range 3 {
						calls = append(calls, func() (Reply, error) {
							return w.r.Do(t.Context(), other, []any{unknown})
						})
					}
					w.p.Record()
					tt.fault(w)
					for i, res := range runInOneBatch(t, w.r.batch, calls) {
						require.NoError(t, res.err)
						if i < 3 {
							require.EqualValues(t, i+2, res.reply.Value)
						} else {
							require.EqualValues(t, i-2, res.reply.Value)
						}
					}
					require.Equal(t, tt.want[0], w.sent("evalsha"))
					require.Equal(t, tt.want[2], w.sent("eval"))
					if tt.want[1] >= 0 {
						require.Equal(t, tt.want[1], w.sent("script"))
					}
					require.Equal(t, "3", admin.HGet(t.Context(), unknown, "n").Val())
				})
			}
		})
	}
}

// A batch without an answer delays other commands for slotTimeout, not longer. They wait longer
// only if so many are stuck that one more connection would be too much.
func TestStuckBatchLosesItsSlot(t *testing.T) {
	for name, tt := range map[string]struct {
		answered int // of the commands that are in flight alone
		delay    time.Duration
	}{
		"room for both": {maxInFlight, slotTimeout},
		"room for one":  {1, slotTimeout},
		"no room":       {0, DefaultTimeout / quietPasses},
	} {
		t.Run(name, func(t *testing.T) { testStuckBatch(t, tt.answered, tt.delay) })
	}
}

func testStuckBatch(t *testing.T, answered int, delay time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t), 0)
		run := func(name string) {
			require.NoError(t, errOf(r.Do(context.Background(), counted, []any{"k"}, name)))
		}
		run("warm")
		free := p.HoldReplies(redistest.Mentions("stuck"))
		vacate := occupyBatcher(t, r.batch, maxDirect, 0)
		var stuck sync.WaitGroup
		for range maxInFlight {
			stuck.Go(func() { run("stuck") })
			synctest.Wait()
		}
		require.Equal(t, maxInFlight, p.Held())
		r.batch.direct -= answered
		r.batch.full = true // as if others were queued before
		start := time.Now()
		run("next")
		require.Equal(t, delay, time.Since(start))
		run("after")
		require.Equal(t, delay, time.Since(start), "a batch has lost its slot")
		free()
		stuck.Wait()
		r.batch.direct += answered
		vacate()
		requireIdle(t, r)
	})
}

// Do returns when its context ends or its timeout is over, even if Redis does not answer.
func TestDoReturnsInTime(t *testing.T) {
	const limit, timeout = 50 * time.Millisecond, time.Second
	type fault func(t testing.TB, p *redistest.Proxy, r *Runner) (mend func())
	hold := func(_ testing.TB, p *redistest.Proxy, _ *Runner) func() { return p.HoldReplies(evals) }
	hole := func(_ testing.TB, p *redistest.Proxy, _ *Runner) func() { p.BlackHole(true); return p.Heal }
	for _, tt := range []struct {
		name  string
		fault fault
		want  failure.Outcome
	}{
		{"alone", hold, failure.Unknown},
		{"black hole", hole, failure.Unknown},
		{"in a batch", func(t testing.TB, p *redistest.Proxy, r *Runner) func() {
			free, vacate := p.HoldReplies(evals), occupyBatcher(t, r.batch, maxDirect, 0)
			return func() { free(); vacate() }
		}, failure.Unknown},
		{"queued for a batch", func(t testing.TB, _ *redistest.Proxy, r *Runner) func() {
			return occupyBatcher(t, r.batch, maxDirect, maxInFlight)
		}, failure.NotExecuted},
	} {
		for _, mode := range []string{
			"a context that ends", "a context that may be cancelled", "a context that never ends",
		} {
			redistest.RunBubble(t, tt.name+", "+mode, func(t *testing.T) {
				p := redistest.Embedded(t).Proxy(t)
				readTimeout := 5 * time.Second
				if mode == "a context that never ends" {
					readTimeout = timeout // short enough for the caller's own goroutine to send
				}
				r := NewRunner(p.Client(t, func(o *redis.Options) {
					o.ReadTimeout, o.WriteTimeout = readTimeout, readTimeout
				}), timeout)
				run := func(ctx context.Context, name string) error {
					_, err := r.Do(ctx, counted, []any{"k"}, name)
					return err
				}
				require.NoError(t, run(t.Context(), "warm"))
				mend := tt.fault(t, p, r)
				ctx, cancel := context.WithCancel(t.Context())
				want, cause := timeout, failure.ErrNoAnswer
				switch mode {
				case "a context that ends":
					ctx, cancel = context.WithTimeoutCause(t.Context(), limit, redis.ErrClosed)
					want, cause = limit, redis.ErrClosed
				case "a context that never ends":
					ctx, cause = context.Background(), nil
				}
				defer cancel()
				start := time.Now()
				err := run(ctx, "late")
				require.InDelta(t, want, time.Since(start), float64(timeout/20))
				require.Equal(t, tt.want, failure.Of(err).Outcome, "%v", err)
				if tt.want == failure.Unknown {
					require.ErrorIs(t, err, failure.ErrOutcomeUnknown)
					if cause != nil {
						require.ErrorIs(t, err, cause)
					}
				}
				mend()
				requireIdle(t, r)
			})
		}
	}
}

// A queued command whose caller has returned is not sent; Close waits for commands in flight.
func TestCloseWaitsForBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t), 0)
		require.NoError(t, errOf(r.Do(t.Context(), counted, []any{"k"}, "warm")))
		free, vacate := p.HoldReplies(evals), occupyBatcher(t, r.batch, maxDirect, maxInFlight)
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		leave := func(name string, want failure.Outcome) {
			left.Go(func() {
				_, err := r.Do(ctx, counted, []any{"k"}, name)
				require.ErrorIs(t, err, context.Canceled)
				require.Equal(t, want, failure.Of(err).Outcome)
			})
			synctest.Wait()
		}
		leave("sent", failure.Unknown)
		vacate()
		synctest.Wait()
		require.Equal(t, 1, p.Held())
		vacate = addOccupied(r.batch, maxInFlight)
		leave("queued", failure.NotExecuted)
		require.Equal(t, 1, queued(r.batch))
		cancel()
		left.Wait()
		require.Zero(t, queued(r.batch))
		vacate()
		closed := make(chan struct{})
		go func() {
			r.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			require.Fail(t, "Close did not wait")
		default:
		}
		require.Equal(t, 1, p.Held())
		free()
		<-closed
		require.Zero(t, p.Held(), "the withdrawn command was sent")
	})
}

// addOccupied is occupyBatcher for a batcher that is not idle; no single command may be sent
// either.
func addOccupied(b *batcher, slots int) (vacate func()) {
	add := func(direct, slots int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.direct += direct
		b.slots += slots
	}
	add(maxDirect, slots)
	return func() { add(-maxDirect, -slots) }
}

// blockConnection has a blocking command occupy a connection of w's client until the test ends.
func blockConnection(t *testing.T, w *env) {
	key := redistest.Name(t)
	done := make(chan struct{})
	w.p.Record()
	go func() {
		defer close(done)
		_ = w.r.rdb.BLPop(context.Background(), 2*testTimeout, key).Err()
	}()
	t.Cleanup(func() {
		_ = w.s.Client(t).RPush(context.Background(), key, "x").Err()
		<-done
	})
	redistest.WaitFor(t, testTimeout, func() bool { return w.sent("blpop") == 1 }, "blocked")
}

// Renewals and releases are sent although blocking commands occupy all other connections.
func TestBlockedConnectionsDoNotDelayCommands(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), longTimeouts, func(o *redis.Options) { o.PoolSize, o.MaxRetries = 1, -1 })
	key := redistest.Name(t)
	require.NoError(t, errOf(w.r.Do(t.Context(), counted, []any{key}, "warm")))
	blockConnection(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for i := range 3 {
		require.NoError(t, errOf(w.r.Once(ctx, counted, []any{key}, fmt.Sprint("renewal", i))))
		require.NoError(t, errOf(w.r.Do(ctx, counted, []any{key}, fmt.Sprint("release", i))))
	}
}

// Do stops waiting for a connection when its context ends.
func TestDoWaitsForAConnectionUntilItsContextEnds(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), func(o *redis.Options) {
		o.PoolSize, o.PipelinePoolSize, o.PoolTimeout = 1, -1, time.Minute
	})
	key := redistest.Name(t)
	require.NoError(t, errOf(w.r.Do(t.Context(), counted, []any{key}, "warm")))
	blockConnection(t, w)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, redis.ErrClosed)
	defer cancel()
	began := time.Now()
	_, err := w.r.Do(ctx, counted, []any{key}, "late")
	require.Less(t, time.Since(began), testTimeout)
	require.Equal(t, failure.NotExecuted, failure.Of(err).Outcome)
	require.ErrorIs(t, err, redis.ErrClosed)
}

// Once is sent at once, although the batcher queues other commands.
func TestOnceDoesNotWaitForABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t), 0)
		vacate := occupyBatcher(t, r.batch, maxDirect, maxInFlight)
		answered := make(chan error, 1)
		go func() {
			_, err := r.Once(t.Context(), counted, []any{"k"}, "x")
			answered <- err
		}()
		synctest.Wait()
		require.Len(t, answered, 1)
		require.NoError(t, <-answered)
		vacate()
		requireIdle(t, r)
	})
}

// hook counts the commands that it sees, keeps the latest context's value, and may refuse them.
type hook struct {
	mu            sync.Mutex
	single, piped int
	pipelines     int
	value         any
	refuse        error
}

type valueKey struct{}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.see(ctx, &h.single, cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.see(ctx, &h.piped, cmds...); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

func (h *hook) see(ctx context.Context, kind *int, cmds ...redis.Cmder) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if cmds[0].Name() != "evalsha" { // the handshake of a new connection
		return nil
	}
	*kind += len(cmds)
	if kind == &h.piped {
		h.pipelines++
	}
	h.value = ctx.Value(valueKey{})
	return h.refuse
}

// Hooks see every command, with the caller's context values if it is sent alone. When a hook
// refuses a pipeline, the call fails, although the commands have no error of their own.
func TestHooksSeeWhatIsSent(t *testing.T) {
	do := func(r *Runner, ctx context.Context) (Reply, error) { return r.Do(ctx, counted, []any{"k"}, "x") }
	once := func(r *Runner, ctx context.Context) (Reply, error) { return r.Once(ctx, counted, []any{"k"}, "x") }
	for _, tt := range []struct {
		name          string
		batched       bool
		run           func(r *Runner, ctx context.Context) (Reply, error)
		single, piped int
		value         any
	}{
		{"Do", false, do, 0, 1, "v"},
		{"Once", false, once, 0, 1, "v"},
		{"in a batch", true, do, 0, 1, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rdb := redistest.Miniredis(t).Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
			r := NewRunner(rdb, 0)
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "v"), testTimeout)
			defer cancel()
			require.NoError(t, errOf(r.Do(ctx, counted, []any{"k"}, "warm")))
			if tt.batched {
				defer occupyBatcher(t, r.batch, maxDirect, 0)()
			}
			h := &hook{}
			rdb.AddHook(h)
			reply, err := tt.run(r, ctx)
			require.NoError(t, err)
			require.EqualValues(t, 2, reply.Value)
			require.Equal(t, []any{tt.single, tt.piped, tt.value}, []any{h.single, h.piped, h.value})
			h.refuse = errors.New("refused")
			require.ErrorIs(t, errOf(tt.run(r, ctx)), h.refuse)
		})
	}
}

// Commands of many goroutines are batched. Afterwards the batcher is idle, and no goroutine is
// left.
func TestLoadPeakLeavesNothingBehind(t *testing.T) {
	w := newEnv(t, redistest.Redis(t), longTimeouts)
	key := redistest.Name(t)
	require.NoError(t, errOf(w.r.Do(t.Context(), counted, []any{key}, "warm")))
	before := goleak.IgnoreCurrent()
	h := &hook{}
	w.r.rdb.AddHook(h)
	var wg sync.WaitGroup
	for g := range 50 {
		wg.Go(func() {
			for i := range 20 {
				if _, err := w.r.Do(t.Context(), counted, []any{key}, fmt.Sprint(g, "-", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1000, h.single+h.piped)
	require.Greater(t, h.piped, 500)
	requireIdle(t, w.r)
	_ = w.r.rdb.Close()
	w.p.Close()
	goleak.VerifyNone(t, before)
}

// While the server is silent, few commands are in flight, however many callers come and go. As soon
// as it answers again, all are answered.
func TestSilentServerGetsFewCommands(t *testing.T) {
	const timeout = 500 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, longTimeouts), timeout)
		require.NoError(t, errOf(r.Do(t.Context(), counted, []any{"k"}, "warm")))
		p.BlackHole(true)
		var calls sync.WaitGroup
		most := 0
		for began, i := time.Now(), 0; time.Since(began) < 2*timeout; i++ {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout/5)
				defer cancel()
				_, _ = r.Do(ctx, counted, []any{"k"}, fmt.Sprint("silent", i))
			})
			time.Sleep(time.Millisecond)
			r.batch.mu.Lock()
			most = max(most, r.batch.direct+r.batch.slots+r.batch.lateBatches)
			r.batch.mu.Unlock()
		}
		require.LessOrEqual(t, most, maxDirect+maxInFlight+maxInFlight*quietPasses)
		p.Heal()
		for i := range 100 {
			calls.Go(func() {
				_, err := r.Do(t.Context(), counted, []any{"k"}, fmt.Sprint("healed", i))
				assert.NoError(t, err)
			})
		}
		calls.Wait()
		requireIdle(t, r)
	})
}

// A dial that takes longer than its call sends nothing when it succeeds: so no command is sent
// later than Redis remembers it.
func TestCommandIsNotSentAfterItsCall(t *testing.T) {
	p := redistest.Redis(t).Proxy(t)
	hang, dialed := make(chan struct{}), make(chan struct{}, 10)
	r := NewRunner(p.Client(t, func(o *redis.Options) {
		dial := redis.NewDialer(o)
		o.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
			dialed <- struct{}{}
			<-hang // ignores its context
			return dial(context.Background(), network, addr)
		}
	}), 100*time.Millisecond)
	t.Cleanup(r.Close)
	p.Record()
	_, err := r.Do(t.Context(), counted, []any{redistest.Name(t)}, "once")
	require.ErrorIs(t, err, failure.ErrNoAnswer)
	require.Equal(t, failure.NotExecuted, failure.Of(err).Outcome)
	<-dialed
	close(hang)
	require.NoError(t, errOf(r.Do(t.Context(), counted, []any{redistest.Name(t)}, "later")))
	for _, c := range p.Commands() {
		if slices.Contains(c.Args, "once") {
			require.Equal(t, string(noDigest), c.Args[1], "it names a script, although its call had ended")
		}
	}
}

// A slow attempt fails while the latest attempt of the same call has not been answered. The call
// goes on, and gets the answer to the latest one.
func TestFailureOfASlowAttemptEndsNoOther(t *testing.T) {
	p := redistest.Redis(t).Proxy(t)
	r := NewRunner(p.Client(t), 0)
	t.Cleanup(r.Close)
	key := redistest.Name(t)
	_, err := r.Do(t.Context(), counted, []any{key}, "warm")
	require.NoError(t, err)

	c := newCall(counted, []any{key}, []any{"request"})
	c.end, c.ctx = r.ends.after(t.Context(), r.timeout, &c.memory.joined)
	r.bound(&c)
	slow := &pending{call: c.copy(), done: make(chan *pending, maxAttempts), err: &unsent{io.EOF}}
	failed := failures{slow: []*pending{slow}}
	answer := p.HoldReplies(evals)
	defer answer()
	type result struct {
		reply Reply
		err   error
	}
	results := make(chan result, 1)
	require.NoError(t, r.register(t.Context()))
	go func() {
		defer r.running.Done()
		reply, err := r.batch.do(t.Context(), c, &failed)
		results <- result{reply, err}
	}()
	redistest.WaitFor(t, testTimeout, func() bool { return p.Held() > 0 }, "the server has answered")
	slow.tell()
	redistest.WaitFor(t, testTimeout, func() bool { return len(slow.done) == 0 }, "the failure is noticed")
	answer()
	got := <-results
	require.NoError(t, got.err)
	require.Equal(t, int64(2), got.reply.Value)
}

// callUnderWay returns a call of a new runner, before its first attempt.
func callUnderWay(t *testing.T) (*Runner, call) {
	r := NewRunner(redistest.Embedded(t).Proxy(t).Client(t), 0)
	c := newCall(counted, []any{"k"}, []any{"request"})
	c.end, c.ctx = r.ends.after(t.Context(), r.timeout, &c.memory.joined)
	r.bound(&c)
	return r, c
}

// The last attempt of a call has failed, and an error of Redis answers an earlier one, while
// another one is in doubt. The outcome is unknown, but the server is not silent.
func TestErrorThatAnswersASlowAttemptIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c := callUnderWay(t)
		defer r.Close()
		done := make(chan *pending, maxAttempts)
		answered := &pending{call: c.copy(), done: done, err: reply("WRONGTYPE a set")}
		inDoubt := &pending{call: c.copy(), done: done}
		require.True(t, inDoubt.mark.write())
		answered.tell()
		_, err := r.awaitSlow(t.Context(), c, r.batch, &failures{slow: []*pending{answered, inDoubt}}, io.EOF)
		require.ErrorContains(t, err, "WRONGTYPE a set")
		f := failure.Of(err)
		require.True(t, f.InDoubt())
		require.False(t, f.IsOutage(0))
	})
}

// The last attempt of a call has failed, and an earlier one is answered after that, even with an
// error. The server is not silent.
func TestAnswerToASlowAttemptEndsTheSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, c := callUnderWay(t)
		defer r.Close()
		for _, tt := range []struct {
			err    error
			silent bool
		}{{nil, false}, {reply("WRONGTYPE a set"), false}, {io.EOF, true}} {
			r.noteAnswered(io.EOF)
			slow := &pending{call: c.copy(), done: make(chan *pending, maxAttempts), err: tt.err}
			slow.tell()
			_, _ = r.awaitSlow(t.Context(), c, r.batch, &failures{slow: []*pending{slow}}, io.EOF)
			require.Equal(t, !tt.silent, r.Answering(), "%v", tt.err)
		}
	})
}

// A batch without any answer makes the server quiet, and callers send nothing by themselves. One
// answer among many failures, even an error, is enough to end that.
func TestBatchFindsOutWhetherTheServerAnswers(t *testing.T) {
	wrongType := newScript("wrongType", `return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ARGV[1])`)
	for _, tt := range []struct {
		name   string
		script *Script
		lost   string // the reply to this command, and all after it
		quiet  bool
	}{
		{"all answered", counted, "", false},
		{"all lost", counted, "request0", true},
		{"the last lost", counted, "request2", false},
		{"all are errors", wrongType, "", false},
		{"errors, the last lost", wrongType, "request2", false},
		{"errors lost", wrongType, "request0", true},
	} {
		redistest.RunBubble(t, tt.name, func(t *testing.T) {
			p := redistest.Embedded(t).Proxy(t)
			r := NewRunner(p.Client(t, func(o *redis.Options) { o.MaxRetries = -1 }), 0)
			_, _ = r.Do(t.Context(), tt.script, []any{"k"}, "warm")
			var calls []request
			for i := range 3 {
				calls = append(calls, func() (Reply, error) {
					return r.Do(context.Background(), tt.script, []any{"k"}, fmt.Sprint("request", i))
				})
			}
			if tt.lost != "" {
				p.DropReplies(1, redistest.Mentions(tt.lost))
			}
			r.batch.inline.unanswered = !tt.quiet
			r.batch.inline.quick = quickAnswers - 1
			runInOneBatch(t, r.batch, calls)
			require.Equal(t, tt.quiet, r.batch.inline.unanswered)
			require.Equal(t, !tt.quiet, r.batch.inline.allowed(time.Now()))
			requireIdle(t, r)
		})
	}
}

// Whatever is in flight counts against the limit of connections. A slot rarely passes on while
// there is no room, or after a silence.
func TestRoomForMoreConnections(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		direct, late, dials int
		quiet               bool
		room, soon          bool // for a command alone; a slow batch loses its slot at once
	}{
		{5, 0, 0, false, true, true},
		{6, 0, 0, false, false, false},
		{3, 2, 0, false, true, true},
		{3, 3, 0, false, false, false},
		{3, 0, 2, false, true, true},
		{3, 0, 3, false, false, false},
		{2, 2, 2, false, false, false},
		{0, 0, 0, true, true, false},
	} {
		b := &batcher{
			r: &Runner{timeout: time.Second}, maxDirect: maxDirect, maxOthers: maxDirect,
			direct: tt.direct, lateBatches: tt.late,
			inline: inlineStats{unanswered: tt.quiet, dials: tt.dials, until: now.Add(1)},
		}
		require.Equal(t, tt.room, b.hasRoom(now), "%+v", tt)
		require.Equal(t, tt.soon, b.mayPass(now, now), "%+v", tt)
		require.False(t, !tt.soon && b.mayPass(now, now.Add(1-time.Second/quietPasses)), "%+v", tt)
		require.True(t, b.mayPass(now, now.Add(-time.Second/quietPasses)), "%+v", tt)
	}
	b := &batcher{maxDirect: maxDirect, queue: make([]*pending, maxDirect/2)}
	b.updateFull()
	require.False(t, b.full)
	b.queue = append(b.queue, nil)
	b.updateFull()
	require.True(t, b.full)
}

package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/redistest"
)

var (
	// counted counts its runs in KEYS[1], those of one request ARGV[1] as one, and answers the count.
	counted = newScript("counted", `
local n = redis.call('hget', KEYS[1], ARGV[1])
if not n then
  n = redis.call('hincrby', KEYS[1], 'n', 1)
  redis.call('hset', KEYS[1], ARGV[1], n)
end
return tonumber(n)`)
	other = newScript("other", `return redis.call('hincrby', KEYS[1], 'n', 1)`)
)

// result is what a call came to.
type result struct {
	reply Reply
	err   error
}

// occupy makes r's batcher, which is idle or about to be, believe that so much is under way, until vacate.
func occupy(t testing.TB, r *Runner, direct, slots int) (vacate func()) {
	b := &r.batch
	redistest.WaitFor(t, soon, func() bool {
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
		r.running.Add(1)
		defer r.running.Done()
		add(-direct, 0)
		for range slots {
			b.passSlot()
		}
	}
}

// gather has calls wait in r's batcher, in their order, and then leave by one pipeline. It returns what they came to.
func gather(t testing.TB, r *Runner, calls []request) []result {
	results := make([]result, len(calls))
	vacate := occupy(t, r, maxDirect, maxInFlight)
	var wg sync.WaitGroup
	for i, call := range calls { // each waits before the next comes
		wg.Go(func() { results[i].reply, results[i].err = call() })
		redistest.WaitFor(t, soon, func() bool { return waiting(r) == i+1 }, "waiting")
	}
	vacate()
	wg.Wait()
	return results
}

func waiting(r *Runner) int {
	r.batch.mu.Lock()
	defer r.batch.mu.Unlock()
	return len(r.batch.queue)
}

// requireIdle requires that nothing is left of what r's batcher did, once its workers have gone.
func requireIdle(t testing.TB, r *Runner) {
	r.Close()
	b := &r.batch
	require.Equal(t, []any{0, 0, 0, false}, []any{len(b.queue), b.direct, b.slots, b.full})
}

type request = func() (Reply, error)

// counts are n runs of counted.
func counts(r *Runner, key string, n int) (calls []request) {
	for i := range n {
		calls = append(calls, func() (Reply, error) {
			return r.Do(context.Background(), counted, []any{key}, fmt.Sprint("request", i))
		})
	}
	return calls
}

// What gathers goes by one pipeline, in order of arrival.
func TestOrderOfArrival(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		w, key := onWay(t, s, calm), redistest.Name(t)
		_, err := w.r.Do(t.Context(), counted, []any{key}, "warm")
		require.NoError(t, err)
		w.p.Record()
		gather(t, w.r, counts(w.r, key, 20))
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

// calm is a client that awaits answers however busy the machine is.
func calm(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = 5*time.Second, 5*time.Second }

// Sent is when the batch was written, not when the command came.
func TestSentInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t), 0)
		vacate := occupy(t, r, maxDirect, maxInFlight)
		var came sync.WaitGroup
		var written time.Time
		for _, call := range counts(r, "k", 4) {
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

// A batch whose connection breaks: who was answered has the answer, the outcome of the others is not known, and all are counted once
// though they be repeated.
func TestCutBatch(t *testing.T) {
	const n = 12
	for _, tt := range []struct {
		name string
		cut  func(w *way)
	}{
		{"reply lost", func(w *way) { w.p.DropReplies(1, redistest.Mentions("request5")) }},
		{"command lost", func(w *way) { w.p.DropCommands(1, redistest.Mentions("request5")) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				for _, retries := range []int{-1, 3} {
					w := onWay(t, s, calm, func(o *redis.Options) { o.MaxRetries = retries })
					key := redistest.Name(t)
					_, err := w.r.Do(t.Context(), counted, []any{key}, "warm") // known to the server: the script comes alone
					require.NoError(t, err)
					tt.cut(w)
					results := gather(t, w.r, counts(w.r, key, n))
					seen := map[any]bool{}
					for i, res := range results {
						if retries < 0 && i >= 5 {
							require.Equal(t, Unknown, OutcomeOf(res.err), "request %d", i)
							require.ErrorIs(t, res.err, io.EOF)
							continue
						}
						require.NoError(t, res.err, "request %d", i)
						require.False(t, seen[res.reply.Value], "two got %v", res.reply.Value)
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

// Exactly once, from 64 goroutines, with one reply in fifty lost.
func TestCutsUnderLoad(t *testing.T) {
	w := onWay(t, redistest.Redis(t), func(o *redis.Options) { o.MaxRetries = 100 })
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

// Scripts that the server does not know are loaded and sent again, and nothing else is.
func TestNoScriptInBatch(t *testing.T) {
	for _, s := range []*redistest.Server{redistest.Miniredis(t), redistest.Fresh(t)} {
		t.Run(s.Name(), func(t *testing.T) {
			for _, tt := range []struct {
				name  string
				fault func(w *way)
				want  []int // evalsha, script, eval
			}{
				{"loaded", func(*way) {}, []int{9, 1, 0}},
				{"not to be loaded", func(w *way) { w.p.DropCommands(10, redistest.Named("script")) }, []int{9, -1, 3}},
			} {
				t.Run(tt.name, func(t *testing.T) {
					w := onWay(t, s, calm)
					admin := s.Client(t)
					require.NoError(t, admin.ScriptFlush(t.Context()).Err())
					known, unknown := redistest.Name(t), redistest.Name(t)
					_, err := w.r.Do(t.Context(), counted, []any{known}, "warm")
					require.NoError(t, err)
					calls := counts(w.r, known, 3)
					for range 3 {
						calls = append(calls, func() (Reply, error) { return w.r.Do(t.Context(), other, []any{unknown}) })
					}
					w.p.Record()
					tt.fault(w)
					for i, res := range gather(t, w.r, calls) {
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

// A batch that does not come back holds up others for as long as the batcher is patient, and no longer.
func TestStuckBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t), 0)
		run := func(name string) {
			_, err := r.Do(context.Background(), counted, []any{"k"}, name)
			require.NoError(t, err)
		}
		run("warm")
		free := p.HoldReplies(redistest.Mentions("stuck"))
		vacate := occupy(t, r, maxDirect, 0)
		var stuck sync.WaitGroup
		for range maxInFlight {
			stuck.Go(func() { run("stuck") })
			synctest.Wait()
		}
		require.Equal(t, maxInFlight, p.Held())
		start := time.Now()
		run("next")
		require.Equal(t, slotTimeout, time.Since(start))
		run("after")
		require.Equal(t, slotTimeout, time.Since(start), "the stuck ones have no place any more")
		free()
		stuck.Wait()
		vacate()
		requireIdle(t, r)
	})
}

// However Do sends, it returns when its context ends or its timeout is over, whatever Redis does.
func TestDoReturnsInTime(t *testing.T) {
	const limit, timeout = 50 * time.Millisecond, time.Second
	type fault func(t testing.TB, p *redistest.Proxy, r *Runner) (mend func())
	hold := func(_ testing.TB, p *redistest.Proxy, _ *Runner) func() { return p.HoldReplies(evals) }
	hole := func(_ testing.TB, p *redistest.Proxy, _ *Runner) func() { p.BlackHole(true); return p.Heal }
	for _, tt := range []struct {
		name  string
		fault fault
		want  Outcome
	}{
		{"by itself", hold, Unknown},
		{"black hole", hole, Unknown},
		{"in a batch", func(t testing.TB, p *redistest.Proxy, r *Runner) func() {
			free, vacate := p.HoldReplies(evals), occupy(t, r, maxDirect, 0)
			return func() { free(); vacate() }
		}, Unknown},
		{"queued for a batch", func(t testing.TB, _ *redistest.Proxy, r *Runner) func() {
			return occupy(t, r, maxDirect, maxInFlight)
		}, NotExecuted},
	} {
		for _, mode := range []string{"a context that ends", "a context that may be cancelled", "a context that never ends"} {
			t.Run(tt.name+", "+mode, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := redistest.Embedded(t).Proxy(t)
					readTimeout := 5 * time.Second
					if mode == "a context that never ends" {
						readTimeout = timeout // short enough for the caller to send by itself
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
					want, cause := timeout, errNoAnswer
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
					require.Equal(t, tt.want, OutcomeOf(err), "%v", err)
					if tt.want == Unknown {
						require.ErrorIs(t, err, ErrOutcomeUnknown)
						if cause != nil {
							require.ErrorIs(t, err, cause)
						}
					}
					mend()
					requireIdle(t, r)
				})
			})
		}
	}
}

// What a caller has left behind is not sent if it was still queued; Close waits for the rest.
func TestCloseWaitsForBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t), 0)
		_, err := r.Do(t.Context(), counted, []any{"k"}, "warm")
		require.NoError(t, err)
		free, vacate := p.HoldReplies(evals), occupy(t, r, maxDirect, maxInFlight)
		ctx, cancel := context.WithCancel(t.Context())
		var left sync.WaitGroup
		leave := func(name string, want Outcome) {
			left.Go(func() {
				_, err := r.Do(ctx, counted, []any{"k"}, name)
				require.ErrorIs(t, err, context.Canceled)
				require.Equal(t, want, OutcomeOf(err))
			})
			synctest.Wait()
		}
		leave("sent", Unknown)
		vacate()
		synctest.Wait()
		require.Equal(t, 1, p.Held())
		vacate = occupyMore(r, maxInFlight)
		leave("queued", NotExecuted)
		require.Equal(t, 1, waiting(r))
		cancel()
		left.Wait()
		require.Zero(t, waiting(r))
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

// occupyMore takes slots and all places of single commands, while others are under way.
func occupyMore(r *Runner, slots int) (vacate func()) {
	b := &r.batch
	add := func(direct, slots int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.direct += direct
		b.slots += slots
	}
	add(maxDirect, slots)
	return func() { add(-maxDirect, -slots) }
}

// block has a command that blocks take a connection of w's client, until the test is over.
func block(t *testing.T, w *way) {
	key := redistest.Name(t)
	done := make(chan struct{})
	w.p.Record()
	go func() {
		defer close(done)
		_ = w.r.rdb.BLPop(context.Background(), 2*soon, key).Err()
	}()
	t.Cleanup(func() {
		_ = w.s.Client(t).RPush(context.Background(), key, "x").Err()
		<-done
	})
	redistest.WaitFor(t, soon, func() bool { return w.sent("blpop") == 1 }, "blocked")
}

// Renewals and releases get through when commands that block have all connections but those for pipelines.
func TestConnectionsInUse(t *testing.T) {
	w := onWay(t, redistest.Redis(t), calm, func(o *redis.Options) { o.PoolSize, o.MaxRetries = 1, -1 })
	key := redistest.Name(t)
	_, err := w.r.Do(t.Context(), counted, []any{key}, "warm")
	require.NoError(t, err)
	block(t, w)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for i := range 3 {
		_, err = w.r.Once(ctx, counted, []any{key}, fmt.Sprint("renewal", i))
		require.NoError(t, err)
		_, err = w.r.Do(ctx, counted, []any{key}, fmt.Sprint("release", i))
		require.NoError(t, err)
	}
}

// Do waits for a connection no longer than its context lasts.
func TestDoAwaitsConnection(t *testing.T) {
	w := onWay(t, redistest.Redis(t), func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize, o.PoolTimeout = 1, -1, time.Minute })
	key := redistest.Name(t)
	_, err := w.r.Do(t.Context(), counted, []any{key}, "warm")
	require.NoError(t, err)
	block(t, w)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, redis.ErrClosed)
	defer cancel()
	began := time.Now()
	_, err = w.r.Do(ctx, counted, []any{key}, "late")
	require.Less(t, time.Since(began), soon)
	require.Equal(t, Unknown, OutcomeOf(err))
	require.ErrorIs(t, err, redis.ErrClosed)
}

// Once does not wait with others.
func TestOncePasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRunner(redistest.Embedded(t).Client(t), 0)
		vacate := occupy(t, r, maxDirect, maxInFlight)
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

// hook notes what it sees, and may refuse it.
type hook struct {
	mu            sync.Mutex
	single, piped int
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
	h.value = ctx.Value(valueKey{})
	return h.refuse
}

// Hooks see what is sent, and the caller's values with what is sent by itself. One that refuses is no answer, though commands have no error.
func TestHooks(t *testing.T) {
	for _, tt := range []struct {
		name          string
		gathers       bool
		run           func(r *Runner, ctx context.Context) (Reply, error)
		single, piped int
		value         any
	}{
		{"Do", false, func(r *Runner, ctx context.Context) (Reply, error) { return r.Do(ctx, counted, []any{"k"}, "x") }, 0, 1, "v"},
		{"Once", false, func(r *Runner, ctx context.Context) (Reply, error) { return r.Once(ctx, counted, []any{"k"}, "x") }, 0, 1, "v"},
		{"in a batch", true, func(r *Runner, ctx context.Context) (Reply, error) { return r.Do(ctx, counted, []any{"k"}, "x") }, 0, 1, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rdb := redistest.Miniredis(t).Client(t, func(o *redis.Options) { o.MaxRetries = -1 })
			r := NewRunner(rdb, 0)
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), valueKey{}, "v"), soon)
			defer cancel()
			_, err := r.Do(ctx, counted, []any{"k"}, "warm")
			require.NoError(t, err)
			if tt.gathers {
				defer occupy(t, r, maxDirect, 0)()
			}
			h := &hook{}
			rdb.AddHook(h)
			reply, err := tt.run(r, ctx)
			require.NoError(t, err)
			require.EqualValues(t, 2, reply.Value)
			require.Equal(t, []any{tt.single, tt.piped, tt.value}, []any{h.single, h.piped, h.value})
			h.refuse = errors.New("refused")
			_, err = tt.run(r, ctx)
			require.ErrorIs(t, err, h.refuse)
		})
	}
}

// A crowd gathers; when it is gone, commands go directly again, and no goroutine is left.
func TestCrowd(t *testing.T) {
	w := onWay(t, redistest.Redis(t), calm)
	key := redistest.Name(t)
	_, err := w.r.Do(t.Context(), counted, []any{key}, "warm")
	require.NoError(t, err)
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

// A dial that hangs for longer than its call sends nothing when it gets through: so nothing is sent
// later than Redis remembers it.
func TestCommandIsNotSentAfterItsCall(t *testing.T) {
	p := redistest.Redis(t).Proxy(t)
	hang, dialed := make(chan struct{}), make(chan struct{}, 10)
	r := NewRunner(p.Client(t, func(o *redis.Options) {
		dial := redis.NewDialer(o)
		o.Dialer = func(_ context.Context, network, addr string) (net.Conn, error) {
			dialed <- struct{}{}
			<-hang // whatever its context says
			return dial(context.Background(), network, addr)
		}
	}), 100*time.Millisecond)
	t.Cleanup(r.Close)
	p.Record()
	_, err := r.Do(t.Context(), counted, []any{redistest.Name(t)}, "once")
	require.ErrorIs(t, err, ErrOutcomeUnknown)
	<-dialed
	close(hang)
	_, err = r.Do(t.Context(), counted, []any{redistest.Name(t)}, "later")
	require.NoError(t, err)
	for _, c := range p.Commands() {
		require.NotContains(t, c.Args, "once", "sent although its call had ended")
	}
}

package scripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// A slot has moved, and its old master does not tell: it is dead, or hangs. An attempt that fails
// is a reason to read the slot map, so the next ones reach the new master. The client may be one
// that embeds a cluster client.
func TestAttemptsFollowTheSlotMap(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	const key = "moved"
	old := servers.Node(t, key)
	type testCase struct {
		name  string
		fault func(*redistest.Proxy)
		run   func(t *testing.T, r *Runner)
		*clusterEnv
	}
	do := func(doubt bool) func(t *testing.T, r *Runner) {
		return func(t *testing.T, r *Runner) {
			reply, err := r.Do(t.Context(), counted, []any{key}, t.Name())
			require.NoError(t, err)
			require.Equal(t, doubt, reply.Doubt)
		}
	}
	once := func(t *testing.T, r *Runner) {
		redistest.WaitFor(t, testTimeout, func() bool {
			_, err := r.Once(t.Context(), counted, []any{key}, t.Name())
			return err == nil
		}, "a later attempt reaches the new master")
	}
	dead := func(p *redistest.Proxy) {
		p.Cut()
	}
	hung := func(p *redistest.Proxy) { p.BlackHole(true) }
	cases := []*testCase{
		{name: "Do, dead", fault: dead, run: do(false)},
		{name: "Do, hung", fault: hung, run: do(true)},
		{name: "Once, dead", fault: dead, run: once},
		{name: "Once, hung", fault: hung, run: once},
		{name: "Once, hung for longer", fault: hung, run: func(t *testing.T, r *Runner) {
			stalls, began := redistest.WatchStalls(t), time.Now()
			_, err := r.Once(t.Context(), counted, []any{key}, t.Name())
			took := time.Since(began)
			require.ErrorIs(t, err, errReplaced)
			require.NotEqual(t, failure.Executed, failure.Of(err).Outcome) // a new connection may not have been made yet
			require.Less(t, took, 3*slowAnswer+stalls.Since(began), "it does not wait for the read timeout")
			once(t, r)
		}},
	}
	for i, tt := range cases {
		tt.clusterEnv = newClusterEnv(t, servers, func(o *redis.ClusterOptions) {
			o.ReadTimeout = 300 * time.Millisecond
			if i == len(cases)-1 {
				o.ReadTimeout = 5 * slowAnswer
			}
		})
		if i%2 == 0 {
			tt.r = NewRunner(&embedded{ClusterClient: tt.rdb}, 0)
			t.Cleanup(tt.r.Close)
		}
		tt.warm(t, key)
		// A slow answer makes the client read the slot map for a while. A reading after the move
		// would make the cases pointless.
		redistest.WaitFor(t, testTimeout, func() bool {
			m := &tt.r.slots
			m.mu.Lock()
			defer m.mu.Unlock()
			return !m.busy && m.reading == 0
		}, "nothing reads the slot map")
	}
	servers.Migrate(t, key, servers.AnotherNode(t, key)).Finish(t)
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			tt.fault(tt.proxies[old])
			tt.run(t, tt.r)
			tt.proxies[old].Heal()
		})
	}
}

// A thousand calls that fail make few readings of the slot map.
func TestFailedCallsReadTheSlotMapSeldom(t *testing.T) {
	redistest.NeedFull(t, "a cluster of its own")
	e := newClusterEnv(t, redistest.Cluster(t), func(o *redis.ClusterOptions) { o.MaxRedirects = 1 })
	keys := keyPerNode(t, e.servers)
	e.warm(t, keys...)
	e.proxy(t, keys[0]).Refuse(true)
	e.proxy(t, keys[0]).Reset()
	for _, p := range e.proxies {
		p.Record()
	}
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			require.Error(t, errOf(e.r.Do(t.Context(), counted, []any{keys[0]}, fmt.Sprint("request", i))))
			require.NoError(t, errOf(e.r.Do(t.Context(), counted, []any{keys[1]}, fmt.Sprint("request", i))))
		})
	}
	wg.Wait()
	require.NotZero(t, e.readings())
	require.LessOrEqual(t, e.readings(), 20)
}

// readings counts the readings of the slot map that have reached a node, since Record.
func (e *clusterEnv) readings() (n int) {
	for _, p := range e.proxies {
		n += sentTo(p, "cluster", "slots")
	}
	return n
}

// clusterOfOne looks like a cluster client, whose only node is a server in memory. A test decides
// how its slot map is read, and which node the map names.
type clusterOfOne struct {
	redis.UniversalClient // of the node
	node                  atomic.Pointer[redis.Client]
	read                  atomic.Value // func(context.Context) error

	readings, inFlight atomic.Int32
}

func (c *clusterOfOne) Options() *redis.ClusterOptions {
	return &redis.ClusterOptions{ReadTimeout: DefaultTimeout, MaxRedirects: -1}
}

func (c *clusterOfOne) MasterForKey(context.Context, string) (*redis.Client, error) {
	return c.node.Load(), nil
}

func (c *clusterOfOne) ScriptLoad(context.Context, string) *redis.StringCmd {
	return redis.NewStringResult("", errors.New("a cluster client would load a script into all nodes"))
}

func (c *clusterOfOne) ForEachMaster(ctx context.Context, _ func(context.Context, *redis.Client) error) error {
	c.readings.Add(1)
	c.inFlight.Add(1)
	defer c.inFlight.Add(-1)
	return c.read.Load().(func(context.Context) error)(ctx)
}

// newClusterOfOne returns a runner on such a cluster, in a bubble of fake time. Until read is
// replaced, the slot map is read at once.
func newClusterOfOne(t *testing.T) (*clusterOfOne, *redistest.Proxy, *Runner) {
	p := redistest.Embedded(t).Proxy(t)
	node := p.Client(t)
	c := &clusterOfOne{UniversalClient: node}
	c.node.Store(node)
	c.read.Store(func(context.Context) error { return nil })
	return c, p, NewRunner(c, 0)
}

// hang is a reading that ends with its context.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A call before the first slot map waits for one reading. If the reading fails, nothing was sent,
// the call says why, and the next call makes the client read the map again.
func TestCallsWaitForTheSlotMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, r := newClusterOfOne(t)
		defer r.Close()
		run := func() (time.Duration, error) {
			began := time.Now()
			_, err := r.Do(t.Context(), counted, []any{"k"}, "x")
			return time.Since(began), err
		}
		c.read.Store(func(context.Context) error { time.Sleep(time.Millisecond); return io.ErrNoProgress })
		for range 3 {
			_, err := run()
			require.ErrorIs(t, err, io.ErrNoProgress)
			require.ErrorContains(t, err, "read the slot map")
			require.Equal(t, failure.NotExecuted, failure.Of(err).Outcome)
			require.False(t, r.slots.loaded.Load())
			synctest.Wait()
		}
		time.Sleep(2 * r.slots.readTimeout()) // until nothing reads
		took, err := run()
		require.ErrorIs(t, err, io.ErrNoProgress)
		require.Equal(t, time.Millisecond, took, "it returns when the reading has failed")
		c.read.Store(func(context.Context) error { return nil })
		require.NoError(t, errOf(run()))
		require.True(t, r.slots.loaded.Load())
		c.read.Store(hang)
		require.NoError(t, errOf(run()), "the client has a slot map")
	})
}

// Before the first slot map each reading asks a random seed. All readings but the last possible one
// meet a seed that hangs, and the first call still has its answer soon.
func TestSeedsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, r := newClusterOfOne(t)
		defer r.Close()
		c.read.Store(func(ctx context.Context) error {
			if c.readings.Load() < maxReadings {
				return hang(ctx)
			}
			return nil
		})
		began := time.Now()
		require.NoError(t, errOf(r.Do(t.Context(), counted, []any{"k"}, "x")))
		require.Less(t, time.Since(began), maxReadings*3*minReadDelay/2)
	})
}

// While attempts fail, the slot map is read again and again, by one goroutine, and soon no longer
// once they succeed. Of readings that hang, few are in flight; each has its own limit and leaves
// nothing.
func TestReadingsOfTheSlotMap(t *testing.T) {
	const calls, each = 100, minReadDelay
	for name, tt := range map[string]struct {
		read     func(context.Context) error
		inFlight int32
	}{
		"quick":   {func(context.Context) error { return nil }, 0},
		"failing": {func(context.Context) error { return io.EOF }, 0},
		"hanging": {hang, maxReadings},
	} {
		redistest.RunBubble(t, name, func(t *testing.T) {
			c, _, other := newClusterOfOne(t)
			defer other.Close()
			r := NewRunner(c, 2*DefaultTimeout) // long enough for so many readings
			defer r.Close()
			require.NoError(t, r.slots.await(t.Context(), nil))
			var contexts []context.Context
			var mu sync.Mutex
			c.read.Store(func(ctx context.Context) error {
				mu.Lock()
				contexts = append(contexts, ctx)
				mu.Unlock()
				return tt.read(ctx)
			})
			most := int32(0)
			for range calls { // each fails
				require.NotNil(t, r.slots.refresh())
				time.Sleep(each)
				most = max(most, c.inFlight.Load())
			}
			require.Equal(t, tt.inFlight, most)
			if tt.inFlight == 0 {
				require.Greater(t, int(c.readings.Load()), int(calls*each/maxReadDelay/2), "as often as that at least")
			}
			require.LessOrEqual(t, int(c.readings.Load()), int(calls*each/(maxReadDelay/2)), "no more often")
			time.Sleep(r.slots.readTimeout() + 2*maxReadDelay)
			synctest.Wait()
			before := c.readings.Load()
			time.Sleep(2 * r.slots.readTimeout())
			require.Equal(t, before, c.readings.Load(), "no attempt has failed since")
			require.Zero(t, c.inFlight.Load())
			for _, ctx := range contexts {
				require.Error(t, ctx.Err(), "its timer is stopped")
			}
			r.slots.refresh()
			synctest.Wait()
			require.Equal(t, before+1, c.readings.Load(), "another attempt has failed")
		})
	}
}

// An error from Redis, and a caller that gives up, say nothing about the node. Other failures make
// the client read the slot map.
func TestFailuresThatHaveTheSlotMapRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, r := newClusterOfOne(t)
		defer r.Close()
		wrong := newScript("wrong", `return redis.error_reply('WRONGTYPE ' .. KEYS[1])`)
		for name, send := range map[string]func(ctx context.Context, s *Script) error{
			"Do":   func(ctx context.Context, s *Script) error { _, err := r.Do(ctx, s, []any{"k"}); return err },
			"Once": func(ctx context.Context, s *Script) error { _, err := r.Once(ctx, s, []any{"k"}); return err },
		} {
			reads := func(ctx context.Context, s *Script) bool {
				time.Sleep(2 * r.slots.readTimeout()) // until nothing reads
				before := time.Now()
				require.Error(t, send(ctx, s), name)
				return r.slots.until.After(before)
			}
			require.False(t, reads(t.Context(), wrong), name)
			p.DropReplies(1, evals)
			require.True(t, reads(t.Context(), counted), name)
		}
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		require.Nil(t, r.noteFailed(canceled, failure.Failure{Outcome: failure.Unknown}))
		require.NotNil(t, r.noteFailed(t.Context(), failure.Failure{Outcome: failure.Unknown}))
	})
}

// An attempt of Once has no answer for a while. Once makes the client read the slot map, and
// returns when another node has replaced the one that was asked. The attempt goes on until its own
// end.
func TestOnceNoticesThatItsNodeIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, r := newClusterOfOne(t)
		p.Record()
		require.NoError(t, errOf(r.Once(t.Context(), counted, []any{"k"}, "warm")))
		require.Zero(t, sentTo(p, "eval", ""), "the script is loaded into the node")
		free := p.HoldReplies(evals)
		replacement := p.Client(t)
		c.read.Store(func(context.Context) error {
			if c.readings.Load() > 3 {
				c.node.Store(replacement)
			}
			return nil
		})
		began, before := time.Now(), c.readings.Load()
		_, err := r.Once(t.Context(), counted, []any{"k"}, "x")
		require.ErrorIs(t, err, errReplaced)
		require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		require.GreaterOrEqual(t, time.Since(began), slowAnswer*99/100, "until then the slot map is not read")
		require.Less(t, time.Since(began), slowAnswer+3*2*maxReadDelay)
		require.Greater(t, c.readings.Load(), before+1)
		require.Equal(t, 1, p.Held())
		free()
		r.Close()
	})
}

// The caller of a patient attempt gives up while the node does not answer. The attempt goes on, and
// the slot map is no longer read for it.
func TestAbandonedPatientAttemptDoesNotReadTheSlotMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p, r := newClusterOfOne(t)
		r.patient.connections = defaultConnections
		require.NoError(t, errOf(r.Once(t.Context(), counted, []any{"k"}, "warm")))
		free := p.HoldReplies(evals)
		ctx, cancel := context.WithTimeout(t.Context(), 10*slowAnswer)
		defer cancel()
		before := c.readings.Load()
		_, err := r.once(ctx, Patience{Until: time.Now().Add(time.Hour)}, counted, []any{"k"}, []any{"x"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Greater(t, c.readings.Load(), before+1, "until then the slot map is read")
		time.Sleep(2 * r.slots.readTimeout())
		before = c.readings.Load()
		time.Sleep(time.Minute)
		require.Equal(t, before, c.readings.Load())
		require.Equal(t, 1, p.Held(), "the attempt goes on")
		free()
		r.Close()
	})
}

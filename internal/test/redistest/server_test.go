package redistest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// once disables retries, which would repair the effect of a fault.
func once(o *redis.Options) { o.MaxRetries = -1 }

func TestEachServerAnswers(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		rdb := s.Client(t)
		key := Name(t)
		require.NoError(t, rdb.Set(t.Context(), key, "v", time.Minute).Err())
		require.Equal(t, []string{key}, Keys(t, s, key+"*"))
		require.NotEmpty(t, s.Addr())
		require.Contains(t, t.Name(), s.Name())
	})
}

func TestNamesAreUniqueAndSafe(t *testing.T) {
	t.Run("with {braces} and spaces, and much longer than that", func(t *testing.T) {
		a, b := Name(t), Name(t)
		require.NotEqual(t, a, b)
		require.Regexp(t, `^[A-Za-z0-9-]{1,32}$`, a)
	})
}

// The clock of miniredis behaves as the package comment describes.
func TestMiniredisClockFollowsTheBubble(t *testing.T) {
	readClock := redis.NewScript(`
		local t = redis.call('TIME')
		return {redis.call('PTTL', KEYS[1]), redis.call('EXISTS', KEYS[1]), t[1] * 1000 + math.floor(t[2] / 1000)}`)
	synctest.Test(t, func(t *testing.T) {
		rdb := Embedded(t).Client(t)
		ctx := t.Context()
		require.NoError(t, rdb.Set(ctx, "k", "v", 10*time.Second).Err())
		require.NoError(t, rdb.HSet(ctx, "h", "f", 1).Err())
		require.NoError(t, rdb.PExpire(ctx, "h", 10*time.Second).Err())

		for _, step := range []struct {
			sleep        time.Duration
			pttl, exists int64
		}{
			{0, 10_000, 1},
			{4 * time.Second, 6_000, 1},
			{6*time.Second - time.Millisecond, 1, 1},
			{time.Millisecond, -2, 0},
		} {
			time.Sleep(step.sleep)
			for _, key := range []string{"k", "h"} {
				got, err := readClock.Run(ctx, rdb, []string{key}).Int64Slice()
				require.NoError(t, err)
				require.Equal(t, []int64{step.pttl, step.exists, time.Now().UnixMilli()}, got, "%s after %v", key, step.sleep)
			}
		}
	})
}

func TestMiniredisExpiresInRealTime(t *testing.T) {
	rdb := Miniredis(t).Client(t)
	require.NoError(t, rdb.Set(t.Context(), "k", "v", 30*time.Millisecond).Err())
	WaitFor(t, 5*time.Second, func() bool { return rdb.Exists(t.Context(), "k").Val() == 0 }, "the key is gone")
}

// A pipeline that is larger than all buffers must not deadlock.
func TestEmbeddedAcceptsLongPipelines(t *testing.T) {
	for _, tt := range []struct {
		name   string
		client func(t *testing.T, s *Server) *redis.Client
	}{
		{"direct", func(t *testing.T, s *Server) *redis.Client { return s.Client(t, once) }},
		{"through a proxy", func(t *testing.T, s *Server) *redis.Client { return s.Proxy(t).Client(t, once) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb := tt.client(t, Embedded(t))
				start := time.Now()
				cmds, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
					for range 1000 {
						pipe.Echo(t.Context(), strings.Repeat("x", 300))
					}
					return nil
				})
				require.NoError(t, err)
				require.Len(t, cmds, 1000)
				require.Zero(t, time.Since(start), "the pipeline waited for a timeout")
			})
		})
	}
}

func TestEmbeddedDeliversMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Embedded(t)
		rdb := s.Client(t)
		sub := rdb.Subscribe(t.Context(), "c")
		defer sub.Close()
		_, err := sub.Receive(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"c"}, Channels(t, s))
		require.NoError(t, rdb.Publish(t.Context(), "c", "hello").Err())
		msg, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hello", msg.Payload)
	})
}

func TestCommandsCountsCalls(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		rdb := s.Client(t)
		script := redis.NewScript(`return redis.call('INCR', KEYS[1])`)
		before := Commands(t, s)
		require.NoError(t, script.Load(t.Context(), rdb).Err())
		for range 3 {
			require.NoError(t, script.EvalSha(t.Context(), rdb, []string{Name(t)}).Err())
		}
		diff := Commands(t, s).Since(before)
		require.Equal(t, Calls{"evalsha": 3, "incr": 3, "script|load": 1}, diff)
		require.EqualValues(t, 7, diff.Total())
	})
}

func TestConnectionsCountsClients(t *testing.T) {
	for _, tt := range []struct {
		name string
		open func(t testing.TB) *Server
	}{
		{"miniredis", Miniredis},
		{"redis", func(t testing.TB) *Server { return Fresh(t) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.open(t)
			require.Zero(t, Connections(t, s))
			rdb := s.Client(t)
			require.NoError(t, rdb.Ping(t.Context()).Err())
			require.Equal(t, 1, Connections(t, s))
			sub := rdb.Subscribe(t.Context(), "c")
			_, err := sub.Receive(t.Context())
			require.NoError(t, err)
			require.Equal(t, 2, Connections(t, s))
			require.Equal(t, []string{"c"}, Channels(t, s))
			require.NoError(t, sub.Close())
			unsubscribed := func() bool { return Connections(t, s) == 1 && len(Channels(t, s)) == 0 }
			WaitFor(t, 5*time.Second, unsubscribed, "the subscription has ended")
		})
	}
}

func TestWaitForPollsUntilTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		WaitFor(t, time.Minute, func() bool { return time.Since(start) >= time.Second }, "a second has passed")
		require.InDelta(t, time.Second, time.Since(start), float64(pollInterval))

		start = time.Now()
		e := &endRecorder{TB: t}
		require.Panics(t, func() { WaitFor(e, time.Second, func() bool { return false }, "never") })
		require.Equal(t, "fatal", e.how)
		require.InDelta(t, time.Second, time.Since(start), float64(pollInterval))
	})
}

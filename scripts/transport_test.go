package scripts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// withoutDeadlines is a connection whose deadlines fail with err, or do nothing if it is nil.
type withoutDeadlines struct {
	net.Conn
	err error
}

func (c withoutDeadlines) SetDeadline(time.Time) error      { return c.err }
func (c withoutDeadlines) SetReadDeadline(time.Time) error  { return c.err }
func (c withoutDeadlines) SetWriteDeadline(time.Time) error { return c.err }

func dialWithoutDeadlines(err error) func(*redis.Options) {
	return func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, failed := new(net.Dialer).DialContext(ctx, network, addr)
			return withoutDeadlines{conn, err}, failed
		}
	}
}

// embeddingCluster is a type of a user that embeds a cluster client.
type embeddingCluster struct{ *redis.ClusterClient }

// asCluster returns a client of a cluster that has the server behind p alone, without timeouts, in
// a user's type.
func asCluster(t *testing.T, p *redistest.Proxy) redis.UniversalClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ReadTimeout: -2, WriteTimeout: -2,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: p.Addr()}}}}, nil
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return embeddingCluster{rdb}
}

// requireReturns requires that f returns within limit. It does not wait for f any longer than that.
func requireReturns(t *testing.T, limit time.Duration, what string, f func() error) error {
	t.Helper()
	returned := make(chan error, 1)
	go func() { returned <- f() }()
	select {
	case err := <-returned:
		return err
	case <-time.After(limit):
		require.FailNow(t, what+" does not return")
		return nil
	}
}

func timeouts(read, write time.Duration) func(*redis.Options) {
	return func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = read, write }
}

// Calls, and Close, end in time when the server falls silent, whatever the client's timeouts are,
// and even if the deadlines of its connections do not work.
func TestCallsEndInTimeWithoutSocketTimeouts(t *testing.T) {
	const timeout = time.Second
	noDeadlines := errors.New("deadlines are not supported")
	for name, tweaks := range map[string][]func(*redis.Options){
		"-1":                          {timeouts(-1, -1)},
		"-2":                          {timeouts(-2, -2)},
		"-2 and a context's":          {timeouts(-2, -2), func(o *redis.Options) { o.ContextTimeoutEnabled = true }},
		"default":                     {timeouts(0, 0)},
		"deadlines fail":              {dialWithoutDeadlines(noDeadlines)},
		"deadlines fail, with -2":     {dialWithoutDeadlines(noDeadlines), timeouts(-2, -2)},
		"deadlines do nothing":        {dialWithoutDeadlines(nil)},
		"deadlines do nothing, -2":    {dialWithoutDeadlines(nil), timeouts(-2, -2)},
		"no pool for pipelines, -2":   {timeouts(-2, -2), func(o *redis.Options) { o.PipelinePoolSize = -1 }},
		"no repetitions, with -2":     {timeouts(-2, -2), func(o *redis.Options) { o.MaxRetries = -1 }},
		"a pool of one, and no waits": {timeouts(-2, -2), func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, -1 }},
		"a wrapped cluster, with -2":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := redistest.Redis(t).Proxy(t)
			var rdb redis.UniversalClient
			if tweaks == nil {
				rdb = asCluster(t, p)
			} else {
				rdb = p.Client(t, tweaks...)
			}
			r := NewRunner(rdb, timeout)
			key := redistest.Name(t)
			do := func(ctx context.Context) error {
				_, err := r.Do(ctx, counted, []any{key}, fmt.Sprint(time.Now().UnixNano()))
				return err
			}
			for range quickAnswers + 5 {
				require.NoError(t, do(t.Context()))
			}
			letSend(r)
			p.BlackHole(true)
			defer p.Heal()
			for call, f := range map[string]func() error{
				"Do":   func() error { return do(t.Context()) },
				"Once": func() error { _, err := r.Once(t.Context(), check, []any{key}, "x"); return err },
				"Keys": func() error {
					for _, err := range r.Keys(t.Context(), "*", "hash") {
						return err
					}
					return nil
				},
				"Commands": func() error { _, err := r.Commands(t.Context(), []any{"get", key}); return err },
				"RunReplicated": func() error {
					_, err := r.RunReplicated(t.Context(), 1, 10*time.Millisecond, check, []any{key}, "x")
					return err
				},
			} {
				require.Error(t, requireReturns(t, 4*timeout, call, f), call)
			}
			_ = requireReturns(t, 4*timeout, "Close", func() error { r.Close(); return nil })
			_ = requireReturns(t, testTimeout, "an attempt", func() error { r.running.Wait(); return nil })
		})
	}
}

// limiter refuses.
type limiter struct{ err error }

func (l limiter) Allow() error     { return l.err }
func (limiter) ReportResult(error) {}

// A call whose command was never written has a known outcome.
func TestNothingWasSent(t *testing.T) {
	closes := func(t *testing.T) string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		return listener.Addr().String()
	}
	refusal := errors.New("refused")
	for name, tt := range map[string]struct {
		tweak  func(t *testing.T, o *redis.Options)
		is     error
		notNow bool
	}{
		"a load balancer without a backend": {func(t *testing.T, o *redis.Options) { o.Addr = closes(t) }, nil, true},
		"a limiter": {
			func(_ *testing.T, o *redis.Options) { o.Limiter = limiter{refusal} }, refusal, false,
		},
		"OnConnect": {func(_ *testing.T, o *redis.Options) {
			o.OnConnect = func(context.Context, *redis.Conn) error { return refusal }
		}, refusal, false},
		"credentials": {func(_ *testing.T, o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return "", "", refusal }
		}, refusal, false},
		"a dialer": {func(_ *testing.T, o *redis.Options) {
			o.DialerRetries = 1
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { return nil, refusal }
		}, refusal, false},
		"a certificate": {func(_ *testing.T, o *redis.Options) {
			o.DialerRetries = 1
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				return nil, &tls.CertificateVerificationError{Err: refusal}
			}
		}, refusal, false},
		"the handshake breaks": {func(_ *testing.T, o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				go func() {
					_, _ = server.Read(make([]byte, 10))
					_ = server.Close()
				}()
				return client, nil
			}
		}, nil, true},
		"a silent handshake": {func(_ *testing.T, o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				go func() { _, _ = io.Copy(io.Discard, server) }()
				return client, nil
			}
		}, failure.ErrNoAnswer, false},
		"a hook": {func(*testing.T, *redis.Options) {}, refusal, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Redis(t)
			rdb := s.Client(t, func(o *redis.Options) {
				o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 2*time.Millisecond
				tt.tweak(t, o)
			})
			if name == "a hook" {
				rdb.AddHook(&hook{refuse: refusal})
			}
			r := NewRunner(rdb, time.Second)
			_, err := r.Do(t.Context(), counted, []any{redistest.Name(t)}, "x")
			require.Error(t, err)
			require.Equal(t, failure.NotExecuted, failure.Of(err).Outcome, err)
			require.NotErrorIs(t, err, failure.ErrOutcomeUnknown)
			if tt.is != nil {
				require.ErrorIs(t, err, tt.is)
			}
			failed, _ := errors.AsType[*failure.Error](err)
			assert.Equal(t, tt.notNow, failed.NotNow)
			began := time.Now()
			r.Close()
			require.Less(t, time.Since(began), 500*time.Millisecond, "there is nothing to wait for")
		})
	}
}

// A server that answers more slowly than the client's read timeout is asked again, but its first
// answer counts.
func TestAnswerAfterTheReadTimeout(t *testing.T) {
	p := redistest.Redis(t).Proxy(t)
	r := NewRunner(p.Client(t, timeouts(100*time.Millisecond, 0)), testTimeout)
	t.Cleanup(r.Close)
	key := redistest.Name(t)
	require.NoError(t, errOf(r.Do(t.Context(), counted, []any{key}, "warm")))
	p.Delay(300 * time.Millisecond)
	p.Record()
	for i := range 3 {
		reply, err := r.Do(t.Context(), counted, []any{key}, fmt.Sprint(i))
		require.NoError(t, err)
		require.EqualValues(t, i+2, reply.Value, "its copies do not count")
	}
	require.NoError(t, errOf(r.Once(t.Context(), counted, []any{key}, "once")))
}

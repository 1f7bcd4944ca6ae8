package pubsub

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// handlerFunc is a slog.Handler.
type handlerFunc func(slog.Record)

func (handlerFunc) Enabled(context.Context, slog.Level) bool { return true }
func (f handlerFunc) Handle(_ context.Context, r slog.Record) error {
	f(r)
	return nil
}
func (f handlerFunc) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f handlerFunc) WithGroup(string) slog.Handler      { return f }

// logged records the messages of a hub's log.
type logged struct {
	mu       sync.Mutex
	messages []string
}

func (l *logged) logger() *slog.Logger {
	return slog.New(handlerFunc(func(r slog.Record) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.messages = append(l.messages, r.Message)
	}))
}

func (l *logged) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.messages)
}

// A log handler may subscribe and close subscriptions. A deadlock would block Close too, so the hub
// is closed only after the handler has returned.
func TestLogHandlerMayUseTheHub(t *testing.T) {
	t.Parallel()
	down := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("down") }
	sharded := true
	for _, tt := range []struct {
		message string
		rdb     func(t *testing.T) redis.UniversalClient
		sharded *bool
	}{
		{"link lost", func(t *testing.T) redis.UniversalClient {
			rdb := redis.NewClient(&redis.Options{Dialer: down})
			t.Cleanup(func() { _ = rdb.Close() })
			return rdb
		}, nil},
		{"no server for channel", func(t *testing.T) redis.UniversalClient {
			return clusterClient(t, &redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1, Dialer: down})
		}, &sharded},
		{"channel refused", func(t *testing.T) redis.UniversalClient {
			s := redistest.Fresh(t)
			require.NoError(t, s.Client(t).Do(t.Context(), "acl", "setuser", "bob", "on", ">pw", "+@all").Err())
			return s.Client(t, as("bob"))
		}, nil},
	} {
		t.Run(tt.message, func(t *testing.T) {
			handled := make(chan string, 1)
			hubs := make(chan *Hub, 1)
			handler := func(r slog.Record) {
				select {
				case h := <-hubs: // only for the first record
					s := h.Subscribe("from the handler", func(Signal) {})
					_ = s.Err()
					s.Close()
					handled <- r.Message
				default:
				}
			}
			losses := make(chan error, 1)
			h := New(tt.rdb(t), Config{
				Sharded: tt.sharded, Logger: slog.New(handlerFunc(handler)),
				LinkLost: func(err error) {
					select {
					case losses <- err:
					default:
					}
				},
			})
			hubs <- h
			h.Subscribe("c", func(Signal) {})
			select {
			case message := <-handled:
				require.Equal(t, tt.message, message)
			case <-time.After(soon):
				require.FailNow(t, "the log handler did not return")
			}
			if tt.message == "link lost" {
				require.ErrorContains(t, <-losses, "down")
			}
			h.Close()
		})
	}
}

// An outage is logged once when it begins, once a minute while it lasts, and once when it is over.
func TestAnOutageOfLinksIsLoggedByItsStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		s := redistest.Embedded(t)
		o := s.Options()
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if down.Load() {
				return nil, errors.New("down")
			}
			return dial(ctx, network, addr)
		}
		rdb := redis.NewClient(o)
		defer rdb.Close()
		var log logged
		h := New(rdb, Config{Logger: log.logger()})
		defer h.Close()
		down.Store(true)
		h.Subscribe("c", func(Signal) {})
		time.Sleep(150 * time.Second)
		require.Equal(t, []string{"link lost", "link lost", "link lost"}, log.all())
		down.Store(false)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"link lost", "link lost", "link lost", "link is back"}, log.all())
	})
}

package scripts

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// While nothing was dialed, the next connection may be as old. After a dial the name has not moved
// yet.
func TestAttemptFollowsAtOnceOverOldConnections(t *testing.T) {
	r := NewRunner(redistest.Miniredis(t).Client(t), 0)
	defer r.Close()
	readOnly := reply("READONLY You can't write against a read only replica.")
	var met staleAnswers
	require.False(t, met.isOld(r, nil))
	require.False(t, met.isOld(r, io.EOF))
	require.False(t, met.isOld(r, reply("BUSY Redis is busy running a script.")))
	require.True(t, met.isOld(r, readOnly), "the first connection may be old")
	require.True(t, met.isOld(r, readOnly))
	r.dialed.made.Add(1)
	require.False(t, met.isOld(r, readOnly), "a new connection leads there, too")
	require.True(t, met.isOld(r, readOnly), "another old one")
	for range r.connections {
		met.isOld(r, readOnly)
	}
	require.False(t, met.isOld(r, readOnly), "the client does not close them")
}

// The primary's name has moved, and the connection leads to the former primary, which is up again
// as a replica. Whatever the replica answers, go-redis closes the connection, and the next attempt
// reaches the new primary.
func TestConnectionToAFormerPrimaryIsClosed(t *testing.T) {
	const waited = ":1\r\n"
	calls := map[string]func(ctx context.Context, r *Runner) (Reply, error){
		"Do":   func(ctx context.Context, r *Runner) (Reply, error) { return r.Do(ctx, check, []any{"k"}, "x") },
		"Once": func(ctx context.Context, r *Runner) (Reply, error) { return r.Once(ctx, check, []any{"k"}, "x") },
		"RunReplicated": func(ctx context.Context, r *Runner) (Reply, error) {
			return r.RunReplicated(ctx, 1, time.Second, check, []any{"k"}, "x")
		},
	}
	for _, refusal := range []string{
		"READONLY You can't write against a read only replica.",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
		"LOADING Redis is loading the dataset in memory",
	} {
		for name, call := range calls {
			t.Run(name+" "+refusal[:7], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var moved, isFormer atomic.Bool
					primary := func(received string) string {
						switch {
						case !strings.Contains(received, "eval"):
							return "-ERR unknown command\r\n"
						case strings.Contains(received, "wait"):
							return waited + waited
						}
						return waited
					}
					rdb := inMemoryBehind(t, func() func(received string) string {
						if moved.Load() {
							return primary
						}
						return func(received string) string {
							if !isFormer.Load() {
								return primary(received)
							}
							return strings.Repeat("-"+refusal+"\r\n", strings.Count(received, "*"))
						}
					})
					r := NewRunner(rdb, 0)
					_, err := call(t.Context(), r)
					require.NoError(t, err)
					isFormer.Store(true)
					moved.Store(true)
					for range 2 {
						_, err = call(t.Context(), r)
						if err == nil {
							break
						}
						require.Equal(t, "Once", name, "the others make another attempt")
					}
					require.NoError(t, err)
					requireIdle(t, r)
				})
			})
		}
	}
}

// The connection for messages follows a name that has moved, but not one that leads to several
// servers in turn.
func TestPlaceOfAName(t *testing.T) {
	r := NewRunner(redistest.Miniredis(t).Client(t), 0)
	defer r.Close()
	dial := func(addr string) string {
		r.dialed.places.note(r.dialed.addr.Load(), addr)
		r.dialed.addr.Store(&addr)
		place, _ := r.Place()
		return place
	}
	require.Equal(t, "a", dial("a"))
	require.Equal(t, "b", dial("b"))
	require.Equal(t, "c", dial("c"))
	require.Empty(t, dial("a"))
	require.Empty(t, dial("d"))
	master, _ := r.Master()
	require.Equal(t, "d", master, "with Sentinel every dial reaches the master")

	r.OnReturn(func() {})
	r.recovery.note("key", reply("READONLY You can't write against a read only replica."))
	r.recovery.note("key", nil)
	_, moves := r.Place()
	require.EqualValues(t, 1, moves)
}

// A replica's answer to HELLO, in both protocols.
func TestRoleOfAReplica(t *testing.T) {
	for _, tt := range []struct {
		answer any
		want   bool
	}{
		{map[any]any{"server": "redis", "role": "replica"}, true},
		{[]any{"server", "redis", "role", "slave"}, true},
		{map[any]any{"role": "master"}, false},
		{[]any{"role", "master"}, false},
		{[]any{"role"}, false},
		{nil, false},
	} {
		require.Equal(t, tt.want, isReplica(tt.answer), "%v", tt.answer)
	}
}

// The dialer finds another server under the same address, as that of a Sentinel client does after a
// fail-over. The connections to the old one were closed while nothing was under way, so no command
// fails.
func TestServerIsAnotherOneAfterAFailover(t *testing.T) {
	for name, wrap := range map[string]func(*redis.Client) redis.UniversalClient{
		"client":   func(rdb *redis.Client) redis.UniversalClient { return rdb },
		"embedded": func(rdb *redis.Client) redis.UniversalClient { return struct{ *redis.Client }{rdb} },
	} {
		t.Run(name, func(t *testing.T) {
			var master atomic.Pointer[redistest.Proxy]
			server := redistest.Redis(t)
			one, two := server.Proxy(t), server.Proxy(t)
			master.Store(one)
			rdb := redis.NewClient(&redis.Options{
				Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, master.Load().Addr())
				},
				ConnMaxIdleTime: 10 * time.Millisecond,
			})
			t.Cleanup(func() { _ = rdb.Close() })
			r := NewRunner(wrap(rdb), time.Second)
			defer r.Close()
			other := NewRunner(wrap(rdb), time.Second)
			defer other.Close()
			require.Same(t, r.dialed, other.dialed, "one hook for each client")
			require.Empty(t, r.Address())
			send := func() any {
				require.NoError(t, errOf(r.Commands(t.Context(), []any{"exists", "x"})))
				return r.Server("x")
			}
			was := send()
			require.NotNil(t, was)
			require.Equal(t, one.Addr(), r.Address())
			time.Sleep(20 * time.Millisecond)
			require.Equal(t, was, send(), "another connection to the same server")
			master.Store(two)
			time.Sleep(20 * time.Millisecond)
			require.NotEqual(t, was, send())
			require.Equal(t, two.Addr(), r.Address())
			master.Store(one)
			time.Sleep(20 * time.Millisecond)
			known := map[any]bool{was: true}
			require.True(t, known[send()], "the first server again")
		})
	}
}

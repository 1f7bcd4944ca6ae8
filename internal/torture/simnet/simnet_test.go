package simnet

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/memredis"
)

// a network with one server and one client, over which go-redis works.
type fixture struct {
	server *Server
	client *Client
	route  *Route
	rdb    *redis.Client
}

func newFixture(t *testing.T) *fixture {
	n := New(1)
	f := &fixture{server: n.Serve("10.0.0.1:6379", memredis.New(time.Now, 1))}
	f.client = n.Client(0)
	f.route = f.client.Route(f.server)
	f.rdb = redis.NewClient(&redis.Options{
		Addr: "10.0.0.1:6379", Dialer: f.client.Dial, MaxRetries: -1, ReadTimeout: 300 * time.Millisecond, DialerRetries: 1,
	})
	t.Cleanup(func() { _ = f.rdb.Close() })
	return f
}

// has reports what the server has under a key, without the network.
func (f *fixture) has(key string) (value string) {
	f.server.Use(func(db *memredis.Server) {
		value = string(db.NewConn(func([]byte) {}).Do([]string{"get", key}))
	})
	return value
}

func TestCommandsAndMessagesArrive(t *testing.T) {
	f := newFixture(t)
	messages := f.rdb.Subscribe(t.Context(), "c")
	defer messages.Close()
	_, err := messages.Receive(t.Context()) // its confirmation
	require.NoError(t, err)
	require.NoError(t, f.rdb.Set(t.Context(), "k", "v", 0).Err())
	require.Equal(t, "v", f.rdb.Get(t.Context(), "k").Val())
	require.EqualValues(t, 1, f.rdb.Publish(t.Context(), "c", "m").Val())
	m, err := messages.ReceiveMessage(t.Context())
	require.NoError(t, err)
	require.Equal(t, "m", m.Payload)
}

// A command that was held back is executed later, although its client has closed the connection.
func TestHeldCommandsArriveLate(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.rdb.Ping(t.Context()).Err())
	f.route.Hold(ToServer, true)
	err := f.rdb.Set(t.Context(), "k", "late", 0).Err()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, f.rdb.Close())
	require.Equal(t, "$-1\r\n", f.has("k"))
	f.route.Hold(ToServer, false)
	require.Equal(t, "$4\r\nlate\r\n", f.has("k"))
}

// What was written to a connection that broke is executed much later.
func TestStrandedCommandsArriveLate(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.rdb.Ping(t.Context()).Err())
	f.route.Hold(ToServer, true)
	failed := make(chan error)
	go func() { failed <- f.rdb.Set(context.Background(), "k", "late", 0).Err() }()
	time.Sleep(5 * time.Millisecond) // written by then
	f.route.Strand(20 * time.Millisecond)
	require.ErrorIs(t, <-failed, syscall.ECONNRESET)
	f.route.Hold(ToServer, false)
	require.Equal(t, "$-1\r\n", f.has("k"))
	require.Eventually(t, func() bool { return f.has("k") == "$4\r\nlate\r\n" }, time.Second, time.Millisecond)
}

// A name may lead to another server later. Open connections stay.
func TestNameMoves(t *testing.T) {
	f := newFixture(t)
	n := f.client.n
	second := n.Serve("10.0.0.2:6379", memredis.New(time.Now, 2))
	client := n.Client(1)
	n.Name("redis:6379", f.server)
	rdb := redis.NewClient(&redis.Options{Addr: "redis:6379", Dialer: client.Dial, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	require.NoError(t, rdb.Set(t.Context(), "k", "first", 0).Err())
	n.Name("redis:6379", second)
	require.Equal(t, "first", rdb.Get(t.Context(), "k").Val())
	client.Route(f.server).Reset()
	require.Error(t, rdb.Get(t.Context(), "k").Err()) // its connection has broken
	require.ErrorIs(t, rdb.Get(t.Context(), "k").Err(), redis.Nil)
}

func TestRules(t *testing.T) {
	isSet := func(args []string) bool { return args[0] == "set" }
	for name, tt := range map[string]struct {
		rule     Rule
		executed string
	}{
		"lost command": {Rule{Effect: LoseCommand, Match: isSet}, "$-1\r\n"},
		"lost reply":   {Rule{Effect: LoseReply, Match: isSet}, "$1\r\nv\r\n"},
		"held reply":   {Rule{Effect: HoldReply, Match: isSet}, "$1\r\nv\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			remove := f.route.Add(&tt.rule)
			require.Error(t, f.rdb.Set(t.Context(), "k", "v", 0).Err())
			require.Equal(t, tt.executed, f.has("k"))
			remove()
			require.NoError(t, f.rdb.Set(t.Context(), "k", "w", 0).Err())
		})
	}
}

// A late command is executed once its time has come. Who watches the server hears of it if the
// server has not refused it.
func TestLateCommand(t *testing.T) {
	f := newFixture(t)
	var seen []string
	f.server.Watch(func(args []string) { seen = append(seen, args[0]) })
	late := func(name string, args ...any) {
		over := make(chan struct{})
		remove := f.route.Add(&Rule{
			Effect: Late, After: 20 * time.Millisecond, Match: func(args []string) bool { return args[0] == name },
			Over: func() { close(over) },
		})
		require.ErrorIs(t, f.rdb.Do(t.Context(), append([]any{name}, args...)...).Err(), syscall.ECONNRESET)
		<-over
		remove()
	}
	late("set", "k", "v")
	late("evalsha", strings.Repeat("0", 40), 0) // which no server knows
	require.Equal(t, "$1\r\nv\r\n", f.has("k"))
	require.Contains(t, seen, "set")
	require.NotContains(t, seen, "evalsha")
}

func TestDialsFail(t *testing.T) {
	f := newFixture(t)
	f.route.Refuse(true)
	_, err := f.client.Dial(t.Context(), "tcp", "10.0.0.1:6379")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	f.route.Refuse(false)
	f.client.HangDials(true)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = f.client.Dial(ctx, "tcp", "10.0.0.1:6379")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	f.client.HangDials(false)
	_, err = f.client.Dial(t.Context(), "tcp", "10.0.0.2:6379")
	require.Error(t, err)
	conn, err := f.client.Dial(t.Context(), "tcp", "10.0.0.1:6379")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

// A server that was killed breaks its connections, and has its data again when it starts.
func TestServerRestarts(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.rdb.Set(t.Context(), "k", "v", 0).Err())
	f.server.Kill(func(db *memredis.Server) { db.Restore(db.Snapshot()) })
	err := f.rdb.Get(t.Context(), "k").Err()
	require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
	require.ErrorIs(t, f.rdb.Get(t.Context(), "k").Err(), syscall.ECONNREFUSED)
	f.server.Start()
	require.Equal(t, "v", f.rdb.Get(t.Context(), "k").Val())
}

// A server that stalls executes its commands when it goes on.
func TestServerStalls(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.rdb.Ping(t.Context()).Err())
	f.server.Stall(true)
	go func() {
		time.Sleep(20 * time.Millisecond)
		f.server.Stall(false)
	}()
	require.NoError(t, f.rdb.Set(t.Context(), "k", "v", 0).Err())
}

// Faults of one kind may overlap. The end of the first one does not end the second.
func TestOverlappingFaultsEndOneByOne(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, f.rdb.Ping(t.Context()).Err())
	for name, set := range map[string]func(on bool){
		"held to the server": func(on bool) { f.route.Hold(ToServer, on) },
		"held to the client": func(on bool) { f.route.Hold(ToClient, on) },
		"stalled":            f.server.Stall,
		"refused":            f.route.Refuse,
		"hanging dials":      f.client.HangDials,
	} {
		set(true)
		set(true)
		if name == "refused" || name == "hanging dials" {
			f.route.Reset()
		}
		set(false)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		require.Error(t, f.rdb.Ping(ctx).Err(), name)
		cancel()
		set(false)
		answers := func() bool { return f.rdb.Ping(t.Context()).Err() == nil }
		require.Eventually(t, answers, time.Second, time.Millisecond, name)
	}
}

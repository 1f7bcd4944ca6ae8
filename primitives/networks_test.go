package primitives_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// patient makes a client retry often, with short pauses.
func patient(o *redis.Options) {
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 20, time.Millisecond, 5*time.Millisecond
}

// networks are connections over which a script must have the same effect: a plain one, one that
// duplicates each command, and one that loses the first reply to each command.
var networks = []struct {
	name string
	open func(t testing.TB, s *redistest.Server) *redis.Client
}{
	{"plain", func(t testing.TB, s *redistest.Server) *redis.Client { return s.Client(t) }},
	{"duplicated", func(t testing.TB, s *redistest.Server) *redis.Client {
		p := s.Proxy(t)
		p.Duplicate(script)
		return p.Client(t)
	}},
	{"reply lost", func(t testing.TB, s *redistest.Server) *redis.Client {
		p := s.Proxy(t)
		seen := map[string]bool{}
		p.DropReplies(1<<30, func(args []string) bool {
			key := strings.Join(args, "\x00")
			first := script(args) && !seen[key]
			seen[key] = true
			return first
		})
		return p.Client(t, patient)
	}},
}

// eachNetwork runs f on each kind of server over each network.
func eachNetwork(t *testing.T, f func(t *testing.T, s *redistest.Server, c *primitives.Client)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, network := range networks {
			t.Run(network.name, func(t *testing.T) { f(t, s, newClient(t, network.open(t, s))) })
		}
	})
}

// subscriber receives the messages of a channel.
type subscriber struct {
	rdb     *redis.Client
	channel string
	sub     *redis.PubSub
}

func subscribe(t testing.TB, s *redistest.Server, channel string) *subscriber {
	t.Helper()
	rdb := s.Client(t)
	sub := rdb.Subscribe(t.Context(), channel)
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	return &subscriber{rdb, channel, sub}
}

// received returns the messages since its last call. A marker message bounds them.
func (s *subscriber) received(t testing.TB) []string {
	t.Helper()
	require.NoError(t, s.rdb.Publish(t.Context(), s.channel, "mark").Err())
	messages := []string{}
	for {
		m, err := s.sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		if m.Payload == "mark" {
			return messages
		}
		messages = append(messages, m.Payload)
	}
}

// counterState is a number in Redis and the messages of its channel.
type counterState struct {
	rdb *redis.Client
	key string
	*subscriber
}

// requireStep compares the number ("" if there is none), and the messages since the last call.
func (w *counterState) requireStep(t testing.TB, value string, published ...string) {
	t.Helper()
	got, err := w.rdb.Get(t.Context(), w.key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	require.Equal(t, value, got)
	require.Equal(t, append([]string{}, published...), w.received(t))
}

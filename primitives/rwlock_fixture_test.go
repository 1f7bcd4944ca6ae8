package primitives_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// rwTest is a read-write lock on one server. Its methods inspect the state of the lock in Redis.
type rwTest struct {
	s    *redistest.Server
	rdb  *redis.Client
	c    *primitives.Client
	name string
	rw   *primitives.RWLock

	channel  string
	messages *subscriber // made by the first requireState
}

// onRW makes a client and a read-write lock with a name of its own.
func onRW(t testing.TB, s *redistest.Server, opts ...primitives.ClientOption) *rwTest {
	return onRWNamed(t, s, s.Client(t), redistest.Name(t), opts...)
}

// onRWNamed makes a read-write lock of that name. via is the connection of its client.
func onRWNamed(
	t testing.TB,
	s *redistest.Server,
	via *redis.Client,
	name string,
	opts ...primitives.ClientOption,
) *rwTest {
	t.Helper()
	c := newClient(t, via, opts...)
	channel := "redisson_rwlock:{" + name + "}"
	if strings.Contains(name, "{") {
		channel = "redisson_rwlock:" + name
	}
	return &rwTest{s: s, rdb: s.Client(t), c: c, name: name, rw: c.RWLock(name), channel: channel}
}

// eachRW runs f on each kind of server.
func eachRW(t *testing.T, f func(t *testing.T, x *rwTest)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { f(t, onRW(t, s)) })
}

// inBubble runs f on a read-write lock of an embedded server in a synctest bubble: time is fake.
func inBubble(t *testing.T, f func(t *testing.T, x *rwTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		rdb := s.Client(t)
		c := newClient(t, s.Client(t))
		f(t, &rwTest{s: s, rdb: rdb, c: c, name: "n", rw: c.RWLock("n"), channel: "redisson_rwlock:{n}"})
		shut(c)
	})
}

// waits returns how many clients are subscribed to the lock's channel, besides the test itself.
func (x *rwTest) waits(t testing.TB) int {
	t.Helper()
	n, err := x.rdb.PubSubNumSub(t.Context(), x.channel).Result()
	require.NoError(t, err)
	if x.messages != nil {
		n[x.channel]--
	}
	return int(n[x.channel])
}

// awaitWaiter returns when a client is subscribed to the lock's channel.
func (x *rwTest) awaitWaiter(t testing.TB) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool { return x.waits(t) > 0 }, "a client subscribes")
}

// other returns the same lock on a new client.
func (x *rwTest) other(t testing.TB) *primitives.RWLock {
	return newClient(t, x.s.Client(t)).RWLock(x.name)
}

// timeoutKey returns the key that carries the TTL of a reader's nth hold.
func (x *rwTest) timeoutKey(id string, n int) string {
	if strings.Contains(x.name, "{") {
		return fmt.Sprintf("%s:%s:rwlock_timeout:%d", x.name, id, n)
	}
	return fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", x.name, id, n)
}

// state returns the lock's hash, and the timeout key of each read hold as "id#n". requireTTL checks
// TTLs.
func (x *rwTest) state(t testing.TB) map[string]string {
	t.Helper()
	state := fields(t, x.s, x.name)
	prefix, _, _ := strings.Cut(x.timeoutKey("", 0), ":rwlock_timeout")
	for _, key := range redistest.Keys(t, x.s, "*:rwlock_timeout:*") {
		own, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		id, n, _ := strings.Cut(own, ":rwlock_timeout:")
		value, err := x.rdb.Get(t.Context(), key).Result()
		require.NoError(t, err)
		state[id+"#"+n] = value
	}
	return state
}

// requireState compares the state with want, and the messages since the last call with published.
// The first call subscribes, so it expects no messages.
func (x *rwTest) requireState(t testing.TB, want map[string]string, published ...string) {
	t.Helper()
	if want == nil {
		want = map[string]string{}
	}
	require.Equal(t, want, x.state(t))
	if x.messages == nil {
		require.Empty(t, published, "not subscribed yet")
		x.messages = subscribe(t, x.s, x.channel)
		return
	}
	require.Equal(t, append([]string{}, published...), x.messages.received(t))
}

// requireTTL requires that the TTL of key is d, or up to 5 s less.
func (x *rwTest) requireTTL(t testing.TB, key string, d time.Duration) {
	t.Helper()
	ttl := x.rdb.PTTL(t.Context(), key).Val()
	require.LessOrEqual(t, ttl, d, key)
	require.Greater(t, ttl, d-5*time.Second, key)
}

// reads returns the state of one reader with count holds.
func reads(id string, count int) map[string]string {
	state := map[string]string{"mode": "read", id: strconv.Itoa(count)}
	for n := range count {
		state[id+"#"+strconv.Itoa(n+1)] = "1"
	}
	return state
}

// writes returns the state of a writer with count holds.
func writes(id string, count int) map[string]string {
	return map[string]string{"mode": "write", id + ":write": strconv.Itoa(count)}
}

// mergeStates joins states. The mode is that of the first one.
func mergeStates(states ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, state := range slices.Backward(states) {
		maps.Copy(all, state)
	}
	return all
}

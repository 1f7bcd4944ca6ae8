package memredis

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// pair sends the same commands to a memredis and to a real Redis.
type pair struct {
	t    *testing.T
	mini *Conn
	real net.Conn
	in   *bufio.Reader
}

func newPair(t *testing.T) *pair {
	s := redistest.Fresh(t)
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &pair{t: t, mini: New(time.Now, 1).NewConn(func([]byte) {}), real: conn, in: bufio.NewReader(conn)}
}

// do returns both replies as text.
func (p *pair) do(args ...string) (mini, real string) {
	p.t.Helper()
	words := make([]any, len(args))
	for i, a := range args {
		words[i] = a
	}
	_, err := p.real.Write(appendReply(nil, words, false))
	require.NoError(p.t, err)
	reply, err := server.ParseReply(p.in)
	other, otherErr := server.ParseReply(bufio.NewReader(bytes.NewReader(p.mini.Do(args))))
	return asText(other, otherErr), asText(reply, err)
}

// asText writes a reply. Which error comes first, if there are several, does not matter.
func asText(reply any, err error) string {
	if err != nil {
		return "error"
	}
	return fmt.Sprintf("%v", reply)
}

// Random commands on few keys get the same replies as from Redis.
func TestRepliesAreThoseOfRedis(t *testing.T) {
	redistest.Require(t, redistest.NeedRedis)
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := newPair(t)
			rng := rand.New(rand.NewPCG(seed, 1))
			var done []string
			for range 4000 {
				args := randomCommand(rng)
				done = append(done, strings.Join(args, " "))
				mini, real := p.do(args...)
				require.Equal(t, real, mini, "after %s", strings.Join(done[max(0, len(done)-12):], "; "))
			}
		})
	}
}

func randomCommand(rng *rand.Rand) []string {
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	key := func() string { return pick("a", "b", "c", "d") }
	field := func() string { return pick("x", "y", "z", "") }
	number := func() string { return pick("0", "1", "-1", "2", "-2", "5", "1000000", "x") }
	score := func() string { return pick("1", "-3", "2.5", "17", "+inf", "-inf", "1700000000123", "(2", "y") }
	all := [][]string{
		{"get", key()},
		{"set", key(), pick("v", "10", "-4")},
		{"set", key(), "w", "px", pick("100000", "0", "y")},
		{"set", key(), "n", pick("nx", "xx", "keepttl")},
		{"set", key(), "n", "px", "90000", pick("nx", "xx")},
		{"getrange", key(), number(), number()},
		{"incrby", key(), number()},
		{"decrby", key(), number()},
		{"incr", key()},
		{"decr", key()},
		{"del", key(), key()},
		{"exists", key(), key(), key()},
		{"type", key()},
		{"pexpire", key(), pick("200000", "-1", "0", "z")},
		{"persist", key()},
		{"hset", key(), field(), pick("1", "v")},
		{"hset", key(), field(), "1", field(), "2"},
		{"hget", key(), field()},
		{"hdel", key(), field(), field()},
		{"hexists", key(), field()},
		{"hlen", key()},
		{"hmget", key(), field(), field()},
		{"hgetall", key()},
		{"hkeys", key()},
		{"hincrby", key(), field(), number()},
		{"hscan", key(), "0", "count", "100"},
		{"rpush", key(), pick("p", "q"), pick("p", "r")},
		{"lpop", key()},
		{"llen", key()},
		{"lindex", key(), number()},
		{"lrange", key(), number(), number()},
		{"lrem", key(), pick("0", "1", "2"), pick("p", "q")},
		{"zadd", key(), score(), field()},
		{"zadd", key(), pick("nx", "xx", "ch"), score(), field(), score(), field()},
		{"zrem", key(), field(), field()},
		{"zscore", key(), field()},
		{"zcard", key()},
		{"zcount", key(), score(), score()},
		{"zrange", key(), number(), number()},
		{"zrange", key(), number(), number(), "withscores"},
		{"zrangebyscore", key(), score(), score()},
		{"zrangebyscore", key(), score(), score(), "withscores", "limit", pick("0", "1"), pick("1", "2", "-1")},
		{"zremrangebyscore", key(), score(), score()},
		{"publish", "channel", "m"},
		{"script", "exists", "0123"},
		{"hget", key()},
		{"nothing"},
		{"eval", "return redis.call('get', KEYS[1])", "1", key()},
		{"eval", "local r = redis.pcall('hget', KEYS[1], ARGV[1]); return r.err and 'wrong' or r", "1", key(), field()},
		{"eval", "return {1, 2.9, 'x', false, true, {4}}", "0"},
		{"eval", "return {redis.call('hset', KEYS[1], 'x', 12345678901), redis.call('hget', KEYS[1], 'x')}", "1", key()},
		{"eval", "return redis.error_reply('FOREIGN no')", "0"},
		{"eval", "return redis.call('zrange', KEYS[1], 0, -1, 'withscores')", "1", key()},
		{"eval", "error('no')", "0"},
		{"eval", "return redis.call('type', KEYS[1]).ok", "1", key()},
		{"eval", "return cjson.encode({1, 'a', true})", "0"},
		{"eval", "return #redis.call('hgetall', KEYS[1])", "1", key()},
	}
	return all[rng.IntN(len(all))]
}

// A key that has expired is gone, to the millisecond.
func TestKeysExpire(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	c := New(func() time.Time { return now }, 1).NewConn(func([]byte) {})
	c.Do([]string{"set", "k", "v", "px", "50"})
	now = now.Add(49 * time.Millisecond)
	require.Equal(t, ":1\r\n", string(c.Do([]string{"pttl", "k"})))
	now = now.Add(time.Millisecond)
	require.Equal(t, ":0\r\n", string(c.Do([]string{"pttl", "k"})))
	now = now.Add(time.Millisecond)
	require.Equal(t, ":-2\r\n", string(c.Do([]string{"pttl", "k"})))
	require.Equal(t, "$-1\r\n", string(c.Do([]string{"get", "k"})))
}

// A server in trouble refuses what Redis refuses then.
func TestFaults(t *testing.T) {
	s := New(time.Now, 1)
	c := s.NewConn(func([]byte) {})
	do := func(args ...string) string { return string(c.Do(args)) }
	do("set", "k", "v")
	for _, tt := range []struct {
		fault         Fault
		get, set, del string
	}{
		{Healthy, "$1\r\nv\r\n", "+OK\r\n", ":0\r\n"},
		{Loading, "-LOADING", "-LOADING", "-LOADING"},
		{Busy, "-BUSY", "-BUSY", "-BUSY"},
		{Full, "$1\r\nv\r\n", "-OOM", ":0\r\n"},
	} {
		s.SetFault(tt.fault)
		require.True(t, strings.HasPrefix(do("get", "k"), tt.get), tt.fault)
		require.True(t, strings.HasPrefix(do("set", "k", "v"), tt.set), tt.fault)
		require.True(t, strings.HasPrefix(do("del", "other"), tt.del), tt.fault)
	}
	// Within a script, nothing is refused after the first write.
	s.SetFault(Full)
	require.True(t, strings.HasPrefix(do("eval", "return redis.call('set', 'k', 'w')", "0"), "-OOM"))
	require.Equal(t, "+OK\r\n", do("eval", "redis.call('del', 'k') return redis.call('set', 'k', 'w')", "0"))
}

// A replica answers reads with the data that it has, refuses writes, and passes messages on. Once
// it is promoted, it goes on by itself.
func TestReplica(t *testing.T) {
	primary, replica := New(time.Now, 1), New(time.Now, 2)
	p := primary.NewConn(func([]byte) {})
	messages := 0
	r := replica.NewConn(func([]byte) { messages++ })
	do := func(c *Conn, args ...string) string { return string(c.Do(args)) }
	do(p, "set", "k", "v")
	replica.Follow(primary)
	do(p, "set", "k", "w")
	require.Equal(t, "$1\r\nv\r\n", do(r, "get", "k"))
	require.True(t, strings.HasPrefix(do(r, "set", "k", "x"), "-READONLY"))
	require.True(t, strings.HasPrefix(do(r, "eval", "return redis.call('del', 'k')", "0"), "-READONLY"))
	require.Equal(t, "$1\r\nv\r\n", do(r, "eval", "return redis.call('get', 'k')", "0"))
	do(r, "subscribe", "a")
	do(p, "publish", "a", "m")
	require.Equal(t, 1, messages)
	replica.Promote()
	do(p, "publish", "a", "m")
	require.Equal(t, 1, messages)
	require.Equal(t, "+OK\r\n", do(r, "set", "k", "x"))
}

// A jump of the clock ends leases early, or late.
func TestClockJumps(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	s := New(func() time.Time { return now }, 1)
	c := s.NewConn(func([]byte) {})
	do := func(args ...string) string { return string(c.Do(args)) }
	do("set", "a", "v", "px", "50")
	do("set", "b", "v")
	s.Jump(-time.Second)
	require.Equal(t, ":1050\r\n", do("pttl", "a"))
	s.Jump(1051 * time.Millisecond)
	require.Equal(t, "$-1\r\n", do("get", "a"))
	require.Equal(t, []string{"b"}, s.Keys())
	s.Evict("b")
	require.Empty(t, s.Keys())
}

// Subscribers get messages of their channels, in the form of their protocol.
func TestMessages(t *testing.T) {
	s := New(time.Now, 1)
	var got []string
	c := s.NewConn(func(data []byte) { got = append(got, string(data)) })
	require.Equal(t, "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n", string(c.Do([]string{"subscribe", "a"})))
	other := s.NewConn(func([]byte) {})
	require.Equal(t, ":1\r\n", string(other.Do([]string{"publish", "a", "m"})))
	require.Equal(t, ":0\r\n", string(other.Do([]string{"spublish", "a", "m"})))
	c.Do([]string{"hello", "3"})
	other.Do([]string{"publish", "a", "m"})
	c.Close()
	require.Equal(t, ":0\r\n", string(other.Do([]string{"publish", "a", "m"})))
	require.Equal(t, []string{
		"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n",
	}, got)
}

// Data that a snapshot has comes back, and what came later is gone.
func TestSnapshot(t *testing.T) {
	s := New(time.Now, 1)
	c := s.NewConn(func([]byte) {})
	c.Do([]string{"hset", "h", "x", "1"})
	old := s.Snapshot()
	c.Do([]string{"hset", "h", "x", "2"})
	s.Restore(old)
	require.Equal(t, "$1\r\n1\r\n", string(c.Do([]string{"hget", "h", "x"})))
	s.Forget()
	require.Equal(t, "$-1\r\n", string(c.Do([]string{"hget", "h", "x"})))
}

func TestCommandsAreRead(t *testing.T) {
	data := appendReply(nil, []any{"get", "k\r\n"}, false)
	for n := range data {
		args, size, err := ReadCommand(data[:n])
		require.NoError(t, err)
		require.Zero(t, size)
		require.Empty(t, args)
	}
	args, size, err := ReadCommand(slices.Concat(data, data))
	require.NoError(t, err)
	require.Equal(t, []string{"get", "k\r\n"}, args)
	require.Len(t, data, size)
	for _, bad := range []string{"get\r\n", "*x\r\n", "*0\r\n", "*1\r\n:3\r\n"} {
		_, _, err := ReadCommand([]byte(bad))
		require.Error(t, err, bad)
	}
}

// A key that ends soon has a TTL of 0, and is there for the rest of the millisecond.
func TestLastMillisecond(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	s := New(func() time.Time { return now }, 1)
	c := s.NewConn(func([]byte) {})
	reply := func(args ...string) string { return string(c.Do(args)) }
	reply("set", "lease", "1", "px", "5000")
	reply("set", "other", "1")
	s.EndSoon("lease")
	s.EndSoon("other")
	s.EndSoon("none")
	require.Equal(t, ":0\r\n", reply("pttl", "lease"))
	require.Equal(t, ":-1\r\n", reply("pttl", "other"))
	require.Equal(t, ":-2\r\n", reply("pttl", "none"))
	now = now.Add(time.Millisecond)
	s.EndSoon("lease") // it has ended
	require.Equal(t, ":-2\r\n", reply("pttl", "lease"))
}

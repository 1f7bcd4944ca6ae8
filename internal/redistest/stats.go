package redistest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// Calls counts executed commands by their lower-case name, such as "evalsha" or
// "script|load". Commands that a script calls count too, and failed ones; what
// a client sends only to open a connection does not ("hello", "client|...",
// "info", "command").
type Calls map[string]int64

// Since returns what has been called since before, without the names that have
// not.
func (c Calls) Since(before Calls) Calls {
	diff := Calls{}
	for name, n := range c {
		if n > before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// Total is the sum over all names.
func (c Calls) Total() int64 {
	var sum int64
	for _, n := range c {
		sum += n
	}
	return sum
}

// Commands returns what s has executed since it started. On a server that other
// tests use at the same time, their commands are in it as well.
func Commands(t testing.TB, s *Server) Calls {
	t.Helper()
	if s.calls != nil {
		return s.calls.snapshot()
	}
	calls := Calls{}
	for line := range strings.Lines(info(t, s, "commandstats")) {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || overhead(name) {
			continue
		}
		count, _, _ := strings.Cut(stats, ",")
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			t.Fatalf("redistest: commandstats: %q: %v", line, err)
		}
		calls[name] = n
	}
	return calls
}

func overhead(name string) bool {
	return name == "hello" || name == "info" || name == "command" || strings.HasPrefix(name, "client|")
}

func info(t testing.TB, s *Server, section string) string {
	t.Helper()
	text, ok := ask(t, s, "info", section).(string)
	if !ok {
		t.Fatalf("redistest: info %s of %s is no text", section, s.name)
	}
	return text
}

// callCounter does for miniredis what INFO commandstats does for Redis.
type callCounter struct {
	mu    sync.Mutex
	calls Calls
}

func newCallCounter() *callCounter { return &callCounter{calls: Calls{}} }

// containers are the commands that count by their subcommand.
var containers = []string{"client", "cluster", "config", "object", "pubsub", "script"}

// hook counts a command. It lets miniredis go on with it.
func (c *callCounter) hook(_ *server.Peer, cmd string, args ...string) bool {
	name := strings.ToLower(cmd)
	if slices.Contains(containers, name) && len(args) > 0 {
		name += "|" + strings.ToLower(args[0])
	}
	if !overhead(name) {
		c.mu.Lock()
		c.calls[name]++
		c.mu.Unlock()
	}
	return false
}

func (c *callCounter) snapshot() Calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.calls)
}

// Connections counts the client connections of s, those with a subscription
// included, those of replicas and of this package not.
func Connections(t testing.TB, s *Server) int {
	t.Helper()
	if s.mini != nil {
		return s.mini.CurrentConnectionCount()
	}
	n := 0
	for _, kind := range []string{"normal", "pubsub"} {
		list, _ := ask(t, s, "client", "list", "type", kind).(string)
		for line := range strings.Lines(list) {
			if !strings.Contains(line, " name="+adminName+" ") {
				n++
			}
		}
	}
	return n
}

// Channels returns the channels of s that somebody is subscribed to, sorted.
// Pattern and sharded subscriptions are not among them.
func Channels(t testing.TB, s *Server) []string {
	t.Helper()
	return texts(t, ask(t, s, "pubsub", "channels"))
}

// ShardChannels is Channels for sharded subscriptions (SSUBSCRIBE), which
// miniredis does not know.
func ShardChannels(t testing.TB, s *Server) []string {
	t.Helper()
	return texts(t, ask(t, s, "pubsub", "shardchannels"))
}

// Keys returns the keys of s that match the pattern, sorted.
func Keys(t testing.TB, s *Server, pattern string) []string {
	t.Helper()
	return texts(t, ask(t, s, "keys", pattern))
}

func ask(t testing.TB, s *Server, args ...string) any {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	reply, err := s.do(ctx, args...)
	if err != nil {
		t.Fatalf("redistest: %s of %s: %v", strings.Join(args, " "), s.name, err)
	}
	return reply
}

func texts(t testing.TB, reply any) []string {
	t.Helper()
	list, ok := reply.([]any)
	if !ok {
		t.Fatalf("redistest: %T is no list", reply)
	}
	out := make([]string, len(list))
	for i, v := range list {
		if b, ok := v.([]byte); ok {
			v = string(b)
		}
		out[i] = fmt.Sprint(v)
	}
	slices.Sort(out)
	return out
}

// WaitFor polls cond every few milliseconds until it holds, and fails t with
// msg when it does not within limit. cond runs in the caller's goroutine.
func WaitFor(t testing.TB, limit time.Duration, cond func() bool, msg string) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(pollInterval) {
		if !time.Now().Before(end) {
			t.Fatalf("after %v still not: %s", limit, msg)
		}
	}
}

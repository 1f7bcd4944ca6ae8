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
// "script|load". It includes commands that scripts call, and failed commands. It
// excludes commands that clients send when they connect: "hello", "client|...",
// "info" and "command".
type Calls map[string]int64

// Since returns the number of calls since before. It omits names without calls.
func (c Calls) Since(before Calls) Calls {
	diff := Calls{}
	for name, n := range c {
		if n > before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// Total returns the sum over all names.
func (c Calls) Total() int64 {
	var sum int64
	for _, n := range c {
		sum += n
	}
	return sum
}

// Commands returns the commands that s has executed since it started. On a shared
// server this includes the commands of other tests.
func Commands(t testing.TB, s *Server) Calls {
	t.Helper()
	if s.calls != nil {
		return s.calls.snapshot()
	}
	calls := Calls{}
	for line := range strings.Lines(info(t, s, "commandstats")) {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok || isConnectionSetup(name) {
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

// isConnectionSetup reports whether clients send the command when they connect.
func isConnectionSetup(name string) bool {
	return name == "hello" || name == "info" || name == "command" || strings.HasPrefix(name, "client|")
}

func info(t testing.TB, s *Server, section string) string {
	t.Helper()
	text, ok := ask(t, s, "info", section).(string)
	if !ok {
		t.Fatalf("redistest: info %s of %s is not a text", section, s.name)
	}
	return text
}

// callCounter counts the calls of a miniredis, which has no INFO commandstats.
type callCounter struct {
	mu    sync.Mutex
	calls Calls
}

func newCallCounter() *callCounter { return &callCounter{calls: Calls{}} }

// containers are the commands that are counted by subcommand.
var containers = []string{"client", "cluster", "config", "object", "pubsub", "script"}

// hook counts a command. It returns false, so that miniredis executes the command.
func (c *callCounter) hook(_ *server.Peer, cmd string, args ...string) bool {
	name := strings.ToLower(cmd)
	if slices.Contains(containers, name) && len(args) > 0 {
		name += "|" + strings.ToLower(args[0])
	}
	if !isConnectionSetup(name) {
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

// Connections returns the number of client connections of s. It includes
// connections with subscriptions, and excludes replicas and this package's own.
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

// Channels returns the channels of s that have subscribers, sorted. It excludes
// pattern and sharded subscriptions.
func Channels(t testing.TB, s *Server) []string {
	t.Helper()
	return texts(t, ask(t, s, "pubsub", "channels"))
}

// ShardChannels is like Channels for sharded subscriptions (SSUBSCRIBE), which
// miniredis does not support.
func ShardChannels(t testing.TB, s *Server) []string {
	t.Helper()
	return texts(t, ask(t, s, "pubsub", "shardchannels"))
}

// Keys returns the keys of s that match pattern, sorted.
func Keys(t testing.TB, s *Server, pattern string) []string {
	t.Helper()
	return texts(t, ask(t, s, "keys", pattern))
}

func ask(t testing.TB, s *Server, args ...string) any {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
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
		t.Fatalf("redistest: %T is not a list", reply)
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

// WaitFor polls cond every few milliseconds until it returns true. It fails t with
// msg after limit. cond runs in the caller's goroutine.
func WaitFor(t testing.TB, limit time.Duration, cond func() bool, msg string) {
	t.Helper()
	for end := time.Now().Add(limit); !cond(); time.Sleep(pollInterval) {
		if !time.Now().Before(end) {
			t.Fatalf("condition not met after %v: %s", limit, msg)
		}
	}
}

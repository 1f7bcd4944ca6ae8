package measure

import (
	"strconv"
	"strings"
	"time"
)

// Calls counts the commands that a server has executed, by lower-case name, such as "evalsha" or
// "script|load".
type Calls map[string]int64

// ParseCalls parses the text of INFO commandstats.
func ParseCalls(info string) Calls {
	calls := Calls{}
	for line := range strings.Lines(info) {
		name, stats, found := strings.Cut(strings.TrimSpace(line), ":calls=")
		name, isStat := strings.CutPrefix(name, "cmdstat_")
		if !found || !isStat {
			continue
		}
		count, _, _ := strings.Cut(stats, ",")
		if n, err := strconv.ParseInt(count, 10, 64); err == nil {
			calls[name] = n
		}
	}
	return calls
}

// ParseCPU parses the text of INFO cpu and returns the processor time of the server process,
// without its children.
func ParseCPU(info string) (sum time.Duration) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_sys" && name != "used_cpu_user" {
			continue
		}
		if seconds, err := strconv.ParseFloat(value, 64); err == nil {
			sum += time.Duration(seconds * float64(time.Second))
		}
	}
	return sum
}

// Add adds the calls of another server.
func (c Calls) Add(other Calls) {
	for name, n := range other {
		c[name] += n
	}
}

// Since returns the calls made after before was taken. Commands without new calls are left out.
func (c Calls) Since(before Calls) Calls {
	diff := Calls{}
	for name, n := range c {
		if n != before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// All returns Redis's own count of commands. It includes the commands that scripts have called.
// The observer's own commands are left out.
func (c Calls) All() (sum int64) {
	for name, n := range c {
		if name != "info" && name != "client|list" {
			sum += n
		}
	}
	return sum
}

// ByClients returns the number of commands that clients sent. INFO counts calls by scripts under
// the same names. So ByClients counts only commands that scripts cannot call, and the commands in
// names. The caller must know that no script calls the commands in names.
func (c Calls) ByClients(names ...string) int64 {
	var sum int64
	for name, n := range c {
		if notInScripts(name) {
			sum += n
		}
	}
	for _, name := range names {
		if !notInScripts(name) { // else it is in sum already
			sum += c[name]
		}
	}
	return sum
}

// notInScripts reports whether scripts cannot call the command, or have no use for it. The
// observer's own commands, info and client|list, are left out.
func notInScripts(name string) bool {
	switch name {
	case "eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro",
		"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe",
		"blpop", "brpop", "blmove", "brpoplpush", "bzpopmin", "bzpopmax",
		"multi", "exec", "discard", "watch", "unwatch", "wait", "waitaof",
		"ping", "hello", "auth", "select", "reset", "quit", "readonly", "readwrite", "command",
		"client|setinfo", "client|setname", "client|id", "client|tracking", "client|maint_notifications":
		return true
	}
	return strings.HasPrefix(name, "script|") || strings.HasPrefix(name, "function|") ||
		strings.HasPrefix(name, "cluster|") || strings.HasPrefix(name, "pubsub|")
}

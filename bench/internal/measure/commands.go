package measure

import (
	"strconv"
	"strings"
	"time"
)

// Calls counts the commands that a server has executed, by their lower-case name, such as "evalsha" or "script|load".
type Calls map[string]int64

// ParseCalls reads the text of INFO commandstats.
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

// ParseCPU reads the text of INFO cpu: the processor time that the server itself has taken.
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

// Since returns what was called since before.
func (c Calls) Since(before Calls) Calls {
	diff := Calls{}
	for name, n := range c {
		if n != before[name] {
			diff[name] = n - before[name]
		}
	}
	return diff
}

// ByClients sums the calls that clients made themselves. INFO counts those that scripts make under the same names, so only such count as
// scripts cannot make, and the names given.
func (c Calls) ByClients(names ...string) int64 {
	var sum int64
	for name, n := range c {
		if onlyByClients(name) {
			sum += n
		}
	}
	for _, name := range names {
		if !onlyByClients(name) {
			sum += c[name]
		}
	}
	return sum
}

// onlyByClients tells whether scripts cannot call the command, or never would. What the observer sends is left out: info, client|list.
func onlyByClients(name string) bool {
	switch name {
	case "eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro",
		"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe",
		"blpop", "brpop", "blmove", "brpoplpush", "bzpopmin", "bzpopmax",
		"multi", "exec", "discard", "watch", "unwatch", "wait", "waitaof",
		"ping", "hello", "auth", "select", "reset", "quit", "readonly", "readwrite",
		"client|setinfo", "client|setname", "client|id", "client|tracking", "client|maint_notifications":
		return true
	}
	return strings.HasPrefix(name, "script|") || strings.HasPrefix(name, "function|") || strings.HasPrefix(name, "cluster|")
}

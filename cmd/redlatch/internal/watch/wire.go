package watch

import (
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"time"
)

// The names of keys and channels, as doc/wire.md has them.
const (
	clientsPrefix = "redlatch_lock_clients"
	waitersPrefix = "redlatch_lock_waiters"
	requestPrefix = "redisson_unlock_latch"
	namePrefix    = "redlatch_client"
	statePrefix   = "redisson_unlock_latch:{"
	stateSuffix   = "}:client"
	lockChannel   = "redisson_lock__channel"
	rwChannel     = "redisson_rwlock"
)

// freshFor is how long a wait counts after its client has written it. A client that waits writes
// again every 10 s.
const freshFor = 15 * time.Second

// prefixed returns "prefix:{name}".
func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// isOurs reports whether a hash belongs to a lock without being one.
func isOurs(key string) bool {
	for _, prefix := range []string{clientsPrefix, waitersPrefix, requestPrefix} {
		if strings.HasPrefix(key, prefix+":") {
			return true
		}
	}
	return false
}

// usualID is the form of the ids that Redisson and this library give to holders.
var usualID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:\S+$`)

// tagOf returns the tag under which the client with this id keeps its name.
func tagOf(id string) string {
	if usualID.MatchString(id) {
		return strings.ReplaceAll(id[:36], "-", "")[:16]
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(id))
	return fmt.Sprintf("%016x", sum.Sum64())
}

// literal returns a glob that matches s alone.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

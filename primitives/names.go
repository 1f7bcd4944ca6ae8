package primitives

import (
	"math"
	"strings"
	"time"
)

// Names of keys and channels, and the forms of arguments. Redisson derives the names of an object's
// keys from its own name so that all share a cluster slot. It wraps the name in braces, unless it
// has an opening brace of its own. This library must build the same names, even if they fall into
// two slots. [handle.use] refuses such names on a cluster.

// prefixed returns what Redisson's prefixName does: "prefix:{name}".
func prefixed(prefix, name string) string {
	return string(appendPrefixed(nil, prefix, name))
}

// appendPrefixed appends prefixed(prefix, name) to b.
func appendPrefixed(b []byte, prefix, name string) []byte {
	b = append(append(b, prefix...), ':')
	if strings.Contains(name, "{") {
		return append(b, name...)
	}
	return append(append(append(b, '{'), name...), '}')
}

// suffixed returns what Redisson's suffixName does: "{name}:suffix".
func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// Prefixes of keys and channels that several kinds use.
const (
	lockChannel   = "redisson_lock__channel"
	requestPrefix = "redisson_unlock_latch" // the prefix of keys that remember requests
)

// sharedCounts is the end of the name of a hash that only this library keeps. The hash has a field
// for each id that callers use with WithOwner. The field lists the acquisitions that have a count
// of that id. No other release, of a private hold or of another acquisition, may give these counts
// back. The name has the prefix of remembered requests, so the same ACL rules cover it. Versions
// that kept a number used the name "shared". Both can be in use at the same time.
const sharedCounts = "owners"

// pollsKey is the end of the name of the mark of clients that poll for a lock or a semaphore.
// Clients that would hand the lock off among their waiters leave it to the clients that poll, too.
// The name has the prefix of remembered requests, like sharedCounts.
const pollsKey = "polls"

// permitsKind is the kind of a semaphore whose permits have ids.
const permitsKind = "permits"

// wireName is a key or a channel as an argument of scripts. A pointer to it in an interface needs
// no allocation, unlike a string. The first key of a script must be a string: go-redis finds the
// cluster slot by it.
type wireName []byte

// MarshalBinary returns the bytes that go-redis sends.
func (n *wireName) MarshalBinary() ([]byte, error) { return *n, nil }

// String returns the name, for hooks that log commands.
func (n *wireName) String() string { return string(*n) }

// wireNames are the names of a handle. Three of them, as many as a plain lock has, share one
// allocation.
type wireNames [3]wireName

// fromMillis returns ms milliseconds, or the longest Duration if that is too short.
func fromMillis(ms int64) time.Duration {
	return time.Duration(min(ms, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

package primitives

import (
	"math"
	"strings"
	"time"
)

// Names of keys and channels, and the forms of arguments. Redisson derives the names of an object's keys
// from its own name so that all share a cluster slot. It wraps the name in braces, unless it has an
// opening brace of its own. This library must build the same names, also where they fall into two slots:
// [handle.use] refuses those on a cluster.

// prefixed is Redisson's prefixName: "prefix:{name}".
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

// suffixed is Redisson's suffixName: "{name}:suffix".
func suffixed(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}

// Prefixes of keys and channels that several kinds use.
const (
	lockChannel   = "redisson_lock__channel"
	requestPrefix = "redisson_unlock_latch" // of keys that remember requests
)

// sharedCounts ends the name of a hash that only this library keeps. It has a field for each id that
// callers use with WithOwner: which acquisitions have a count of that id. No other release, of a private
// hold or of another acquisition, must give these counts back. The name has the prefix of remembered
// requests, so the same ACL rules cover it. Versions that kept a number used the name "shared": the two
// can be in use at the same time.
const sharedCounts = "owners"

// pollsKey ends the name of the mark of clients that poll for a lock or a semaphore. Clients that would hand it off
// among their waiters leave it to them, too. It has the prefix of remembered requests, as sharedCounts has.
const pollsKey = "polls"

// permitsKind is the kind of a semaphore whose permits have ids.
const permitsKind = "permits"

// wireName is a key or a channel as an argument of scripts. A pointer to it in an interface needs no
// allocation, and a string would. The first key of a script must be a string: go-redis finds the cluster
// slot by it.
type wireName []byte

// MarshalBinary returns the bytes that go-redis sends.
func (n *wireName) MarshalBinary() ([]byte, error) { return *n, nil }

// String returns the name, for hooks that log commands.
func (n *wireName) String() string { return string(*n) }

// wireNames are the wireNames of a handle. Three of them, as many as a plain lock has, share one allocation.
type wireNames [3]wireName

// fromMillis returns ms milliseconds, or the longest Duration if that is too short.
func fromMillis(ms int64) time.Duration {
	return time.Duration(min(ms, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

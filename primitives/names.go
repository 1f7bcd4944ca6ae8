package primitives

import (
	"math"
	"strings"
	"time"
)

// Redisson derives the keys and channels of an object from its name so that all share a cluster slot: it
// wraps the name in braces, unless the name has an opening brace of its own.

// prefixed is Redisson's prefixName.
func prefixed(prefix, name string) string {
	if strings.Contains(name, "{") {
		return prefix + ":" + name
	}
	return prefix + ":{" + name + "}"
}

// suffixed is Redisson's suffixName.
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

// sharedCounts ends the name of a hash of ours. For each lock field whose id callers use with WithOwner,
// it holds how many of the field's counts are theirs: a private hold of the same id must not give those
// back. The name begins as those of remembered requests do, so the same ACL rules cover it.
const sharedCounts = "shared"

// permitsKind is the kind of a semaphore whose permits have ids.
const permitsKind = "permits"

// millis is a duration as Redis takes it: whole milliseconds, rounded up.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// fromMillis returns ms milliseconds, or the longest Duration if that is too short.
func fromMillis(ms int64) time.Duration {
	return time.Duration(min(ms, int64(math.MaxInt64/time.Millisecond))) * time.Millisecond
}

// flag is a condition as scripts take it.
func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

package primitives

import "strings"

// Redisson derives the keys and channels of an object from its name so that they share its slot in a cluster: it wraps the
// name in braces, unless the name has an opening brace of its own.

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

// The names of Redisson's lock family.
const (
	lockChannel   = "redisson_lock__channel"
	requestPrefix = "redisson_unlock_latch"
)

// sharedCounts ends the name of a hash of ours. For each lock field whose id callers use with WithOwner, it holds how many of the
// field's counts are theirs. A private hold of the same id must not give those back. The name begins as those of remembered
// requests do, so that ACL rules that suffice for these suffice for it.
const sharedCounts = "shared"

// slotOf is the cluster slot of a key: CRC16 (XMODEM) of its hash tag, or of the whole key, mod 16384.
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			key = key[open+1 : open+1+length]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % 16384
}

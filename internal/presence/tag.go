package presence

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// tagDigits is the length of a client's tag: the first hexadecimal digits of its uuid.
const tagDigits = 16

// ClientTag returns the tag of the client with that uuid.
func ClientTag(uuid string) string { return strings.ReplaceAll(uuid, "-", "")[:tagDigits] }

// TagOf returns the tag of the client that made an id. The tag of an id that no client made, such
// as an id of [WithOwner], is a hash. All users of the id compute the same one.
func TagOf(id string) string {
	if uuid := uuidOf(id); uuid != "" {
		return ClientTag(uuid)
	}
	if permit, _, _ := strings.Cut(id, ","); isHex(permit, permitDigits) { // the first id of a list
		return permit[:tagDigits]
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(id))
	return fmt.Sprintf("%016x", sum.Sum64())
}

// IsPrivate reports whether a client has made an id for one acquisition of a lock. The ids of
// permits are not private.
func IsPrivate(id string) bool { return uuidOf(id) != "" }

// uuidOf returns the uuid with which a private id begins, or "" if the id is not private.
func uuidOf(id string) string {
	uuid, _, isCut := strings.Cut(id, ":")
	if !isCut || !isUUID(uuid) {
		return ""
	}
	return uuid
}

// uuidLength is the length of a uuid with its dashes.
const uuidLength = 36

// isUUID reports whether s is a uuid in lower case.
func isUUID(s string) bool {
	if len(s) != uuidLength {
		return false
	}
	return s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' && isHex(strings.ReplaceAll(s, "-", ""), 32)
}

// isHex reports whether s consists of n hexadecimal digits in lower case.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// permitDigits is the length of a permit's id. It begins with the tag of its client.
const permitDigits = 32

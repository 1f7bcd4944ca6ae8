package primitives

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// The ids on the wire. A lock's owner has "<client uuid>:<number>", as Redisson has "<uuid>:<thread id>".
// A permit has 16 bytes. Both contain the tag of the client that made them, the first half of its uuid.
// The tag names the client's key and its channel for takeovers: see package presence.

// uuidForm is what WithClientID accepts.
var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// newUUID returns a random (version 4) uuid.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// numbered returns "<prefix><id>:<number>", with one allocation: it is called for each acquisition.
func numbered(prefix []byte, id string, number uint64) string {
	var buf [128]byte // most fit, so that only the string is allocated
	b := append(append(append(buf[:0], prefix...), id...), ':')
	return string(strconv.AppendUint(b, number, 10))
}

// validOwner reports whether an id may be used as an owner's. The others mean something else as a field
// of a read-write lock: "mode" is its mode, and ":write" marks the writer.
func validOwner(id string) bool {
	return id != "" && id != "mode" && !strings.HasSuffix(id, ":write")
}

// badOwner is the format of the error for an id that [validOwner] refuses.
const badOwner = `owner id %q: it must not be empty or "mode", or end with ":write"`

// maxPermitIDs is the most ids that one script should handle: Redis does nothing else meanwhile.
const maxPermitIDs = 100_000

// permitBytes is the length of a permit's id on the wire, where it is raw.
const permitBytes = 16

// newPermits returns n new ids as the API shows them: hex, comma-separated. Each begins with the tag of
// its client, so that a takeover can be announced to that client. The other 8 bytes are random.
func newPermits(tag []byte, n int) string {
	ids, raw := make([]string, n), make([]byte, permitBytes)
	copy(raw, tag)
	for i := range ids {
		_, _ = rand.Read(raw[len(tag):]) // never fails
		ids[i] = hex.EncodeToString(raw)
	}
	return strings.Join(ids, ",")
}

// rawPermits parses ids that a caller gave, in upper or lower case. On the wire they are concatenated. An
// id that is given twice counts once. It returns [ErrInvalid] for anything that is no id.
func rawPermits(ids string) (string, error) {
	var b strings.Builder
	seen := map[string]bool{}
	for id := range strings.SplitSeq(ids, ",") {
		raw, err := hex.DecodeString(id)
		if err != nil || len(raw) != permitBytes {
			return "", invalid("permit id %q", id)
		}
		if !seen[string(raw)] {
			seen[string(raw)] = true
			b.Write(raw)
		}
	}
	if len(seen) > maxPermitIDs {
		return "", invalid("%d permits at once", len(seen))
	}
	return b.String(), nil
}

// rawOf is rawPermits for ids that this client made, which need no checks.
func rawOf(ids string) string {
	raw, _ := hex.DecodeString(strings.ReplaceAll(ids, ",", ""))
	return string(raw)
}

// splitPermits returns the single ids as holders have them.
func splitPermits(id string) []string { return strings.Split(strings.ToLower(id), ",") }

package primitives

import (
	"crypto/rand"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
)

// The ids on the wire. A lock's owner has "<client uuid>:<number>", as Redisson has "<uuid>:<thread
// id>". A permit has 16 bytes. Both contain the tag of the client that made them, the first half of
// its uuid. The tag names the client's key and its channel for takeovers: see package presence.

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

// validOwner reports whether an id may be used as an owner's. Other ids have another meaning as a
// field of a read-write lock: "mode" is its mode, and ":write" marks the writer.
func validOwner(id string) bool {
	return id != "" && id != "mode" && !strings.HasSuffix(id, ":write")
}

// badOwner is the format of the error for an id that [validOwner] refuses.
const badOwner = `owner id %q: it must not be empty or "mode", or end with ":write"`

// maxPermitIDs is the most ids that one script should handle: Redis does nothing else meanwhile.
const maxPermitIDs = 100_000

// permitBytes is the length of a permit's id on the wire, where it is raw.
const permitBytes = 16

// newPermits returns n new ids as the API shows them: hex, comma-separated. Each begins with the
// tag of its client, so that a takeover can be announced to that client. The other 8 bytes are
// random.
func newPermits(tag []byte, n int) string {
	ids := make([]string, n)
	raw := make([]byte, permitBytes)
	copy(raw, tag)
	for i := range ids {
		_, _ = rand.Read(raw[len(tag):]) // never fails
		ids[i] = hex.EncodeToString(raw)
	}
	return strings.Join(ids, ",")
}

// permitIDs splits an id that a caller gave, in upper or lower case, into the ids of its permits.
// It returns each once. It returns [ErrInvalid] for anything that is no id.
func permitIDs(id string) ([]string, error) {
	var ids []string
	seen := map[string]bool{}
	for given := range strings.SplitSeq(id, ",") {
		if raw, err := hex.DecodeString(given); err != nil || len(raw) != permitBytes {
			return nil, invalid("permit id %q", given)
		}
		if one := strings.ToLower(given); !seen[one] {
			seen[one] = true
			ids = append(ids, one)
		}
	}
	if len(ids) > maxPermitIDs {
		return nil, invalid("%d permits at once", len(ids))
	}
	return ids, nil
}

// rawOf returns ids as they are on the wire, concatenated.
func rawOf(ids string) string {
	raw, _ := hex.DecodeString(strings.ReplaceAll(ids, ",", ""))
	return string(raw)
}

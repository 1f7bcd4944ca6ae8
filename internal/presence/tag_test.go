package presence_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/presence"
)

// Ids of clients and of their permits have the tag of the client. All others have a hash.
func TestTagOfAnID(t *testing.T) {
	const (
		uuid   = "01234567-89ab-cdef-0123-456789abcdef"
		tag    = "0123456789abcdef"
		permit = tag + "fedcba9876543210"
	)
	assert.Equal(t, tag, presence.ClientTag(uuid))
	for _, id := range []string{
		uuid + ":1", uuid + ":", uuid + ":0x:y,z", permit, permit + ",", permit + "," + permit, permit + ",other",
	} {
		assert.Equal(t, tag, presence.TagOf(id), id)
	}
	seen := map[string]string{}
	for _, id := range []string{
		"", ":", ",", "job 7", "job:7", uuid, uuid + ",1", strings.ToUpper(uuid) + ":1", uuid[1:] + ":1", uuid + "0:1",
		"0123456-789ab-cdef-0123-456789abcdef:1", "01234567-89abc-def-0123-456789abcdef:1",
		"01234567-89ab-cdef0-123-456789abcdef:1", "01234567-89ab-cdef-01234-56789abcdef:1",
		"01234567089ab-cdef-0123-456789abcdef:1", "01234567-89ab0cdef-0123-456789abcdef:1",
		"01234567-89ab-cdef00123-456789abcdef:1", "01234567-89ab-cdef-01230456789abcdef:1",
		"01234567-89ab-cdef-0123-456789abcd-f:1", "01234567-89ab-cdef-0123-456789abcdeg:1",
		permit[1:], permit + "0", strings.ToUpper(permit), permit[1:] + "g", permit + ":1", permit[1:] + "," + permit,
		permit[1:] + "g,",
	} {
		got := presence.TagOf(id)
		assert.Regexp(t, "^[0-9a-f]{16}$", got, id)
		assert.NotEqual(t, tag, got, id)
		assert.Equal(t, got, presence.TagOf(id))
		assert.Empty(t, seen[got], "%s has the same", id)
		seen[got] = id
	}
	assert.Equal(t, "f2e7ea8020281499", presence.TagOf("job 7"), "all versions must compute the same")
}

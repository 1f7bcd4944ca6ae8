package redisutil_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// CLUSTER KEYSLOT returned the expected slots.
func TestSlotHashesTheTagOfAKey(t *testing.T) {
	for _, tt := range []struct {
		name string
		key  string
		want uint16
	}{
		{"the check value of CRC16", "123456789", 0x31c3},
		{"the empty key", "", 0},
		{"a plain key", "foo", 12182},
		{"only the tag counts", "{foo}.bar", 12182},
		{"the first tag counts", "a{foo}{bar}", 12182},
		{"an empty tag is no tag", "foo{}{bar}", 8363},
		{"an unclosed brace is no tag", "{foo", 13308},
		{"a tag that begins with a brace", "foo{{bar}}zap", 4015},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, redisutil.Slot(tt.key))
		})
	}
}

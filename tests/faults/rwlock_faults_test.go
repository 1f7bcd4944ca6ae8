package faults

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRWLockChecksPermissionsBeforeWriting checks that an acquisition fails and writes nothing if
// its release would lack a permission.
func TestRWLockChecksPermissionsBeforeWriting(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	name := redistest.Name(t)
	all := "~" + name + " ~{" + name + "}:* ~redisson_unlock_latch:{" + name + "}:* " +
		"~redisson_rwlock:{" + name + "} ~redlatch_rwlock_claim:{" + name + "} "
	for _, tt := range []struct {
		name, rules string
		ok          bool
	}{
		{"all permissions", all + "&redisson_rwlock:{" + name + "}", true},
		{"no channel", "~*", false},
		{"no publish", "~* &* -publish", false},
		{"no timeout keys", strings.Replace(all, "~{"+name+"}:* ", "", 1) + "&*", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []any{"acl", "setuser", tt.name, "on", ">pw", "+@all", "resetchannels", "resetkeys"}
			for rule := range strings.FieldsSeq(tt.rules) {
				args = append(args, rule)
			}
			args[2] = "u" + strconv.Itoa(len(tt.name))
			require.NoError(t, admin.Do(t.Context(), args...).Err())
			rw := NewClient(t,
				s.Client(t, func(o *redis.Options) { o.Username, o.Password = args[2].(string), "pw" })).RWLock(name)
			for _, l := range []*primitives.Lock{rw.Reader(), rw.Writer()} {
				for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
					hold, err := l.Acquire(t.Context(), opts...)
					if tt.ok {
						require.NoError(t, err)
						Release(t, hold)
						continue
					}
					require.Error(t, err)
					require.True(t, strings.Contains(err.Error(), "NOPERM") ||
						strings.Contains(err.Error(), "No permissions"), err)
					require.Empty(t, Fields(t, s, name))
				}
			}
		})
	}
	RequireClean(t, s, name)
}

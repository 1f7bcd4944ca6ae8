package primitives_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/presence"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/pubsub"
)

// The internals of a client that the tests look at. They read them by reflection: a test file in
// package primitives would make go test compile the fixtures, and all that they import, a second
// time.

// notice passes a payload to c as if it came on the channel of its holders.
func notice(t testing.TB, c *primitives.Client, payload string) {
	field := inside(t, c, "presence")
	require.Equal(t, reflect.TypeFor[*presence.Presence](), field.Type())
	(*presence.Presence)(field.UnsafePointer()).Receive(pubsub.Signal{Payload: payload})
}

// unreadNotices returns how many notices c keeps until they are read, and their bytes. None may
// arrive meanwhile.
func unreadNotices(t testing.TB, c *primitives.Client) (n, bytes int) {
	unread := inside(t, c, "presence", "unread")
	for i := range unread.Len() {
		bytes += unread.Index(i).Len()
	}
	return unread.Len(), bytes
}

// earlyGrants returns the number of grants that c keeps for waiters that it does not know yet. None
// may arrive meanwhile.
func earlyGrants(t testing.TB, c *primitives.Client) int {
	return inside(t, c, "queues", "early").Len()
}

// inside returns a field of a field of c, or of what the field points to.
func inside(t testing.TB, c *primitives.Client, path ...string) reflect.Value {
	v := reflect.ValueOf(c)
	for _, name := range path {
		v = reflect.Indirect(v).FieldByName(name)
		require.True(t, v.IsValid(), "there is no %q in %v", name, path)
	}
	return v
}

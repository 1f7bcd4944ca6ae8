package scripts

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// While nothing was dialed, the next connection may be as old. After a dial the name has not moved yet.
func TestAttemptFollowsAtOnceOverOldConnections(t *testing.T) {
	r := NewRunner(redistest.Miniredis(t).Client(t), 0)
	defer r.Close()
	readOnly := reply("READONLY You can't write against a read only replica.")
	var met former
	require.False(t, met.isOld(r, nil))
	require.False(t, met.isOld(r, io.EOF))
	require.False(t, met.isOld(r, reply("LOADING Redis is loading the dataset in memory")))
	require.True(t, met.isOld(r, readOnly), "the first connection may be old")
	require.True(t, met.isOld(r, readOnly))
	r.dialed.made.Add(1)
	require.False(t, met.isOld(r, readOnly), "a new connection leads there, too")
	require.True(t, met.isOld(r, readOnly), "another old one")
	for range r.connections {
		met.isOld(r, readOnly)
	}
	require.False(t, met.isOld(r, readOnly), "the client does not close them")
}

// The connection for messages follows a name that has moved, but not one that leads to several servers in turn.
func TestPlaceOfAName(t *testing.T) {
	r := NewRunner(redistest.Miniredis(t).Client(t), 0)
	defer r.Close()
	dial := func(addr string) string {
		r.dialed.places.note(r.dialed.addr.Load(), addr)
		r.dialed.addr.Store(&addr)
		place, _ := r.Place()
		return place
	}
	require.Equal(t, "a", dial("a"))
	require.Equal(t, "b", dial("b"))
	require.Equal(t, "c", dial("c"))
	require.Empty(t, dial("a"))
	require.Empty(t, dial("d"))
	master, _ := r.Master()
	require.Equal(t, "d", master, "with Sentinel every dial reaches the master")

	r.OnReturn(func() {})
	r.contact.note("key", reply("READONLY You can't write against a read only replica."))
	r.contact.note("key", nil)
	_, moves := r.Place()
	require.EqualValues(t, 1, moves)
}

// A replica's answer to HELLO, in both protocols.
func TestRoleOfAReplica(t *testing.T) {
	for _, tt := range []struct {
		answer any
		want   bool
	}{
		{map[any]any{"server": "redis", "role": "replica"}, true},
		{[]any{"server", "redis", "role", "slave"}, true},
		{map[any]any{"role": "master"}, false},
		{[]any{"role", "master"}, false},
		{[]any{"role"}, false},
		{nil, false},
	} {
		require.Equal(t, tt.want, isReplica(tt.answer), "%v", tt.answer)
	}
}

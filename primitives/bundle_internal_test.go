package primitives

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
)

// A part that comes after the decision is given back. How it ends says nothing about the joint hold, which stands without it.
func TestPartThatNeverJoinedDoesNotCountAgainstTheJointHold(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c, err := New(s.Client(t))
		require.NoError(t, err)
		t.Cleanup(func() {
			done, cancel := context.WithCancel(context.Background())
			cancel()
			_ = c.Close(done)
		})
		name := redistest.Name(t)
		hold, err := NewMultiLock([]*Lock{c.Lock(name + "-a"), c.Lock(name + "-b")}).Acquire(t.Context())
		require.NoError(t, err)

		member := c.Lock(name + "-late")
		settings := member.settings
		settings.of = hold.g.t.(*bundle)
		late, err := member.acquireOutermost(t.Context(), member.request(&settings), &settings, &wait{}, nil)
		require.NoError(t, err)
		require.False(t, settings.of.add(late), "the decision was made")
		_, err = member.ForceRelease(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, late.Release(t.Context()), ErrLost)

		require.NoError(t, context.Cause(hold.Context()))
		require.NoError(t, hold.Check(t.Context()))
		require.NoError(t, hold.Release(t.Context()))
	})
}

package locktest_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// What can be lost is lost alike, whatever its kind, and can be acquired again by another.
func TestLoseOfEveryKind(t *testing.T) {
	type acquirer interface {
		Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
	}
	for name, of := range map[string]func(t *testing.T, c *primitives.Client) acquirer{
		"lock":   func(_ *testing.T, c *primitives.Client) acquirer { return c.Lock("a") },
		"fair":   func(_ *testing.T, c *primitives.Client) acquirer { return c.FairLock("a") },
		"fenced": func(_ *testing.T, c *primitives.Client) acquirer { return c.FencedLock("a") },
		"multi": func(_ *testing.T, c *primitives.Client) acquirer {
			return primitives.NewMultiLock([]*primitives.Lock{c.Lock("a"), c.Lock("b")})
		},
		"permits": func(t *testing.T, c *primitives.Client) acquirer {
			pool := c.PermitExpirableSemaphore("a")
			_, err := pool.Init(t.Context(), 2)
			require.NoError(t, err)
			return pool
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := locktest.NewServer(t)
			mine, theirs := of(t, client(t, s.Client(t))), of(t, client(t, s.Client(t)))
			hold, err := mine.Acquire(t.Context(), primitives.WithPermits(2))
			require.NoError(t, err)
			s.Lose(t, hold)
			require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
			next, err := theirs.Acquire(t.Context(), primitives.WithPermits(2))
			require.NoError(t, err)
			require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			require.NoError(t, next.Check(t.Context()), "taken away by the loser's release")
			require.NoError(t, next.Release(t.Context()))
		})
	}
}

// An owner's id may look like a permit's.
func TestLoseOfAnOwner(t *testing.T) {
	s := locktest.NewServer(t)
	hold := acquire(t, client(t, s.Client(t)).Lock("a"), primitives.WithOwner("dead"))
	s.Lose(t, hold)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
}

// Others in the same lock, such as readers, stay.
func TestLoseLeavesOthers(t *testing.T) {
	s := locktest.NewServer(t)
	rdb := s.Client(t)
	hold := acquire(t, client(t, rdb).Lock("a"))
	require.NoError(t, rdb.HSet(t.Context(), "a", "mode", "read", "another", 1).Err())
	s.Lose(t, hold)
	require.Equal(t, map[string]string{"mode": "read", "another": "1"}, rdb.HGetAll(t.Context(), "a").Val())
}

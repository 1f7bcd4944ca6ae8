package primitives_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A release leaves no memory if its acquisition was not in doubt. If its reply is lost, the
// repetition finds nothing: the hold ends once, the caller gets nil, and a later copy takes nothing
// from the next holder.
func TestReleaseInDoubtLeavesNoMemory(t *testing.T) {
	t.Parallel()
	fixture.EachKind(t, kinds.Named(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		p, name := s.Proxy(t), redistest.Name(t)
		l := k.Some(t, fixture.NewClient(t, p.Client(t, fixture.FastRetries), primitives.WithClientName("")), name, 3)
		keys := func() []string { return redistest.Keys(t, s, "*"+name+"*") }
		state := func() any {
			if k.Pool {
				return fixture.Available(t, s.Client(t), name)
			}
			return fixture.Fields(t, s, name)
		}
		fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
		before := keys()
		if !k.Pool {
			require.ElementsMatch(t, k.Stays(name), before)
		}
		free := state()
		hold := fixture.Acquire(t, t.Context(), l)
		p.Record()
		p.DropReplies(1, fixture.Script)
		fixture.Release(t, hold)
		p.Heal()
		require.ElementsMatch(t, before, keys())
		require.Equal(t, free, state())
		next := fixture.Acquire(t, t.Context(),
			k.Open(fixture.NewClient(t, s.Client(t), primitives.WithClientName("")), name))
		held := state()
		fixture.Replay(t, s.Client(t), fixture.ScriptsOf(p))
		require.Equal(t, held, state(), "a late copy changes nothing")
		fixture.RequireLive(t, next.Context())
		fixture.Release(t, next)
	})
}

// The permit is lost with its semaphore, even if the reply that says so is lost.
func TestReleaseInDoubtOfADeletedSemaphore(t *testing.T) {
	t.Parallel()
	fixture.EachSemaphore(t, func(t *testing.T, s *redistest.Server, open fixture.OpenSemaphore, key string) {
		p := s.Proxy(t)
		sem := open(fixture.NewClient(t, p.Client(t, fixture.FastRetries)))
		fixture.InitPool(t, sem, 3)
		fixture.Release(t, fixture.Acquire(t, t.Context(), sem)) // loads the scripts
		hold := fixture.Acquire(t, t.Context(), sem)
		require.NoError(t, fixture.ErrOf(sem.Delete(t.Context())))
		p.DropReplies(1, fixture.Script)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		require.Zero(t, s.Client(t).Exists(t.Context(), key).Val())
	})
}

// A hold whose acquisition was in doubt has lost its lease by the time it is released. A late copy
// of the acquisition must take nothing then, either.
func TestLateReleaseInDoubtStopsLateCopies(t *testing.T) {
	t.Parallel()
	fixture.EachKind(t, kinds.Leased(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		t.Parallel()
		p, name := s.Proxy(t), redistest.Name(t)
		l := k.One(t, fixture.NewClient(t, p.Client(t, fixture.FastRetries), primitives.WithClientName("")), name)
		fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
		p.Record()
		p.DropReplies(1, fixture.Script)
		hold := fixture.Acquire(t, t.Context(), l, primitives.WithLease(fixture.ShortLease))
		p.Heal()
		copies := fixture.ScriptsOf(p)
		fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		redistest.WaitFor(t, fixture.Soon, func() bool { // the lease ends a little later than the hold
			info, err := l.(interface {
				Info(ctx context.Context) (primitives.Info, error)
			}).Info(t.Context())
			require.NoError(t, err)
			return len(info.Holders) == 0
		}, "the lease has ended")
		memories := func() int { return len(redistest.Keys(t, s, "redisson_unlock_latch:*"+name+"*")) }
		before := memories()
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		redistest.WaitFor(t, fixture.Soon, func() bool { return memories() > before }, "the release is remembered")
		fixture.Replay(t, s.Client(t), copies)
		if !k.Pool {
			require.Zero(t, s.Client(t).Exists(t.Context(), name).Val(), "a late copy takes nothing")
		}
		fixture.Release(t, fixture.Acquire(t, t.Context(), l, primitives.WithWait(0)))
	})
}

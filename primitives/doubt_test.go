package primitives_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/fixture"
	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// A release of permits whose acquisition was not in doubt leaves no memory. If its reply is lost, the repetition finds
// nothing: the permits are given back once, the caller gets nil, and a later copy changes nothing. If the semaphore
// was deleted, the caller gets ErrLost all the same.
func TestReleaseOfPermitsInDoubt(t *testing.T) {
	t.Parallel()
	for kind, open := range map[string]func(c *primitives.Client, name string) Countable{
		"semaphore": func(c *primitives.Client, name string) Countable { return c.Semaphore(name) },
		"permits":   func(c *primitives.Client, name string) Countable { return c.PermitExpirableSemaphore(name) },
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				p, name := s.Proxy(t), redistest.Name(t)
				c := NewClient(t, p.Client(t, Quick), primitives.WithClientName(""))
				sem, rdb := open(c, name), s.Client(t)
				require.NoError(t, ErrOf(sem.Init(t.Context(), 3)))
				Release(t, Acquire(t, t.Context(), sem)) // loads the scripts
				keys := len(redistest.Keys(t, s, "*"+name+"*"))
				hold := Acquire(t, t.Context(), sem)
				p.Record()
				p.DropReplies(1, Script)
				Release(t, hold)
				p.Heal()
				require.Equal(t, "3", rdb.Get(t.Context(), name).Val())
				require.Len(t, redistest.Keys(t, s, "*"+name+"*"), keys, "nothing is remembered")
				other := Acquire(t, t.Context(), sem)
				Replay(t, rdb, ScriptsOf(p))
				require.Equal(t, "2", rdb.Get(t.Context(), name).Val(), "a late copy gives nothing back")
				require.NoError(t, ErrOf(sem.Delete(t.Context())))
				p.DropReplies(1, Script)
				require.ErrorIs(t, other.Release(t.Context()), primitives.ErrLost)
				require.Zero(t, rdb.Exists(t.Context(), name).Val())
			})
		})
	}
}

// A release of a lock whose acquisition was not in doubt leaves no memory either. If its reply is lost, the repetition
// finds nothing: the caller gets nil, and a later copy takes nothing from the next holder.
func TestReleaseOfALockInDoubt(t *testing.T) {
	t.Parallel()
	for kind, open := range map[string]func(c *primitives.Client, name string) *primitives.Lock{
		"lock":   func(c *primitives.Client, name string) *primitives.Lock { return c.Lock(name) },
		"fair":   func(c *primitives.Client, name string) *primitives.Lock { return c.FairLock(name) },
		"reader": func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Reader() },
		"writer": func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Writer() },
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				p, name := s.Proxy(t), redistest.Name(t)
				lock := open(NewClient(t, p.Client(t, Quick), primitives.WithClientName("")), name)
				keys := func() []string { return redistest.Keys(t, s, "*"+name+"*") }
				Release(t, Acquire(t, t.Context(), lock)) // loads the scripts
				require.Empty(t, keys(), "nothing is remembered")
				hold := Acquire(t, t.Context(), lock)
				p.Record()
				p.DropReplies(1, Script)
				Release(t, hold)
				p.Heal()
				require.Empty(t, keys(), "nothing is remembered after a lost reply")
				other := Acquire(t, t.Context(), open(NewClient(t, s.Client(t)), name))
				before := Fields(t, s, name)
				Replay(t, s.Client(t), ScriptsOf(p))
				require.Equal(t, before, Fields(t, s, name), "a late copy changes nothing")
				RequireLive(t, other.Context())
				Release(t, other)
			})
		})
	}
}

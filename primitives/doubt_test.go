package primitives_test

import (
	"testing"
	"time"

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
				c := NewClient(t, p.Client(t, FastRetries), primitives.WithClientName(""))
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
				lock := open(NewClient(t, p.Client(t, FastRetries), primitives.WithClientName("")), name)
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

// A hold whose acquisition was in doubt has lost its lease by the time it is released. A late copy of the acquisition
// must take nothing then, either.
func TestLateReleaseOfALockInDoubt(t *testing.T) {
	t.Parallel()
	for kind, open := range map[string]func(t *testing.T, c *primitives.Client, name string) Handle{
		"lock":   func(_ *testing.T, c *primitives.Client, name string) Handle { return c.Lock(name) },
		"fair":   func(_ *testing.T, c *primitives.Client, name string) Handle { return c.FairLock(name) },
		"reader": func(_ *testing.T, c *primitives.Client, name string) Handle { return c.RWLock(name).Reader() },
		"writer": func(_ *testing.T, c *primitives.Client, name string) Handle { return c.RWLock(name).Writer() },
		"permits": func(t *testing.T, c *primitives.Client, name string) Handle {
			sem := c.PermitExpirableSemaphore(name)
			InitPool(t, sem, 1)
			return sem
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				p, name := s.Proxy(t), redistest.Name(t)
				l := open(t, NewClient(t, p.Client(t, FastRetries), primitives.WithClientName("")), name)
				Release(t, Acquire(t, t.Context(), l)) // loads the scripts
				p.Record()
				p.DropReplies(1, Script)
				hold := Acquire(t, t.Context(), l, primitives.WithLease(ShortLease))
				p.Heal()
				copies := ScriptsOf(p)
				RequireEnds(t, hold.Context(), primitives.ErrLost)
				time.Sleep(100 * time.Millisecond) // the lease ends a little later than the hold
				memories := func() int { return len(redistest.Keys(t, s, "redisson_unlock_latch:*"+name+"*")) }
				before := memories()
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
				redistest.WaitFor(t, Soon, func() bool { return memories() > before }, "the release is remembered")
				Replay(t, s.Client(t), copies)
				if kind != "permits" {
					require.Zero(t, s.Client(t).Exists(t.Context(), name).Val(), "a late copy takes nothing")
				}
				Release(t, Acquire(t, t.Context(), l, primitives.WithWait(0)))
			})
		})
	}
}

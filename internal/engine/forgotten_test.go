package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// failing is a client of a server with replicas. A test promotes one of them.
type failing struct {
	*Client
	s       *Server
	master  atomic.Int64 // what stands for the master
	touches atomic.Int64
}

func newFailing(t *testing.T, s *Server) *failing {
	f := &failing{s: s}
	f.Client = s.Client(t, "a", func(config *Config) {
		config.HasReplicas = true
		config.Server = func(*Resource) any { return f.master.Load() }
		config.Touch = func(context.Context, *Resource) { f.touches.Add(1) }
		config.Moved = func() { f.RepeatReleases() }
	})
	return f
}

// use holds a lock for a moment, and returns the id.
func (f *failing) use(t *testing.T, name string, options ...func(*Terms)) string {
	hold := Acquire(t, t.Context(), f.Lock(name), options...)
	Release(t, hold)
	return hold.ID()
}

func TestReleasesAreRepeatedAfterAFailover(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		f := newFailing(t, s)
		private, shared := f.use(t, "private"), f.use(t, "shared", OwnedBy("job"))
		Sleep(3 * time.Second)
		assert.Empty(t, s.Sent("rollback", ""), "there was no fail-over")
		kept := Acquire(t, t.Context(), f.Lock("kept"))
		f.master.Add(1)
		Sleep(1600 * ms)
		assert.Len(t, s.Sent("rollback", private), 1)
		assert.Len(t, s.Sent("rollback", shared), 1)
		assert.Len(t, s.Sent("rollback", ""), 2, "one for each release, and none for a hold")
		Release(t, kept)
		s.RequireFree(t)
	})
}

// The server that answers after the first notice may be the old master still, so young releases are repeated again.
func TestOnlyYoungReleasesAreRepeatedAgain(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		f := newFailing(t, s)
		old := f.use(t, "x")
		Sleep(SettledAfter)
		young := f.use(t, "x")
		for range 2 {
			f.master.Add(1)
			Sleep(2 * time.Second)
		}
		assert.Len(t, s.Sent("rollback", old), 1)
		assert.Len(t, s.Sent("rollback", young), 2)
	})
}

// The lock must stay taken for the minimum hold, also on a server that has the release.
func TestARepeatedReleaseWaitsForTheMinimumHold(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		f := newFailing(t, s)
		f.use(t, "x", func(terms *Terms) { terms.MinHold = 10 * time.Second })
		f.master.Add(1)
		Sleep(9 * time.Second)
		assert.Empty(t, s.Sent("rollback", ""))
		Sleep(2 * time.Second)
		assert.Len(t, s.Sent("rollback", ""), 1)
	})
}

func TestTheLatestReleasesAreRememberedForAMinute(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		f := newFailing(t, s)
		for range MaxRecent / 2 {
			f.use(t, "x")
		}
		first := f.use(t, "x")
		for range MaxRecent / 2 {
			f.use(t, "x")
		}
		f.RepeatReleases()
		Sleep(time.Second)
		assert.Len(t, s.Sent("rollback", first), 1)
		assert.Len(t, s.Sent("rollback", ""), MaxRecent/2+1, "later releases have replaced the others")

		Sleep(2 * time.Minute)
		touches := f.touches.Load()
		require.Positive(t, touches)
		assert.LessOrEqual(t, touches, int64(60))
		f.master.Add(1)
		f.RepeatReleases()
		Sleep(time.Minute)
		assert.Equal(t, touches, f.touches.Load(), "nobody looks any longer")
		assert.Len(t, s.Sent("rollback", ""), MaxRecent/2+1, "the leases have ended")
	})
}

// Nothing is repeated for a hold that was lost, nor without replicas.
func TestWhatIsNotRepeated(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		f, single := newFailing(t, s), s.Client(t, "b")
		lost := Acquire(t, t.Context(), f.Lock("x"))
		s.Forget("x")
		require.ErrorIs(t, lost.Release(t.Context()), ErrLost)
		Release(t, Acquire(t, t.Context(), single.Lock("y")))
		f.RepeatReleases()
		single.RepeatReleases()
		Sleep(2 * time.Second)
		assert.Empty(t, s.Sent("rollback", ""))
		assert.Zero(t, f.touches.Load())
	})
}

package engine_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// Permits that are released at the same time go to as many waiters, by one command each.
func TestReleasesAtTheSameTimeHandOffToSeveralWaiters(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		r := s.Client(t, "a").Semaphore("x")
		s.SetPermits("x", 3)
		const n = 3
		var holders, waiters [n]*Call
		for i := range holders {
			holders[i] = StartAcquire(t, t.Context(), r)
			holders[i].AwaitHold()
		}
		for i := range waiters {
			waiters[i] = StartAcquire(t, t.Context(), r)
		}
		slow := Fault{Delay: 10 * ms}
		s.Script("handoff", slow, slow, slow) // all are under way together
		var releases [n]*Call
		for i := range releases {
			releases[i] = StartRelease(t, holders[i].Hold)
		}
		for i := range waiters {
			Release(t, waiters[i].AwaitHold())
			releases[i].Await()
		}
		assert.Len(t, s.Sent("handoff"), n)
		assert.Len(t, s.Sent("release"), n, "only the waiters' own: the holders' were hand-offs")
	})
}

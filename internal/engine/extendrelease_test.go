package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// An Extend has made the lease longer. The release gets no answer until the first lease would be over, and is repeated
// beyond that.
func TestReleaseAfterAnExtendIsRepeatedToTheEndOfTheNewLease(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		const first, extended, silent = 10 * time.Second, time.Minute, 30 * time.Second
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"), FixedLease(first))
		require.NoError(t, hold.Extend(t.Context(), extended, nil))
		s.OnEach(func(cmd Command) Fault {
			return Fault{Lost: cmd.Op == "release" && s.Now() < silent}
		})
		require.Error(t, hold.Release(t.Context()))
		Sleep(silent)
		sent := s.Sent("release", "x")
		assert.Greater(t, sent[len(sent)-1], silent-2*time.Second)
		Sleep(10 * time.Second)
		assert.Empty(t, s.IDs("x"), "it is free long before the new lease ends")
	})
}

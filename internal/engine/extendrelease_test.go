package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/engine"
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

// A process wakes up after a standstill, and asks about a hold that is over, before anything else has noticed that. It
// sends nothing: an Extend would keep the lock for long, and for nobody.
func TestNothingIsSentForAHoldThatIsOver(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, h *Hold) error{
		"check":  func(t *testing.T, h *Hold) error { return h.Check(t.Context()) },
		"extend": func(t *testing.T, h *Hold) error { return h.Extend(t.Context(), time.Hour, nil) },
	} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.Lock("x"), FixedLease(10*time.Second))
			hold.PassLimit()
			require.ErrorIs(t, ask(t, hold), ErrLost)
			require.Empty(t, s.Sent(name, "x"))
			require.ErrorIs(t, hold.Release(t.Context()), ErrLost)
			Sleep(time.Second)
		})
	}
}

package turns_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// An acquisition that cannot reuse a lingering lock waits until the lock is free, but not beyond
// its own end: the server may not answer.
func TestLingeringLockThatIsNotGivenUpDelaysNobody(t *testing.T) {
	for name, acquire := range map[string]func(context.Context, *engine.Resource) error{
		"its context ends": func(ctx context.Context, r *engine.Resource) error {
			ctx, cancel := context.WithTimeout(ctx, 50*ms)
			defer cancel()
			_, err := r.Acquire(ctx, NewTerms(), engine.Forever)
			return err
		},
		"its wait is over": func(ctx context.Context, r *engine.Resource) error {
			_, err := r.Acquire(ctx, NewTerms(), 50*ms)
			return err
		},
	} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Lock("x")
			Release(t, Acquire(t, t.Context(), r, Lingering(testLinger)))
			s.OnEach(func(Command) Fault { return Fault{Lost: true} })
			began := time.Now()
			require.Error(t, acquire(t.Context(), r))
			assert.LessOrEqual(t, time.Since(began), 100*ms)
			s.OnEach(nil)
			Sleep(10 * time.Second)
		})
	}
}

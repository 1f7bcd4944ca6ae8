package joint

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
)

// heldFor is a refusal by a holder whose lease ends after that time.
type heldFor time.Duration

func (h heldFor) Error() string            { return "held for " + h.LeaseLeft().String() }
func (h heldFor) Is(target error) bool     { return target == engine.ErrNotAcquired }
func (h heldFor) LeaseLeft() time.Duration { return time.Duration(h) }

func TestVotes(t *testing.T) {
	failed := errors.New("failed")
	refusedInOutage := fmt.Errorf("%w and %w", engine.ErrNotAcquired, engine.ErrUnavailable)
	for _, tt := range []struct {
		name       string
		answers    []error
		counts     [4]int // yes, no, lost, failed
		refusal    error
		retryAfter time.Duration // three are needed
		refused    bool
		err        error
	}{
		{name: "none", retryAfter: -1, refused: true},
		{
			name: "enough", answers: []error{nil, nil, nil, failed, heldFor(9)}, counts: [4]int{3, 1, 0, 1},
			refusal: heldFor(9), retryAfter: -1,
		},
		{
			name: "two must come free", answers: []error{heldFor(8), nil, heldFor(5), heldFor(7), failed},
			counts: [4]int{1, 3, 0, 1}, refusal: heldFor(7), retryAfter: 7, refused: true,
		},
		{
			name: "all must come free", answers: []error{heldFor(8), heldFor(5), heldFor(7)},
			counts: [4]int{0, 3, 0, 0}, refusal: heldFor(7), retryAfter: 8, refused: true,
		},
		{
			name: "a lease is unknown", answers: []error{nil, heldFor(0), heldFor(7)}, counts: [4]int{1, 2, 0, 0},
			refusal: heldFor(7), retryAfter: -1, refused: true,
		},
		{
			name: "failures may be grants", answers: []error{nil, failed, nil, heldFor(2)}, counts: [4]int{2, 1, 0, 1},
			refusal: heldFor(2), retryAfter: 2, err: failed,
		},
		{
			name: "lost", answers: []error{engine.ErrLost, engine.ErrNotHeld, nil}, counts: [4]int{1, 2, 1, 0},
			retryAfter: -1, refused: true,
		},
		{
			name: "refused in an outage", answers: []error{refusedInOutage, refusedInOutage, nil},
			counts: [4]int{1, 2, 0, 0}, retryAfter: -1, refused: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var v votes
			for _, answer := range tt.answers {
				v.add(t.Context(), answer)
			}
			counts := [4]int{v.yes, v.no, v.lost, len(v.failed)}
			assert.Equal(t, tt.counts, counts)
			assert.Equal(t, tt.refusal, v.refusal)
			assert.Equal(t, tt.retryAfter, v.retryAfter(3))
			refused, err := v.decide(3)
			assert.Equal(t, tt.refused, refused)
			assert.Equal(t, tt.err, err)
		})
	}
}

func TestEndOfTheContextIsNoAnswer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var v votes
	v.add(ctx, engine.ErrLost)
	assert.Equal(t, 1, v.no)
	cancel(engine.ErrLost) // it was another hold's context
	v.add(ctx, context.Cause(ctx))
	assert.Equal(t, 1, v.no)
	assert.Len(t, v.failed, 1)
	v.add(ctx, engine.ErrNotHeld)
	assert.Equal(t, 2, v.no, "an answer that came all the same")
}

func TestJoinedErrorsStandOnOneLine(t *testing.T) {
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	require.NoError(t, join(nil))
	for _, errs := range [][]error{{a, b, c}, {nil, a, b, c}} {
		err := join(errs)
		assert.EqualError(t, err, "a; b; c")
		for _, one := range []error{a, b, c} {
			assert.ErrorIs(t, err, one)
		}
	}
}

package joint

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/engine"
)

func TestEndOfTheContextIsNoAnswer(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var v votes
	v.add(ctx, engine.ErrLost)
	assert.Equal(t, 1, v.no)
	cancel(engine.ErrLost) // it was another hold's context
	v.add(ctx, context.Cause(ctx))
	assert.Equal(t, 1, v.no)
	assert.Len(t, v.failed, 1)
}

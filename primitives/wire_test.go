package primitives_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// eachNetwork runs f on each kind of server over each network.
func eachNetwork(t *testing.T, f func(t *testing.T, s *redistest.Server, c *primitives.Client)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, network := range fixture.Networks {
			t.Run(network.Name, func(t *testing.T) { f(t, s, fixture.NewClient(t, network.Open(t, s))) })
		}
	})
}

// counterState is a number in Redis and the messages of its channel.
type counterState struct {
	rdb *redis.Client
	key string
	*fixture.Subscriber
}

// requireStep compares the number ("" if there is none), and the messages since the last call.
func (w *counterState) requireStep(t testing.TB, value string, published ...string) {
	t.Helper()
	got, err := w.rdb.Get(t.Context(), w.key).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	require.Equal(t, value, got)
	require.Equal(t, append([]string{}, published...), w.Received(t))
}

// wireStep is a call, its result, and the number in Redis and the message that it leaves.
type wireStep struct {
	name    string
	call    func() (any, error)
	want    any    // the result, or the error
	value   string // "" if there is no number
	message string // "" if nothing is published
}

// requireSteps makes the calls in order.
func (w *counterState) requireSteps(t *testing.T, steps []wireStep) {
	t.Helper()
	for _, step := range steps {
		t.Log(step.name) // the last one logged is the one that failed
		got, err := step.call()
		if want, ok := step.want.(error); ok {
			require.ErrorIs(t, err, want)
		} else {
			require.NoError(t, err)
			require.Equal(t, step.want, got)
		}
		w.requireStep(t, step.value, strings.Fields(step.message)...)
	}
}

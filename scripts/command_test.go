package scripts

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Plain commands are not retried.
func TestCommands(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		key := redistest.Name(t)
		w.p.DropReplies(1, redistest.Named("set"))
		_, err := w.r.Commands(t.Context(), []any{"set", key, "v", "px", 60_000})
		require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		set := []any{"set", key, "v", "px", 60_000}
		values, err := w.r.Commands(t.Context(), set, []any{"get", key}, []any{"get", key + "-"})
		require.NoError(t, err)
		require.Equal(t, []any{"OK", "v", nil}, values)
		values, err = w.r.Commands(t.Context(), []any{"get", key})
		require.NoError(t, err)
		require.Equal(t, []any{"v"}, values)
		_, err = w.r.Commands(t.Context(), []any{"hkeys", key})
		require.Equal(t, failure.Executed, failure.Of(err).Outcome)
		w.r.Close()
		require.ErrorIs(t, errOf(w.r.Commands(t.Context(), []any{"get", key})), failure.ErrClosed)
	}, longTimeouts)
}

// Commands returns when its context ends. Its attempt ends with the command timeout.
func TestCommandsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		r := NewRunner(p.Client(t, fastRetries), 0)
		require.NoError(t, errOf(r.Commands(t.Context(), []any{"get", "k"})))
		p.BlackHole(true)
		const limit = 20 * time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(limit, cancel)
		began := time.Now()
		_, err := r.Commands(ctx, []any{"get", "k"})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, failure.Unknown, failure.Of(err).Outcome)
		require.Equal(t, limit, time.Since(began))
		r.Close()
		require.LessOrEqual(t, time.Since(began), r.Timeout()+closeReserve, "it is not repeated")
	})
}

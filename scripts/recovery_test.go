package scripts

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Each case is a failure, and whether the next answer means that Redis has come back.
func TestReturnIsTheFirstAnswerAfterABrokenConnection(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{io.EOF, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true},
		{&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, true},
		{net.ErrClosed, true},
		{reply("LOADING Redis is loading the dataset in memory"), true},
		{reply("READONLY You can't write against a read only replica."), true},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, false},
		{context.DeadlineExceeded, false},
		{context.Canceled, false},
		{&failure.Interrupted{Cause: io.EOF}, false},
		{&net.OpError{Op: "dial", Err: context.Canceled}, false},
		{redis.ErrPoolTimeout, false},
		{redis.ErrPoolExhausted, false},
		{redis.ErrClosed, false},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{reply("TRYAGAIN Multiple keys request during rehashing of slot"), false},
	} {
		returns := 0
		c := &recovery{cluster: true, returned: func() { returns++ }}
		c.note("a", nil)
		c.note("a", tt.err)
		c.note("a", tt.err)
		c.note("b", nil) // of another slot
		require.Zero(t, returns)
		c.note("a", nil)
		c.note("a", nil)
		require.Equal(t, tt.want, returns == 1, "%v", tt.err)
	}
}

// On a cluster each slot returns by itself. Without one, all keys are of the same server.
func TestReturnOfSeveralSlots(t *testing.T) {
	returns := 0
	c := &recovery{cluster: true, returned: func() { returns++ }}
	c.note("a", io.EOF)
	c.note("b", io.EOF)
	c.note("a", nil)
	require.Equal(t, 1, returns)
	c.note("b", nil)
	require.Equal(t, 2, returns)
	c.cluster = false
	c.note("a", io.EOF)
	c.note("b", nil)
	require.Equal(t, 3, returns)
}

// Redis is out of reach, and then back. All ways to send a command notice it.
func TestReturnIsNoticedByEachCommand(t *testing.T) {
	eachServer(t, func(t *testing.T, w *env) {
		returns := make(chan struct{}, 100)
		r := NewRunner(w.p.Client(t, fastRetries, dialsOnce), time.Second)
		defer r.Close()
		r.OnReturn(func() { returns <- struct{}{} })
		key := redistest.Name(t)
		for name, send := range map[string]func() error{
			"Do":   func() error { _, err := r.Do(t.Context(), check, []any{key}, "x"); return err },
			"Once": func() error { _, err := r.Once(t.Context(), check, []any{key}, "x"); return err },
			"Commands": func() error {
				_, err := r.Commands(t.Context(), []any{"get", key})
				return err
			},
		} {
			require.NoError(t, send(), name)
			require.Empty(t, returns, name)
			w.p.Cut()
			require.Error(t, send(), name)
			w.p.Heal()
			require.Empty(t, returns, name)
			redistest.WaitFor(t, 10*time.Second, func() bool { return send() == nil }, "answered")
			require.Len(t, returns, 1, name)
			<-returns
		}
	})
}

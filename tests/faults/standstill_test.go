package faults

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// standingStill is set to the address of the server in a process that stands still.
const standingStill = "REDLATCH_TEST_STANDING_STILL"

const (
	stoppedFor = 3500 * time.Millisecond
	stoppedTTL = 2 * time.Second
)

// toldLoss is what one hold told of its loss.
type toldLoss struct {
	Kind, Operation string
	Reason          primitives.LossReason
	Silent          time.Duration
	Members         []primitives.LossReason // of a joint lock
	Text            string
}

// lossOperations are how the user of a hold learns of its loss.
var lossOperations = map[string]func(ctx context.Context, h *primitives.Hold) error{
	"context": func(_ context.Context, h *primitives.Hold) error {
		<-h.Context().Done()
		return context.Cause(h.Context())
	},
	"check":   func(ctx context.Context, h *primitives.Hold) error { return h.Check(ctx) },
	"extend":  func(ctx context.Context, h *primitives.Hold) error { return h.Extend(ctx, time.Minute) },
	"release": func(ctx context.Context, h *primitives.Hold) error { return h.Release(ctx) },
}

// standStill runs in the process that its parent stops. It acquires holds of all kinds, one for
// each operation. When it goes on, it calls all of them at once, as fast as it can. The watchdog
// goes on at the same time.
func standStill(t *testing.T, addr string) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	c, err := primitives.New(rdb)
	require.NoError(t, err)
	type call struct {
		kind, operation string
		hold            *primitives.Hold
	}
	var calls []call
	for _, k := range kinds.Select(func(k kinds.Kind) bool { return k.Leased }) {
		for operation := range lossOperations {
			hold, err := k.One(t, c, k.Name+operation).Acquire(t.Context(), primitives.WithWatchdog(stoppedTTL))
			require.NoError(t, err)
			calls = append(calls, call{k.Name, operation, hold})
		}
	}
	_, err = os.Stdout.WriteString("ready\n")
	require.NoError(t, err)
	for last, now := time.Now(), time.Now(); now.Sub(last) < stoppedTTL/2; { // a busy loop, as quick as the watchdog
		last, now = now, time.Now()
	}
	told := make(chan toldLoss)
	for _, call := range calls {
		go func() {
			err := lossOperations[call.operation](context.Background(), call.hold)
			l := toldLoss{Kind: call.kind, Operation: call.operation}
			if err != nil {
				l.Text = err.Error()
			}
			if loss, ok := errors.AsType[*primitives.LossError](err); ok {
				l.Reason, l.Silent = loss.Reason, loss.Silent
				for _, member := range loss.Unwrap() {
					if of, ok := errors.AsType[*primitives.LossError](member); ok {
						l.Members = append(l.Members, of.Reason)
						l.Silent = of.Silent
					}
				}
			}
			told <- l
		}()
	}
	out := json.NewEncoder(os.Stdout)
	for range calls {
		require.NoError(t, out.Encode(<-told))
	}
}

// C27: a process stands still for longer than its leases. Whoever finds the loss first says why,
// and for how long.
func TestC27LossByAStandstill(t *testing.T) {
	if addr := os.Getenv(standingStill); addr != "" {
		standStill(t, addr)
		return
	}
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestC27LossByAStandstill$", "-test.timeout", "1m")
	cmd.Env = append(os.Environ(), standingStill+"="+redistest.Fresh(t).Addr())
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready := make([]byte, len("ready\n"))
	_, err = stdout.Read(ready)
	require.NoError(t, err)
	require.Equal(t, "ready\n", string(ready))

	require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
	began := time.Now()
	time.Sleep(stoppedFor) // the standstill itself
	stood := time.Since(began)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	var all []toldLoss
	in := json.NewDecoder(stdout)
	for range len(lossOperations) * len(kinds.Select(func(k kinds.Kind) bool { return k.Leased })) {
		var l toldLoss
		require.NoError(t, in.Decode(&l))
		all = append(all, l)
	}
	_ = cmd.Wait() // its output may have changed its result
	for _, l := range all {
		of := l.Kind + ": " + l.Operation + ": " + l.Text
		if kinds.Of(l.Kind).Joint() {
			assert.Equal(t, primitives.LossMembers, l.Reason, of)
			for _, reason := range l.Members {
				assert.Equal(t, primitives.LossPaused, reason, of)
			}
			assert.NotEmpty(t, l.Members, of)
		} else {
			assert.Equal(t, primitives.LossPaused, l.Reason, of)
		}
		// The watchdog sleeps for half a second at a time, and does not know when in that time the
		// process stopped.
		assert.Greater(t, l.Silent, stood-600*time.Millisecond, of)
		assert.Less(t, l.Silent, stood+2*time.Second, of)
		assert.NotContains(t, l.Text, "lost: gone", of)
	}
}

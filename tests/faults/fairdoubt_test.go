package faults

import (
	"context"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// rolledBack reports whether Redis remembers that the acquisition has ended. acquisition is one of
// its recorded commands.
func rolledBack(t testing.TB, rdb *redis.Client, acquisition redistest.Command) bool {
	memory := acquisition.Args[5]
	return rdb.Exists(t.Context(), memory).Val() == 1
}

// The first attempt of an acquisition gets no answer and reaches Redis after the acquisition has
// ended. It neither takes the lock nor joins the queue, whether or not a later attempt was
// answered.
func TestFairLockLateAttemptOfAnEndedAcquisitionTakesNothing(t *testing.T) {
	t.Parallel()
	acquireScript := scripts.Load("fairlock/acquire")
	owner := primitives.WithOwner("o")
	for _, tt := range []struct {
		name  string
		opts  []primitives.Option
		held  bool // another client holds the lock
		waits bool // a later attempt is answered, and the waiter is cancelled
	}{
		{name: "no attempt was answered", opts: nil},
		{name: "no attempt was answered, shared id", opts: []primitives.Option{owner}},
		{name: "no attempt was answered, lock held", held: true},
		{name: "no attempt was answered, lock held, shared id", held: true, opts: []primitives.Option{owner}},
		{name: "cancelled in the queue", held: true, waits: true},
		{name: "cancelled in the queue, shared id", held: true, waits: true, opts: []primitives.Option{owner}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				p, rdb := s.Proxy(t), s.Client(t)
				require.NoError(t, rdb.ScriptLoad(t.Context(), acquireScript.Text()).Err())
				retries := NoRetries
				if tt.waits {
					retries = FastRetries
				}
				l := NewClient(t, p.Client(t, retries)).FairLock(name)
				other := NewClient(t, s.Client(t)).FairLock(name)
				var hold *primitives.Hold
				if tt.held {
					hold = Acquire(t, t.Context(), other)
				}
				p.Record()
				p.DropCommands(1, Script)
				ctx, cancel := context.WithCancel(t.Context())
				ended := StartAcquire(ctx, l, tt.opts...)
				if tt.waits {
					AwaitFair(t, other, 1)
					cancel()
				}
				require.Error(t, Await(t, ended).Err)
				cancel()
				late := ScriptsOf(p)[0]
				require.True(t, slices.Contains(late.Args, acquireScript.SHA()), "%v", late.Args)
				if tt.held {
					redistest.WaitFor(t, Soon, func() bool {
						return rolledBack(t, rdb, late) && len(FairWaiters(t, other)) == 0
					}, "the acquisition is rolled back")
					_ = Resend(rdb, late).Err()
					require.Empty(t, FairWaiters(t, other), "the late attempt does not queue")
					Release(t, hold)
				}
				redistest.WaitFor(t, Soon, func() bool { return rolledBack(t, rdb, late) }, "the acquisition is rolled back")
				_ = Resend(rdb, late).Err()
				require.Empty(t, Leftovers(t, s, name), "the late attempt does not take the lock")
			})
		})
	}
}

package contract

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C27: Redis answers each renewal, and refuses it. The loss says so, and wraps the refusal. The log has a line for each
// change, and not for each attempt.
func TestC27LossByRefusedRenewalsNamesTheRefusal(t *testing.T) {
	t.Parallel()
	for _, refusal := range []string{
		"NOREPLICAS Not enough good replicas to write.",
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
		"READONLY You can't write against a read only replica.",
		"NOPERM this user has no permissions to run the 'evalsha' command",
		"BUSY Redis is busy running a script.",
	} {
		name, _, _ := strings.Cut(refusal, " ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := redistest.Embedded(t)
				var events Recorder
				var log LogBuffer
				c := NewClient(t, s.Client(t), primitives.WithClientName(""), events.Option(), log.Logger())
				hold := Acquire(t, t.Context(), c.Lock("x"))
				other := Acquire(t, t.Context(), c.Lock("y"), primitives.WithWatchdog(5*time.Minute))
				s.Mini().SetError(refusal)
				<-hold.Context().Done()
				cause := context.Cause(hold.Context())
				loss, ok := errors.AsType[*primitives.LossError](cause)
				require.True(t, ok)
				assert.Equal(t, primitives.LossExpired, loss.Reason)
				assert.Contains(t, loss.Error(), refusal)
				assert.NotContains(t, loss.Error(), "no answer")
				reply, ok := errors.AsType[redis.Error](cause)
				require.True(t, ok, "it wraps the answer")
				assert.Contains(t, reply.Error(), refusal)
				require.NotErrorIs(t, cause, primitives.ErrUnavailable)
				time.Sleep(100 * time.Second)
				assert.Greater(t, len(events.All(primitives.EventRenewFailed)), 5, "an event for each attempt")
				s.Mini().SetError("")
				time.Sleep(time.Minute) // longer than the pause between two attempts
				require.NoError(t, other.Context().Err())
				assert.LessOrEqual(t, len(log.Records(t, "renewal failed")), 3, log.String())
				assert.NotEmpty(t, log.Records(t, "renewal failed"))
				works := log.Records(t, "renewal works again")
				require.Len(t, works, 1)
				assert.NotZero(t, works[0]["after"])
			})
		})
	}
}

// A final answer ends the repetition of what nobody waits for: the key is a list by now, so nothing is left to undo.
func TestForeignKeyEndsRollbacks(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"reader", "writer"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := redistest.Embedded(t)
				held := Acquire(t, t.Context(), NewClient(t, s.Client(t)).RWLock("x").Writer(), primitives.WithLease(time.Hour))
				c := NewClient(t, s.Client(t), primitives.WithClientName(""))
				lock := c.RWLock("x").Writer()
				if side == "reader" {
					lock = c.RWLock("x").Reader()
				}
				failed := make(chan error, 3)
				for range cap(failed) {
					go func() {
						_, err := lock.Acquire(context.Background())
						failed <- err
					}()
				}
				AwaitWaiters(t, c, cap(failed))
				s.Mini().Del("x")
				require.NoError(t, ErrOf(s.Mini().Lpush("x", "of another program")))
				for range cap(failed) {
					require.ErrorIs(t, <-failed, primitives.ErrForeign)
				}
				held.Detach()
				time.Sleep(3 * time.Second)
				sent := sentBy(s)
				time.Sleep(10 * time.Minute)
				require.Zero(t, sent())
			})
		})
	}
}

package contract

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Three clients near the server write all the time. Another client, which may be far, reads or
// writes all the same. Turns are compared with turns, because a busy machine makes all of them
// slow.
func TestRWLockClientsFarAwayGetTheirTurns(t *testing.T) {
	const most = 1000 // turns of one side, before the other one has had enough
	for _, tt := range []struct {
		name  string
		away  time.Duration
		reads bool
		turns int64 // of the far client, which are enough
	}{
		{"a reader", 0, true, 30},
		{"a writer", 0, false, 20},
		{"a reader, 5 ms away", 5 * time.Millisecond, true, 20},
		{"a writer, 5 ms away", 5 * time.Millisecond, false, 10},
		{"a reader, 40 ms away", 40 * time.Millisecond, true, 4},
		{"a writer, 40 ms away", 40 * time.Millisecond, false, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Redis(t)
			name := redistest.Name(t)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer func() { stop(); wg.Wait() }()
			var near, far atomic.Int64
			for range 3 {
				work(t, ctx, &wg, fixture.NewClient(t, s.Client(t)).RWLock(name).Writer(), 4, time.Millisecond, &near)
			}
			p := s.Proxy(t)
			p.Delay(tt.away)
			rw := fixture.NewClient(t, p.Client(t)).RWLock(name)
			l := rw.Writer()
			if tt.reads {
				l = rw.Reader()
			}
			work(t, ctx, &wg, l, 1, 0, &far)
			redistest.WaitFor(t, 4*fixture.Soon, func() bool {
				theirs, others := far.Load(), near.Load()
				isEnough, isEnoughForOthers := theirs >= tt.turns, others >= 100
				require.True(t, isEnough || others < most, "%d turns, beside %d", theirs, others)
				require.True(t, isEnoughForOthers || theirs < most, "%d turns, beside %d", theirs, others)
				return isEnough && isEnoughForOthers
			}, "all get their turns")
			t.Logf("%d turns, beside %d", far.Load(), near.Load())
		})
	}
}

// A client whose waiters have acquired the lock has no turn any more, however they acquired it:
// another one finds the lock free.
func TestRWLockClientThatNoLongerWaitsHasNoTurn(t *testing.T) {
	const patience = 25 * time.Millisecond // after that, a writer that waits has a turn
	for _, tt := range []struct {
		name    string
		waiters int
		reads   bool
		opts    []primitives.Option
	}{
		{"a writer that was handed the lock", 1, false, nil},
		{"a writer of a cohort", 1, false, []primitives.Option{primitives.WithCohort(time.Second)}},
		{"a reader", 1, true, nil},
		{"as many readers as one command is for", 65, true, nil},
		{"more readers than that", 66, true, nil},
	} {
		fixture.RunBubble(t, tt.name, func(t *testing.T, b *fixture.BubbleTest) {
			rw, other := b.C.RWLock("x", tt.opts...), fixture.NewClient(t, b.S.Client(t)).RWLock("x").Writer()
			first, waiter := rw.Writer(), rw.Writer()
			if tt.reads {
				first, waiter = other, rw.Reader()
			}
			hold := fixture.Acquire(t, t.Context(), first)
			var waiting []<-chan fixture.Result
			for range tt.waiters {
				waiting = append(waiting, fixture.StartAcquire(t.Context(), waiter))
			}
			synctest.Wait()
			fixture.Release(t, hold)
			holds := make([]*primitives.Hold, tt.waiters)
			for i := range holds {
				holds[i] = fixture.AwaitHold(t, waiting[i])
			}
			time.Sleep(patience)
			fixture.Release(t, holds...)
			for range 2 {
				hold, err := other.TryAcquire(t.Context())
				require.NoError(t, err, b.S.Mini().Keys())
				fixture.Release(t, hold)
			}
		})
	}
}

// A client has the lock for a cohort. Then it is the turn of the other one that waits, although a
// waiter of the first was noted before.
func TestRWLockCohortIsNoReasonForASecondTurn(t *testing.T) {
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		const cohort = 200 * time.Millisecond
		near := b.C.RWLock("x", primitives.WithCohort(cohort)).Writer()
		other := fixture.NewClient(t, b.S.Client(t)).RWLock("x").Writer()
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		began := time.Now()
		var sections atomic.Int64
		work(t, ctx, &wg, near, 3, 10*time.Millisecond, &sections)
		time.Sleep(cohort / 4)
		hold := fixture.Acquire(t, t.Context(), other)
		assert.Less(t, time.Since(began), cohort+20*time.Millisecond)
		fixture.Release(t, hold)
		stop()
		wg.Wait()
	})
}

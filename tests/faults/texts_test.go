package faults

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C7: the error of a refusal says how long the call has waited in all, whether this client itself
// is the holder, and that a key without a TTL never expires.
func TestC7TextSaysWhatTheWaitWasFor(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		const name, wait = "n", 150 * time.Millisecond
		rdb := b.S.Client(t)
		earlier := fixture.NewClient(t, b.S.Client(t))
		other, c := fixture.NewClient(t, b.S.Client(t)), fixture.NewClient(t, b.S.Client(t))
		exclusive := []kinds.Kind{kinds.Of("lock"), kinds.Of("fair"), kinds.Of("fenced"), kinds.Of("writer")}
		for _, k := range exclusive {
			for _, owner := range []string{"", "job-1"} {
				var opts []primitives.Option
				if owner != "" {
					opts = append(opts, primitives.WithOwner(owner))
				}
				key := name + k.Name + owner
				hold := fixture.Acquire(t, t.Context(), k.Open(c, key), opts...)
				_, own := k.Open(c, key).TryAcquire(t.Context())
				_, others := k.Open(other, key).TryAcquire(t.Context())
				require.ErrorContains(t, own, "not acquired: held by "+hold.ID()+" for another 30s", k.Name)
				require.NotErrorIs(t, own, primitives.ErrUnavailable, k.Name)
				require.ErrorContains(t, own, "held by this client", k.Name)
				require.NotContains(t, others.Error(), "this client", k.Name)
				require.NotContains(t, others.Error(), "never expires", k.Name)

				_, waited := k.Open(other, key).Acquire(t.Context(), primitives.WithWait(wait))
				require.Regexp(t, `; gave up after 1[5-7]\dms$`, waited.Error(), k.Name)

				require.NoError(t, rdb.Persist(t.Context(), key).Err())
				for _, wait := range []time.Duration{0, wait} {
					_, endless := k.Open(other, key).Acquire(t.Context(), primitives.WithWait(wait))
					assert.ErrorContains(t, endless, "held by "+hold.ID(), k.Name)
					assert.ErrorContains(t, endless, "never expires", k.Name)
				}
				fixture.Release(t, hold)
			}
		}

		// A former life of the same client id is another process.
		left := fixture.Acquire(t, t.Context(), earlier.Lock(name))
		again := fixture.NewClient(t, b.S.Client(t), primitives.WithClientID(earlier.ID()))
		_, err := again.Lock(name).TryAcquire(t.Context())
		require.ErrorContains(t, err, "held by "+left.ID())
		require.NotContains(t, err.Error(), "this client")
	})
}

// C7: a refusal by a hold of this very client says so, whether or not Redis has named the holder.
func TestC7TextSaysThatThisClientHoldsIt(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		other, c := fixture.NewClient(t, b.S.Client(t)), fixture.NewClient(t, b.S.Client(t))
		for _, k := range kinds.All() {
			key := "n" + k.Name
			hold := fixture.Acquire(t, t.Context(), k.One(t, c, key))
			for _, wait := range []time.Duration{0, 150 * time.Millisecond} {
				_, own := k.Rival(c, key).Acquire(t.Context(), primitives.WithWait(wait))
				require.ErrorIs(t, own, primitives.ErrNotAcquired, k.Name)
				assert.ErrorContains(t, own, "held by this client", k.Name)
				_, others := k.Rival(other, key).Acquire(t.Context(), primitives.WithWait(wait))
				require.ErrorIs(t, others, primitives.ErrNotAcquired, k.Name)
				assert.NotContains(t, others.Error(), "this client", k.Name)
			}
			fixture.Release(t, hold)
		}
	})
}

// The same for a lock that its readers keep from a writer, and for permits of Redisson that have no
// lease.
func TestC7TextOfHoldersWithoutALease(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		c := fixture.NewClient(t, rdb)
		rw := c.RWLock(name)
		fixture.Acquire(t, t.Context(), rw.Reader())
		require.NoError(t, rdb.Persist(t.Context(), name).Err())
		require.ErrorContains(t, fixture.ErrOf(rw.Writer().TryAcquire(t.Context())), "never expire")

		pool := c.PermitExpirableSemaphore(name + "p")
		fixture.InitPool(t, pool, 1)
		_, err := pool.TryAcquire(t.Context(), primitives.WithPermits(2))
		require.NotContains(t, err.Error(), "never expire", "nobody has a permit")
		plain := c.Semaphore(name + "s")
		fixture.InitPool(t, plain, 0)
		_, err = plain.TryAcquire(t.Context())
		require.NotContains(t, err.Error(), "never expire", "its permits have no lease")
	})
}

// C7: a call that Redis never answered says how long it has waited, also if the command timeout
// ended it.
func TestC7TextOfASilentServerSaysHowLong(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		c := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce), primitives.WithCommandTimeout(700*time.Millisecond))
		b.P.BlackHole(true)
		require.ErrorContains(t, fixture.ErrOf(c.Lock("l").Acquire(context.Background())), "gave up after 7")
		_, err := c.Lock("l").Acquire(context.Background(), primitives.WithWait(3*time.Second))
		require.ErrorContains(t, err, "gave up after 7", "its first attempt had no answer")
		b.P.Heal()
	})
}

package faults

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// noDeadlines is a connection whose deadlines fail with err, or do nothing if it is nil, as those
// of a channel of SSH.
type noDeadlines struct {
	net.Conn
	err error
}

func (c noDeadlines) SetDeadline(time.Time) error      { return c.err }
func (c noDeadlines) SetReadDeadline(time.Time) error  { return c.err }
func (c noDeadlines) SetWriteDeadline(time.Time) error { return c.err }

// Hand-offs, and notices of takeovers, work over connections without deadlines, and with any
// timeout of the client. The connection for messages stays, and nothing is logged.
func TestMessagesOverConnectionsWithoutDeadlines(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err     error
		timeout time.Duration
	}{
		"deadlines fail":           {errors.New("deadlines are not supported"), 0},
		"deadlines do nothing":     {nil, 0},
		"deadlines fail, -2":       {errors.New("deadlines are not supported"), -2},
		"deadlines do nothing, -1": {nil, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Redis(t)
			var dials atomic.Int64
			open := func() *redis.Client {
				return s.Client(t, func(o *redis.Options) {
					o.ReadTimeout, o.WriteTimeout = tt.timeout, tt.timeout
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						dials.Add(1)
						conn, err := new(net.Dialer).DialContext(ctx, network, addr)
						return noDeadlines{conn, tt.err}, err
					}
				})
			}
			var log fixture.LogBuffer
			one, two := fixture.NewClient(t, open(), log.Logger()), fixture.NewClient(t, open(), log.Logger())
			key := redistest.Name(t)
			var took []time.Duration
			before := int64(0)
			for i := range 8 {
				hold := fixture.Acquire(t, t.Context(), one.Lock(key))
				waiting := fixture.StartAcquire(t.Context(), two.Lock(key))
				fixture.AwaitWaiters(t, two, 1)
				time.Sleep(50 * time.Millisecond) // far from the next look
				began := time.Now()
				fixture.Release(t, hold)
				next := fixture.AwaitAcquired(t, waiting)
				took = append(took, next.At.Sub(began))
				fixture.Release(t, next.Hold)
				if i == 3 {
					before = dials.Load()
				}
			}
			require.Less(t, slices.Min(took), 400*time.Millisecond, "hand-offs: %v", took)
			require.Empty(t, log.String(), "there is nothing to warn of")

			began := time.Now()
			hold := fixture.Acquire(t, t.Context(), one.Lock(key), primitives.WithLease(time.Minute))
			time.Sleep(time.Until(began.Add(1050 * time.Millisecond))) // younger holds are not told
			forced := fixture.ForceRelease(t, two.Lock(key))
			require.True(t, forced)
			fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
			require.NotContains(t, log.String(), "link", "the loss of the hold is all that there is to say")
			// A busy machine has more commands under way at once. A connection for each command
			// would be 20 and more.
			require.LessOrEqual(t, dials.Load()-before, int64(10), "connections are kept")
		})
	}
}

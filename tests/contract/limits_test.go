package contract

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Redisson counts permits with an int, and its waiters cannot read a message beyond one. What would
// pass that, in either direction, changes nothing.
func TestPermitsStayAnInt(t *testing.T) {
	for _, k := range kinds.Pools() {
		t.Run(k.Name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				c := fixture.NewClient(t, s.Client(t))
				name := redistest.Name(t)
				pool := k.OpenPool(c, name)
				require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), math.MaxInt32-5)))
				numbers := fixture.Subscribe(t, s, k.Channel(name))
				available := func() int {
					info := fixture.InfoOf(t, pool)
					return info.Available
				}

				require.NoError(t, pool.Add(t.Context(), 5))
				require.ErrorIs(t, pool.Add(t.Context(), 1), primitives.ErrInvalid)
				require.Equal(t, math.MaxInt32, available())
				require.NoError(t, pool.Add(t.Context(), -math.MaxInt32))
				require.NoError(t, pool.Add(t.Context(), -math.MaxInt32))
				require.ErrorIs(t, pool.Add(t.Context(), -1), primitives.ErrInvalid)
				require.Equal(t, -math.MaxInt32, available())
				require.NoError(t, pool.Add(t.Context(), 1), "towards 0")

				// Others fill the pool up while a permit is taken.
				require.NoError(t, s.Client(t).Set(t.Context(), name, math.MaxInt32, 0).Err())
				held := fixture.Acquire(t, t.Context(), pool)
				require.NoError(t, s.Client(t).Incr(t.Context(), name).Err())
				require.NoError(t, held.Release(t.Context()))
				for _, message := range numbers.Received(t) {
					require.LessOrEqual(t, len(message), len("2147483647"))
					require.NotContains(t, message, "2147483648")
				}
				if k.Name == "semaphore" {
					require.Equal(t, math.MaxInt32, available())
				}
			})
		})
	}
}

// Permits that are taken count, too.
func TestAddCountsTakenPermits(t *testing.T) {
	s := redistest.Miniredis(t)
	pool := fixture.NewClient(t, s.Client(t)).PermitExpirableSemaphore("p")
	require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), math.MaxInt32)))
	require.NoError(t, fixture.ErrOf(pool.Acquire(t.Context(), primitives.WithPermits(10))))
	require.ErrorIs(t, pool.Add(t.Context(), 1), primitives.ErrInvalid)
	require.NoError(t, pool.Add(t.Context(), -1))
	require.NoError(t, pool.Add(t.Context(), 1))
}

// Others have set a number that Redisson cannot count with. Changes towards what it can are
// allowed, others are not.
func TestPermitsBeyondAnIntComeBack(t *testing.T) {
	const beyond = math.MaxInt32 + 10
	for _, k := range kinds.Pools() {
		for _, tt := range []struct {
			number, back int
		}{{beyond, -1}, {-beyond, 1}} {
			t.Run(fmt.Sprint(k.Name, " at ", tt.number), func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					name := redistest.Name(t)
					pool := k.OpenPool(fixture.NewClient(t, s.Client(t)), name)
					require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), 1)))
					require.NoError(t, s.Client(t).Set(t.Context(), name, tt.number, 0).Err())
					value := func() int {
						n, err := s.Client(t).Get(t.Context(), name).Int()
						require.NoError(t, err)
						return n
					}
					require.ErrorIs(t, pool.Add(t.Context(), -tt.back), primitives.ErrInvalid)
					require.Equal(t, tt.number, value())
					require.NoError(t, pool.Add(t.Context(), tt.back))
					require.Equal(t, tt.number+tt.back, value())
					require.NoError(t, pool.Add(t.Context(), 9*tt.back))
					require.Equal(t, tt.number+10*tt.back, value())
					require.ErrorIs(t, pool.Add(t.Context(), -tt.back), primitives.ErrInvalid)
				})
			})
		}
	}
}

package wire

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C4: clients that wait with one owner id share a place. It stays while one of them waits, whoever came first, and
// also if the first one's process dies.
func TestFairPlaceStaysWhileSomebodyWaitsWithItsID(t *testing.T) {
	for _, tt := range []struct {
		name  string
		twins int // that wait with the id
		leave []int
		died  bool // the client of the first that leaves cannot reach Redis any longer
	}{
		{"the first leaves", 2, []int{0}, false},
		{"the second leaves", 2, []int{1}, false},
		{"two of three leave", 3, []int{0, 1}, false},
		{"the last ones leave", 3, []int{2, 1}, false},
		{"the first dies", 2, []int{0}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name, id := redistest.Name(t), primitives.WithOwner("somebody:1")
				held := Acquire(t, t.Context(), NewClient(t, s.Client(t)).FairLock(name))
				viewer := NewClient(t, s.Client(t)).FairLock(name)
				short := primitives.WithWaiterTimeout(4 * time.Second)
				first := make(chan string, 4)
				wait := func(ctx context.Context, c *primitives.Client, who string, opts ...primitives.Option) {
					go func() {
						h, err := c.FairLock(name).Acquire(ctx, append(opts, short)...)
						if err == nil {
							first <- who
							_ = h.Release(context.WithoutCancel(ctx))
						}
					}()
					AwaitWaiters(t, c, 1)
				}
				var stops []context.CancelFunc
				var proxies []*redistest.Proxy
				for range tt.twins {
					p := s.Proxy(t)
					c := NewClient(t, p.Client(t))
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					wait(ctx, c, "twin", id)
					AwaitFair(t, viewer, 1)
					stops, proxies = append(stops, stop), append(proxies, p)
				}
				// Each twin has made an attempt, which notes it.
				redistest.WaitFor(t, Soon, func() bool {
					twins := s.Client(t).HGet(t.Context(), "redlatch_lock_clients:{"+name+"}", "twins somebody:1").Val()
					return len(twins) > 0
				}, "the twins are noted")
				time.Sleep(200 * time.Millisecond)
				wait(t.Context(), NewClient(t, s.Client(t)), "behind")
				AwaitFair(t, viewer, 2)
				for _, i := range tt.leave {
					if tt.died {
						proxies[i].BlackHole(true)
					}
					stops[i]()
					time.Sleep(200 * time.Millisecond)
				}
				if tt.died {
					time.Sleep(5 * time.Second) // its heartbeat is old
				}
				require.Equal(t, "somebody:1", FairWaiters(t, viewer)[0], "the place stays")
				Release(t, held)
				require.Equal(t, "twin", next(t, first))
				require.Equal(t, "behind", nextOther(t, first))
			})
		})
	}
}

// next returns who has acquired next.
func next(t *testing.T, order <-chan string) string {
	select {
	case who := <-order:
		return who
	case <-time.After(Soon):
		require.FailNow(t, "nobody acquires")
		return ""
	}
}

// nextOther returns the first that is no twin.
func nextOther(t *testing.T, order <-chan string) string {
	for {
		if who := next(t, order); who != "twin" {
			return who
		}
	}
}

// The last one that leaves takes the place with it.
func TestFairPlaceGoesWithTheLastWaiterOfItsID(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, id := redistest.Name(t), primitives.WithOwner("somebody:1")
		held := Acquire(t, t.Context(), NewClient(t, s.Client(t)).FairLock(name))
		viewer := NewClient(t, s.Client(t)).FairLock(name)
		var waiting []<-chan Result
		var stops []context.CancelFunc
		for range 2 {
			c := NewClient(t, s.Client(t))
			ctx, stop := context.WithCancel(t.Context())
			waiting = append(waiting, StartAcquire(ctx, c.FairLock(name), id))
			AwaitWaiters(t, c, 1)
			AwaitFair(t, viewer, 1)
			stops = append(stops, stop)
		}
		time.Sleep(100 * time.Millisecond)
		for i, stop := range stops {
			stop()
			require.ErrorIs(t, Await(t, waiting[i]).Err, context.Canceled)
		}
		AwaitFair(t, viewer, 0)
		Release(t, held)
		RequireClean(t, s, name)
	})
}

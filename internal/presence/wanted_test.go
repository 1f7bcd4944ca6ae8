package presence_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/pubsub"
)

// A waiter that the same holder keeps waiting asks that holder's client, and again while it waits.
func TestWaiterAsksTheClientOfItsHolder(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.locks.Seize("x", other+":7", time.Minute)
		waiter := StartAcquire(t, t.Context(), c.Lock("x"))
		Sleep(99 * ms)
		assert.Empty(t, c.commands("publish"))
		Sleep(2500 * ms)
		ask := " publish other ask\np:x\n" + other + ":7"
		assert.Equal(t, []string{"100ms" + ask, "1.1s" + ask, "2.1s" + ask}, c.commands("publish"))
		c.locks.Free("x")
		Release(t, waiter.AwaitHold())
		Sleep(2 * time.Second)
		assert.Len(t, c.commands("publish"), 3, "nobody waits any longer")
	})
}

// The holders of permits, and readers, must be read before they are asked. That costs a script, so
// it is done rarely.
func TestWaiterAsksAllHoldersWhereTheyAreNotNamed(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.holders = []string{other + ":7"}
		c.locks.SetPermits("x", 0) // the refusal names nobody
		ctx, cancel := context.WithCancel(t.Context())
		waiter := StartAcquire(t, ctx, c.Reader("x"))
		Sleep(9900 * ms)
		ask := " publish other ask\np:x\n" + other + ":7"
		assert.Equal(t, []string{"100ms" + ask}, c.commands("publish"))
		Sleep(time.Second)
		assert.Equal(t, []string{"100ms" + ask, "10.1s" + ask}, c.commands("publish"))
		cancel()
		_ = waiter.AwaitErr()
	})
}

// Waiting for many names does not make the client look all the time, and the asks share commands.
func TestManyAsksShareACommand(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		const names = 250
		ctx, cancel := context.WithCancel(t.Context())
		var waiters []*Call
		for i := range names {
			name := fmt.Sprint("x", i)
			c.locks.Seize(name, other+":7", time.Minute)
			waiters = append(waiters, StartAcquire(t, ctx, c.Lock(name)))
			Sleep(ms)
		}
		Sleep(150 * ms)
		assert.Len(t, c.commands("publish"), names)
		assert.LessOrEqual(t, len(c.pipelines.of("publish")), 400/20, "one for each look")
		cancel()
		for _, w := range waiters {
			_ = w.AwaitErr()
		}
	})
}

// The holders of a lock that changes hands often are not asked, however long a waiter waits.
func TestShortHoldsAreNotAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.locks.Seize("x", other+":z", time.Minute)
		waiter := StartAcquire(t, t.Context(), c.Lock("x"))
		for n := range 20 {
			Sleep(70 * ms)
			c.locks.Seize("x", other+":"+string(rune('a'+n)), time.Minute)
			c.locks.Message("x")
		}
		c.locks.Free("x")
		Release(t, waiter.AwaitHold())
		assert.Empty(t, c.commands("publish"))
	})
}

// The channel of Wanted is closed, and stays closed. A hold of the same client hears of its waiters
// without a message.
func TestHoldHearsThatItIsWanted(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wants  func(t *testing.T, c *client, h *engine.Hold)
		within time.Duration
	}{
		{"an ask", func(_ *testing.T, c *client, h *engine.Hold) {
			c.presence.Receive(pubsub.Signal{Payload: "ask\np:x\n" + h.ID()})
		}, 0},
		{"a waiter of the same client", func(t *testing.T, c *client, _ *engine.Hold) {
			StartAcquire(t, t.Context(), c.Lock("x"))
		}, 200 * ms},
		{"a request of the same client that polls", func(t *testing.T, c *client, _ *engine.Hold) {
			StartAcquire(t, t.Context(), c.Lock("x"), Polling(10*ms, 50*ms))
		}, 200 * ms},
		{"a waiter of another library", func(_ *testing.T, c *client, _ *engine.Hold) { c.foreign.Store("x") }, time.Second},
	} {
		for _, isEarly := range []bool{true, false} { // the hold listens before somebody waits
			t.Run(tt.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, c *client) {
					Sleep(time.Hour + 17*ms)
					bystander := Acquire(t, t.Context(), c.Lock("y"))
					h := Acquire(t, t.Context(), c.Lock("x"))
					Sleep(3 * time.Second)
					if isEarly {
						h.Wanted()
					}
					bystander.Wanted()
					Sleep(3 * time.Second)
					began := time.Now()
					tt.wants(t, c, h)
					synctest.Wait()
					if !isEarly {
						Sleep(3 * time.Second)
						began = time.Now()
					}
					select {
					case <-h.Wanted():
					case <-time.After(time.Minute):
					}
					assert.LessOrEqual(t, time.Since(began), tt.within)
					Release(t, h)
					synctest.Wait()
					assert.True(t, engine.IsClosed(h.Wanted()))
					assert.False(t, engine.IsClosed(bystander.Wanted()))
					Release(t, bystander)
				})
			})
		}
	}
}

// The client looks once a second while a hold listens, and never otherwise.
func TestClientLooksForWaitersWhileAHoldListens(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		bystander := Acquire(t, t.Context(), c.Lock("y"))
		h := Acquire(t, t.Context(), c.Lock("x"))
		Sleep(10 * time.Second)
		assert.Empty(t, c.looks)
		h.Wanted()
		h.Wanted()
		Sleep(2300 * ms)
		const began = 10 * time.Second
		looks := []time.Duration{began + 200*ms, began + 1200*ms, began + 2200*ms}
		assert.Equal(t, looks, c.looks)
		Release(t, h)
		Sleep(10 * time.Second)
		assert.Len(t, c.looks, 3)
		Release(t, bystander)
	})
}

// A hold that has ended does not listen.
func TestEndedHoldDoesNotListen(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		h := Acquire(t, t.Context(), c.Lock("x"))
		Release(t, h)
		assert.False(t, engine.IsClosed(h.Wanted()))
		keep := Acquire(t, t.Context(), c.Lock("y"))
		Sleep(5 * time.Second)
		assert.Empty(t, c.looks)
		Release(t, keep)
	})
}

// Somebody may ask all holders. The clients that were told are counted, each once.
func TestAllHoldersAreAsked(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.locks.SetPermits("x", 2)
		a, b := Acquire(t, t.Context(), c.Reader("x")), Acquire(t, t.Context(), c.Reader("x"))
		told, holders, err := c.presence.AskAllHolders(t.Context(), c.Reader("x"))
		assert.NoError(t, err)
		assert.Equal(t, []int{0, 2}, []int{told, holders}, "the client does not listen yet")
		a.Wanted()
		Sleep(50 * ms)
		told, holders, err = c.presence.AskAllHolders(t.Context(), c.Reader("x"))
		assert.NoError(t, err)
		assert.Equal(t, []int{1, 2}, []int{told, holders})
		synctest.Wait()
		assert.True(t, engine.IsClosed(a.Wanted()))
		assert.True(t, engine.IsClosed(b.Wanted()))
		Release(t, a, b)
	})
}

// The waiter in front of a pool asks all holders although smaller waiters of its client are granted
// meanwhile, and permits are released all the time.
func TestFrontOfAPoolAsksWhileOthersComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.holders = []string{other + ":7"}
		c.locks.SetPermits("x", 1)
		hold := Acquire(t, t.Context(), c.Permits("x"), PermitsOf(1))
		ctx, cancel := context.WithCancel(t.Context())
		front := StartAcquire(t, ctx, c.Permits("x"), PermitsOf(2))
		for range 50 {
			Sleep(ms)
			small := StartAcquire(t, t.Context(), c.Permits("x"), PermitsOf(1))
			Sleep(49 * ms)
			Release(t, hold)
			hold = small.AwaitHold()
		}
		assert.Contains(t, c.commands("publish"), "100ms publish other ask\np:x\n"+other+":7")
		cancel()
		_ = front.AwaitErr()
		Release(t, hold)
	})
}

// The holders of a pool are not asked while each waiter in front is granted soon, however long the
// queue is. Once one is not, all of them are asked.
func TestPoolIsAskedForWhenTheFrontHasWaitedForLong(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.holders = []string{other + ":7"}
		c.locks.SetPermits("x", 1)
		hold := Acquire(t, t.Context(), c.Permits("x"), PermitsOf(1))
		var waiters []*Call
		for range 10 {
			waiters = append(waiters, StartAcquire(t, t.Context(), c.Permits("x"), PermitsOf(1)))
			synctest.Wait()
		}
		handedOff := StartAcquire(t, t.Context(), c.Permits("x"), PermitsOf(1))
		synctest.Wait()
		last := StartAcquire(t, t.Context(), c.Permits("x"), PermitsOf(1))
		for _, w := range waiters {
			Sleep(70 * ms)
			Release(t, hold)
			hold = w.AwaitHold()
		}
		Sleep(ms)
		Release(t, hold)
		hold = handedOff.AwaitHold()
		Sleep(99 * ms)
		assert.Empty(t, c.commands("publish"))
		Sleep(200 * ms)
		assert.Contains(t, c.commands("publish"), "800ms publish other ask\np:x\n"+other+":7")
		Release(t, hold)
		Release(t, last.AwaitHold())
	})
}

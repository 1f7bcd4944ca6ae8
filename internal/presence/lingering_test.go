package presence_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/pubsub"
)

// canLinger reports whether locks may linger, and how long the answer took.
func (c *client) canLinger(t *testing.T) (can bool, took time.Duration) {
	began := time.Now()
	can = c.presence.CanLinger(t.Context())
	return can, time.Since(began)
}

// A lock may linger once the client hears when others ask for it. The first answer waits for that
// for 50 ms at most, counted from the beginning of the subscription.
func TestLocksMayLingerWhenTheClientListens(t *testing.T) {
	for _, tt := range []struct {
		name      string
		listening time.Duration // since when it listens; negative: it does not
		confirmed time.Duration // after the subscription began; negative: never
		refused   bool
		want      bool
		took      time.Duration
	}{
		{"at once", -1, 0, false, true, 0},
		{"the confirmation is slow", -1, 30 * ms, false, true, 30 * ms},
		{"the confirmation is too slow", -1, 60 * ms, false, false, 50 * ms},
		{"the subscription began before", 20 * ms, 60 * ms, false, false, 30 * ms},
		{"the subscription began long before", 300 * ms, -1, false, false, 0},
		{"it has listened before", 300 * ms, 0, false, true, 0},
		{"refused", -1, 0, true, false, 0},
		{"refused before", 20 * ms, 0, true, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				Sleep(time.Minute)
				h := Acquire(t, t.Context(), c.Lock("x"))
				c.refuse("subscribe", tt.refused)
				deliver := func() {}
				if tt.confirmed != 0 {
					deliver = c.proxy.HoldReplies(redistest.Named("subscribe"))
				}
				if tt.confirmed > 0 {
					time.AfterFunc(tt.confirmed, deliver)
				}
				if tt.listening >= 0 {
					c.presence.SubscribeToAsks()
					Sleep(tt.listening)
				}
				can, took := c.canLinger(t)
				assert.Equal(t, tt.want, can)
				assert.Equal(t, tt.took, took)
				Sleep(100 * ms)
				can, took = c.canLinger(t)
				assert.Equal(t, !tt.refused && tt.confirmed >= 0, can, "later")
				assert.Zero(t, took)
				assert.Len(t, c.commands("subscribe"), 1)
				deliver()
				Release(t, h)
			})
		})
	}
}

// A caller whose context ends does not wait for the confirmation.
func TestCallerThatIsCancelledDoesNotWaitToLinger(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.proxy.HoldReplies(redistest.Named("subscribe"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		assert.False(t, c.presence.CanLinger(ctx))
		assert.Equal(t, 10*ms, c.locks.Now())
	})
}

// The client listens for asks as long as it is busy, even without a hold that is old enough for
// notices.
func TestSubscriptionForAsksEndsWhenTheClientIsIdle(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		r := c.Lock("x")
		Release(t, Acquire(t, t.Context(), r, Lingering(5*time.Second)))
		assert.Equal(t, []string{"0s subscribe me"}, c.commands("subscribe", "unsubscribe"))
		assert.NotEmpty(t, c.locks.IDs("x"), "it lingers")
		Sleep(5 * time.Second)
		c.locks.RequireFree(t)
		Sleep(time.Minute)
		assert.Equal(t, []string{"0s subscribe me", "6.2s unsubscribe me"}, c.commands("subscribe", "unsubscribe"))
		h := Acquire(t, t.Context(), r, Lingering(5*time.Second))
		c.proxy.HoldReplies(redistest.Named("subscribe"))
		Release(t, h)
		c.locks.RequireFree(t)
	})
}

// The acquisition that subscribed may be refused at once. Then the client neither holds nor waits.
func TestSubscriptionForAsksEndsWithoutAHold(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.presence.SubscribeToAsks()
		Sleep(time.Minute)
		assert.Equal(t, []string{"0s subscribe me", "1.1s unsubscribe me"}, c.commands("subscribe", "unsubscribe"))
	})
}

// The ask of another client frees the lock, now or with its release. It names the lock and the
// holder.
func TestAskFreesALockThatLingers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		asks  []string
		freed bool
	}{
		{"the lock", []string{"ask\np:x\nID"}, true},
		{"among others", []string{"ask\np:y\nID", "ask\np:x\nID", "ask\n"}, true},
		{"another name", []string{"ask\np:y\nID"}, false},
		{"a name without the prefix", []string{"ask\nx\nID"}, false},
		{"a former holder of the same client", []string{"ask\np:x\n" + me + ":099"}, true},
		{"a holder of another client", []string{"ask\np:x\n" + other + ":099"}, false},
		{"a notice", []string{"lock\np:x\nID"}, false},
		{"no use", []string{"ask\n", "ask", "ask\n\n"}, false},
	} {
		for _, inUse := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, c *client) {
					Release(t, Acquire(t, t.Context(), c.Lock("kept"), Lingering(time.Minute)))
					for range 2 {
						h := Acquire(t, t.Context(), c.Lock("x"), Lingering(time.Minute))
						if !inUse {
							Release(t, h)
						}
						for _, ask := range tt.asks {
							c.presence.Receive(pubsub.Signal{Payload: strings.ReplaceAll(ask, "ID", h.ID())})
						}
						synctest.Wait()
						if inUse {
							assert.NotEmpty(t, c.locks.IDs("x"))
							Release(t, h)
						}
						assert.Equal(t, tt.freed, len(c.locks.IDs("x")) == 0)
						assert.NotEmpty(t, c.locks.IDs("kept"))
					}
				})
			})
		}
	}
}

// An ask may have been missed while the connection was broken.
func TestLingeringEndsWithItsConnection(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		Release(t, Acquire(t, t.Context(), c.Lock("x"), Lingering(time.Minute)))
		assert.NotEmpty(t, c.locks.IDs("x"))
		c.presence.Receive(pubsub.Signal{Resubscribed: true})
		synctest.Wait()
		c.locks.RequireFree(t)

		c.refuse("subscribe", true)
		require.Positive(t, c.proxy.CutPubSub())
		for len(c.commands("subscribe")) < 2 {
			Sleep(ms)
		}
		Release(t, Acquire(t, t.Context(), c.Lock("x"), Lingering(time.Minute)))
		assert.NotEmpty(t, c.locks.IDs("x"), "the client has not noticed yet that it hears nothing")
		Sleep(time.Second)
		c.locks.RequireFree(t)
	})
}

// The same holder is not asked again for the same lock within half a second.
func TestHolderIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		x, y := c.Lock("x"), c.Lock("y")
		first, second := other+":07", other+":08"
		ask := func(r int, holder string) {
			c.presence.Ask(map[int]*engine.Resource{0: x, 1: y}[r], holder)
			synctest.Wait()
		}
		ask(0, first)
		Sleep(499 * ms)
		ask(0, first)
		Sleep(ms)
		ask(0, first)
		ask(0, second)
		ask(1, second)
		ask(1, me+":09")
		assert.Equal(t, []string{
			"0s publish other ask\np:x\n" + first, "500ms publish other ask\np:x\n" + first,
			"500ms publish other ask\np:x\n" + second, "500ms publish other ask\np:y\n" + second,
			"500ms publish me ask\np:y\n" + me + ":09",
		}, c.commands("publish"))
	})
}

// The ask ends with its time.
func TestAskIsBestEffort(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.proxy.BlackHole(true)
		c.presence.Ask(c.Lock("x"), other+":07")
		Sleep(ms)
		c.shut()
		require.LessOrEqual(t, c.locks.Now(), time.Second)
	})
}

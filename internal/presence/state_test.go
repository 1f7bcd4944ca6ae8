package presence_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/presence"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// told is the content of a client's state key.
type told struct {
	Client string           `json:"client"`
	Held   map[string]int64 `json:"held"`
	Rests  []string         `json:"rests"`
	Waits  [][]byte         `json:"waits"`
}

const stateKey = "redisson_unlock_latch:{" + myTag + "}:client"

// told returns the state of a client, as JSON without the client and the TTL; "" if there is none.
func (c *client) told(t *testing.T) string {
	text, err := c.redis.Mini().Get(stateKey)
	if err != nil {
		return ""
	}
	var s told
	require.NoError(t, json.Unmarshal([]byte(text), &s))
	require.Equal(t, me, s.Client)
	var waits []string
	for _, name := range s.Waits {
		waits = append(waits, string(name))
	}
	return fmt.Sprint("held ", s.Held, " rests ", s.Rests, " waits ", waits)
}

// A client's state follows what it holds and waits for, within about half a second.
func TestStateFollowsTheClient(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		step := func(d time.Duration, want string) {
			t.Helper()
			Sleep(d)
			assert.Equal(t, want, c.told(t))
		}
		first := Acquire(t, t.Context(), c.Lock("x"))
		step(99*ms, "")
		step(2*ms, "held map[1:100] rests [] waits []")
		second := Acquire(t, t.Context(), c.Lock("y"))
		waited := c.Lock("z\xff\n")
		c.presence.WaitBegan(waited)
		c.presence.WaitBegan(waited)
		step(750*ms, "held map[1:600 2:499] rests [] waits [p:z\xff\n]")
		c.presence.WaitEnded(waited)
		Release(t, second)
		step(750*ms, "held map[1:1301] rests [] waits [p:z\xff\n]")
		c.presence.WaitEnded(waited)
		c.presence.StaysTaken(second.ID(), 40*time.Second)
		c.presence.StaysTaken(other+":7", time.Hour) // which another client has made
		step(750*ms, "held map[1:1801] rests [2] waits []")
		assert.InDelta(t, 40, c.redis.Mini().TTL(stateKey).Seconds(), 1, "it may outlive the client")
		Release(t, first)
		step(5*time.Second, "held map[] rests [2] waits []")
		step(35*time.Second, "")
		assert.False(t, c.redis.Mini().Exists("redlatch_client:{"+myTag+"}"))
	})
}

// The state is written with the name, and again when it has changed, but not more often than every
// half a second.
func TestStateIsWrittenSeldom(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		var writes atomic.Int64
		c.proxy.Watch(func(args []string) {
			if len(args) > 1 && args[1] == stateKey {
				writes.Add(1)
			}
		})
		during := func(f func()) int {
			before := writes.Load()
			f()
			Sleep(ms)
			return int(writes.Load() - before)
		}
		kept := Acquire(t, t.Context(), c.Lock("kept"))
		assert.InDelta(t, 20, during(func() {
			for i := range 100 {
				h := Acquire(t, t.Context(), c.Lock(fmt.Sprint(i)))
				Sleep(150 * ms)
				Release(t, h)
			}
		}), 10, "15 s with other holds at each look")
		assert.LessOrEqual(t, during(func() { Sleep(20 * time.Second) }), 3, "nothing changes")
		assert.LessOrEqual(t, during(func() {
			for i := range 200 {
				Release(t, Acquire(t, t.Context(), c.Lock(fmt.Sprint(i))))
				Sleep(50 * ms)
			}
		}), 1, "short holds are not reported")
		Release(t, kept)
	})
}

// The state is bounded: the oldest holds, and as many waits.
func TestStateIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		for i := range 1100 {
			Acquire(t, t.Context(), c.Lock(fmt.Sprint("x", i)), FixedLease(time.Hour))
			c.presence.WaitBegan(c.Lock(fmt.Sprint("y", i)))
			c.presence.StaysTaken(fmt.Sprintf("%s:%d", me, i), time.Hour)
		}
		Sleep(time.Second)
		text, err := c.redis.Mini().Get(stateKey)
		require.NoError(t, err)
		var s told
		require.NoError(t, json.Unmarshal([]byte(text), &s))
		assert.Len(t, s.Held, 1000)
		assert.Contains(t, s.Held, "1")
		assert.Len(t, s.Waits, 1000)
		assert.Len(t, s.Rests, 1000)
		for i := range 1100 {
			c.presence.WaitEnded(c.Lock(fmt.Sprint("y", i)))
		}
	})
}

// A client that shows no name reports nothing.
func TestUnnamedClientReportsNothing(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		c := newClient(t, s, "")
		Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
		c.presence.StaysTaken(me+":7", time.Hour)
		Sleep(2 * time.Second)
		c.shut()
		assert.Empty(t, c.redis.Mini().Keys())
	})
}

// A client that closes leaves its name for the rest of its minimum holds, even if it has never
// written it.
func TestNameStaysForTheRestOfAMinimumHold(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		h := Acquire(t, t.Context(), c.Lock("x"))
		c.presence.StaysTaken(h.ID(), time.Minute)
		Release(t, h)
		c.shut()
		name, err := c.redis.Mini().Get("redlatch_client:{" + myTag + "}")
		require.NoError(t, err)
		assert.Equal(t, "worker", name)
		assert.Equal(t, "held map[] rests [1] waits []", c.told(t))
		assert.Equal(t, time.Minute, c.redis.Mini().TTL(stateKey))
	})
}

// A rest that is over is no longer reported, although the client goes on reporting other things.
func TestStateForgetsARestThatIsOver(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		held := Acquire(t, t.Context(), c.Lock("x"))
		short := Acquire(t, t.Context(), c.Lock("y"))
		c.presence.StaysTaken(short.ID(), 5*time.Second)
		Release(t, short)
		Sleep(time.Second)
		assert.Contains(t, c.told(t), "rests [2]")
		Sleep(time.Minute)
		assert.Contains(t, c.told(t), "rests []")
		Release(t, held)
	})
}

// A client without a name reports nothing, not even rests.
func TestUnnamedClientReportsNoRest(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.presence.Name = ""
		h := Acquire(t, t.Context(), c.Lock("x"))
		Sleep(time.Second)
		c.presence.StaysTaken(h.ID(), time.Minute)
		Release(t, h)
		Sleep(time.Second)
		c.shut()
		assert.False(t, c.redis.Mini().Exists("redlatch_client:{"+myTag+"}"))
		assert.False(t, c.redis.Mini().Exists(stateKey))
	})
}

// A client's state is read with its name. A client of an earlier version has only a name, and no
// content of the keys does harm.
func TestReadsWhatClientsReport(t *testing.T) {
	const key = "redlatch_client:{" + myTag + "}"
	for _, tt := range []struct {
		name, state string
		client      string
		held        time.Duration // of id 7
		rests       bool
		waiting     map[string][]presence.Waiter
	}{
		{
			"all", `{"client":"` + me + `","ttl":30000,"held":{"7":1000},"waits":["cDp4"]}`, "worker", 6 * time.Second, false,
			map[string][]presence.Waiter{"p:x": {{Client: "worker", ID: me}}},
		},
		{"a rest", `{"client":"` + me + `","ttl":30000,"rests":["7"]}`, "worker", 0, true, nil},
		{"an earlier version", "", "worker", 0, false, nil},
		{"no JSON", "x", "worker", 0, false, nil},
		{"another form", `{"client":7,"held":[7]}`, "worker", 0, false, nil},
		{"nothing in it", `{}`, "worker", 0, false, nil},
		{"ids of nobody", `{"held":{"7":1000}}`, "worker", 0, false, nil},
		{ // it would have written again
			"a client that has died", `{"client":"` + me + `","ttl":41000,"rests":["7"],"waits":["cDp4"]}`,
			"worker", 0, true, nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				require.NoError(t, c.redis.Mini().Set(key, "worker"))
				if tt.state != "" {
					require.NoError(t, c.redis.Mini().Set(stateKey, tt.state))
					c.redis.Mini().SetTTL(stateKey, 25*time.Second)
				}
				about := c.presence.About(t.Context(), []string{me + ":7"}, map[string]*presence.About{})[0]
				assert.Equal(t, tt.client, about.Name)
				assert.Equal(t, tt.held, about.Held(me+":7"))
				assert.Equal(t, tt.rests, about.StaysTaken(me+":7"))
				assert.Zero(t, about.Held(me+":8"))
				waiting, err := c.presence.Waiting(t.Context())
				require.NoError(t, err)
				if tt.waiting == nil {
					tt.waiting = map[string][]presence.Waiter{}
				}
				assert.Equal(t, tt.waiting, waiting)
			})
		})
	}
}

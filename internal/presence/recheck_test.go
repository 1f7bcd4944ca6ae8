package presence_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/watchdog"
)

// asked returns the times and sizes of the questions about fixed leases so far.
func (c *client) asked() (at []time.Duration, sizes []int) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.questions {
		at, sizes = append(at, q.at), append(sizes, len(q.ttls))
	}
	return at, sizes
}

// Redis has forgotten some of the holds. On each occasion the client asks about the holds that may
// be affected.
func TestOccasionsToAskAboutHolds(t *testing.T) {
	exists := func(t *testing.T, c *client, names ...string) {
		for _, name := range names {
			require.NoError(t, c.redis.Mini().Set("p:"+name, "1"))
		}
	}
	all := []string{"fixed", "renewed", "theirs"}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, c *client)
		want []string // the locks that were lost
		asks []int    // the questions about fixed leases
	}{
		{"none", func(t *testing.T, c *client) { exists(t, c, all...) }, nil, nil},
		{"it is told to ask", func(t *testing.T, c *client) {
			exists(t, c, all...)
			c.presence.RecheckAll()
		}, all, []int{1, 1}},
		{"the connection for notices was made again", func(t *testing.T, c *client) {
			exists(t, c, all...)
			c.presence.Receive(pubsub.Signal{Resubscribed: true})
		}, all, []int{1, 1}},
		{"the connection for notices breaks", func(t *testing.T, c *client) {
			exists(t, c, all...)
			Sleep(time.Second)
			require.Positive(t, c.proxy.CutPubSub())
		}, all, []int{1, 1}},
		{"the client begins to listen, and nothing is missing", func(t *testing.T, c *client) {
			exists(t, c, all...)
		}, nil, nil},
		{"the client begins to listen, and holds are missing", func(t *testing.T, c *client) {
			exists(t, c, "renewed")
		}, []string{"fixed", "theirs"}, []int{1, 1}},
		{"the client begins to listen, and its look fails", func(t *testing.T, c *client) {
			exists(t, c, all...)
			c.proxy.DropCommands(1, redistest.Named("exists"))
		}, []string{"fixed", "renewed"}, []int{1}},
		{"the client begins to listen, and its look is not answered", func(t *testing.T, c *client) {
			exists(t, c, all...)
			Sleep(420 * ms)
			c.proxy.BlackHole(true)
		}, []string{"fixed", "renewed"}, []int{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				c.proxy.Delay(ms)
				holds := map[string]*engine.Hold{
					"fixed":   Acquire(t, t.Context(), c.Lock("fixed"), FixedLease(time.Hour)),
					"renewed": Acquire(t, t.Context(), c.Lock("renewed")),
				}
				Sleep(300 * ms)
				holds["theirs"] = Acquire(t, t.Context(), c.Lock("theirs"), FixedLease(time.Hour), OwnedBy(other+":7"))
				for _, name := range all {
					c.locks.Forget(name)
				}
				tt.do(t, c)
				Sleep(8 * time.Second) // no lease is renewed before
				var lost []string
				for _, name := range all {
					if err := context.Cause(Carry(holds[name])); err != nil {
						lost = append(lost, name)
						assert.Equal(t, engine.LossGone, LossOf(t, err).Reason)
					}
				}
				assert.Equal(t, tt.want, lost)
				_, sizes := c.asked()
				assert.Equal(t, tt.asks, sizes)
			})
		})
	}
}

// A question is a renewal with a TTL shorter than the rest of the lease, so it changes nothing.
func TestQuestionsAboutLeases(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		c.presence.Close(true) // it does not begin to listen, which would be another occasion
		lock := func(name string, group any) *engine.Resource {
			r := c.Lock(name)
			r.RenewGroup = group
			return r
		}
		for i := range 2*watchdog.Batch + 1 {
			Acquire(t, t.Context(), lock(fmt.Sprint("a", i), "a"), FixedLease(time.Minute))
		}
		nested := Acquire(t, t.Context(), lock("b", "b"), FixedLease(time.Minute))
		Acquire(t, Carry(nested), nested.Resource(), FixedLease(time.Minute))
		short := Acquire(t, t.Context(), lock("c", "c"), FixedLease(time.Second))
		Sleep(time.Until(short.ValidUntil()) - ms/2)
		left := time.Until(nested.ValidUntil())
		c.presence.RecheckAll()
		synctest.Wait()

		sizes := map[any][]int{}
		for _, q := range c.questions {
			sizes[q.group] = append(sizes[q.group], len(q.ttls))
			want := left.Truncate(ms)
			if q.group == "c" {
				want = ms
			}
			assert.Equal(t, slices.Repeat([]time.Duration{want}, len(q.ttls)), q.ttls)
		}
		assert.ElementsMatch(t, []int{watchdog.Batch, watchdog.Batch, 1}, sizes["a"])
		assert.Equal(t, []int{1}, sizes["b"], "nested holds have one lease")
		assert.Equal(t, []int{1}, sizes["c"])
		Sleep(time.Second)
		assert.Less(t, c.locks.Lease("b", nested.ID()), left)
	})
}

// Questions without an answer are repeated for about a second, and a silent server gets few of
// them.
func TestQuestionsWithoutAnAnswer(t *testing.T) {
	mute, down := Fault{Mute: true}, Fault{Err: ErrDown}
	seconds := func(at ...float64) (times []time.Duration) {
		for _, s := range at {
			times = append(times, time.Duration(s*float64(time.Second)))
		}
		return times
	}
	for _, tt := range []struct {
		name   string
		groups int
		fault  func(n int) Fault // of the nth question
		at     []time.Duration   // of the questions about the first group
		first  int               // questions at once
		total  int               // of all questions
		lost   bool
	}{
		{"all answered", 30, func(int) Fault { return Fault{} }, seconds(0), 30, 30, true},
		{"silent", 1, func(int) Fault { return mute }, seconds(0, 1.01, 2.06, 3.26, 4.86), 1, 5, false},
		{"out of reach", 1, func(int) Fault { return down }, seconds(0, 0.01, 0.06, 0.26, 0.86), 1, 5, false},
		{"silent for a while", 1, func(n int) Fault {
			if n < 3 {
				return mute
			}
			return Fault{}
		}, seconds(0, 1.01, 2.06), 1, 3, true},
		// A round ends after eight in a row. Of the eight workers, seven may have begun another one
		// by then.
		{"silent, many groups", 60, func(int) Fault { return mute }, nil, 8, 5 * (8 + 7), false},
		{"failures and answers", 60, func(n int) Fault {
			if n <= 60 && n%2 == 0 {
				return down
			}
			return Fault{}
		}, nil, 60, 60 + 30, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				var holds []*engine.Hold
				for i := range tt.groups {
					r := c.Lock(fmt.Sprint("x", i))
					r.RenewGroup = i
					holds = append(holds, Acquire(t, t.Context(), r, FixedLease(time.Hour)))
					c.locks.Forget(r.Name)
				}
				n := 0
				c.locks.OnEach(func(cmd Command) Fault {
					if cmd.Op != "renew" {
						return Fault{}
					}
					n++
					return tt.fault(n)
				})
				c.presence.Close(true) // it does not begin to listen
				c.presence.RecheckAll()
				Sleep(time.Minute)
				at, _ := c.asked()
				if tt.at != nil {
					assert.Equal(t, tt.at, c.locks.Sent("renew", holds[0].ID()))
				}
				now := 0
				for now < len(at) && at[now] == 0 {
					now++
				}
				assert.Equal(t, tt.first, now)
				if tt.groups > 1 && !tt.lost {
					assert.LessOrEqual(t, len(at), tt.total)
				} else {
					assert.Len(t, at, tt.total)
				}
				for _, h := range holds {
					assert.Equal(t, tt.lost, Carry(h).Err() != nil)
				}
			})
		})
	}
}

// Occasions that come while the client asks count as one. Rounds begin half a second apart.
func TestOccasionsWhileTheClientAsks(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
		c.presence.Close(true)
		c.locks.OnEach(func(cmd Command) Fault { return Fault{Reply: 100 * ms} })
		for range 10 {
			for range 10 {
				c.presence.RecheckAll()
			}
			Sleep(20 * ms)
		}
		Sleep(time.Second)
		c.presence.RecheckAll()
		Sleep(time.Minute)
		at, _ := c.asked()
		assert.Equal(t, []time.Duration{0, 500 * ms, 1200 * ms}, at)
	})
}

// The client stops asking half a minute after an occasion.
func TestQuestionsTakeHalfAMinuteAtMost(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		for i := range 300 {
			r := c.Lock(fmt.Sprint("x", i))
			r.RenewGroup = i
			Acquire(t, t.Context(), r, FixedLease(time.Hour))
		}
		c.presence.Close(true)
		c.locks.OnEach(func(Command) Fault { return Fault{Reply: 900 * ms} })
		c.presence.RecheckAll()
		Sleep(time.Minute)
		at, _ := c.asked()
		assert.Len(t, at, 34*8, "the last ones begin after 29.7 s")
	})
}

// Redis may answer for some of the leases in a question, or for none.
func TestQuestionsThatAreAnsweredInPart(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(states []watchdog.State)
		most   int // questions
		lost   bool
	}{
		{"one of two", func(states []watchdog.State) { states[0] = watchdog.Lost }, 60 + 60, true},
		{"none", func([]watchdog.State) {}, 5 * (8 + 7), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				var holds []*engine.Hold
				for i := range 120 {
					r := c.Lock(fmt.Sprint("x", i))
					r.RenewGroup = i % 60
					holds = append(holds, Acquire(t, t.Context(), r, FixedLease(time.Hour)))
				}
				c.presence.Close(true)
				c.answer = func(asks []watchdog.Renewal) []watchdog.State {
					states := make([]watchdog.State, len(asks))
					tt.answer(states)
					return states
				}
				c.presence.RecheckAll()
				Sleep(time.Minute)
				at, _ := c.asked()
				assert.LessOrEqual(t, len(at), tt.most)
				for _, h := range holds {
					assert.Equal(t, tt.lost, Carry(h).Err() != nil)
				}
			})
		})
	}
}

// An occasion that comes while the client asks about one tag's holds waits for the next round, too.
func TestOccasionWhileTheClientBeginsToListen(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
		c.locks.OnEach(func(Command) Fault { return Fault{Reply: 100 * ms} })
		c.proxy.Delay(ms)
		Sleep(800 * ms)
		c.presence.RecheckAll()
		Sleep(time.Minute)
		at, _ := c.asked()
		assert.Equal(t, []time.Duration{751 * ms, 1250 * ms}, at)
	})
}

// Close does not wait for the pauses between questions.
func TestQuestionsEndWithTheirClient(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
		c.locks.OnEach(func(Command) Fault { return Fault{Err: ErrDown} })
		c.presence.RecheckAll()
		Sleep(300 * ms)
		c.presence.RecheckAll()
		c.shut()
		assert.Equal(t, 300*ms, c.locks.Now())
		at, _ := c.asked()
		assert.Equal(t, []time.Duration{0, 10 * ms, 60 * ms, 260 * ms}, at)
	})
}

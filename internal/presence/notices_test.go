package presence_test

import (
	"context"
	"fmt"
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

// permit is the id of a permit.
func permit(tag string, n int) string { return fmt.Sprintf("%s%016x", tag, n) }

// permits is a resource whose holds have lists of ids.
func (c *client) permits(name string) *engine.Resource {
	r := c.Resource("permits", name, &FakeDriver{Client: c.Client, Name: name})
	r.Traits = &engine.Traits{Leased: true}
	return r
}

// The client checks the holds named in a notice, and ends only those that have been lost.
func TestNoticeHasTheHoldsChecked(t *testing.T) {
	a, b, z := permit(myTag, 1), permit(myTag, 2), permit(myTag, 3)
	for _, tt := range []struct {
		name    string
		notices []string
		want    string // the names of the holds that are checked
	}{
		{"a lock", []string{"lock\np:x\nID"}, "x"},
		{"a lock that was taken as another kind", []string{"fair\np:x\nID"}, "x"},
		{"another id", []string{"lock\np:x\n" + me + ":99"}, ""},
		{"another name", []string{"lock\np:y\nID"}, ""},
		{"a name without the prefix", []string{"lock\nx\nID"}, ""},
		{"a permit", []string{"permits\np:pool\n" + a}, "pool"},
		{"one of many permits", []string{"permits\np:pool\n" + z + "," + b}, "pool"},
		{"a list of permits that is read as one id", []string{"lock\np:pool\n" + a + "," + b}, ""},
		{"a permit of another pool", []string{"permits\np:other\n" + a}, ""},
		{"a permit that nobody has", []string{"permits\np:pool\n" + z}, ""},
		{"a lock that is read as permits", []string{"permits\np:x\nID"}, ""},
		{"a notice that is no use", []string{"", "\n", "\n\n", "lock", "permits", "permits\n", "permits\n\n,"}, ""},
		{"several", []string{"lock\np:y\nID", "permits\np:pool\n" + a, "lock\np:x\nID", "permits\np:pool\n" + b}, "pool x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				lock := Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
				pool := Acquire(t, t.Context(), c.permits("pool"), FixedLease(time.Hour), OwnedBy(a+","+b))
				for _, notice := range tt.notices {
					c.presence.Receive(pubsub.Signal{Payload: strings.ReplaceAll(notice, "ID", lock.ID())})
				}
				Sleep(time.Second)
				var checked []string
				for _, name := range []string{"pool", "x"} {
					if n := len(c.locks.Sent("check", name)); n > 0 {
						checked = append(checked, name)
						assert.LessOrEqual(t, n, 2, "one for each notice that came during the check before")
					}
				}
				assert.Equal(t, tt.want, strings.Join(checked, " "))
				require.NoError(t, Carry(lock).Err())
				require.NoError(t, Carry(pool).Err())

				c.locks.Forget("x")
				c.presence.Receive(pubsub.Signal{Payload: "lock\np:x\n" + lock.ID()})
				synctest.Wait()
				require.ErrorIs(t, context.Cause(Carry(lock)), engine.ErrLost)
				assert.Equal(t, engine.LossForced, LossOf(t, context.Cause(Carry(lock))).Reason)
				require.NoError(t, Carry(pool).Err())
			})
		})
	}
}

// One check is in flight, however many notices come. It is repeated for a second while Redis does
// not answer.
func TestCheckAfterANotice(t *testing.T) {
	down := Fault{Err: ErrDown}
	slow := Fault{Reply: 20 * ms}
	for _, tt := range []struct {
		name    string
		notices []time.Duration // when they come
		faults  []Fault         // of the checks
		lost    bool            // another client has the lock
		want    []time.Duration // when it is checked
	}{
		{"", []time.Duration{0}, nil, false, []time.Duration{0}},
		{"lost", []time.Duration{0}, nil, true, []time.Duration{0}},
		{"later notices", []time.Duration{0, ms, time.Second}, nil, false, []time.Duration{0, ms, time.Second}},
		// The answer may be older than the takeover of the second notice.
		{"notices during the check", []time.Duration{0, ms, 2 * ms}, []Fault{slow}, false, []time.Duration{0, 30 * ms}},
		{
			"notices during both checks", []time.Duration{0, ms, 35 * ms}, []Fault{slow, slow}, false,
			[]time.Duration{0, 30 * ms, 60 * ms},
		},
		{
			"a notice between two checks", []time.Duration{0, 60 * ms}, []Fault{down, down}, false,
			[]time.Duration{0, 50 * ms, 250 * ms, 260 * ms},
		},
		{"lost, and a notice during the check", []time.Duration{0, ms}, []Fault{slow}, true, []time.Duration{0}},
		{
			"no answer", []time.Duration{0}, []Fault{down, down, down, down, down}, true,
			[]time.Duration{0, 50 * ms, 250 * ms, 850 * ms},
		},
		{"an answer after failures", []time.Duration{0}, []Fault{down, down}, true, []time.Duration{0, 50 * ms, 250 * ms}},
		{"an error that stays", []time.Duration{0}, []Fault{{Err: ErrFatal}}, true, []time.Duration{0}},
		{
			"a notice during the last check", []time.Duration{0, 860 * ms},
			[]Fault{down, down, down, {Err: ErrDown, Delay: 20 * ms}}, false,
			[]time.Duration{0, 50 * ms, 250 * ms, 850 * ms, 1470 * ms},
		},
		{
			"no answer, and further notices", []time.Duration{0, 900 * ms}, []Fault{down, down, down, down}, true,
			[]time.Duration{0, 50 * ms, 250 * ms, 850 * ms, 900 * ms},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				h := Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
				require.NoError(t, c.redis.Mini().Set("p:x", "it is there when the client begins to listen"))
				c.locks.Script("check", tt.faults...)
				if tt.lost {
					c.locks.Forget("x")
				}
				for _, at := range tt.notices {
					Sleep(at - c.locks.Now())
					c.presence.Receive(pubsub.Signal{Payload: "lock\np:x\n" + h.ID()})
				}
				Sleep(time.Minute)
				assert.Equal(t, tt.want, c.locks.Sent("check"))
				if !tt.lost {
					assert.NoError(t, Carry(h).Err())
				}
			})
		})
	}
}

func TestCheckEndsWithItsClient(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		h := Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
		c.locks.Script("check", Fault{Err: ErrDown}, Fault{Err: ErrDown})
		c.presence.Receive(pubsub.Signal{Payload: "lock\np:x\n" + h.ID()})
		Sleep(60 * ms)
		c.shut()
		assert.Equal(t, 60*ms, c.locks.Now())
		Sleep(time.Minute)
		assert.Len(t, c.locks.Sent("check"), 2)
	})
}

// A closed client starts no goroutine that reads, so messages pile up as in a flood.
func TestFloodOfMessagesIsBounded(t *testing.T) {
	const most = 10_000
	for _, tt := range []struct {
		name          string
		size, sent    int // of each message
		ask           bool
		notices, asks int
	}{
		{name: "notices", size: 50, sent: most + 1, notices: most},
		{name: "long notices", size: 1 << 10, sent: 1<<10 + 1, notices: 1 << 10},
		{name: "a notice of all bytes", size: 1 << 20, sent: 2, notices: 1},
		{name: "a notice that is too long", size: 1<<20 + 1, sent: 1},
		{name: "asks", size: 50, sent: most + 1, ask: true, asks: most},
		{name: "long asks", size: 16 << 10, sent: 3, ask: true, asks: 3},
		{name: "asks that are too long", size: 16<<10 + 1, sent: 3, ask: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				c.shut()
				payload := strings.Repeat("x", tt.size)
				if tt.ask {
					payload = "ask\n" + payload
				}
				for range tt.sent {
					c.presence.Receive(pubsub.Signal{Payload: payload})
				}
				notices, bytes, asks := c.presence.Queued()
				assert.Equal(t, []int{tt.notices, tt.notices * tt.size, tt.asks}, []int{notices, bytes, asks})
			})
		})
	}
}

// Notices that have been read make room for others.
func TestNoticesAreReadAgainAfterAFlood(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		id := permit(myTag, 1)
		Acquire(t, t.Context(), c.permits("pool"), FixedLease(time.Hour), OwnedBy(id))
		notice := "permits\np:pool\n" + id + ","
		for range 3 {
			c.presence.Receive(pubsub.Signal{Payload: notice + strings.Repeat("x", 1<<20-len(notice))})
			synctest.Wait()
		}
		assert.Len(t, c.locks.Sent("check", "pool"), 3)
	})
}

// Each holder of a lock gets a notice of its own. Permits of one client share notices.
func TestTakeoverIsAnnouncedToTheHolders(t *testing.T) {
	var ids []string
	for i := range 700 {
		ids = append(ids, permit(otherTag, i))
	}
	const name = "p:xxxxxx" // so that a notice of 496 ids has 16 KiB
	for _, tt := range []struct {
		name string
		kind string
		ids  []string
		want []string
	}{
		{"nobody", "lock", nil, nil},
		{"a lock", "lock", []string{other + ":7"}, []string{"other lock\nNAME\n" + other + ":7"}},
		{"holders of a lock", "reader", []string{other + ":7", me + ":8", other + ":9"}, []string{
			"other reader\nNAME\n" + other + ":7", "me reader\nNAME\n" + me + ":8", "other reader\nNAME\n" + other + ":9",
		}},
		{"permits", "permits", []string{ids[0], permit(myTag, 5), ids[1]}, []string{
			"other permits\nNAME\n" + ids[0] + "," + ids[1], "me permits\nNAME\n" + permit(myTag, 5),
		}},
		{"many permits", "permits", ids, []string{
			"other permits\nNAME\n" + strings.Join(ids[:496], ","), "other permits\nNAME\n" + strings.Join(ids[496:], ","),
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel() // the caller has what it wants
				sent := make(chan struct{}, 1)
				c.presence.Announce(ctx, tt.kind, name, tt.ids, sent)
				synctest.Wait()
				assert.Len(t, sent, 1)
				var got []string
				for _, command := range c.commands("publish") {
					got = append(got, strings.Replace(strings.TrimPrefix(command, "0s publish "), name, "NAME", 1))
				}
				assert.Equal(t, tt.want, got)
			})
		})
	}
}

func TestAnnouncementIsBestEffort(t *testing.T) {
	var ids []string
	for i := range 250 {
		ids = append(ids, fmt.Sprint("job ", i))
	}
	for _, tt := range []struct {
		name  string
		fault func(c *client)
		took  time.Duration
		want  []int // the pipelines
	}{
		{"", func(*client) {}, 0, []int{100, 100, 50}},
		{"the first pipeline fails", func(c *client) { c.proxy.DropCommands(1, redistest.Named("publish")) }, 0, []int{100}},
		{"Redis is silent", func(c *client) { c.proxy.BlackHole(true) }, time.Second, []int{100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				tt.fault(c)
				sent := make(chan struct{}, 1)
				c.presence.Announce(t.Context(), "lock", "p:x", ids, sent)
				<-sent
				assert.Equal(t, tt.took, c.locks.Now())
				assert.Equal(t, tt.want, c.pipelines.of("publish"))
			})
		})
	}
}

package primitives

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

// How leases are renewed. The watchdog decides when, and hands over batches of leases of one group: one
// script renews them all. A batch must not fail as a whole because of one bad key, so a batch that Redis
// refuses is divided: by cluster slot, or into single leases.

// renewer is a driver whose leases are renewed in batches, by one script.
type renewer interface {
	renewScript() *scripts.Script
	// renewal appends the keys and arguments of one lease.
	renewal(keys, args []any, o *engine.Ownership, ttl time.Duration) ([]any, []any)
}

func renewerOf(o *engine.Ownership) renewer { return o.Resource().Driver.(renewer) }

// renewGroup is what may share a batch: on a cluster the keys of a script must share a slot.
type renewGroup struct {
	script *scripts.Script
	slot   uint16
}

// renew implements [watchdog.Renew]. Where Redis refuses a batch as a whole, its parts are sent one by
// one, so that a key that Redis refuses concerns no other lease.
func (c *Client) renew(ctx context.Context, group any, batch []watchdog.Ask) ([]watchdog.State, error) {
	script := group.(renewGroup).script
	if !c.slotted.Load() {
		states, err := c.renewTogether(ctx, script, batch)
		switch {
		case err == nil || len(batch) == 1:
			return states, err
		case redis.HasErrorPrefix(err, "CROSSSLOT"):
			// The server of a plain client, such as a proxy before a cluster, enforces slots.
			c.slotted.Store(true)
		case isDivisible(err):
			return c.renewApart(ctx, script, oneByOne(batch))
		default:
			return states, err
		}
	}
	parts := bySlot(batch)
	if len(parts) > 1 {
		return c.renewApart(ctx, script, parts)
	}
	states, err := c.renewTogether(ctx, script, batch)
	if len(batch) > 1 && isDivisible(err) {
		return c.renewApart(ctx, script, oneByOne(batch))
	}
	return states, err
}

// enforcesSlots reports whether Redis is known to refuse keys of two cluster slots in one command.
func (c *Client) enforcesSlots() bool { return c.cluster || c.slotted.Load() }

// renewTogether renews a batch with one command.
func (c *Client) renewTogether(
	ctx context.Context, script *scripts.Script, batch []watchdog.Ask,
) ([]watchdog.State, error) {
	keys := make([]any, 0, 2*len(batch))
	args := make([]any, 0, 2*len(batch))
	for _, ask := range batch {
		o := ask.Keeper.(*engine.Ownership)
		keys, args = renewerOf(o).renewal(keys, args, o, ask.TTL)
	}
	states := make([]watchdog.State, len(batch))
	reply, err := c.run.Once(ctx, script, keys, args...)
	if err != nil {
		return states, err
	}
	for i, kept := range reply.Value.([]any) {
		states[i] = watchdog.Lost
		if kept == int64(1) {
			states[i] = watchdog.Renewed
		}
	}
	return states, nil
}

// renewPart is some leases of a batch, and their places in it.
type renewPart struct {
	asks   []watchdog.Ask
	places []int
}

// bySlot divides a batch into parts of one cluster slot each.
func bySlot(batch []watchdog.Ask) []renewPart {
	var parts []renewPart
	of := map[uint16]int{}
	for i, ask := range batch {
		o := ask.Keeper.(*engine.Ownership)
		keys, _ := renewerOf(o).renewal(nil, nil, o, ask.TTL)
		slot := redisutil.Slot(keys[0].(string))
		n, ok := of[slot]
		if !ok {
			n = len(parts)
			of[slot] = n
			parts = append(parts, renewPart{})
		}
		parts[n].asks, parts[n].places = append(parts[n].asks, ask), append(parts[n].places, i)
	}
	return parts
}

// oneByOne divides a batch into parts of one lease each.
func oneByOne(batch []watchdog.Ask) []renewPart {
	parts := make([]renewPart, len(batch))
	for i, ask := range batch {
		parts[i] = renewPart{[]watchdog.Ask{ask}, []int{i}}
	}
	return parts
}

// isDivisible reports whether Redis refused a batch for a reason that may concern some of its keys only:
// a slot of which some keys have moved to another node, a key that the ACL forbids, or contents that a
// script cannot read.
func isDivisible(err error) bool {
	switch {
	case err == nil:
		return false
	case redis.HasErrorPrefix(err, "TRYAGAIN"):
		return true
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"),
		redis.HasErrorPrefix(err, "MISCONF"), redis.HasErrorPrefix(err, "OOM"):
		return false
	}
	return scripts.OutcomeOf(err) == scripts.Executed
}

const (
	maxPartsInFlight = 8                     // of one batch
	minPartsTimeout  = 50 * time.Millisecond // for all parts of a batch
	maxPartsTimeout  = 5 * time.Second
)

// renewApart renews the parts of a batch with a command each. It waits for a third of the shortest TTL
// at most, so that parts that Redis answers are confirmed in time although another part hangs. The
// leases of a part without an answer are Unknown, and the watchdog asks again.
func (c *Client) renewApart(
	ctx context.Context, script *scripts.Script, parts []renewPart,
) ([]watchdog.State, error) {
	type answer struct {
		renewPart
		states []watchdog.State
		err    error
	}
	total, timeout := 0, maxPartsTimeout
	for _, p := range parts {
		total += len(p.asks)
		for _, ask := range p.asks {
			timeout = min(timeout, max(ask.TTL/3, minPartsTimeout))
		}
	}
	var next atomic.Int64
	answers := make(chan answer, len(parts))
	for range min(maxPartsInFlight, len(parts)) {
		c.core.Spawn(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(parts) {
					return
				}
				p := parts[n]
				states, err := c.renewTogether(ctx, script, p.asks)
				if len(p.asks) > 1 && isDivisible(err) {
					for i, ask := range p.asks {
						one, failed := c.renewTogether(ctx, script, []watchdog.Ask{ask})
						states[i], err = one[0], failed
					}
				}
				answers <- answer{p, states, err}
			}
		})
	}
	states := make([]watchdog.State, total)
	var failed error
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for range parts {
		select {
		case a := <-answers:
			for i, state := range a.states {
				states[a.places[i]] = state
			}
			if a.err != nil {
				failed = a.err
			}
		case <-timer.C:
			return states, failed
		case <-ctx.Done():
			return states, ctx.Err()
		}
	}
	return states, failed
}

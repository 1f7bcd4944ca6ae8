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

// How leases are renewed. The watchdog decides when, and calls [Client.renew] with a batch of leases of one
// group: one command renews them all, whatever their names. One bad key must not end the other
// leases. So a batch that Redis refuses is divided: by cluster slot, or into single leases.
//
// Renewals only raise TTLs. So they may overlap, be repeated and arrive late, and nothing is remembered.

// renewer is a driver whose leases are renewed in batches. Every driver with leases implements it:
// [handle.use] checks that.
type renewer interface {
	// renewScript returns the script that renews leases with ids of their own. Leases of one script may share
	// a batch. Those with shared ids have batches, and a script, of their own.
	renewScript() *scripts.Script
	// renewal adds one lease to a batch.
	renewal(batch *scripts.Batch, o *engine.Ownership, ttl time.Duration)
	// probe is a plain command that reads. If its reply is nil or 0, Redis has forgotten the lease, or a part.
	probe(o *engine.Ownership) []any
}

// renewerOf returns the driver of an ownership. The watchdog has only leased ones, so it is a renewer.
func renewerOf(o *engine.Ownership) renewer { return o.Resource().Driver.(renewer) }

// renewGroup is the group of a lease for the watchdog where the keys of a script must share a slot: leases
// of equal groups share batches. Elsewhere the script alone is the group.
type renewGroup struct {
	script *scripts.Script
	slot   uint16
}

// renew implements [watchdog.Renew]. It sends the batch with one command. If Redis refuses the batch as a
// whole, it sends the parts one by one, so that a bad key concerns no other lease. It runs in a goroutine
// of the watchdog, which may call it again for the same leases if it takes long.
func (c *Client) renew(ctx context.Context, _ any, batch []watchdog.Ask) ([]watchdog.State, error) {
	slotted := c.slotted.Load()
	if slotted {
		if parts := bySlot(batch); len(parts) > 1 {
			return c.renewApart(ctx, parts)
		}
	}
	states, err := c.renewTogether(ctx, batch)
	switch {
	case len(batch) == 1:
	case !slotted && redis.HasErrorPrefix(err, "CROSSSLOT"):
		// The server of a plain client, such as a proxy before a cluster, enforces slots.
		c.slotted.Store(true)
		return c.renew(ctx, nil, batch)
	case isDivisible(err):
		return c.renewApart(ctx, oneByOne(batch))
	}
	return states, err
}

// enforcesSlots reports whether Redis is known to refuse keys of two cluster slots in one command.
func (c *Client) enforcesSlots() bool { return c.cluster || c.slotted.Load() }

// renewTogether renews a batch with one command, and returns the state of each lease. Without an answer
// all are Unknown, the zero value. The command is sent once: the watchdog itself decides when to repeat.
func (c *Client) renewTogether(ctx context.Context, batch []watchdog.Ask) ([]watchdog.State, error) {
	leases := scripts.NewBatch(len(batch))
	for _, ask := range batch {
		o := ask.Keeper.(*engine.Ownership)
		renewerOf(o).renewal(&leases, o, ask.TTL) // of one script: they are one group
	}
	states := make([]watchdog.State, len(batch))
	reply, err := leases.Do(ctx, c.once)
	if err != nil {
		return states, err
	}
	for i, kept := range reply.Kept {
		states[i] = watchdog.Lost
		if kept {
			states[i] = watchdog.Renewed
		}
	}
	return states, nil
}

// renewPart is some leases of a batch, and their indices in it.
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
		var lease scripts.Batch
		renewerOf(o).renewal(&lease, o, ask.TTL)
		slot := redisutil.Slot(lease.Key())
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

// isDivisible reports whether Redis refused a batch for a reason that may concern some of its keys only.
// Examples: some keys of a slot have moved to another node, the ACL forbids a key, or a script cannot read
// what a key contains. A missing password or a full Redis concerns all keys.
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

// renewApart renews the parts of a batch with a command each, up to 8 at a time. It waits for a third of the
// shortest TTL at most, or until ctx ends if the batch is a question (see package presence). So parts with an answer
// are confirmed in time even if another part hangs. The leases of a part without an answer are Unknown, and
// the watchdog asks again.
//
// The goroutines belong to the core. Each ends when no part is left, or when ctx ends. answers has room
// for all parts, so a late one never blocks.
func (c *Client) renewApart(ctx context.Context, parts []renewPart) ([]watchdog.State, error) {
	type answer struct {
		renewPart
		states []watchdog.State
		err    error
	}
	total, timeout := 0, maxPartsTimeout
	for _, p := range parts {
		total += len(p.asks)
		for _, ask := range p.asks {
			if ask.Lease == nil {
				continue
			}
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
				states, err := c.renewTogether(ctx, p.asks)
				if len(p.asks) > 1 && isDivisible(err) {
					for i, ask := range p.asks {
						one, failed := c.renewTogether(ctx, []watchdog.Ask{ask})
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

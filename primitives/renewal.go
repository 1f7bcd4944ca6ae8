package primitives

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

// How leases are renewed. The watchdog decides when, and calls [Client.renew] with a batch of
// leases of one group. One command renews all of them, whatever their names are. One bad key must
// not end the other leases, so a batch that Redis refuses is divided into single leases.
//
// Renewals only raise TTLs, so they may overlap, be repeated and arrive late, and nothing is
// remembered. A renewal that finds a longer TTL says so. If no promise to a hold explains the
// longer TTL, the server's clock was set back. Then another command shortens the lease: see
// [engine.Ownership.Shorten].

// leaseDriver is a driver whose holds have leases, which are renewed in batches.
type leaseDriver interface {
	holdDriver
	engine.LeaseDriver
	renewer
}

// renewer is the part of a driver that writes the commands about its leases.
type renewer interface {
	// renewScript returns the script that renews leases with ids of their own. Leases of one script
	// may share a batch. Leases with shared ids have batches and a script of their own.
	renewScript() *scripts.Script
	// renewal adds one lease to a batch.
	renewal(batch *scripts.Batch, o *engine.Ownership, ttl time.Duration)
	// shorten shortens a lease, unless others have counts, too. The reply is 0 if o has lost it, 1
	// if it ends in time now, and 2 if it was left as it is.
	shorten(ctx context.Context, o *engine.Ownership, to lease) (scripts.Number, error)
	// probe returns a plain command that reads. If its reply is nil or 0, Redis has forgotten the
	// lease, or a part of it.
	probe(o *engine.Ownership) []any
}

// lease describes a lease after it was shortened.
type lease struct {
	ttl time.Duration
	// memory is how long Redis remembers that the holder was released. It is 0 if no late copy of
	// its acquisition can come, and for a holder that goes on holding.
	memory time.Duration
	// counts is the number of counts of a holder that goes on holding. seenAt is when a renewal
	// found that the lease lasts longer than ttl, by the server's time in ms. Both are 0 if the
	// holder was released.
	counts, seenAt int64
}

// driverOf returns the driver of an ownership with a lease: see [handle.useLeases].
func driverOf(o *engine.Ownership) leaseDriver { return o.Resource().Leases.(leaseDriver) }

// extend is [engine.LeaseDriver].Extend for all kinds: a renewal in a batch of one. The script
// raises the TTL and never shortens it, so copies in any order are harmless.
func (h *handle) extend(
	ctx context.Context, d renewer, o *engine.Ownership, ttl time.Duration,
) (sent time.Time, lost bool, _ error) {
	return renewAlone(ctx, d, o, ttl, h.c.confirmed)
}

// checkCount asks whether o, which has a shared id, still has its count. Others may hold the lock
// with that id, so the field of the lock does not answer that. A renewal of 0 ms asks, and changes
// nothing.
func (h *handle) checkCount(ctx context.Context, d renewer, o *engine.Ownership) (lost bool, err error) {
	_, lost, err = renewAlone(ctx, d, o, 0, h.c.calls)
	return lost, err
}

// renewAlone renews a lease by a batch of its own.
func renewAlone(
	ctx context.Context, d renewer, o *engine.Ownership, ttl time.Duration, by scripts.Sender,
) (sent time.Time, lost bool, _ error) {
	var batch scripts.Batch
	d.renewal(&batch, o, ttl)
	reply, err := batch.Do(ctx, by)
	err = cmp.Or(err, reply.Unconfirmed)
	return reply.Sent, err == nil && !reply.Kept[0], err
}

// releaseAfter is [engine.LeaseDriver].ReleaseAfter for all kinds.
func (h *handle) releaseAfter(
	ctx context.Context, d renewer, o *engine.Ownership, rest time.Duration,
) (engine.Released, error) {
	reply, err := d.shorten(ctx, o, lease{ttl: rest, memory: h.c.rememberDoubt(&o.Owner)})
	if err != nil {
		return engine.Released{}, err
	}
	return engine.Released{Lost: reply.Number == 0, Stays: reply.Number == 2, InDoubt: reply.Doubt}, nil
}

// renewGroup is the group of a lease for the watchdog if the keys of a script must share a slot.
// Leases of equal groups share batches. Elsewhere the script alone is the group.
type renewGroup struct {
	script *scripts.Script
	slot   uint16
}

// renew implements [watchdog.Renew]. It sends the batch with one command. If Redis refuses the
// batch as a whole, it sends a command for each lease, so that a bad key concerns no other lease.
// It runs in a goroutine of the watchdog, which may call it again for the same leases if it takes
// long.
func (c *Client) renew(ctx context.Context, _ any, batch []watchdog.Renewal) ([]watchdog.State, error) {
	states, err := c.renewTogether(ctx, batch)
	if redis.HasErrorPrefix(err, "CROSSSLOT") { // a plain client, for example of a proxy before a cluster
		c.slotted.Store(true) // for later handles; the leases of this batch keep their group
	}
	if len(batch) > 1 && isDivisible(err) {
		return c.renewApart(ctx, batch)
	}
	return states, err
}

// enforcesSlots reports whether Redis is known to refuse keys of two cluster slots in one command.
func (c *Client) enforcesSlots() bool { return c.cluster || c.slotted.Load() }

// renewTogether renews a batch with one command, and returns the state of each lease. Without an
// answer all are Unknown, which is the zero value. The command is sent once, because the watchdog
// decides when to repeat it. The answer counts until validity ends, however slow the server is.
func (c *Client) renewTogether(ctx context.Context, batch []watchdog.Renewal) ([]watchdog.State, error) {
	leases := scripts.NewBatch(len(batch))
	var patience scripts.Patience // ends with the longest validity; zero if the batch is a question
	for _, ask := range batch {
		o := ask.Keeper.(*engine.Ownership)
		driverOf(o).renewal(&leases, o, ask.TTL) // all have one script, because they are one group
		if ask.Lease == nil {
			continue
		}
		valid := ask.Lease.ValidUntil()
		if valid.After(patience.Until) {
			patience.Until = valid
		}
		if time.Until(valid) < ask.TTL/2 { // earlier renewals were not answered
			patience.Urgent = true
		}
	}
	states := make([]watchdog.State, len(batch))
	reply, err := leases.Do(ctx, c.run.PatientSender(patience))
	if err != nil {
		return states, err
	}
	for i, kept := range reply.Kept {
		states[i] = watchdog.Lost
		if kept {
			states[i] = watchdog.Renewed
		}
	}
	for i, left := range reply.Longer {
		o := batch[i].Keeper.(*engine.Ownership)
		o.Shorten(batch[i].TTL, left, func(ctx context.Context, ttl time.Duration, counts int) error {
			_, err := driverOf(o).shorten(ctx, o, lease{ttl: ttl, counts: int64(counts), seenAt: reply.Now})
			return err
		})
	}
	return states, nil
}

// isDivisible reports whether Redis refused a batch for a reason that may concern some of its keys
// only. For example, some keys of a slot have moved to another node, the ACL forbids a key, or a
// script cannot read what a key contains. A missing password or a full Redis concerns all keys.
func isDivisible(err error) bool {
	switch {
	case err == nil:
		return false
	case redis.HasErrorPrefix(err, "TRYAGAIN"):
		return true
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"), redis.HasErrorPrefix(err, "OOM"):
		return false
	}
	return failure.Of(err).Outcome == failure.Executed
}

const (
	maxApart        = 8                     // how many commands are under way for one batch at most
	minApartTimeout = 50 * time.Millisecond // the shortest timeout for all of them together
	maxApartTimeout = 5 * time.Second
)

// renewApart renews the leases of a batch with a command each, up to 8 at a time. It waits for a
// third of the shortest TTL at most, or until ctx ends if the batch is a question (see package
// presence). Leases with an answer are thus confirmed in time, even if the command of another one
// hangs. Without an answer a lease is Unknown, and the watchdog asks again.
//
// The goroutines belong to the core. Each of them ends when no lease is left, or when ctx ends.
// answers has room for all answers, so a late one never blocks.
func (c *Client) renewApart(ctx context.Context, batch []watchdog.Renewal) ([]watchdog.State, error) {
	type answer struct {
		n     int
		state watchdog.State
		err   error
	}
	timeout := maxApartTimeout
	for _, ask := range batch {
		if ask.Lease != nil {
			timeout = min(timeout, max(ask.TTL/3, minApartTimeout))
		}
	}
	var next atomic.Int64
	answers := make(chan answer, len(batch))
	for range min(maxApart, len(batch)) {
		c.core.Spawn(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(batch) {
					return
				}
				states, err := c.renewTogether(ctx, batch[n:n+1])
				answers <- answer{n, states[0], err}
			}
		})
	}
	states := make([]watchdog.State, len(batch))
	var failed error
	timeoutCtx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for range batch {
		select {
		case a := <-answers:
			states[a.n] = a.state
			failed = cmp.Or(a.err, failed)
		case <-timeoutCtx.Done():
			return states, cmp.Or(ctx.Err(), failed)
		}
	}
	return states, failed
}

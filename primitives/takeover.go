package primitives

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/presence"
)

// How holds are taken over or released by their ids, and how the clients that lose them hear of it.
// Package presence sends the notices. It also keeps a client's name, which Info shows.

// WithClientName sets the name that [Holder].Client shows to people. Default: host:pid. With "" the
// client does not show who it is.
//
// A client that holds or waits for longer than about 100 ms writes its name to a key of its own,
// redlatch_client:{<tag>}, in the background. The key has a TTL of 30 s, and the client deletes it
// once it has been idle for about a second. Beside the name it writes when its holds began, and
// which names it waits for: see [Holder] and [Client.Waiting]. A failure, such as NOPERM, never
// affects an acquisition.
func WithClientName(name string) ClientOption {
	return ClientOption{func(c *Client) { c.name = name }}
}

// nameClients fills in the fields that the holders' clients report. known contains, by tag, the
// reports that need not be read again, and nameClients adds to it. It is best effort: fields that
// cannot be read stay unknown.
func (c *Client) nameClients(ctx context.Context, holders []*Holder, known map[string]*presence.About) {
	ids := make([]string, len(holders))
	for i, holder := range holders {
		ids[i] = holder.ID
	}
	for i, about := range c.presence.About(ctx, ids, known) {
		h := holders[i]
		h.Client = about.Name
		h.MinHold = about.StaysTaken(h.ID)
		if !h.MinHold {
			h.Held = about.Held(h.ID)
		}
	}
}

// nameHolders is nameClients for the holders of one name.
func (c *Client) nameHolders(ctx context.Context, holders []Holder) {
	all := make([]*Holder, len(holders))
	for i := range holders {
		all[i] = &holders[i]
	}
	c.nameClients(ctx, all, map[string]*presence.About{})
}

// ClientNames returns the names of the clients with these ids, such as the ids of [Info.Waiters],
// in the same order. A name that is unknown is "".
func (c *Client) ClientNames(ctx context.Context, ids []string) []string {
	names := make([]string, len(ids))
	_ = c.during(ctx, func() error {
		names = c.presence.Names(ctx, ids, map[string]string{})
		return nil
	})
	return names
}

// Waiting returns the clients that wait for locks, semaphores, permits and latches, by name. Each
// client of this library writes which names it waits for, once it has waited for about 100 ms, and
// again within about a second: see [WithClientName]. Clients of other libraries do not. Names
// without the client's prefix are left out.
//
// Waiting finds the clients by SCAN, as [Client.Locks] finds locks. If that fails, or takes longer
// than 10 s, Waiting returns the waiters that it has found, and the error.
func (c *Client) Waiting(ctx context.Context) (waiting map[string][]Waiter, err error) {
	var found map[string][]presence.Waiter
	err = c.during(ctx, func() error { return nil }) // Close does not wait for the rest
	if err == nil {
		found, err = c.presence.Waiting(ctx)
	}
	waiting = map[string][]Waiter{}
	for raw, clients := range found {
		name, isOurs := strings.CutPrefix(raw, c.prefix)
		if !isOurs {
			continue
		}
		for _, client := range clients {
			waiting[name] = append(waiting[name], Waiter(client))
		}
	}
	if err != nil {
		err = failed(&engine.Resource{Core: c.core, Kind: "waiters", Name: "*"}, "list", err)
	}
	return waiting, err
}

// takeableDriver is a driver whose holds may be taken over or released by their id, whichever
// client has them. Each operation is one command, which Redis remembers by the number of q, so that
// a copy has no further effect.
type takeableDriver interface {
	leaseDriver
	// adopt replaces the id of a holder by the id of q, which takes over all counts. counts is 0 if
	// id holds nothing.
	adopt(ctx context.Context, id string, q *engine.Request) (sent time.Time, counts int, err error)
	// releaseID gives back one count of a holder. held is false if id holds nothing.
	releaseID(ctx context.Context, id string, q *engine.Request) (held bool, err error)
}

// takeable returns the driver of a lock that is not joint, or of permits.
func (h *handle) takeable() takeableDriver { return h.res.Driver.(takeableDriver) }

// holders checks an id that a caller gave, and returns the ids of the holders in it. For permits
// there may be several.
func (h *handle) holders(id string) ([]string, error) {
	switch {
	case h.maxPermits > 0:
		return permitIDs(id)
	case !validOwner(id):
		return nil, invalid(badOwner, id)
	}
	return []string{id}, nil
}

// adopt takes over the locks or permits of a holder's id, with a call's options.
func (h *handle) adopt(ctx context.Context, id string, opts []Option) (*Hold, error) {
	s, err := h.with(opts)
	if err == nil {
		err = h.c.begin(ctx)
	}
	if err != nil { // nothing was sent
		err = h.failed("adopt", err)
		h.res.ReportNotAcquired(ctx, errors.Unwrap(err)) // events have the error before it is wrapped
		return nil, err
	}
	defer h.c.core.Leave()
	var hold *engine.Hold
	err = ErrClosed
	if !h.c.core.IsClosing() {
		hold, err = h.takeOver(ctx, id, s.Terms)
	}
	h.res.EmitResult(ctx, engine.EventAcquired, hold, 0, h.c.core.Unavailable(err))
	if err != nil {
		return nil, h.failed("adopt", h.withType(ctx, err))
	}
	return newHold(hold), nil
}

// takeOver adopts id under a new one. An attempt of unknown outcome is left to its lease, because
// the former holder's critical section may still run.
func (h *handle) takeOver(ctx context.Context, id string, terms engine.Terms) (hold *engine.Hold, err error) {
	ids, err := h.holders(id)
	if err != nil {
		return nil, err
	}
	// The new id is always private.
	id = strings.Join(ids, ",")
	terms.Owner = ""
	if h.joint != nil {
		hold, err = h.joint.adopt(ctx, id, &terms)
	} else {
		terms.Permits = len(ids)
		var sent time.Time
		q := h.res.NewRequest(&terms)
		sent, err = h.replaceID(ctx, id, q)
		if err == nil {
			hold, err = h.res.NewAdoptedHold(ctx, q, sent) // its release gives back all counts
		}
	}
	h.announceTakeover(ctx, err, ids...)
	return hold, err
}

// replaceID replaces id in Redis by the id of q. If id holds nothing, a late copy of an earlier
// attempt takes nothing either, although a shared id may hold again.
func (h *handle) replaceID(ctx context.Context, id string, q *engine.Request) (sent time.Time, err error) {
	sent, counts, err := h.takeable().adopt(ctx, id, q)
	if err != nil || counts > 0 {
		return sent, err
	}
	if q.InDoubt {
		h.res.Rollback(ctx, q)
	}
	return sent, notHeldBy(id)
}

// releaseID serves ReleaseID.
func (h *handle) releaseID(ctx context.Context, id string) error {
	return h.call(ctx, "release", func() error {
		ids, err := h.holders(id)
		if err != nil {
			return err
		}
		id := strings.Join(ids, ",")
		q := h.res.NewRequest(&h.settings.Terms)
		if h.joint != nil {
			err = h.joint.releaseID(ctx, id, q)
		} else {
			err = orNotHeld(h.takeable().releaseID(ctx, id, q))
		}
		if errors.Is(err, ErrNotHeld) {
			err = notHeldBy(id)
		}
		h.announceTakeover(ctx, err, ids...)
		return err
	})
}

// announceTakeover notifies the clients of these ids that they may have lost h, after an operation
// that ended with err. If the operation certainly failed, it sends nothing. But some members of a
// joint lock may have been taken over, whatever err is. The caller waits no longer than
// presence.NoticeLimit, for no more members of a joint lock than it needs, and not at all if Redis
// did not answer the operation.
func (h *handle) announceTakeover(ctx context.Context, err error, ids ...string) {
	inDoubt := errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotReplicated)
	mayHaveChanged := err == nil || inDoubt || h.joint != nil
	if len(ids) == 0 || !mayHaveChanged {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, presence.NoticeLimit) // one limit for all members together
	defer cancel()
	parts := h.parts()
	sent := make(chan struct{}, len(parts))
	for _, part := range parts {
		if part.maxPermits == 0 { // a lock, which may linger on this client itself: give it up
			for _, id := range ids {
				part.c.core.HandleAsk(part.res.Name, id)
			}
		}
		part.c.presence.Announce(ctx, part.res.Kind, part.raw(), ids, sent)
	}
	isSilent := errors.Is(h.res.Core.Unavailable(err), ErrUnavailable)
	if inDoubt || isSilent {
		return // the call has used up its time
	}
	need := len(parts)
	if h.joint != nil {
		need = h.joint.Need // a silent member has been waited for once
	}
	for range need {
		engine.Pause(ctx, presence.NoticeLimit, sent)
	}
}

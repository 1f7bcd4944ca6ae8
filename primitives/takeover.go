package primitives

import (
	"context"
	"errors"
	"slices"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/presence"
)

// What the client's presence (package presence) shows of it, and how calls of primitives use it.

// WithClientName sets the name that [Holder].Client shows to people. Default: host:pid. With "" the
// client does not show who it is.
//
// A client that holds or waits for longer than about 100 ms writes its name to a key of its own,
// redlatch_client:{<tag>}, in the background. The key has a TTL of 30 s, and the client deletes it
// once it has been idle for about a second. A failure, such as NOPERM, never affects an acquisition.
func WithClientName(name string) ClientOption {
	return ClientOption{func(c *Client) { c.name = name }}
}

// nameClients fills in the names of the holders' clients. known has names by tag that need not be read again. New
// names are added to it. It is best effort: a name that cannot be read is "".
func (c *Client) nameClients(ctx context.Context, holders []Holder, known map[string]string) {
	ids := make([]string, len(holders))
	for i, holder := range holders {
		ids[i] = holder.ID
	}
	for i, name := range c.presence.Names(ctx, ids, known) {
		holders[i].Client = name
	}
}

// announceTakeover notifies the clients of these ids that they may have lost h, after an operation that
// ended with err. If the operation certainly failed, it sends nothing; but some members of a joint lock may have been
// taken over, whatever err is. The caller waits no longer than presence.NoticeLimit, and not at all if Redis did not
// answer the operation.
func (h *handle) announceTakeover(ctx context.Context, err error, ids ...string) {
	inDoubt := errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotReplicated)
	if len(ids) == 0 || err != nil && !inDoubt && h.joint == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, presence.NoticeLimit) // for all members together
	defer cancel()
	var sent []<-chan struct{}
	for _, part := range h.parts() {
		if part.maxPermits == 0 { // a lock: give up what this client itself lets linger
			part.c.core.Wanted(func(hold *engine.Hold) bool {
				return hold.Resource().Name == part.res.Name && slices.Contains(ids, hold.ID())
			})
		}
		sent = append(sent, part.c.presence.Announce(ctx, part.res.Kind, part.raw(), ids))
	}
	if inDoubt {
		return // the call has used up its time
	}
	for _, done := range sent {
		engine.Pause(ctx, presence.NoticeLimit, done)
	}
}

package primitives

import (
	"context"

	"github.com/redlatch/redlatch/internal/engine"
)

// How a client asks the holders of a name, and how it finds the waiters that do not ask. Packages
// presence and engine decide when: see their files wanted.go.

// Ask tells the holders of the lock that somebody wants it: see [Hold.Wanted]. It returns how many
// clients were told. A client hears of it if it has held for about a second, or if one of its holds
// listens. Clients of other libraries do not hear it. Ask returns [ErrNotHeld] if nobody holds the
// lock. For a joint lock it asks the holders of all members.
func (l *Lock) Ask(ctx context.Context) (told int, err error) { return l.ask(ctx) }

// Ask tells the holders of permits that somebody wants them: see [Lock.Ask].
func (s *PermitExpirableSemaphore) Ask(ctx context.Context) (told int, err error) { return s.ask(ctx) }

// ask serves Ask.
func (h *handle) ask(ctx context.Context) (told int, err error) {
	err = h.call(ctx, "ask", func() error {
		holders := 0
		for _, part := range h.parts() {
			clients, ids, err := part.c.presence.AskAllHolders(ctx, &part.res)
			if err != nil {
				return err
			}
			told += clients
			holders += ids
		}
		if holders == 0 {
			return ErrNotHeld
		}
		return nil
	})
	return told, err
}

// holderIDs implements [presence.Config].Holders. The two sides of a read-write lock keep each
// other waiting, so it returns the holders of both. A plain semaphore does not know its holders.
func holderIDs(ctx context.Context, r *engine.Resource) (ids []string, err error) {
	var infos []Info
	switch d := r.Driver.(type) {
	case *readerDriver:
		infos, err = readInfos(ctx, d, d.writer.Driver.(lockDriver))
	case *writerDriver:
		infos, err = readInfos(ctx, d, d.reader.Driver.(lockDriver))
	case lockDriver:
		infos, err = readInfos(ctx, d)
	case *permitDriver:
		infos, err = readInfos(ctx, d)
	}
	for _, info := range infos {
		for _, holder := range info.Holders {
			ids = append(ids, holder.ID)
		}
	}
	return ids, err
}

// readInfos reads who holds. An error ends it.
func readInfos(ctx context.Context, drivers ...interface {
	info(ctx context.Context) (Info, error)
},
) (infos []Info, err error) {
	for _, d := range drivers {
		info, err := d.info(ctx)
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// anyWait implements [presence.Config].AnyWait. Whoever waits for a release listens to its
// messages, except the waiters of a fair lock, which stand in a list. This client may listen too.
func (c *Client) anyWait(ctx context.Context, resources []*engine.Resource) []bool {
	waits := make([]bool, len(resources))
	var commands [][]any
	var own []int64 // the count in the reply if nobody else waits
	var at []int    // the index of the resource
	for i, r := range resources {
		var command []any
		expected := int64(0)
		switch d := r.Driver.(type) {
		case *fairDriver:
			command = []any{"llen", d.h.keys.Queue}
		case interface{ waitChannel() string }:
			channel := d.waitChannel()
			command = c.run.CountListeners(channel)
			if c.hub.Listens(channel) {
				expected = 1
			}
		}
		if command != nil {
			commands = append(commands, command)
			own = append(own, expected)
			at = append(at, i)
		}
	}
	replies, _ := c.run.Reads(ctx, commands...) // a missing permission is no reason for a warning
	for i, reply := range replies {
		waits[at[i]] = countIn(reply) > own[i]
	}
	return waits
}

// countIn returns the count in a reply, which is a number, or ends with one. It is 0 without an
// answer.
func countIn(reply any) int64 {
	if list, isList := reply.([]any); isList && len(list) > 0 {
		reply = list[len(list)-1]
	}
	n, _ := reply.(int64)
	return n
}

// waitChannel returns the channel to which waiters listen.
func (d *base) waitChannel() string { return d.h.channel() }

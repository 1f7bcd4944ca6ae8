package presence

import (
	"context"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// How clients tell each other that somebody waits. Package engine's wanted.go decides who is asked
// and when. The presence's goroutine sends the asks that are due, and looks for waiters that do not
// ask.

const (
	// askLimit bounds the reading of the holders to ask, and a look for waiters.
	askLimit = time.Second
	// askPause is the shortest pause between two looks for holders to ask. The client may wait for
	// many names.
	askPause = 20 * time.Millisecond
)

// HoldListens implements [engine.Presence].HoldListens. It wakes the goroutine, which subscribes.
func (p *Presence) HoldListens() {
	p.Wake()
	select {
	case p.hurry <- struct{}{}:
	default:
	}
}

// askHolders sends the asks that are due. It returns when it is to be called again. Only run calls
// it. It does not block.
func (p *Presence) askHolders(now time.Time) (next engine.Instant) {
	asks, next := p.core.HoldersToAsk(now)
	var commands [][]any
	for _, ask := range asks {
		if ask.Holder != "" {
			commands = append(commands, p.askCommand(ask.Resource, ask.Holder))
			continue
		}
		if ask.Resource.Core != p.core {
			continue // a joint lock's member on another client, with many holders: that client's own waiters ask
		}
		p.core.Spawn(func() {
			ctx, cancel := context.WithTimeout(context.Background(), askLimit)
			defer cancel()
			_, _, _ = p.AskAllHolders(ctx, ask.Resource)
		})
	}
	if len(commands) > 0 {
		p.core.Spawn(func() {
			ctx, cancel := context.WithTimeout(context.Background(), noticeTimeout)
			defer cancel()
			for batch := range slices.Chunk(commands, pipelined) {
				_, _ = p.Runner.Commands(ctx, batch...) // best effort: the holders are asked again
			}
		})
	}
	return next
}

// askCommand returns the command that asks a holder's client for what the holder has of r.
func (p *Presence) askCommand(r *engine.Resource, holder string) []any {
	text := askPrefix + p.Prefix + r.Name + "\n" + holder
	return []any{p.Runner.Publish(), tagged(holderChannel, TagOf(holder)), text}
}

// AskAllHolders asks the clients of all holders of r. It returns how many clients have received that, and
// how many ids hold r. A client hears asks if it has held for about a second, or if one of its
// holds listens. AskAllHolders blocks for the server's answers.
func (p *Presence) AskAllHolders(ctx context.Context, r *engine.Resource) (receivers, holders int, err error) {
	ids, err := p.Holders(ctx, r)
	if err != nil {
		return 0, 0, err
	}
	// One message for each client and id. The receivers of the first message to a client are
	// counted.
	seen := map[string]bool{}
	var commands [][]any
	var isFirst []bool
	for _, id := range ids {
		tag := TagOf(id)
		commands = append(commands, p.askCommand(r, id))
		isFirst = append(isFirst, !seen[tag])
		seen[tag] = true
	}
	for len(commands) > 0 {
		n := min(len(commands), pipelined)
		heard, err := p.Runner.Commands(ctx, commands[:n]...)
		if err != nil {
			return receivers, len(ids), err
		}
		for i, answer := range heard {
			number, isNumber := answer.(int64)
			if isNumber && isFirst[i] {
				receivers += int(number)
			}
		}
		commands = commands[n:]
		isFirst = isFirst[n:]
	}
	return receivers, len(ids), nil
}

// lookForWaiters starts a look for waiters that do not ask, for the holds that listen. It returns
// when it is to be called again. Only run calls it. It does not block. One look is under way at a
// time.
func (p *Presence) lookForWaiters(now time.Time) (next engine.Instant) {
	holds, next := p.core.HoldsToLookFor(now)
	if len(holds) == 0 || !p.looking.CompareAndSwap(false, true) {
		return next
	}
	p.core.Spawn(func() {
		defer p.looking.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), askLimit)
		defer cancel()
		for chunk := range slices.Chunk(holds, pipelined) {
			resources := make([]*engine.Resource, len(chunk))
			for i, h := range chunk {
				resources[i] = h.Resource()
			}
			for i, waits := range p.AnyWait(ctx, resources) {
				if waits {
					chunk[i].NotifyWanted()
				}
			}
		}
	})
	return next
}

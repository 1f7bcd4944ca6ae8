package presence

import (
	"context"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// The names of the clients that hold what this client waits for. When a waiter gives up, its error
// contains the name of the holder's client. So while a client waits, its goroutine reads the names
// that it does not know: a tenth of a second after the first waiter came, and then at each look.
// One pipeline reads all names, and no acquisition waits for it. A client that shows no name of its
// own reads no names.

const (
	// nameTries is how often the name of a client is read if there is none. A client writes its
	// name when it has held or waited for a while, and other libraries write no names.
	nameTries = 2
	// nameAgain is the pause before a name is read again.
	nameAgain = time.Second
	// maxNames bounds the names that are remembered.
	maxNames = 1000
)

// holderName is what is known about the name of a client.
type holderName struct {
	name  string // "" if it is unknown
	tries int
	next  engine.Instant // when it may be read again
}

// NameOf returns the name of a holder's client, or "" if it is not known. It does not block.
func (p *Presence) NameOf(holder string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holders[TagOf(holder)].name
}

// nameHolders starts to read the names of the clients that hold what this client waits for. Only
// run calls it. It does not block.
func (p *Presence) nameHolders(now engine.Instant) {
	if p.waiting.Load() == 0 {
		p.mu.Lock()
		clear(p.holders) // a client may come back with another name
		p.mu.Unlock()
		return
	}
	isDue := now >= engine.Instant(p.since.Load())+engine.Instant(nameAfter)
	if p.Name == "" || !isDue {
		return
	}
	ids := p.core.HoldersWaitedFor()
	slices.Sort(ids)
	p.mu.Lock()
	if len(p.holders) > maxNames {
		clear(p.holders)
	}
	ids = slices.DeleteFunc(ids, func(id string) bool {
		known := p.holders[TagOf(id)]
		needsName := known.name == "" && known.tries < nameTries
		if !needsName || now < known.next {
			return true
		}
		p.holders[TagOf(id)] = holderName{tries: known.tries + 1, next: now + engine.Instant(nameAgain)}
		return false
	})
	p.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	p.core.Spawn(func() {
		for i, name := range p.Names(context.Background(), ids, map[string]string{}) {
			p.mu.Lock()
			known := p.holders[TagOf(ids[i])]
			known.name = name
			p.holders[TagOf(ids[i])] = known
			p.mu.Unlock()
		}
	})
}

package presence

import (
	"context"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
)

// How clients ask for locks that linger (primitives.WithLinger). A waiter that was refused by a
// holder that may linger publishes "ask\n<raw name>\n<id>" on the channel of the holder's client,
// which takeovers use as well. The holder's client gives the lock up, or frees it with its next
// release. An ask proves nothing, so a forged one only costs a release.
//
// The client listens before a lock may linger, and until it is idle. If the subscription is
// refused, no lock lingers.

// askPrefix begins a message that asks for a lock. No kind of lock has this name.
const askPrefix = "ask\n"

const (
	// hearLimit is how long the first release that could leave a lock behind waits for the
	// subscription.
	hearLimit      = 50 * time.Millisecond
	repeatAskAfter = 500 * time.Millisecond // the same holder is not asked again within this time
	maxAsks        = 10_000                 // the number of asks that wait to be read, in case somebody floods the channel
)

// lingering is the part of a presence that concerns locks that linger. presence.mu guards what is
// not atomic.
type lingering struct {
	canHearAsks atomic.Bool // the subscription to the client's own channel is confirmed, and locks may linger
	wantsAsks   bool        // that subscription stays until the client is idle
	asks        []string    // the asks that have not been read yet, each as "<raw name>\n<id>"
	lastAsk     string      // the last ask that was sent
	lastAskAt   engine.Instant
}

// SubscribeToAsks subscribes, if the client does not listen yet. It does not block. The caller may
// get no hold, so the goroutine is started here, which ends the subscription of an idle client.
func (p *Presence) SubscribeToAsks() {
	if !p.canHearAsks.Load() {
		p.subscribeToAsks()
		p.Wake()
	}
}

func (p *Presence) subscribeToAsks() *tagSubscription {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wantsAsks = true
	return p.subscribe(p.tag)
}

// CanLinger implements [engine.Presence].CanLinger.
func (p *Presence) CanLinger(ctx context.Context) bool {
	if p.canHearAsks.Load() {
		return true
	}
	l := p.subscribeToAsks()
	if l == nil {
		return false
	}
	// The limit counts from the subscription. So if Redis is slow to confirm it, only one release
	// waits.
	if left := hearLimit - time.Duration(p.now()-l.since); left > 0 {
		engine.Pause(ctx, left, l.sub.Confirmed())
	}
	if !engine.IsClosed(l.sub.Confirmed()) || l.sub.Err() != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subs[p.tag] != l {
		return false // the client was idle meanwhile, and has ended the subscription
	}
	p.canHearAsks.Store(true)
	return true
}

// queueAsk queues another client's ask for a lingering lock.
func (p *Presence) queueAsk(ask string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	isTooLarge := len(p.asks) >= maxAsks || len(ask) > maxNotice
	if isTooLarge {
		return
	}
	p.asks = append(p.asks, ask)
	if len(p.asks) == 1 {
		p.core.Spawn(p.readAsks)
	}
}

// readAsks notifies the holds that the queued asks name, and gives up the locks that linger.
func (p *Presence) readAsks() {
	p.mu.Lock()
	asks := p.asks
	p.asks = nil
	p.mu.Unlock()
	for _, ask := range asks {
		text, isOurs := strings.CutPrefix(ask, p.Prefix)
		if !isOurs {
			continue
		}
		// A name may contain a newline, and so may an id that the user has chosen.
		for at := range len(text) {
			if text[at] == '\n' {
				p.core.HandleAsk(text[:at], text[at+1:])
			}
		}
	}
}

// Ask implements [engine.Presence].Ask. A goroutine of the core sends the message. It is best
// effort: a waiter asks again with its next poll, and the lock is freed when its time is over.
func (p *Presence) Ask(r *engine.Resource, holder string) {
	command := p.askCommand(r, holder)
	text := command[2].(string)
	now := p.now()
	// All waiters for a lock are refused by the same holder, each at its own poll, so the last ask
	// is enough to remember.
	p.mu.Lock()
	again := p.lastAsk == text && now < p.lastAskAt+engine.Instant(repeatAskAfter)
	if !again {
		p.lastAsk = text
		p.lastAskAt = now
	}
	p.mu.Unlock()
	if again {
		return
	}
	p.core.Spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), noticeTimeout)
		defer cancel()
		_, _ = p.Runner.Commands(ctx, command)
	})
}

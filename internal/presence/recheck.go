package presence

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/watchdog"
)

// A Redis that comes back may have forgotten everything, because of a restart without data or a
// failover. So the client then asks it about all holds at once. Otherwise a renewed hold would
// learn of its loss only at its next renewal, and a hold with a fixed lease never. These are the
// occasions:
//
//   - The connection for the client's takeover notices was made again. The client asks about every
//     hold.
//   - A command is answered after a command that found the connection broken
//     ([scripts.Runner.OnReturn]). The client asks about every hold.
//   - The client begins to listen for a tag's takeover notices. It asks about the tag's holds. They
//     are older than the subscription, so Redis may have restarted in between. That is unlikely, so
//     a plain command looks first.
//
// For renewed holds, the question is a renewal that the watchdog makes at once. For a fixed lease,
// it is a renewal for a shorter time than the lease lasts anyway, which changes nothing. One
// command asks about up to [watchdog.Batch] holds. One goroutine asks (runRechecks), with a few
// workers. Occasions that come while it runs count as one.

const (
	recheckEvery   = 500 * time.Millisecond // the least time between the beginnings of two rounds of questions
	recheckTimeout = time.Second            // bounds one question
	recheckWorkers = 8                      // how many questions may be in flight
	recheckAtMost  = 30 * time.Second       // bounds all questions of one occasion
	recheckSilence = recheckWorkers         // a round ends after this many questions in a row without an answer
)

// rechecks is the part of a presence that asks Redis about its holds.
type rechecks struct {
	mu      sync.Mutex // guards the rest
	running bool       // the goroutine (runRechecks) is running
	all     bool       // ask about all holds
	tags    []string   // ask about the holds of these tags
}

// RecheckAll asks about every hold, in the background. It does not block. Any goroutine may call
// it.
func (p *Presence) RecheckAll() { p.recheck(func(r *rechecks) { r.all = true }) }

// recheckTag asks about the holds of a tag, in the background. It does not block.
func (p *Presence) recheckTag(tag string) {
	p.recheck(func(r *rechecks) { r.tags = append(r.tags, tag) })
}

func (p *Presence) recheck(add func(*rechecks)) {
	r := &p.rechecks
	r.mu.Lock()
	defer r.mu.Unlock()
	add(r)
	if !r.running {
		r.running = true
		p.core.Spawn(p.runRechecks)
	}
}

// runRechecks is the goroutine of recheck. It ends when nothing is left to ask, or when the core
// stops.
func (p *Presence) runRechecks() {
	r := &p.rechecks
	for {
		// The occasions are taken and running is set in one step. So an occasion that comes now is
		// either seen in the next round, or starts another goroutine.
		r.mu.Lock()
		all := r.all
		tags := r.tags
		r.all = false
		r.tags = nil
		r.running = all || len(tags) > 0
		r.mu.Unlock()
		if !all && len(tags) == 0 {
			return
		}
		began := time.Now()
		owned := p.core.LeasedOwnerships(func(h *engine.Hold) bool {
			return all || slices.Contains(tags, TagOf(h.ID()))
		})
		if !all { // Redis has probably forgotten nothing
			owned = p.forgotten(owned)
		}
		p.recheckFixed(p.core.RenewNow(owned))
		// A connection that breaks again and again is an occasion each time. The pause limits the
		// cost.
		engine.Pause(context.Background(), recheckEvery-time.Since(began), p.core.Stopping())
		if p.core.IsStopping() {
			return
		}
	}
}

// forgotten returns the ownerships whose locks are missing in Redis. It sends plain commands, which
// cost less than scripts.
func (p *Presence) forgotten(owned []*engine.Ownership) (suspects []*engine.Ownership) {
	ctx, cancel := context.WithTimeout(context.Background(), recheckAtMost)
	defer cancel()
	for chunk := range slices.Chunk(owned, pipelined) {
		probes := make([][]any, len(chunk))
		for i, o := range chunk {
			probes[i] = p.Probe(o)
		}
		replies, _ := p.Runner.Reads(ctx, probes...)
		for i, o := range chunk {
			// Without a reply nothing is known, so the renewal or the question must find out.
			isAnswered := i < len(replies) && replies[i] != nil
			if !isAnswered || replies[i] == int64(0) {
				suspects = append(suspects, o)
			}
		}
	}
	return suspects
}

// recheckFixed asks Redis whether these ownerships still exist. Their leases are fixed, so no
// renewal would find out. Holds of ownerships that Redis has forgotten end. Questions without an
// answer are repeated for about a second. After that, the client asks again the next time that
// Redis comes back.
func (p *Presence) recheckFixed(owned []*engine.Ownership) {
	ctx, cancel := context.WithTimeout(context.Background(), recheckAtMost)
	defer cancel()
	for _, pause := range append(verifyPauses[:], 0) { // no pause after the last round
		owned = p.recheckRound(ctx, owned)
		if len(owned) == 0 {
			return
		}
		engine.Pause(ctx, pause, p.core.Stopping())
	}
}

// recheckRound asks once about each of these ownerships, in batches. It returns those without an
// answer. It blocks until its workers have ended. If Redis does not answer at all, they stop soon.
func (p *Presence) recheckRound(ctx context.Context, owned []*engine.Ownership) (unanswered []*engine.Ownership) {
	batches := questionsAbout(owned)
	var next, silent atomic.Int64 // the number of the next batch, and of the questions in a row without an answer
	var workers sync.WaitGroup    // the workers end before runRechecks, and Close waits for that
	for range min(recheckWorkers, len(batches)) {
		workers.Go(func() {
			for silent.Load() < recheckSilence && ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(batches) {
					return
				}
				// A single failure may concern one batch, or one server of a cluster. Many in a row
				// are an outage.
				if p.send(ctx, batches[n]) {
					silent.Store(0)
				} else {
					silent.Add(1)
				}
			}
		})
	}
	workers.Wait()
	// A batch that nobody has sent has no states.
	for _, q := range batches {
		for i, ask := range q.asks {
			if i >= len(q.states) || q.states[i] == watchdog.Unknown {
				unanswered = append(unanswered, ask.Keeper.(*engine.Ownership))
			}
		}
	}
	return unanswered
}

// question is one command that asks about holds of one group.
type question struct {
	group  any
	asks   []watchdog.Renewal
	states []watchdog.State // the answer to each ask
}

// questionsAbout divides ownerships into batches. It leaves out those whose holds have ended.
func questionsAbout(owned []*engine.Ownership) (batches []*question) {
	open := map[any]*question{} // by group: the question that has room for more
	seen := make(map[*engine.Ownership]bool, len(owned))
	for _, o := range owned {
		left := o.ValidFor()
		if seen[o] || left == 0 { // nested holds share an ownership; an ended hold needs no answer
			continue
		}
		seen[o] = true
		group := o.RenewGroup()
		q := open[group]
		if q == nil || len(q.asks) == watchdog.Batch {
			q = &question{group: group}
			open[group] = q
			batches = append(batches, q)
		}
		// On the server the lease lasts longer than left, by the safety margin.
		q.asks = append(q.asks, watchdog.Renewal{Keeper: o, TTL: max(left.Truncate(time.Millisecond), time.Millisecond)})
	}
	return batches
}

// send sends a question, and ends the holds that Redis does not have. It reports whether there
// was an answer.
func (p *Presence) send(ctx context.Context, q *question) bool {
	ctx, cancel := context.WithTimeout(ctx, recheckTimeout)
	defer cancel()
	// The error says no more than the states: the leases that it concerns are Unknown, and are
	// asked about again.
	q.states, _ = p.Renew(ctx, q.group, q.asks)
	for i, state := range q.states {
		if state == watchdog.Lost {
			q.asks[i].Keeper.(*engine.Ownership).LoseAsGone()
		}
	}
	return slices.ContainsFunc(q.states, func(s watchdog.State) bool { return s != watchdog.Unknown })
}

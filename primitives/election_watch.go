package primitives

import (
	"context"
	"iter"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/pubsub"
)

// Who leads. Watchers send nothing to the candidates, and candidates send nothing for watchers. A
// watcher reads the lock when there is a reason to:
//
//   - a message of a release, which every release publishes,
//   - the end of the leader's lease,
//   - a second without a look: a message may have been lost, or Java may have taken over,
//   - a time without a leader: an acquisition publishes nothing, so the watcher looks often.

// Leader is who leads an election. The zero Leader means that nobody leads.
type Leader struct {
	ID     string        // the id of the leader's hold
	Client string        // the name of its client ([WithClientName]); "" if it is unknown
	Token  int64         // the fencing token of its term
	TTL    time.Duration // the rest of its lease at the time of the answer; -1 without expiry
}

// Leader asks Redis who leads. The result may be out of date when it arrives. The name of the
// client is best effort.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	info, err := e.lock.Info(ctx)
	if err != nil || len(info.Holders) == 0 {
		return Leader{}, err
	}
	holder := info.Holders[0]
	return Leader{ID: holder.ID, Client: holder.Client, Token: info.Token, TTL: holder.TTL}, nil
}

const (
	// watchPoll is how often a watcher looks while somebody leads, in case a message was lost.
	watchPoll = time.Second
	// lookForLeader is how often a watcher looks while nobody leads.
	lookForLeader = 75 * time.Millisecond
	// settling is how long a watcher waits for the successor of a leader that has left, and for the
	// name of a new leader's client, before it reports that there is none. A client writes its name
	// after about 100 ms.
	settling = 90 * time.Millisecond
	// settlingLook is how often it looks meanwhile.
	settlingLook = 15 * time.Millisecond
)

// Watch yields the present leader at once, and then each change, until ctx ends. The zero Leader
// says that nobody leads. A change between candidates of this library is yielded within 200 ms. A
// leader that has expired, and one of Java, may take a second. A term, or a time without a leader,
// that is shorter than 100 ms may be left out.
//
// An outage is one zero Leader with the error. After it, the present leader is yielded again. A
// permanent error, such as a missing permission, ends the sequence. So does Close, as soon as it
// begins, with [ErrClosed].
//
// While nobody leads, a watcher reads the lock about 13 times a second, and otherwise once a
// second. It listens on the channel of the lock, so a leader that listens to [Hold.Wanted] may take
// it for a waiter.
func (e *Election) Watch(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		l := e.lock
		if err := l.settings.err; err != nil {
			yield(Leader{}, l.failed("watch", err))
			return
		}
		if err := l.c.begin(ctx); err != nil {
			if ctx.Err() == nil {
				yield(Leader{}, l.failed("watch", err))
			}
			return
		}
		l.c.core.Leave() // the subscription ends with the client
		w := leaderWatch{e: e, woken: make(chan struct{}, 1)}
		w.sub = l.c.hub.Subscribe(l.channel(), func(pubsub.Signal) {
			select {
			case w.woken <- struct{}{}:
			default: // it is about to look anyway
			}
		})
		defer w.sub.Close()
		w.run(ctx, yield)
	}
}

// leaderWatch is one range over Watch. Its goroutine is the caller's, and owns the fields.
type leaderWatch struct {
	e         *Election
	sub       *pubsub.Subscription
	woken     chan struct{} // of capacity 1: a message has come
	confirmed bool          // it has looked since the subscription was confirmed

	leader Leader // that was yielded last
	known  bool   // it was yielded since the last outage
	down   bool   // an outage was yielded, and lasts
}

// run yields what it finds until ctx ends, the caller has enough, or an error is permanent.
func (w *leaderWatch) run(ctx context.Context, yield func(Leader, error) bool) {
	for {
		leader, err := w.look(ctx)
		goesOn := true
		isChange := !w.known || leader.ID != w.leader.ID || leader.Token != w.leader.Token
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			isNew := !w.down
			w.known = false
			w.down = true
			if endsElection(err) {
				yield(Leader{}, err)
				return
			}
			if isNew {
				goesOn = yield(Leader{}, err)
			}
		case isChange:
			w.leader = leader
			w.known = true
			w.down = false
			goesOn = yield(leader, nil)
		}
		if !goesOn {
			return
		}
		w.pause(ctx, leader, err)
		if w.e.lock.c.core.IsClosing() && ctx.Err() == nil {
			yield(Leader{}, w.e.lock.failed("watch", ErrClosed))
			return
		}
	}
}

// look asks who leads. A change is not yielded before it has settled: the successor of a leader
// that has left, and the name of a new leader's client, usually follow soon.
func (w *leaderWatch) look(ctx context.Context) (Leader, error) {
	leader, err := w.e.Leader(ctx)
	for began := time.Now(); time.Since(began) < settling; {
		isNew := leader.ID != w.leader.ID
		isUnsettled := isNew && leader.Client == ""
		if err != nil || !w.known || !isUnsettled {
			break
		}
		engine.Pause(ctx, settlingLook, w.e.lock.c.core.Closing())
		if ctx.Err() != nil || w.e.lock.c.core.IsClosing() {
			break
		}
		leader, err = w.e.Leader(ctx)
	}
	return leader, err
}

// pause waits until there is a reason to look again.
func (w *leaderWatch) pause(ctx context.Context, leader Leader, err error) {
	d := watchPoll
	switch {
	case err != nil: // the leader is not known
	case leader.ID == "":
		d = lookForLeader
	case leader.TTL >= 0:
		d = min(d, leader.TTL+time.Millisecond)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	confirmed := w.sub.Confirmed()
	if w.confirmed {
		confirmed = nil
	}
	select {
	case <-timer.C:
	case <-w.woken:
	case <-confirmed: // a release before that was not heard
		w.confirmed = true
	case <-ctx.Done():
	case <-w.e.lock.c.core.Closing():
	}
}

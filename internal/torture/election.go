package torture

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// The workload of elections. Each term is an acquisition and a release, as of a fenced lock: so the
// checks of holds judge it, too. The checks of this file's records are in check_election.go.

// electionPrimitive is the workload of Client.Election.
const electionPrimitive = "election"

// errResigned ends a candidacy for good.
var errResigned = errors.New("resigned")

// useElection stands for election, or watches who leads.
func (s *session) useElection(primitive string) {
	name, ttl := s.name(primitive)
	call := record{Session: s.n, Primitive: primitive, Names: []string{name}, TTL: ttl}
	opts := []primitives.Option{primitives.WithWatchdog(ttl)}
	if s.one(s.Rates.Limit) {
		call.MaxHold = between(s.rand, s.TTL/10, s.TTL*2/3)
		opts = append(opts, primitives.WithMaxHold(call.MaxHold))
	}
	e := s.client.Election(name, opts...)
	ctx, end := withTimeout(context.Background(), between(s.rand, s.TTL, 4*s.TTL))
	defer end()
	defer context.AfterFunc(s.draining, end)() // a candidate would stand on after the round
	if s.one(3) {
		s.watchLeaders(ctx, e, call)
		return
	}
	c := &candidate{session: s, ctx: ctx, seen: &observed{}, plain: call, terms: 1 + s.rand.IntN(4)}
	c.ctx = context.WithValue(ctx, opKey{}, c.seen)
	c.stand()
	err := e.Run(c.ctx, c.lead)
	c.endTerm()
	c.giveUp(err)
}

// watchLeaders records who leads, as Watch says. In simulations it asks for the leader meanwhile.
func (s *session) watchLeaders(ctx context.Context, e *primitives.Election, call record) {
	call.Do, call.Bound = opWatch, s.deadline(ctx)
	plain := call
	call = s.call(call)
	if s.simulated != nil {
		var asking sync.WaitGroup
		asking.Go(func() {
			for ctx.Err() == nil {
				s.askLeader(ctx, e, plain)
				time.Sleep(leaderPause)
			}
		})
		defer asking.Wait()
	}
	for leader, err := range e.Watch(ctx) {
		s.out.write(record{
			Kind: kindSeen, Op: call.Op, At: s.clock.now(), ID: leader.ID, Token: leader.Token, Err: errorText(err),
		})
	}
	s.finish(call, nil, record{})
}

// leaderPause is the pause between two questions who leads.
const leaderPause = 30 * time.Millisecond

// askLeader asks who leads.
func (s *session) askLeader(ctx context.Context, e *primitives.Election, call record) {
	call.Do, call.Bound = opLeader, s.deadline(ctx)
	call = s.call(call)
	leader, err := e.Leader(ctx)
	s.finish(call, err, record{ID: leader.ID, Token: leader.Token})
}

// candidate is a call of Run.
type candidate struct {
	*session

	ctx   context.Context //nolint:containedctx // it is the argument of one call
	seen  *observed
	plain record // what all of its operations have in common
	terms int    // so many are left, if it is elected

	standing *record // the acquisition that is under way
	release  *record // the release that is under way
	hold     *primitives.Hold
}

// stand records that the candidate waits to be elected.
func (c *candidate) stand() {
	call := c.plain
	call.Do = opAcquire
	if c.release == nil { // else the release comes first, which no context bounds
		call.Bound = c.deadline(c.ctx)
	}
	call = c.call(call)
	c.seen.op.Store(call.Op)
	c.standing = &call
}

// giveUp records that the candidate was not elected. Nobody knows whether an attempt is under way.
func (c *candidate) giveUp(err error) {
	if c.standing == nil {
		return
	}
	if c.ctx.Err() != nil {
		err = errors.Join(err, primitives.ErrNotAcquired, primitives.ErrOutcomeUnknown)
	}
	c.finish(*c.standing, err, record{Events: 1})
}

// lead is a term.
func (c *candidate) lead(ctx context.Context, term primitives.Term) error {
	c.endTerm()
	call, h := *c.standing, term.Hold
	c.standing, c.hold = nil, h
	call.Root = call.Op
	c.finish(call, nil, record{ID: h.ID(), Token: term.Token, Until: c.clock.at(h.ValidUntil()), Events: 1})
	c.govern(leaderHold{h, ctx}, call)
	c.begins(momentEnding, call)
	release := c.plain
	release.Do, release.Root, release.Until = opRelease, call.Op, c.clock.at(h.ValidUntil())
	release = c.call(release)
	c.release = &release
	c.releases.Store(h.ID(), func(err error) { c.finish(release, err, record{}) })
	c.terms--
	if c.terms == 0 {
		return errResigned
	}
	if c.ctx.Err() == nil {
		c.stand()
	}
	return nil
}

// leaderHold is the hold of a term. Its context is that which lead gets: by it, a leader learns of
// its loss.
type leaderHold struct {
	*primitives.Hold

	ctx context.Context //nolint:containedctx // it is that of one call
}

func (h leaderHold) Context() context.Context { return h.ctx }

// govern is the work of a leader. Some overstay: they go on for a moment after their context has
// ended.
func (c *candidate) govern(h leaderHold, call record) {
	ctx := h.Context()
	defer c.watch(h, call)()
	c.begins(momentHeld, call)
	d := between(c.rand, 0, 20*time.Millisecond)
	if c.one(c.Long) || c.one(3) {
		d = between(c.rand, c.TTL/4, 2*c.TTL)
		c.stay(h, call, d)
	} else {
		time.Sleep(d)
	}
	if ctx.Err() == nil && c.one(c.Rates.Inspect) {
		c.checkHold(h, call)
	}
	if ctx.Err() != nil && c.one(4) {
		time.Sleep(between(c.rand, 0, 10*time.Millisecond))
	}
}

// endTerm records the release of the last term, unless the observer was told of its outcome. Run
// has told nobody if the leadership was lost before.
func (c *candidate) endTerm() {
	if c.release == nil {
		return
	}
	_, isOpen := c.releases.LoadAndDelete(c.hold.ID())
	if isOpen {
		err := c.hold.Check(context.Background()) // the hold has ended, so this says why, and sends nothing
		if !errors.Is(err, primitives.ErrLost) {
			err = primitives.ErrOutcomeUnknown
		}
		c.finish(*c.release, err, record{})
	}
	c.release = nil
}

// tryDo uses a lock with TryDo, which says whether it ran, and not why it did not. The acquisition
// ends where the work begins, and the release begins where it ends.
func (s *session) tryDo(l *primitives.Lock, call record, nested acquirer) {
	call.Session = s.n
	if nested == nil {
		nested = l
	}
	opts := s.terms(&call)
	call.Do, call.Once, call.Endless = opAcquire, true, true
	call.Bound = s.clock.now() + int64(commandTimeout)
	call = s.call(call)
	seen := &observed{}
	seen.op.Store(call.Op)
	ctx := context.WithValue(context.Background(), opKey{}, seen)
	var release record
	id := ""
	ran, err := l.TryDo(ctx, func(ctx context.Context) error {
		h := primitives.HoldFrom(ctx)
		id = h.ID()
		s.finish(call, nil, record{
			ID: id, Token: h.Token(), Until: s.clock.at(h.ValidUntil()), Events: int(seen.events.Load()),
		})
		call.Root = call.Op
		s.section(h, nested, call)
		s.begins(momentEnding, call)
		release = s.call(record{
			Do: opRelease, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op,
			Until: s.clock.at(h.ValidUntil()), Bound: s.clock.now() + int64(5*time.Second),
		})
		s.releases.Store(id, func(err error) { s.finish(release, err, record{}) })
		return nil
	}, opts...)
	if !ran {
		if err == nil {
			err = primitives.ErrNotAcquired
		}
		s.finish(call, err, record{Events: int(seen.events.Load())})
		return
	}
	if _, isOpen := s.releases.LoadAndDelete(id); isOpen {
		if err == nil {
			err = primitives.ErrOutcomeUnknown
		}
		s.finish(release, err, record{})
	}
}

// listen records whether a hold is told that somebody waits for it, until stop is called.
func (s *session) listen(h hold, call record) (stop func()) {
	listener, ok := h.(interface{ Wanted() <-chan struct{} })
	if !ok {
		return func() {}
	}
	wanted, done := listener.Wanted(), make(chan struct{})
	s.out.write(record{Kind: kindListen, Op: call.Op, At: s.clock.now()})
	go func() {
		select {
		case <-wanted:
			s.out.write(record{Kind: kindWanted, Op: call.Op, At: s.clock.now()})
		case <-done:
		}
	}()
	return func() {
		close(done)
		s.out.write(record{Kind: kindDeaf, Op: call.Op, At: s.clock.now()})
	}
}

package torture

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// deadline returns the instant at which a call with ctx must return.
func (s *session) deadline(ctx context.Context) int64 {
	if d, ok := ctx.Deadline(); ok {
		return s.clock.at(d)
	}
	return s.clock.now() + int64(commandTimeout)
}

// call records that an operation begins, and gives it a number.
func (w *worker) call(r record) record {
	r.Kind, r.Op, r.At = kindCall, w.ops.Add(1), w.clock.now()
	w.out.write(r)
	if r.Bound != 0 && w.simulated == nil {
		late := max(0, time.Duration(r.Bound-r.At)) + promptness + scheduling
		w.lateness.Store(r.Op, time.AfterFunc(late, func() {
			w.out.write(record{Kind: kindLate, Op: r.Op, At: w.clock.now(), Stacks: goroutines(1)})
		}))
	}
	return r
}

// finish records that an operation has returned.
func (w *worker) finish(call record, err error, r record) {
	of := failure(err)
	r.Kind, r.Op, r.At = kindReturn, call.Op, w.clock.now()
	if timer, ok := w.lateness.LoadAndDelete(call.Op); ok {
		timer.(*time.Timer).Stop()
	}
	r.Outcome, r.Err, r.Is, r.Reason, r.Silent = of.Outcome, of.Err, of.Is, of.Reason, of.Silent
	w.out.write(r)
}

// hold acquires, holds for a while, and releases. nested, if not nil, is the lock to nest; else it
// is l.
func (s *session) hold(l acquirer, call record, nested acquirer) {
	call.Session = s.n
	h, end := s.acquire(context.Background(), l, &call)
	defer end()
	if h == nil {
		return
	}
	if nested == nil {
		nested = l
	}
	s.section(h, nested, call)
	s.letGo(h, l, nested, call)
}

// acquire acquires l in one of the ways that callers have. It completes call, and returns nil if it
// failed. end ends the context of the acquisition, and so that of the hold.
func (s *session) acquire(ctx context.Context, l acquirer, call *record) (h hold, end func()) {
	opts := s.terms(call)
	if call.Permits > 0 {
		opts = append(opts, primitives.WithPermits(call.Permits))
	}
	if call.Owner != "" {
		opts = append(opts, primitives.WithOwner(call.Owner))
	}
	wait := between(s.rand, 20*time.Millisecond, s.TTL)
	end = func() {}
	now := time.Now()
	how := s.rand.IntN(6)
	if s.Rates.GiveUp > 0 && s.one(s.Rates.GiveUp) {
		how = 2 + s.rand.IntN(2)
	}
	switch {
	case call.Try:
		how = 0
	case s.Pace == paceCalm:
		how = 5 // long enough to miss a wake-up
	}
	call.Endless = how < 2 && ctx.Done() == nil
	switch how {
	case 0:
		opts = append(opts, primitives.WithWait(0))
		call.Once = true
		call.Bound = s.clock.at(now.Add(commandTimeout))
	case 1:
		opts = append(opts, primitives.WithWait(wait))
		call.Bound = s.clock.at(now.Add(wait))
	case 2:
		ctx, end = withTimeout(ctx, wait)
		call.Bound = s.clock.at(now.Add(wait))
	case 3: // cancelled early, often while the first command is under way
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		early := between(s.rand, 0, 4*time.Millisecond)
		timer := time.AfterFunc(early, cancel)
		end = func() { timer.Stop(); cancel() }
		call.Bound = s.clock.at(now.Add(early))
	default:
		ctx, end = withTimeout(ctx, min(8*s.TTL, 12*time.Second))
		call.Bound = s.clock.at(now.Add(20 * time.Second))
	}
	call.Do, call.Target = opAcquire, ""
	root := call.Root
	*call = s.call(*call)
	if root == 0 {
		call.Root = call.Op
	}
	seen := &observed{}
	seen.op.Store(call.Op)
	ctx = context.WithValue(ctx, opKey{}, seen) // the observer finds the operation by it
	h, err := attempt{session: s, ctx: ctx, lock: l, call: call, opts: opts}.run()
	events := int(seen.events.Load())
	if err != nil {
		s.finish(*call, err, record{Events: events})
		return nil, end
	}
	s.finish(*call, nil, record{
		ID: h.ID(), Token: h.Token(), Until: s.clock.at(h.ValidUntil()), Events: events,
	})
	return h, end
}

// terms returns the options for the lease of a hold. Most holds are renewed.
func (s *session) terms(call *record) []primitives.Option {
	call.Fixed, call.MaxHold, call.MinHold = false, 0, 0
	private := call.Root == 0 && call.Owner == "" && !call.Passes && s.Pace != paceCrowd
	hasMinimum := call.Do != opAdopt && private && call.Primitive != "semaphore"
	switch {
	case hasMinimum && s.simulated != nil && call.Primitive == "redlock" && s.one(min(3, s.Rates.Minimum)):
		call.MinHold = between(s.rand, call.TTL/4, call.TTL) // so that a member may be lost and acquired again meanwhile
		return []primitives.Option{primitives.WithWatchdog(call.TTL), primitives.WithMinHold(call.MinHold)}
	case hasMinimum && (s.one(s.Rates.Minimum)):
		call.MinHold = between(s.rand, s.TTL/20, s.TTL/5)
	}
	minimum := primitives.WithMinHold(call.MinHold)
	call.Fixed = s.one(s.Rates.Fixed)
	if call.Fixed {
		return []primitives.Option{primitives.WithLease(call.TTL), minimum}
	}
	if call.Root == 0 && s.one(s.Rates.Limit) {
		call.MaxHold = between(s.rand, call.MinHold+s.TTL/10, s.TTL*2/3)
	}
	opts := []primitives.Option{primitives.WithWatchdog(call.TTL), minimum}
	if call.MaxHold > 0 {
		opts = append(opts, primitives.WithMaxHold(call.MaxHold))
	}
	return opts
}

// withTimeout is context.WithTimeout, with a plain func.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, func()) {
	return context.WithTimeout(ctx, d)
}

// hold is a *primitives.Hold, or one with a planted defect.
type hold interface {
	Context() context.Context
	Release(ctx context.Context) error
	Check(ctx context.Context) error
	Extend(ctx context.Context, d time.Duration) error
	Detach() string
	ID() string
	Token() int64
	ValidUntil() time.Time
}

// watch records when the context of a hold ends, until stop is called.
func (s *session) watch(h hold, call record) (stop func() bool) {
	ctx := h.Context()
	return context.AfterFunc(ctx, func() {
		r := failure(context.Cause(ctx))
		r.Kind, r.Op, r.At = kindEnd, call.Op, s.clock.now()
		s.out.write(r)
	})
}

// section is the work that a hold protects. It ends early if the hold does.
func (s *session) section(h hold, nested acquirer, call record) {
	ctx := h.Context()
	defer s.watch(h, call)()
	if s.simulated != nil {
		s.begins(momentHeld, call)
	}
	if s.one(4) || s.simulated != nil && s.one(3) {
		defer s.listen(h, call)()
	}
	d := between(s.rand, 0, 5*time.Millisecond)
	switch {
	case s.simulated != nil && call.Fixed && !h.ValidUntil().IsZero() && s.one(3): // to about the end of its lease
		time.Sleep(time.Until(h.ValidUntil()) + between(s.rand, -2*time.Millisecond, 12*time.Millisecond))
		return
	case s.Pace == paceCalm:
		d = between(s.rand, 20*time.Millisecond, 200*time.Millisecond)
	// To its end.
	case s.Pace != paceCrowd && call.TTL <= s.TTL && (call.Fixed && s.one(3) || call.MaxHold > 0 && s.one(2)):
		d = call.TTL + s.TTL/4
	case s.Rates.Middle > 0 && s.one(s.Rates.Middle):
		d = between(s.rand, 20*time.Millisecond, s.TTL/4)
	case s.one(s.Long): // some renewals
		d = between(s.rand, s.TTL/4, min(call.TTL, 2*s.TTL)*2)
	case s.one(6):
		d = between(s.rand, 0, 100*time.Millisecond)
	}
	if d >= s.TTL/4 {
		s.stay(h, call, d)
	} else {
		time.Sleep(d)
	}
	isLimited := call.Fixed || call.MaxHold > 0
	switch {
	case ctx.Err() != nil || call.Primitive == "semaphore":
	case s.one(s.Rates.Inspect), s.simulated != nil && isLimited && s.one(2):
		s.checkHold(h, call)
	case call.Limit > 0:
	case call.Owner != "" && s.one(2): // beside the hold, not under it
		inner := record{
			Session: s.n, Primitive: call.Primitive, Names: call.Names, TTL: call.TTL, Owner: call.Owner, Try: true,
		}
		s.inside(context.Background(), nested, inner)
	case s.one(s.Rates.Nest) && call.Root == call.Op:
		inner := call
		inner.Read, inner.Owner = call.Read || call.Primitive == "rwlock", ""
		s.inside(ctx, nested, inner)
	}
}

// inside acquires a lock for a moment, while another hold of it lasts.
func (s *session) inside(ctx context.Context, l acquirer, call record) {
	h, end := s.acquire(ctx, l, &call)
	defer end()
	if h != nil {
		time.Sleep(between(s.rand, 0, 3*time.Millisecond))
		s.release(h, call)
	}
}

// stay holds for d, and records each new end of the validity: if this process is killed, that is
// how long it has held.
func (s *session) stay(h hold, call record, d time.Duration) {
	s.begins(momentStay, call)
	until := h.ValidUntil()
	end, old := time.After(d), time.After(oldAge)
	for {
		select {
		case <-end:
			return
		case <-s.draining.Done():
			return
		case <-h.Context().Done():
			return
		case <-old:
			s.begins(momentOld, call)
		case <-time.After(25 * time.Millisecond):
			if u := h.ValidUntil(); u.After(until) {
				until = u
				s.out.write(record{Kind: kindValid, Op: call.Op, At: s.clock.now(), Until: s.clock.at(u)})
			}
		}
	}
}

// begins tells the harness of a moment of a hold.
func (s *session) begins(moment string, call record) {
	s.out.write(record{Kind: kindStay, Do: moment, Op: call.Op, At: s.clock.now(), Names: call.Names})
}

// checkHold calls Check or Extend. After Extend it may hold for longer.
func (s *session) checkHold(h hold, call record) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	do := record{
		Do: opCheck, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op, Bound: s.deadline(ctx),
	}
	f := h.Check
	if s.one(2) || s.simulated != nil && s.one(3) {
		do.Do, do.TTL = opExtend, call.TTL
		if s.simulated != nil && call.TTL <= s.TTL && !s.one(3) {
			do.TTL = between(s.rand, call.TTL/2, longestExtension*call.TTL)
		}
		f = func(ctx context.Context) error { return h.Extend(ctx, do.TTL) }
	}
	do = s.call(do)
	err := f(ctx)
	s.finish(do, err, record{Until: s.clock.at(h.ValidUntil())})
	if err != nil || do.Do != opExtend {
		return
	}
	s.begins(momentExtend, call)
	isLimited := call.Fixed || call.MaxHold > 0
	if s.Rates.Past > 0 && isLimited && s.one(s.Rates.Past) {
		s.stay(h, call, time.Until(h.ValidUntil())+s.TTL/4)
	} else if s.one(2) {
		s.stay(h, call, between(s.rand, 0, do.TTL+s.TTL/4))
	}
}

// longestExtension is how many times longer than its TTL a hold may be extended.
const longestExtension = 10

// release releases h. The hold is believed to last until the call.
func (s *session) release(h hold, call record) {
	until := s.clock.at(h.ValidUntil())
	do := s.call(record{
		Do: opRelease, Session: s.n, Primitive: call.Primitive, Names: call.Names, Root: call.Op, Until: until,
		Bound: s.clock.now() + int64(5*time.Second),
	})
	err := h.Release(context.Background())
	s.finish(do, err, record{})
}

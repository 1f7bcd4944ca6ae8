package torture

import (
	"context"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// keyedPrimitive is the workload of Client.Keyed. Its locks have no hold, so nobody learns of a
// loss before Unlock.
const keyedPrimitive = "keyed"

// useKeyed locks a name, and unlocks it. The contexts of both calls end early at times: the lock
// outlasts them.
func (s *session) useKeyed(primitive string) {
	name, ttl := s.name(primitive)
	k := s.keyedFor(ttl)
	ctx, end := withTimeout(context.Background(), min(8*s.TTL, 12*time.Second))
	how := s.rand.IntN(4)
	if how == 1 {
		end()
		ctx, end = withTimeout(context.Background(), between(s.rand, time.Millisecond, s.TTL))
	}
	defer end()
	call := record{
		Do: opAcquire, Session: s.n, Primitive: primitive, Names: []string{name}, TTL: ttl, Once: how == 0,
		Bound: s.deadline(ctx),
	}
	seen := &observed{}
	call = s.call(call)
	seen.op.Store(call.Op)
	ctx = context.WithValue(ctx, opKey{}, seen)
	err := s.lockKeyed(ctx, k, name, call.Once)
	id, _ := seen.id.Load().(string)
	s.finish(call, err, record{ID: id, Events: int(seen.events.Load())})
	if err != nil {
		return
	}
	if s.one(2) {
		end()
	}
	call.Root = call.Op
	d := between(s.rand, 0, 5*time.Millisecond)
	switch {
	case s.Pace == paceCalm:
		d = between(s.rand, 20*time.Millisecond, 200*time.Millisecond)
	case s.one(s.Long):
		d = between(s.rand, s.TTL/4, min(ttl, 2*s.TTL)*2)
	}
	select {
	case <-time.After(d):
	case <-s.draining.Done():
	}
	do := s.call(record{
		Do: opRelease, Session: s.n, Primitive: primitive, Names: call.Names, Root: call.Op,
		Bound: s.clock.now() + int64(5*time.Second),
	})
	s.finish(do, k.Unlock(ctx, name), record{})
}

// lockKeyed locks a name. once: it does not wait.
func (s *session) lockKeyed(ctx context.Context, k *primitives.Keyed, name string, once bool) error {
	if !once {
		return k.Lock(ctx, name)
	}
	locked, err := k.TryLock(ctx, name)
	if err == nil && !locked {
		return primitives.ErrNotAcquired
	}
	return err
}

// keyedFor returns the process's Keyed for locks with a TTL: two of them would know nothing of each
// other's losses.
func (w *worker) keyedFor(ttl time.Duration) *primitives.Keyed {
	k, ok := w.keyed.Load(ttl)
	if !ok {
		k, _ = w.keyed.LoadOrStore(ttl, w.client.Keyed(primitives.WithWatchdog(ttl)))
	}
	return k.(*primitives.Keyed)
}

// isBlind reports whether a holder has not noticed a loss, if there was one: of a Keyed, before
// Unlock has returned.
func (o *op) isBlind() bool {
	return o.call.Primitive == keyedPrimitive && (o.release == nil || o.release.outcome() != outcomeOK)
}

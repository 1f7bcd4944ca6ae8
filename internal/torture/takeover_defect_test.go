package torture

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// takeoverDefects show only when a hold is detached, extended or taken over, when its owner is
// shared, or when the size of a pool changes.
var takeoverDefects = []knownDefect{
	{
		name: "Detach frees the lock", primitives: []string{"lock"},
		rates: manyTakeovers, checks: []string{checkOrder},
		defect: defect{acquire: wrapped(func(_ *session, h *faultyHold) {
			h.detach = func() string {
				if h.hold.Release(context.Background()) != nil {
					return ""
				}
				return h.hold.ID()
			}
		})},
	},
	{
		name: "Detach goes on renewing", primitives: []string{"permits", "lock"}, checks: heldByNobody,
		rates:  rates{TakeOver: math.MaxInt32, Detach: 3, Leave: 2}, // whoever takes it over ends the renewals
		defect: defect{acquire: wrapped(func(_ *session, h *faultyHold) { h.detach = h.hold.ID })},
	},
	{
		name: "Adopt takes nothing", primitives: []string{"fair"},
		rates: manyTakeovers, checks: []string{checkOrder, checkRelease},
		defect: defect{
			adopt: func(context.Context, *session, target, string, []primitives.Option) (hold, error) {
				return &faultyHold{ctx: context.Background()}, nil
			},
		},
	},
	{
		name: "adopted hold is not renewed", primitives: []string{"fenced"},
		rates: manyTakeovers, checks: []string{checkOrder, checkReason},
		defect: defect{adopt: adoptWithoutRenewal},
	},
	{
		name: "adopted permit is not renewed", primitives: []string{"permits"},
		rates: manyTakeovers, checks: []string{checkOrder, checkReason},
		defect: defect{adopt: adoptWithoutRenewal},
	},
	{
		name: "takeover unnoticed", primitives: []string{"rwlock"},
		rates: manyTakeovers, checks: []string{checkNotice, checkOrder},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			h.ctx = context.Background()
			h.until = func() time.Time { return time.Now().Add(s.TTL) }
		})},
	},
	{
		name: "ReleaseID releases nothing", primitives: []string{"lock"}, rates: manyTakeovers,
		checks: append([]string{checkOrder}, heldByNobody...),
		defect: defect{releaseID: func(context.Context, *session, target, string) error { return nil }},
	},
	{
		name: "ReleaseID of nothing succeeds", primitives: []string{"permits"},
		rates: manyTakeovers, checks: []string{checkOrder},
		defect: defect{releaseID: func(ctx context.Context, _ *session, l target, id string) error {
			if err := l.ReleaseID(ctx, id); !errors.Is(err, primitives.ErrNotHeld) {
				return err
			}
			return nil
		}},
	},
	{
		name: "ReleaseID frees the lock whoever holds it", primitives: []string{"fenced"},
		rates: manyTakeovers, checks: []string{checkOrder},
		defect: defect{releaseID: func(ctx context.Context, _ *session, l target, id string) error {
			err := l.ReleaseID(ctx, id)
			if errors.Is(err, primitives.ErrNotHeld) {
				_, _ = l.(forcible).ForceRelease(ctx)
			}
			return err
		}},
	},
	{
		name: "ForceRelease frees nothing", primitives: []string{"lock"},
		rates: manyTakeovers, checks: []string{checkNotice, checkOrder},
		defect: defect{force: func(context.Context, forcible) (bool, error) { return true, nil }},
	},
	{
		name: "ForceRelease overlooks the holder", primitives: []string{"fair"},
		rates: manyTakeovers, checks: []string{checkOrder},
		defect: defect{force: func(context.Context, forcible) (bool, error) { return false, nil }},
	},
	{
		name: "equal owners exclude each other", primitives: []string{"owner"}, checks: []string{checkOwner},
		defect: defect{acquire: func(a attempt) (hold, error) {
			if a.call.Owner == "" {
				return a.plainly()
			}
			return a.with(primitives.WithOwner(fmt.Sprintf("%s:%d:%d", a.call.Owner, a.Process, a.call.Op)))
		}},
	},
	{
		name: "one release ends all holds of an owner", primitives: []string{"owner"}, checks: []string{checkOrder},
		defect: defect{acquire: wrapped(func(s *session, h *faultyHold) {
			h.release = func(ctx context.Context) error {
				err := h.hold.Release(ctx)
				if err == nil && h.call.Owner != "" {
					s.rdb.HDel(ctx, h.call.Names[0], h.call.Owner)
				}
				return err
			}
		})},
	},
	{
		name: "Extend extends nothing", primitives: []string{"lock"}, checks: []string{checkOrder},
		defect: defect{acquire: func(a attempt) (hold, error) {
			a.opts[0] = primitives.WithLease(a.TTL / 3)
			return wrapped(func(_ *session, h *faultyHold) {
				var extended atomic.Bool
				ctx, cancel := context.WithCancelCause(context.Background())
				context.AfterFunc(h.hold.Context(), func() {
					if !extended.Load() {
						cancel(context.Cause(h.hold.Context()))
					}
				})
				h.ctx = ctx
				h.extend = func(_ context.Context, d time.Duration) error {
					extended.Store(true)
					until := time.Now().Add(d)
					h.until = func() time.Time { return until }
					return nil
				}
			})(a)
		}},
	},
	{
		name: "Add counted twice", primitives: []string{"semaphore"}, checks: []string{checkOrder, checkLeft},
		defect: defect{add: func(ctx context.Context, sem *primitives.Semaphore, delta int) error {
			return sem.Add(ctx, 2*delta)
		}},
	},
	{
		name: "Drain leaves permits", primitives: []string{"semaphore"}, checks: []string{checkOrder, checkLeft},
		defect: defect{drain: func(ctx context.Context, sem *primitives.Semaphore) (int, error) {
			info, err := sem.Info(ctx)
			return info.Available, err
		}},
	},
	{
		name: "Resize counts free permits only", primitives: []string{"permits"}, checks: []string{checkOrder},
		defect: defect{resize: func(ctx context.Context, sem *primitives.PermitExpirableSemaphore, n int) error {
			info, err := sem.Info(ctx)
			if err != nil {
				return err
			}
			return sem.Add(ctx, n-info.Available)
		}},
	},
}

// manyTakeovers makes takeovers as frequent as other uses.
var manyTakeovers = rates{TakeOver: 4, Detach: 3, Leave: 6}

// adoptWithoutRenewal adopts with a short lease that is not renewed, and claims to hold for an
// hour.
func adoptWithoutRenewal(
	ctx context.Context, s *session, l target, id string, _ []primitives.Option,
) (hold, error) {
	h, err := l.Adopt(ctx, id, primitives.WithLease(s.TTL/3))
	if err != nil {
		return nil, err
	}
	return &faultyHold{hold: h, ctx: ctx, until: func() time.Time { return time.Now().Add(time.Hour) }}, nil
}

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// How a request without a hold is removed from the server, with everything that its attempts have
// left there, or may still leave.

// rollback removes everything of a request without a hold that is on the server, or that a late
// copy may still put there. It does nothing if no attempt can have taken or noted anything. It is
// repeated in the background until the server has answered. The call blocks for limit at most, or
// for rollbackGrace once ctx has ended.
func (r *Resource) rollback(ctx context.Context, q *Request, limit time.Duration) {
	if !q.MustRollback && !q.WaitRecorded {
		return
	}
	// A copy of an attempt may be executed as late as LateCopies from now, and its lease begins
	// then. When that lease is over too, there is nothing left to roll back.
	repeat := q.TTL + r.Core.LateCopies
	if !r.Traits.Leased {
		repeat = r.Traits.Remembered
	}
	q.rollbackState.Store(int32(RollbackPending))
	r.inBackground(ctx, time.Now().Add(repeat), limit, func(ctx context.Context) error {
		err := r.Driver.Rollback(ctx, q)
		q.noteRollback(err)
		if failure.Of(err).Denied && !q.InDoubt {
			return nil // repeating it would not help, because the user lacks a permission
		}
		return err
	})
}

// Rollback removes everything that is on the server, or that a late copy may still put there, of a
// request that the caller has tried by itself. It blocks for the first attempt, for a second at
// most.
func (r *Resource) Rollback(ctx context.Context, q *Request) {
	q.MustRollback = true
	r.rollback(ctx, q, rollbackTimeout)
}

// RollbackState is the state of a request's rollback.
type RollbackState int32

// The states of a rollback.
const (
	NoRollback      RollbackState = iota // none was needed, or none has begun
	RollbackPending                      // it was not answered yet
	RolledBack                           // its first attempt succeeded
	RolledBackLate                       // its first attempt failed: it is repeated, and a copy of it may come later
)

// RollbackState returns the state of the rollback of q.
func (q *Request) RollbackState() RollbackState { return RollbackState(q.rollbackState.Load()) }

// MayHaveTraces reports whether the server may have something of q, which failed and was not rolled
// back.
func (q *Request) MayHaveTraces() bool { return q.MustRollback || q.WaitRecorded || q.Reserved }

// noteRollback notes the result of an attempt at the rollback of q. Only the first one counts.
func (q *Request) noteRollback(err error) {
	if err == nil {
		q.rollbackState.CompareAndSwap(int32(RollbackPending), int32(RolledBack))
	}
	q.rollbackState.CompareAndSwap(int32(RollbackPending), int32(RolledBackLate))
}

// RollbackCopyWindow returns how long from now a copy of the rollback of q may still arrive.
func (r *Resource) RollbackCopyWindow(q *Request) time.Duration { return q.TTL + 2*r.Core.LateCopies }

// LeavesTraces reports whether a refused attempt of q leaves a note or a reservation on the server:
// q waits, or its joint lock does.
func (q *Request) LeavesTraces() bool { return q.MayQueue || q.Reserves }

// keepsReservation reports whether the server's note for q stays for the next attempt of its joint
// lock. ctx is the context of the attempt, which has failed with err.
func (q *Request) keepsReservation(ctx context.Context, err error) bool {
	isNoted := q.MustRollback || q.WaitRecorded
	wasRefused := ctx.Err() == nil && errors.Is(err, ErrNotAcquired)
	return q.Reserves && isNoted && wasRefused && !q.InDoubt
}

package engine

import (
	"context"
	"errors"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
)

// How what an attempt has left on the server, or may still come to leave, is removed when there is
// no hold.

// rollback removes everything that the server keeps, or may still come to keep, of a request
// without a hold. It does nothing if no attempt can have taken or noted anything. It is repeated in
// the background until the server has answered. The call blocks for limit at most, or for
// rollbackGrace once ctx has ended.
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
	q.undo.Store(undoing)
	r.inBackground(ctx, time.Now().Add(repeat), limit, func(ctx context.Context) error {
		err := r.Driver.Rollback(ctx, q)
		q.noteUndone(err)
		if failure.Of(err).Denied && !q.InDoubt {
			return nil // repeating it would not help, because the user lacks a permission
		}
		return err
	})
}

// Rollback removes everything that the server keeps, or may still come to keep, of a request that
// the caller has tried by itself. It blocks for the first attempt, for a second at most.
func (r *Resource) Rollback(ctx context.Context, q *Request) {
	q.MustRollback = true
	r.rollback(ctx, q, rollbackTimeout)
}

// What has become of the rollback of a request.
const (
	notUndone   int32 = iota // there was none
	undoing                  // it was not answered yet
	undone                   // its first attempt was answered
	undoneLater              // its first attempt was not answered, so a copy of it may come later
)

// noteUndone notes the result of an attempt at the rollback of q. Only the first one counts.
func (q *Request) noteUndone(err error) {
	if err == nil {
		q.undo.CompareAndSwap(undoing, undone)
	}
	q.undo.CompareAndSwap(undoing, undoneLater)
}

// IsUndone reports whether the server has nothing of q, which has failed, and whether no copy of
// its rollback can come later. Then another request with the same id is safe. lasting: the answer
// will not change for as long as CopiesOf says.
func (q *Request) IsUndone() (is, lasting bool) {
	switch q.undo.Load() {
	case notUndone:
		return !q.MustRollback && !q.WaitRecorded && !q.Reserved, false
	case undone:
		return true, true
	case undoneLater:
		return false, true
	}
	return false, false
}

// RollbackCopyWindow is how long a copy of the rollback of q may come from now on.
func (r *Resource) RollbackCopyWindow(q *Request) time.Duration { return q.TTL + 2*r.Core.LateCopies }

// LeavesTraces reports whether a refused attempt of q leaves a note or a reservation on the server:
// q waits, or the joint lock does that it belongs to.
func (q *Request) LeavesTraces() bool { return q.MayQueue || q.Reserves }

// keepsReservation reports whether what the server has noted for q stays, for the next attempt of
// its joint lock. ctx is that of the attempt, which has failed with err.
func (q *Request) keepsReservation(ctx context.Context, err error) bool {
	isNoted := q.MustRollback || q.WaitRecorded
	wasRefused := ctx.Err() == nil && errors.Is(err, ErrNotAcquired)
	return q.Reserves && isNoted && wasRefused && !q.InDoubt
}

package joint

import (
	"context"
	"slices"

	"github.com/redlatch/redlatch/internal/engine"
)

// The reservations that a waiting redlock leaves on servers that have refused it.
//
// A waiting writer would starve while readers come and go. So a refused attempt leaves a
// reservation, which keeps new readers out for a moment. A redlock does the same on each of its
// members. Each attempt has a new id, and so a new request for each member. The latest request has
// the reservation, and is not rolled back between two attempts:
//
//	attempt 1   A: refused, reserves    B: acquired, released   C: refused, reserves
//	attempt 2   A: acquired             B: refused, reserves    C: acquired
//	acquired: the reservation on B is given up
//
// A reservation is advice that expires. It keeps no other redlock out for long, so two of them
// never wait for each other's reservations for ever.

// isReserved reports whether the i-th member has a reservation of this acquisition.
func (o *Holding) isReserved(i int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reserved != nil && o.reserved[i] != nil
}

// noteReservation notes that the request mine for the i-th member has left a reservation, if it was
// refused. If the attempt for the redlock is over, the reservation is given up.
func (o *Holding) noteReservation(ctx context.Context, i int, mine *engine.Request) {
	if !mine.Reserved {
		return
	}
	o.mu.Lock()
	isOpen := o.reserved != nil
	if isOpen {
		o.reserved[i] = mine
	}
	o.mu.Unlock()
	if !isOpen {
		o.lock.Members[i].Rollback(ctx, mine)
	}
}

// keepReservations keeps the reservations of o's attempt, which was not granted, for the next one.
func (s *attempts) keepReservations(o *Holding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.reserved = o.reserved
	o.reserved = nil
}

// dropReservations gives up, in the background, what o, which was granted, has reserved on members
// that it has not acquired.
func (r *red) dropReservations(ctx context.Context, o *Holding) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, mine := range o.reserved {
		m := r.Members[i]
		isHeld := func(h *engine.Hold) bool { return h.Resource() == m }
		if mine != nil && !slices.ContainsFunc(o.holds, isHeld) {
			m.Core.Spawn(func() { giveUpReservation(ctx, m, mine) })
		}
	}
	o.reserved = nil
}

// giveUpReservations gives up the reservations of an acquisition that has failed. It blocks for the
// answers, or until ctx is done.
func (s *attempts) giveUpReservations(ctx context.Context, l *Lock) {
	if s.reserved == nil {
		return
	}
	reserved := s.reserved
	s.reserved = nil
	newFanOut(l.Resource.Core, len(reserved), func(i int) error {
		if reserved[i] != nil {
			giveUpReservation(ctx, l.Members[i], reserved[i])
		}
		return nil
	}).count(ctx, rollbackWait)
}

// giveUpReservation rolls back the request for a member that has left a reservation.
func giveUpReservation(ctx context.Context, m *engine.Resource, mine *engine.Request) {
	if m.Core.Enter() != nil {
		return
	}
	defer m.Core.Leave()
	m.Rollback(context.WithoutCancel(ctx), mine)
}

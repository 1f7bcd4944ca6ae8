package workload

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// openHolds acquires all keys, by the first client.
func (s *session) openHolds(ctx context.Context) error {
	client := s.clients[0]
	lockers := make([]contend.Locker, s.w.Keys)
	for i := range lockers {
		var err error
		if lockers[i], err = client.Locker(ctx, KeyOf(s.w, i), false); err != nil {
			return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
		}
	}
	warm := make([]contend.Locker, atOnce) // as many connections as there will be
	for i := range warm {
		var err error
		if warm[i], err = client.Locker(ctx, s.w.Name+":warm:"+strconv.Itoa(i), false); err != nil {
			return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
		}
	}
	if err := s.acquireAll(ctx, warm); err != nil {
		return err
	}
	if err := s.releaseAll(ctx); err != nil {
		return err
	}
	grown := growth(atOnce)
	if err := s.acquireAll(ctx, lockers); err != nil {
		return err
	}
	s.note(grown())
	return nil
}

func (s *session) acquireAll(ctx context.Context, lockers []contend.Locker) error {
	held := make([]contend.Hold, len(lockers))
	err := each(len(lockers), func(i int) (err error) {
		held[i], err = lockers[i].Acquire(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	s.held = held
	return nil
}

// runHolds watches.
func (s *session) runHolds(_ context.Context, w contend.Workload) (contend.Result, error) {
	time.Sleep(w.Duration)
	r := contend.Result{Elapsed: w.Duration}
	for _, h := range s.held {
		if c, ok := h.(interface{ Context() context.Context }); ok && c.Context().Err() != nil {
			r.LostHolds++
		}
	}
	return r, nil
}

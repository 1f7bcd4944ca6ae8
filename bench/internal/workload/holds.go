package workload

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// openHolds acquires all keys with the first client.
func (s *session) openHolds(ctx context.Context) error {
	client := s.clients[0]
	lockers := make([]contend.Locker, s.w.Keys)
	for i := range lockers {
		var err error
		if lockers[i], err = client.Locker(ctx, KeyOf(s.w, i), false); err != nil {
			return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
		}
	}
	// Acquire and release other keys first, so that the client has all its connections. They must
	// not count as memory of the holds.
	warm := make([]contend.Locker, parallelism)
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
	memoryGrowth := startMemoryGrowth(parallelism)
	if err := s.acquireAll(ctx, lockers); err != nil {
		return err
	}
	s.memory = memoryGrowth()
	return nil
}

func (s *session) acquireAll(ctx context.Context, lockers []contend.Locker) error {
	holds := make([]contend.Hold, len(lockers))
	err := forEach(len(lockers), func(i int) (err error) {
		holds[i], err = lockers[i].Acquire(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("workload: %s: %w", s.contender.Name, err)
	}
	s.holds = holds
	return nil
}

// runHolds waits for Duration, then counts the holds that report their loss.
func (s *session) runHolds(_ context.Context, w contend.Workload) (contend.Result, error) {
	time.Sleep(w.Duration)
	r := contend.Result{Elapsed: w.Duration}
	for _, h := range s.holds {
		if c, ok := h.(interface{ Context() context.Context }); ok && c.Context().Err() != nil {
			r.LostHolds++
		}
	}
	return r, nil
}

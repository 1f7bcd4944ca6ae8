package redistest

import (
	"sync"
	"testing"
	"time"
)

// Stalls are the times in which the machine was too busy to run a goroutine of this process that
// was ready.
type Stalls struct {
	mu   sync.Mutex
	seen []stall
}

type stall struct{ begin, end time.Time }

// shortestStall is the shortest delay that counts: an idle machine wakes goroutines up later than
// asked, too.
const shortestStall = 5 * time.Millisecond

// WatchStalls looks for stalls until t ends. A test that limits how long something takes in real
// time adds to the limit what Since returns, so that it fails if the library is slow, and not if
// the machine is.
func WatchStalls(t testing.TB) *Stalls {
	s, stop := &Stalls{}, make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			due := time.Now().Add(time.Millisecond)
			time.Sleep(time.Millisecond)
			s.note(due, time.Now())
		}
	})
	t.Cleanup(func() { close(stop); watching.Wait() })
	return s
}

// note adds a stall if a goroutine that was due at an instant ran much later.
func (s *Stalls) note(due, ran time.Time) {
	if ran.Sub(due) < shortestStall {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, stall{due, ran})
}

// Since returns how long the stalls were altogether that ended after an instant.
func (s *Stalls) Since(at time.Time) (sum time.Duration) {
	time.Sleep(time.Millisecond) // so that a stall that ends now is in
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.seen {
		if one.end.After(at) {
			sum += min(one.end.Sub(at), one.end.Sub(one.begin))
		}
	}
	return sum
}

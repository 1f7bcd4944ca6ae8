package torture

import "time"

// clock turns instants of package time into nanoseconds of the machine's monotonic clock, by which
// the records of different processes can be compared.
type clock struct {
	base   time.Time
	offset int64
}

// newClock reads both clocks at the same moment, or within 20 µs of each other.
func newClock() clock {
	best, gap := clock{}, int64(1<<62)
	for range 1000 {
		before := monotonic()
		base := time.Now()
		after := monotonic()
		if after-before < gap {
			best, gap = clock{base, before}, after-before
		}
		if gap < int64(20*time.Microsecond) {
			break
		}
	}
	return best
}

func (c clock) now() int64 { return c.at(time.Now()) }

// at returns 0 for the zero time.
func (c clock) at(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return c.offset + int64(t.Sub(c.base))
}

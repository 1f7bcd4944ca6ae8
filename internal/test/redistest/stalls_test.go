package redistest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStallsSince(t *testing.T) {
	began := time.Now()
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	s := &Stalls{}
	s.note(at(10), at(14)) // no stall
	s.note(at(20), at(40))
	s.note(at(100), at(130))
	for since, want := range map[int]int{0: 50, 20: 50, 30: 40, 40: 30, 120: 10, 130: 0} {
		require.Equal(t, time.Duration(want)*time.Millisecond, s.Since(at(since)), since)
	}
	require.Less(t, WatchStalls(t).Since(began), time.Hour)
}

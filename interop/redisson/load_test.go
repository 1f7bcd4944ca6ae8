package redisson

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// clients opens n clients. Their TTL is long enough for pauses of a busy machine, because these
// tests are not about expiry. It must also be short: a Java thread that misses a message sleeps for
// the TTL.
func clients(t *testing.T, n int) []*Client {
	d, addr := shared.Driver(t), redistest.Redis(t).Addr()
	all := make([]*Client, n)
	for i := range all {
		all[i] = d.Client(t, Config{Addr: addr, Watchdog: 10 * time.Second})
	}
	return all
}

func session(t *testing.T, load Load) *Session {
	t.Helper()
	s, err := shared.Driver(t).Load(t.Context(), load)
	require.NoError(t, err)
	return s
}

func TestSectionsAreMeasured(t *testing.T) {
	two := clients(t, 2)
	tests := []struct {
		name  string
		load  Load
		check func(t *testing.T, o Outcome)
	}{
		{"lock", Load{Primitive: "lock", Threads: 2}, handsOff},
		{"fair", Load{Primitive: "fair", Threads: 2}, handsOff},
		{"write", Load{Primitive: "rw", Threads: 2}, handsOff},
		{"read and write", Load{Primitive: "rw", Threads: 2, Reads: 50, Inside: time.Millisecond},
			func(t *testing.T, o Outcome) {
				require.Positive(t, o.Reads)
				require.Less(t, o.Reads, o.Operations)
			}},
		{"semaphore", Load{Primitive: "semaphore", Threads: 2, Permits: 3, Inside: time.Millisecond}, handsOff},
		{"permits", Load{Primitive: "permits", Threads: 2, Permits: 3, Inside: time.Millisecond}, handsOff},
		{"keys", Load{Primitive: "lock", Threads: 2, Keys: 4}, func(t *testing.T, o Outcome) {
			require.Zero(t, o.AllHandOffs)
		}},
		{"turns", Load{Primitive: "lock", Threads: 1, Turns: true, Inside: time.Millisecond},
			func(t *testing.T, o Outcome) {
				require.InDelta(t, o.Operations, o.HandOffs, 1)
			}},
		{"queued", Load{Primitive: "fair", Threads: 4, Queued: true}, handsOff},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			load := tt.load
			load.Shape, load.Clients, load.Name = Section, two, redistest.Name(t)
			s := session(t, load)
			require.Zero(t, s.Usage())
			o := runUntilBusy(t, s, load)
			require.Len(t, o.PerThread, 2*load.Threads)
			require.Equal(t, o.Operations, sum(o.PerThread))
			require.Len(t, o.Waits, int(o.Operations+o.Stuck))
			require.Len(t, o.HandOffTimes, int(o.HandOffs))
			require.Positive(t, sum(o.Waits))
			require.LessOrEqual(t, o.HandOffs, o.Operations)
			require.LessOrEqual(t, o.Operations, o.AllOperations)
			require.LessOrEqual(t, o.HandOffs, o.AllHandOffs)
			require.GreaterOrEqual(t, o.Took, length-rounding)
			require.Positive(t, o.CPU)
			require.Zero(t, o.Overlaps)
			require.Zero(t, o.LostUpdates)
			tt.check(t, o)
			require.NoError(t, s.Close(t.Context()))
			_, err := s.Run(t.Context(), length)
			require.ErrorContains(t, err, "no such session")
		})
	}
}

// Java may end a run early by rounding, because it sleeps for whole milliseconds.
const (
	length   = 200 * time.Millisecond // of one run
	rounding = 2 * time.Millisecond
)

// runUntilBusy runs the load until a run has enough hand-offs, or enough operations if threads do
// not share keys. The first runs of a Java process can be slow.
func runUntilBusy(t *testing.T, s *Session, load Load) Outcome {
	t.Helper()
	for range 20 {
		o, err := s.Run(t.Context(), length)
		require.NoError(t, err)
		if o.HandOffs > 4 || load.Keys > 1 && o.Operations > 4 {
			return o
		}
	}
	t.Fatal("no run had enough operations")
	return Outcome{}
}

// handsOff checks that there were hand-offs and that they took time.
func handsOff(t *testing.T, o Outcome) {
	require.Positive(t, o.HandOffs)
	require.Positive(t, sum(o.HandOffTimes))
}

// The semaphore has more permits than the load expects, so entries overlap.
func TestUnguardedSectionIsDetected(t *testing.T) {
	name := redistest.Name(t)
	c := clients(t, 1)
	set, err := c[0].Semaphore(name).TrySetPermits(t.Context(), 2)
	require.NoError(t, err)
	require.True(t, set)
	load := Load{
		Shape: Section, Primitive: "semaphore", Clients: c, Threads: 4, Name: name, Permits: 1, Inside: time.Millisecond,
	}
	o := runUntilBusy(t, session(t, load), load)
	require.Positive(t, o.Overlaps)
	require.Positive(t, o.LostUpdates)
}

// Another owner holds the lock without an expiry.
func TestStuckThreadsAreCounted(t *testing.T) {
	name := redistest.Name(t)
	rdb := redistest.Redis(t).Client(t)
	require.NoError(t, rdb.HSet(t.Context(), name, "stranger", 1).Err())
	o, err := session(t, Load{Shape: Section, Primitive: "lock", Clients: clients(t, 1), Threads: 3, Name: name}).
		Run(t.Context(), 50*time.Millisecond)
	require.NoError(t, err)
	require.Zero(t, o.AllOperations)
	require.EqualValues(t, 3, o.Stuck)
	require.Len(t, o.Waits, 3)
}

func TestCrowdEntersAfterTheRelease(t *testing.T) {
	name := redistest.Name(t)
	rdb := redistest.Redis(t).Client(t)
	all := clients(t, 3)
	s := session(t, Load{Shape: Crowd, Primitive: "lock", Clients: all, Threads: 5, Name: name})
	owners, err := rdb.HKeys(t.Context(), name).Result()
	require.NoError(t, err)
	require.Len(t, owners, 1)
	require.Contains(t, owners[0], all[2].ID())

	began := time.Now()
	o, err := s.Run(t.Context(), length)
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), length-rounding+o.Took)
	require.Positive(t, o.Took)
	require.Equal(t, []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, o.PerThread)
	require.Len(t, o.Waits, 10)
	require.LessOrEqual(t, slices.Max(o.Waits), o.Took)
	require.EqualValues(t, 10, o.HandOffs)
	require.Zero(t, o.Overlaps)
	require.Zero(t, o.LostUpdates)
	require.NoError(t, s.Close(t.Context()))
	require.Zero(t, rdb.Exists(t.Context(), name).Val())
}

// Close without a run ends the crowd and frees the lock.
func TestCloseEndsACrowdThatNeverRan(t *testing.T) {
	name := redistest.Name(t)
	s := session(t, Load{Shape: Crowd, Primitive: "lock", Clients: clients(t, 2), Threads: 2, Name: name})
	require.NoError(t, s.Close(t.Context()))
	require.Zero(t, redistest.Redis(t).Client(t).Exists(t.Context(), name).Val())
}

func TestCloseOfHoldsReportsLosses(t *testing.T) {
	const keys = 30
	rdb := redistest.Redis(t).Client(t)
	c := clients(t, 1)
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprintf("lost %t", lost), func(t *testing.T) {
			name := redistest.Name(t)
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("%s:%d", name, i)
			}
			s := session(t, Load{Shape: Holds, Primitive: "lock", Clients: c, Threads: 4, Name: name, Keys: keys})
			require.EqualValues(t, keys, rdb.Exists(t.Context(), names...).Val())
			o, err := s.Run(t.Context(), 50*time.Millisecond)
			require.NoError(t, err)
			require.Zero(t, o.Operations)
			if lost {
				require.NoError(t, rdb.Del(t.Context(), names[:3]...).Err())
				require.ErrorContains(t, s.Close(t.Context()), "3 of 30 locks were lost")
			} else {
				require.NoError(t, s.Close(t.Context()))
			}
			require.Zero(t, rdb.Exists(t.Context(), names...).Val())
		})
	}
}

func sum[T ~int64](all []T) T {
	var total T
	for _, v := range all {
		total += v
	}
	return total
}

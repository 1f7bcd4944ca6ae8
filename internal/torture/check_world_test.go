package torture

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Two clients that hold at the same time are excused by what may have ended the first hold, and by
// nothing else.
func TestFaultsThatEndHolds(t *testing.T) {
	at := func(w window, begin, end int64) window {
		w.interval, w.process = interval{begin * ms, end * ms}, -1
		return w
	}
	evicted := func(name string) window {
		return window{fault: faultEviction, lossy: true, names: []string{name}}
	}
	promoted := func(acted int64) window { return window{fault: faultFailover, lossy: true, acted: acted * ms} }
	forward := window{fault: faultForward, jump: time.Second}
	for name, tt := range map[string]struct {
		fault   window
		excused bool
	}{
		"none":                        {at(window{fault: faultSlow}, 9_000, 9_001), false},
		"clock forward":               {at(forward, 10_100, 10_101), true},
		"clock forward, before":       {at(forward, 9_000, 9_001), false},
		"clock back":                  {at(window{fault: faultBack, jump: -time.Second}, 10_100, 11_100), false},
		"eviction":                    {at(evicted("name"), 10_100, 10_100), true},
		"eviction of another name":    {at(evicted("x"), 10_100, 10_100), false},
		"promotion":                   {at(promoted(10_110), 10_100, 10_200), true},
		"promotion before it is held": {at(promoted(9_010), 9_000, 10_200), false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHistory(func(h *testHistory) {
				h.hold(0, 10_000, "a1")
				h.hold(1, 10_500, "b1")
				h.windows = append(h.windows, tt.fault)
			})
			violations, known := h.linearize("name", h.names["name"])
			require.True(t, known)
			require.Equal(t, tt.excused, len(violations) == 0, violations)
		})
	}
}

// A server whose clock has jumped back keeps the leases of the dead for longer. One that has lost
// releases has former holders until their leases end.
func TestWaitsForWhatLastsLonger(t *testing.T) {
	waits := func(w ...window) []Violation {
		h := newTestHistory(func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.lost(0, a, 11_000)
			// Until 14 s somebody may have it: the TTL, and a second.
			h.waits(1, h.do(1, 11_500, 19_500, record{Do: opAcquire, TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "b1", Until: 22_400 * ms}), 11_501)
			h.windows = append(h.windows, w...)
		})
		h.ttl = time.Second
		return h.checkWaits()
	}
	back := window{interval: interval{10_500 * ms, 11_000 * ms}, fault: faultBack, process: -1, jump: -5 * time.Second}
	lost := window{interval: interval{10_500 * ms, 11_000 * ms}, fault: faultFailover, process: -1, lossy: true}
	longBefore := window{interval: interval{1_000 * ms, 1_500 * ms}, fault: faultFailover, process: -1, lossy: true}
	require.Len(t, waits(), 1)
	require.Empty(t, waits(back))
	require.Empty(t, waits(lost))
	require.Len(t, waits(longBefore), 1)
}

// A client may leave a lock that could linger to others, for 0.1 s.
func TestLeavesALockToOthers(t *testing.T) {
	waits := func(granted int64, lingers bool) []Violation {
		h := newTestHistory(func(h *testHistory) {
			call := record{Do: opAcquire, Primitive: "linger", Passes: true, Lingers: lingers, TTL: 3 * time.Second}
			a := h.do(0, 10_000, 10_001, call, record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms})
			h.release(0, a, 10_010, 10_011)
			h.waits(0, h.do(0, 10_012, granted, call, record{Outcome: outcomeOK, ID: "a2", Until: 13_000 * ms}), 10_013)
		})
		h.exact = true
		return h.checkWaits()
	}
	require.Empty(t, waits(10_100, true))
	require.Len(t, waits(10_100, false), 1, "without lingering")
	require.Empty(t, waits(10_112, true), "it lingered, and was freed after that")
	require.Len(t, waits(10_150, true), 1, "for too long")
}

package torture

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testHistory is a history that a test builds. Instants and durations are in milliseconds.
type testHistory struct {
	*history

	records [3][]record // by process
	last    int64       // the number of the latest operation
}

const ms = int64(time.Millisecond)

// do adds an operation of a process, from its call until its return, and returns its number.
func (h *testHistory) do(process int, from, to int64, call, result record) int64 {
	h.last++
	if call.Primitive == "" {
		call.Primitive = "lock"
	}
	call.Kind, call.Op, call.At, call.Names = kindCall, h.last, from*ms, []string{"name"}
	result.Kind, result.Op, result.At = kindReturn, h.last, to*ms
	h.records[process] = append(h.records[process], call, result)
	return h.last
}

// hold adds an acquisition that takes no time, with a TTL of 3 s.
func (h *testHistory) hold(process int, at int64, id string) int64 {
	return h.holdOf("lock", process, at, at, id)
}

func (h *testHistory) holdOf(primitive string, process int, from, to int64, id string) int64 {
	ttl := 3 * time.Second
	return h.do(process, from, to, record{Do: opAcquire, Primitive: primitive, TTL: ttl},
		record{Outcome: outcomeOK, ID: id, Until: to*ms + int64(ttl)})
}

// waits marks an acquisition as refused at first.
func (h *testHistory) waits(process int, acquisition, at int64) {
	h.records[process] = append(h.records[process], record{Kind: kindWait, Op: acquisition, At: at * ms})
}

// valid is the end of a hold's validity after a renewal.
func (h *testHistory) valid(process int, hold, until int64) {
	h.records[process] = append(h.records[process], record{Kind: kindValid, Op: hold, Until: until * ms})
}

// lost ends a hold: its holder learned of its loss.
func (h *testHistory) lost(process int, hold, at int64) {
	h.records[process] = append(h.records[process], record{Kind: kindEnd, Op: hold, At: at * ms, Outcome: outcomeLost})
}

func (h *testHistory) release(process int, hold, from, to int64) {
	h.do(process, from, to, record{Do: opRelease, Root: hold}, record{Outcome: outcomeOK})
}

// fault adds a fault that affects a process, or all of them if it is -1.
func (h *testHistory) fault(kind string, process int, from, to int64) {
	h.windows = append(h.windows, window{interval: interval{from * ms, to * ms}, fault: kind, process: process})
}

// force adds a ForceRelease that ended a holder.
func (h *testHistory) force(process int, from, to int64) {
	h.do(process, from, to, record{Do: opForce}, record{Outcome: outcomeOK, Count: 1})
}

// failing adds an acquisition that failed.
func (h *testHistory) failing(from, to int64, err string) {
	h.do(0, from, to, record{Do: opAcquire, TTL: time.Second}, record{Outcome: outcomeFailed, Err: err})
}

// passesB is the history of a fair lock that A passes to C, although B has waited for longer.
func passesB(h *testHistory) {
	a := h.holdOf("fair", 0, 10_000, 10_000, "a1")
	b := h.holdOf("fair", 1, 10_100, 11_200, "b1")
	h.waits(1, b, 10_110)
	c := h.holdOf("fair", 2, 10_200, 11_010, "c1")
	h.waits(2, c, 10_210)
	h.release(0, a, 11_000, 11_001)
	h.release(2, c, 11_100, 11_101)
	h.release(1, b, 11_300, 11_301)
}

func newTestHistory(f func(*testHistory)) *testHistory {
	h := &testHistory{history: &history{ttl: 3 * time.Second, end: 30_000 * ms, stalls: map[int][]interval{}}}
	f(h)
	for process, records := range h.records {
		h.add(process, records, never)
	}
	h.sort()
	return h
}

func TestChecks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(*testHistory)
		want  []string
	}{
		{"two holders", func(h *testHistory) {
			h.hold(0, 10_000, "a1")
			h.hold(1, 10_500, "b1")
		}, []string{checkOrder}},
		{"one holder after the validity of the other", func(h *testHistory) {
			h.hold(0, 10_000, "a1")
			h.hold(1, 13_001, "b1")
		}, nil},

		{"a loss without a reason", func(h *testHistory) {
			h.lost(0, h.hold(0, 10_000, "a1"), 11_000)
		}, []string{checkReason}},
		{"a loss by a black hole", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lost(0, h.hold(0, 10_000, "a1"), 13_000)
		}, nil},
		{"a black hole elsewhere", func(h *testHistory) {
			h.fault("black-hole", 1, 10_100, 13_100)
			h.lost(0, h.hold(0, 10_000, "a1"), 13_000)
		}, []string{checkReason}},
		{"a loss before the validity ends, in a black hole", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lost(0, h.hold(0, 10_000, "a1"), 12_000)
		}, []string{checkReason}},

		{"a notice in time", func(h *testHistory) {
			h.force(1, 12_000, 12_001)
			h.lost(0, h.hold(0, 10_000, "a1"), 12_100)
		}, nil},
		{"a late notice", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 14_900)
			h.force(1, 12_000, 12_001)
			h.lost(0, a, 13_500)
		}, []string{checkNotice}},
		{"a late notice, in a black hole", func(h *testHistory) {
			h.fault("black-hole", 0, 11_900, 14_000)
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 14_900)
			h.force(1, 12_000, 12_001)
			h.lost(0, a, 13_500)
		}, nil},
		{"the next renewal finds what happened before the holder listened", func(h *testHistory) {
			h.force(1, 10_500, 10_501)
			h.lost(0, h.hold(0, 10_000, "a1"), 12_000)
		}, nil},
		{"the next renewal finds nothing", func(h *testHistory) {
			h.force(1, 10_500, 10_501)
			h.lost(0, h.hold(0, 10_000, "a1"), 12_900)
		}, []string{checkNotice}},
		{"Extend has put off the next renewal", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.do(0, 10_400, 10_401, record{Do: opExtend, Root: a}, record{Outcome: outcomeOK, Until: 13_400 * ms})
			h.force(1, 10_500, 10_501)
			h.lost(0, a, 12_900)
		}, nil},
		{"Extend after the takeover", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.force(1, 10_500, 10_501)
			h.do(0, 10_600, 10_601, record{Do: opExtend, Root: a}, record{Outcome: outcomeUnknown})
			h.lost(0, a, 12_900)
		}, []string{checkNotice}},

		{"an error of the library", func(h *testHistory) {
			h.failing(10_000, 10_001, "NOSCRIPT no matching script")
		}, []string{checkError}},
		{"an error of the network", func(h *testHistory) {
			h.failing(10_000, 10_001, "connection refused")
		}, nil},
		{"an error of full memory", func(h *testHistory) {
			h.fault(faultMemory, -1, 10_000, 11_000)
			h.failing(10_500, 10_600, "OOM command not allowed")
		}, nil},
		{"an error of full memory, reported a little later", func(h *testHistory) {
			h.fault(faultMemory, -1, 10_000, 11_000)
			h.failing(13_900, 13_950, "OOM command not allowed")
		}, nil},
		{"an error of full memory, long after", func(h *testHistory) {
			h.fault(faultMemory, -1, 10_000, 11_000)
			h.failing(14_100, 14_200, "OOM command not allowed")
		}, []string{checkError}},

		{"a waiter of a free lock", func(h *testHistory) {
			h.holdOf("lock", 0, 10_000, 13_100, "a1")
		}, []string{checkFree}},
		{"a waiter of a held lock", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.release(0, a, 12_000, 12_001)
			h.holdOf("lock", 1, 10_100, 13_500, "b1")
		}, nil},
		{"a waiter of a lock that was forced long ago", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.force(2, 10_100, 10_101)
			h.lost(0, a, 10_200)
			h.holdOf("lock", 1, 10_050, 13_900, "b1")
		}, []string{checkFree}},
		{"a waiter of a lock that was acquired while another hold of it was forced", func(h *testHistory) {
			a := h.holdOf("lock", 0, 10_000, 10_110, "a1")
			h.force(2, 10_100, 10_120)
			h.release(0, a, 12_000, 12_001)
			h.holdOf("lock", 1, 10_050, 13_900, "b1")
		}, nil},

		{"an owner that is refused", func(h *testHistory) {
			h.do(0, 10_000, 10_001, record{Do: opAcquire, Primitive: "owner", Owner: "o", TTL: time.Second},
				record{Outcome: outcomeOK, ID: "o", Until: 11_000 * ms})
			h.do(1, 10_100, 10_101, record{Do: opAcquire, Primitive: "owner", Owner: "o", TTL: time.Second, Try: true},
				record{Outcome: outcomeBusy})
		}, []string{checkOwner}},
		{"a call that returns late", func(h *testHistory) {
			h.do(0, 10_000, 10_900, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, []string{checkPrompt}},
		{"a call of a process that was stopped", func(h *testHistory) {
			h.fault(faultStop, 0, 10_100, 10_800)
			h.do(0, 10_000, 10_900, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, nil},

		{"a fair lock that passes a waiter", passesB, []string{checkOrder}},
		{"a fair lock whose waiter did not run for a while", func(h *testHistory) {
			passesB(h)
			h.records[1] = append(h.records[1], record{Kind: kindStall, At: 11_150 * ms, Count: 1_000 * ms})
		}, nil},
		{"a fair lock whose waiter did not run for a moment", func(h *testHistory) {
			passesB(h)
			h.records[1] = append(h.records[1], record{Kind: kindStall, At: 11_150 * ms, Count: 400 * ms})
		}, []string{checkOrder}},
		{"a fair lock whose waiter may have lost a grant that it never saw", func(h *testHistory) {
			passesB(h)
			h.do(2, 10_500, 10_501, record{Do: opReleaseID, Primitive: "fair", Target: "b0"}, record{Outcome: outcomeOK})
		}, nil},
		{"a fair lock that passes a waiter after a hold was released by its id", func(h *testHistory) {
			passesB(h)
			c0 := h.holdOf("fair", 2, 9_000, 9_001, "c0")
			h.lost(2, c0, 9_950)
			h.do(0, 9_500, 10_150, record{Do: opReleaseID, Primitive: "fair", Target: "c0"},
				record{Outcome: outcomeOK})
		}, []string{checkOrder}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newTestHistory(tt.build)
			violations, undecided := h.check()
			require.Empty(t, undecided)
			var found []string
			for _, v := range violations {
				found = append(found, v.Check)
			}
			slices.Sort(found)
			require.Equal(t, tt.want, slices.Compact(found), violations)
		})
	}
}

// Permits that nobody gives back, and that only the next acquisition collects.
func TestPermitsLeftToTheirLeases(t *testing.T) {
	acquire := func(h *testHistory) int64 {
		return h.do(0, 10_000, 10_100,
			record{Do: opAcquire, Primitive: "permits", Permits: 1, Limit: poolSize, TTL: time.Second},
			record{Outcome: outcomeOK, ID: "a1", Until: 11_100 * ms})
	}
	releaseID := func(h *testHistory, outcome string) {
		h.do(1, 10_500, 10_501, record{Do: opReleaseID, Primitive: "permits", Permits: 1, Target: "a1"},
			record{Outcome: outcome})
	}
	for _, tt := range []struct {
		name  string
		build func(*testHistory)
		want  bool
	}{
		{"released", func(h *testHistory) { h.release(0, acquire(h), 10_400, 10_401) }, false},
		{"released by its id", func(h *testHistory) {
			acquire(h)
			releaseID(h, outcomeOK)
		}, false},
		{"perhaps released by its id", func(h *testHistory) {
			acquire(h)
			releaseID(h, outcomeUnknown)
		}, true},
		{"acquired in doubt and released", func(h *testHistory) {
			h.fault(faultCopies, 0, 9_000, 11_000)
			h.release(0, acquire(h), 10_400, 10_401)
		}, false},
		{"acquired in doubt and released by its id: a late copy may acquire again", func(h *testHistory) {
			h.fault(faultCopies, 0, 9_000, 11_000)
			acquire(h)
			releaseID(h, outcomeOK)
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, newTestHistory(tt.build).pools()["name"].orphans)
		})
	}
}

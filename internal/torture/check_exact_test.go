package torture

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The checks of simulations, where only the network takes time.
func TestExactChecks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(*testHistory)
		want  []string
	}{
		{"an extension that is too short", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.do(0, 10_400, 10_401, record{Do: opExtend, Root: a, TTL: 9 * time.Second},
				record{Outcome: outcomeOK, Until: 13_400 * ms})
			h.release(0, a, 10_500, 10_501)
		}, []string{checkLease}},
		{"an extension", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.do(0, 10_400, 10_401, record{Do: opExtend, Root: a, TTL: 9 * time.Second},
				record{Outcome: outcomeOK, Until: 19_308 * ms})
			h.release(0, a, 10_500, 10_501)
		}, nil},
		{"a limit that an extension has not moved", func(h *testHistory) {
			a := h.limited(10_000, record{Fixed: true}, 2968*time.Millisecond)
			h.do(0, 10_400, 10_401, record{Do: opExtend, Root: a, TTL: 9 * time.Second},
				record{Outcome: outcomeOK, Until: 19_308 * ms})
			h.lostBy(0, a, 12_968, "limit", 0)
		}, []string{checkLease}},
		{"a limit that an extension has moved, and that is not told", func(h *testHistory) {
			a := h.limited(10_000, record{Fixed: true}, 2968*time.Millisecond)
			h.do(0, 10_400, 10_401, record{Do: opExtend, Root: a, TTL: 9 * time.Second},
				record{Outcome: outcomeOK, Until: 19_308 * ms})
			h.do(0, 19_400, 19_401, record{Do: opRelease, Root: a}, record{Outcome: outcomeLost, Reason: "limit"})
		}, []string{checkLease}},

		{"a lock after its minimum hold", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 13_400 * ms, after: 13_400 * ms}}
		}, nil},
		{"a lock that stays after its minimum hold", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 13_600 * ms, after: 13_600 * ms}}
		}, []string{checkKept}},
		{"a member of a joint lock has another holder", func(h *testHistory) {
			a := h.holdOf("redlock", 0, 10_000, 10_000, "a1")
			h.samples = []sample{{
				name: "name", ids: []string{"b1"}, before: 10_100 * ms, after: 10_100 * ms, until: 10_200 * ms, member: true,
			}}
			h.records[0] = append(h.records[0], record{Kind: kindValid, Op: a, At: 10_200 * ms, Until: 13_168 * ms})
			h.release(0, a, 10_500, 10_501)
		}, nil},
		{"a member of a joint lock that was lost and acquired again stays", func(h *testHistory) {
			a := h.holdOf("redlock", 0, 10_000, 10_000, "a1")
			h.windows = append(h.windows, window{
				interval: interval{10_100 * ms, 10_200 * ms}, fault: faultDataLoss, process: -1, lossy: true,
			})
			h.release(0, a, 10_500, 10_501)
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 12_100 * ms, after: 12_100 * ms, member: true}}
		}, []string{checkKept}},

		{"a wait for another look, soon after the subscriptions were cut", func(h *testHistory) {
			h.waitAfterCut(10_200)
		}, nil},
		{"a wait for another look, long after the subscriptions were cut", func(h *testHistory) {
			h.waitAfterCut(10_900)
		}, []string{checkWake}},

		{"a lock by name that was lost before it was unlocked", func(h *testHistory) {
			a := h.byName(0, 10_000, "a1")
			h.byName(1, 10_100, "b1")
			h.do(0, 10_200, 10_201, record{Do: opRelease, Root: a}, record{Outcome: outcomeLost, Reason: "gone"})
			h.fault(faultHole, 0, 10_010, 10_190)
		}, nil},
		{"two locks by one name", func(h *testHistory) {
			a := h.byName(0, 10_000, "a1")
			b := h.byName(1, 10_100, "b1")
			h.release(0, a, 10_200, 10_201)
			h.release(1, b, 10_200, 10_201)
		}, []string{checkOrder}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newTestHistory(func(h *testHistory) {
				h.exact = true
				tt.build(h)
			})
			violations, _ := h.check()
			var got []string
			for _, v := range violations {
				got = append(got, v.Check)
			}
			require.Equal(t, tt.want, got, "%v", violations)
		})
	}
}

// byName adds a lock of a Keyed, which tells nobody of its validity.
func (h *testHistory) byName(process int, at int64, id string) int64 {
	return h.do(process, at, at, record{Do: opAcquire, Primitive: keyedPrimitive, TTL: 3 * time.Second},
		record{Outcome: outcomeOK, ID: id})
}

// waitAfterCut adds a wait for a lock that was released when the subscriptions had just been cut.
func (h *testHistory) waitAfterCut(until int64) {
	h.fault(faultPubSub, 1, 10_000, 13_000)
	a := h.hold(0, 9_500, "a1")
	h.release(0, a, 10_001, 10_002)
	b := h.holdOf("lock", 1, 9_900, until, "b1")
	h.waits(1, b, 9_901)
	h.release(1, b, until+1, until+2)
}

// A multilock that has lost a member says so, whichever it is.
func TestReleaseOfAMultilockThatHasLostAMember(t *testing.T) {
	h := newTestHistory(func(h *testHistory) {
		h.exact = true
		a := h.holdOf("multi", 0, 10_000, 10_000, "a1")
		h.release(0, a, 12_000, 12_001)
		h.operator(faultDelete, 11_000, 11_001, 11_001)
	})
	for _, o := range h.ops {
		o.call.Names = []string{"first", "name"}
	}
	h.names["first"] = h.names["name"]
	require.Empty(t, h.checkReleases("first", h.ops))
	require.Len(t, h.checkReleases("name", h.ops), 1)
	h.exact = false
	require.Empty(t, h.checkReleases("name", h.ops))
}

// Clients that poll have no turn, and so none is missed.
func TestNoTurnsForThosePolling(t *testing.T) {
	for primitive, want := range map[string]int{"lock": 1, "spin": 0} {
		h := newTestHistory(func(h *testHistory) {
			for at := int64(10_000); at < 11_000; at += 40 {
				h.release(0, h.holdOf(primitive, 0, at, at, "a1"), at+30, at+31)
			}
			b := h.holdOf(primitive, 1, 10_100, 11_100, "b1")
			h.waits(1, b, 10_101)
			h.release(1, b, 11_200, 11_201)
		})
		require.Len(t, h.checkTurns("name", h.ops), want, primitive)
	}
}

// A cohort has a time, and a lock that lingers has none: it is kept from one use to the next.
func TestAgeOfCohorts(t *testing.T) {
	for lingers, want := range map[bool]int{false: 2, true: 0} { // the last two holds are too late
		h := newTestHistory(func(h *testHistory) {
			h.exact = true
			for at := int64(10_000); at < 10_100; at += 20 {
				a := h.do(0, at, at, record{Do: opAcquire, TTL: 3 * time.Second, Passes: true, Lingers: lingers},
					record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms})
				h.release(0, a, at+10, at+11)
			}
		})
		require.Len(t, h.checkCohorts(), want, lingers)
	}
}

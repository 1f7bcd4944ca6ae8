package torture

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// term adds a term of a candidate: it is elected and then resigns.
func (h *testHistory) term(process int, from, to int64, id string, token int64) {
	ttl := 3 * time.Second
	a := h.do(process, from, from, record{Do: opAcquire, Primitive: electionPrimitive, TTL: ttl},
		record{Outcome: outcomeOK, ID: id, Token: token, Until: from*ms + int64(ttl-marginOf(ttl))})
	h.release(process, a, to, to)
}

// watcher adds a watcher of process 1, which is told of leaders at some instants.
func (h *testHistory) watcher(from, to int64, told ...record) {
	w := h.do(1, from, to, record{Do: opWatch, Primitive: electionPrimitive}, record{Outcome: outcomeOK})
	for _, r := range told {
		r.Kind, r.Op = kindSeen, w
		h.records[1] = append(h.records[1], r)
	}
}

// rival adds a candidate of process 1 that stands until it is elected.
func (h *testHistory) rival(from, to int64) {
	ttl := 3 * time.Second
	w := h.do(1, from, to, record{Do: opAcquire, Primitive: electionPrimitive, TTL: ttl},
		record{Outcome: outcomeOK, ID: "b1", Token: 9, Until: to*ms + int64(ttl-marginOf(ttl))})
	h.waits(1, w, from+10)
	h.release(1, w, to+5, to+5)
}

// listens adds a hold whose holder listens to Wanted, and a waiter of process 1. The hold is told of it at an instant,
// or never.
func (h *testHistory) listens(told int64) { h.listensWith(h.hold(0, 10_000, "a1"), told) }

// listensAfterAdoption is listens for a hold that was adopted before somebody waited for it, or after.
func (h *testHistory) listensAfterAdoption(at int64) {
	a := h.hold(0, 9_900, "a0")
	h.do(0, 9_950, 9_951, record{Do: opDetach, Root: a}, record{Outcome: outcomeOK})
	adopted := h.do(0, at, at+1, record{Do: opAdopt, Target: "a0", TTL: 3 * time.Second},
		record{Outcome: outcomeOK, ID: "a1", Until: (at + 2900) * ms})
	h.listensWith(adopted, 0)
}

func (h *testHistory) listensWith(a, told int64) {
	h.records[0] = append(h.records[0], record{Kind: kindListen, Op: a, At: 10_010 * ms})
	if told != 0 {
		h.records[0] = append(h.records[0], record{Kind: kindWanted, Op: a, At: told * ms})
	}
	h.release(0, a, 10_600, 10_601)
	w := h.holdOf("lock", 1, 10_100, 10_605, "b1")
	h.waits(1, w, 10_110)
	h.release(1, w, 10_620, 10_621)
}

// The checks of elections, of what a hold is told, and of what a look at the server finds in a simulation.
func TestChecksOfElections(t *testing.T) {
	appears := func(h *testHistory, at int64) {
		h.appeared = append(h.appeared, appearance{"name", "a1", at * ms})
	}
	for _, tt := range []struct {
		name  string
		build func(*testHistory)
		want  []string
	}{
		{"a candidate leads again behind another one", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 8)
			h.rival(10_020, 10_105)
			h.term(0, 10_120, 10_150, "a2", 10)
		}, nil},
		{"a candidate leads again before another one", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.term(0, 10_101, 10_130, "a2", 8)
			h.rival(10_020, 10_140)
		}, []string{checkTurn}},
		{"a candidate leads again before another one, which a fault disturbs", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.term(0, 10_101, 10_130, "a2", 8)
			h.rival(10_020, 10_140)
			h.fault(faultPubSub, 1, 10_050, 10_051)
		}, []string{checkTurn}},
		{"a candidate leads again alone", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.term(0, 10_101, 10_130, "a2", 8)
		}, nil},
		{"a watcher that is told in time", func(h *testHistory) {
			h.watcher(9_000, 11_000, record{At: 10_190 * ms, Token: 7})
			h.term(0, 10_000, 10_500, "a1", 7)
		}, nil},
		{"a watcher that is told late", func(h *testHistory) {
			h.watcher(9_000, 11_000, record{At: 10_300 * ms, Token: 7})
			h.term(0, 10_000, 10_500, "a1", 7)
		}, []string{checkNotice}},
		{"a watcher of a disturbed leader", func(h *testHistory) {
			h.watcher(9_000, 11_000)
			h.term(0, 10_000, 10_500, "a1", 7)
			h.fault(faultSlow, 0, 10_010, 10_050)
		}, nil},

		{"a hold that is told in time that somebody waits", func(h *testHistory) { h.listens(10_420) }, nil},
		{"a hold that is told late that somebody waits", func(h *testHistory) { h.listens(10_500) }, []string{checkNotice}},
		{"a hold that is not told that somebody waits", func(h *testHistory) { h.listens(0) }, []string{checkNotice}},
		{"a hold is told late of one who has waited for the holder before", func(h *testHistory) {
			h.quick(1, 9_900, "b0")
			a := h.hold(0, 10_200, "a1")
			h.listensWith(a, 0)
		}, nil},
		{"an adopted hold is not told of one who came later", func(h *testHistory) {
			h.listensAfterAdoption(10_000)
		}, []string{checkNotice}},
		{"an adopted hold is not told of one who knows the former holder", func(h *testHistory) {
			h.listensAfterAdoption(10_150)
		}, nil},
		{"an adopted hold is not told of one whose client knows the former holder", func(h *testHistory) {
			h.waits(1, h.do(1, 9_910, 10_300, record{Do: opAcquire, TTL: time.Second}, record{Outcome: outcomeBusy}), 9_911)
			h.listensAfterAdoption(10_000)
		}, nil},
		{"a hold of an owner who has been asked before", func(h *testHistory) {
			h.listensWith(h.limited(10_000, record{Owner: "owner"}, 2968*time.Millisecond), 0)
		}, nil},
		{"a hold whose waiter is disturbed", func(h *testHistory) {
			h.listens(0)
			h.fault(faultPubSub, 1, 10_200, 10_201)
		}, nil},

		{"an id that comes back after its release", func(h *testHistory) {
			h.release(0, h.hold(0, 10_000, "a1"), 10_100, 10_101)
			appears(h, 10_150)
			h.fault(faultCopies, 0, 9_900, 10_200)
		}, []string{checkKept}},
		{"an id that comes back because the server has older data", func(h *testHistory) {
			h.release(0, h.hold(0, 10_000, "a1"), 10_100, 10_101)
			appears(h, 10_150)
			h.windows = append(h.windows, window{
				interval: interval{10_120 * ms, 10_140 * ms}, fault: faultFailover, process: -1, lossy: true,
			})
		}, nil},
		{"an id that comes before its release", func(h *testHistory) {
			h.release(0, h.hold(0, 10_000, "a1"), 10_100, 10_101)
			appears(h, 9_990)
		}, nil},

		{"a minimum hold that begins anew", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 10_600 * ms, after: 10_600 * ms, until: 12_300 * ms,
			}}
		}, []string{checkKept}},
		{"a minimum hold", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 10_600 * ms, after: 10_600 * ms, until: 12_001 * ms,
			}}
		}, nil},
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

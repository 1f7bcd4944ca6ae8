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

// electedAgain adds a candidate that is elected with token 9, and an earlier answer that it leads
// with token 6.
func (h *testHistory) electedAgain() {
	a := h.do(0, 10_000, 10_100, record{Do: opAcquire, Primitive: electionPrimitive, TTL: time.Second},
		record{Outcome: outcomeOK, ID: "a1", Token: 9, Until: 10_900 * ms})
	h.release(0, a, 10_200, 10_200)
	h.asks(10_050, "a1", 6)
}

// watcher adds a watcher of process 1, which is told of leaders at some instants.
func (h *testHistory) watcher(from, to int64, told ...record) {
	w := h.do(1, from, to, record{Do: opWatch, Primitive: electionPrimitive}, record{Outcome: outcomeOK})
	for _, r := range told {
		r.Kind, r.Op = kindSeen, w
		h.records[1] = append(h.records[1], r)
	}
}

// asks adds an answer to process 1 of who leads.
func (h *testHistory) asks(at int64, id string, token int64) {
	h.do(1, at, at+2, record{Do: opLeader, Primitive: electionPrimitive}, record{Outcome: outcomeOK, ID: id, Token: token})
}

// poolListens adds a hold of a pool whose holder listens, and waiters of a process, which have
// waited since an instant. Nobody tells the hold.
func (h *testHistory) poolListens(primitive string, process int, waited, until int64) {
	of := record{Do: opAcquire, Primitive: primitive, Limit: 2, Permits: 2, TTL: time.Minute}
	took := record{Outcome: outcomeOK, ID: "a1", Until: 69_000 * ms}
	if primitive == "semaphore" {
		took = record{Outcome: outcomeOK}
	}
	w := h.do(process, waited, until, of, record{Outcome: outcomeBusy})
	h.waits(process, w, waited)
	a := h.do(0, 10_000, 10_000, of, took)
	h.records[0] = append(h.records[0], record{Kind: kindListen, Op: a, At: 10_010 * ms})
	h.release(0, a, until+10, until+11)
}

// jointListens adds a joint hold whose holder listens, and a waiter of process 1 for other names.
// Nobody tells the hold.
func (h *testHistory) jointListens(waitsFor ...string) {
	ttl := 3 * time.Second
	a := h.do(0, 10_000, 10_000, record{Do: opAcquire, Primitive: "multi", Names: []string{"name", "other"}, TTL: ttl},
		record{Outcome: outcomeOK, ID: "a1", Until: 12_960 * ms})
	h.records[0] = append(h.records[0], record{Kind: kindListen, Op: a, At: 10_010 * ms})
	h.release(0, a, 10_600, 10_601)
	w := h.do(1, 10_100, 10_590, record{Do: opAcquire, Primitive: "multi", Names: waitsFor, TTL: ttl},
		record{Outcome: outcomeBusy})
	h.waits(1, w, 10_110)
}

// cohortListens adds holds of a cohort, of which the last one listens, and a waiter of process 1.
// Nobody tells the hold.
func (h *testHistory) cohortListens(until int64, earlier ...string) {
	of := record{Do: opAcquire, Primitive: "cohort", Passes: true, TTL: 7 * time.Second}
	for i, id := range append(earlier, "a1") {
		at := 9_990 + 5*int64(i)
		a := h.do(0, at, at, of, record{Outcome: outcomeOK, ID: id, Token: int64(i + 1), Until: 16_900 * ms})
		if i < len(earlier) {
			h.release(0, a, at+1, at+1)
			continue
		}
		h.records[0] = append(h.records[0], record{Kind: kindListen, Op: a, At: 10_010 * ms})
		h.release(0, a, until, until+1)
	}
	h.waits(1, h.do(1, 10_100, until-5, record{Do: opAcquire, TTL: time.Second}, record{Outcome: outcomeBusy}), 10_110)
}

// rival adds a candidate of process 1 that stands until it is elected.
func (h *testHistory) rival(from, to int64) {
	ttl := 3 * time.Second
	w := h.do(1, from, to, record{Do: opAcquire, Primitive: electionPrimitive, TTL: ttl},
		record{Outcome: outcomeOK, ID: "b1", Token: 9, Until: to*ms + int64(ttl-marginOf(ttl))})
	h.waits(1, w, from+10)
	h.release(1, w, to+5, to+5)
}

// listens adds a hold whose holder listens to Wanted, and a waiter of process 1. The hold is told
// of it at an instant, or never.
func (h *testHistory) listens(told int64) { h.listensWith(h.hold(0, 10_000, "a1"), told) }

// listensAfterAdoption is listens for a hold that was adopted before somebody waited for it, or
// after.
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

// The checks of elections, of what a hold is told, and of what a look at the server finds in a
// simulation.
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
		{"a candidate of a later call of Run leads again, because its term has ended by its limit", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 6)
			limited := record{
				Do: opAcquire, Primitive: electionPrimitive, TTL: 3 * time.Second, MaxHold: 23 * time.Millisecond,
				Bound: 10_900 * ms,
			}
			a := h.do(0, 10_105, 10_105, limited, record{Outcome: outcomeOK, ID: "a2", Token: 7, Until: 10_125 * ms})
			h.lostBy(0, a, 10_125, "limit", 0)
			h.term(0, 10_126, 10_130, "a3", 8)
			h.rival(10_020, 10_140)
		}, nil},
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

		{"an answer that nobody leads", func(h *testHistory) {
			h.asks(9_000, "", 0)
			h.term(0, 10_000, 10_100, "a1", 7)
			h.asks(10_101, "", 0)
		}, nil},
		{"an answer that nobody leads, during a term", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.asks(10_050, "", 0)
		}, []string{checkOrder}},
		{"an answer that nobody leads, during a term that an operator ends", func(h *testHistory) {
			ttl := 3 * time.Second
			a := h.do(0, 10_000, 10_000, record{Do: opAcquire, Primitive: electionPrimitive, TTL: ttl},
				record{Outcome: outcomeOK, ID: "a1", Token: 7, Until: 12_960 * ms})
			h.operator(faultDelete, 10_050, 10_051, 10_052)
			h.asks(10_052, "", 0)
			h.lost(0, a, 10_100)
		}, nil},
		{"the leader's id", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.asks(10_050, "a1", 7)
		}, nil},
		{"the leader's id with another token", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.asks(10_050, "a1", 6)
		}, []string{checkOrder}},
		{"the leader's id with the token of an earlier attempt, whose answer came late", func(h *testHistory) {
			h.electedAgain()
			h.fault(faultLate, 0, 10_010, 10_060)
		}, nil},
		{"the leader's id with the token of an earlier attempt, although no answer was late", func(h *testHistory) {
			h.electedAgain()
		}, []string{checkOrder}},
		{"the id of a leader that has resigned", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.asks(10_150, "a1", 7)
		}, []string{checkOrder}},
		{"the id of the leader before", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.term(2, 10_101, 10_200, "c1", 8)
			h.asks(10_150, "a1", 7)
		}, []string{checkOrder}},
		{"an id that nobody has", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.asks(10_150, "x1", 7)
		}, []string{checkOrder}},
		{"an id, while a candidate has no answer yet", func(h *testHistory) {
			h.term(0, 10_000, 10_100, "a1", 7)
			h.do(2, 10_010, 10_900, record{Do: opAcquire, Primitive: electionPrimitive, TTL: time.Second}, record{})
			h.records[2] = h.records[2][:1] // its process is killed
			h.killed = 10_300
			h.asks(10_050, "a1", 7)
		}, nil},
		{"the id of a candidate that does not know that it was elected", func(h *testHistory) {
			h.do(0, 10_000, 10_100, record{Do: opAcquire, Primitive: electionPrimitive, TTL: time.Second},
				record{Outcome: outcomeUnknown})
			h.fault(faultHole, 0, 10_010, 10_020)
			h.asks(10_050, "a1", 7)
		}, nil},

		{"permits that are not told of a waiter of another client", func(h *testHistory) {
			h.poolListens("permits", 1, 10_020, 10_600)
		}, []string{checkNotice}},
		{"permits that are not told of a waiter of another client that waited before", func(h *testHistory) {
			h.poolListens("permits", 1, 9_990, 12_900)
		}, []string{checkNotice}},
		{"permits that are told after two seconds of a waiter of another client that waited before", func(h *testHistory) {
			h.poolListens("permits", 1, 9_990, 12_000)
		}, nil},
		{"permits that are told late of a waiter of their own client that waited before", func(h *testHistory) {
			h.poolListens("permits", 0, 9_990, 20_000)
		}, nil},
		{"permits that are not told of a waiter of their own client that waited before", func(h *testHistory) {
			h.poolListens("permits", 0, 9_990, 20_900)
		}, []string{checkNotice}},
		{"a permit of a semaphore that is not told of a waiter of its own client", func(h *testHistory) {
			h.poolListens("semaphore", 0, 10_020, 10_600)
		}, []string{checkNotice}},
		{"a permit of a semaphore that is told after two seconds of a waiter of another client", func(h *testHistory) {
			h.poolListens("semaphore", 1, 10_020, 12_000)
		}, nil},
		{"a permit of a semaphore that is not told of a waiter of another client", func(h *testHistory) {
			h.poolListens("semaphore", 1, 10_020, 12_900)
		}, []string{checkNotice}},

		{"a joint hold that is not told of a waiter for a member", func(h *testHistory) {
			h.jointListens("name")
		}, []string{checkNotice}},
		{"a joint hold that is not told of a waiter for all members", func(h *testHistory) {
			h.jointListens("other", "name")
		}, []string{checkNotice}},
		{"a joint hold that is not told of a waiter for another lock, too", func(h *testHistory) {
			h.jointListens("name", "third")
		}, nil},

		{"a hold that may linger is not told of a waiter", func(h *testHistory) {
			h.cohortListens(10_600)
		}, []string{checkNotice}},
		{"the member of a cohort that is told after a second of a waiter", func(h *testHistory) {
			h.cohortListens(11_200, "a1")
		}, nil},
		{"the member of a cohort that is not told of a waiter", func(h *testHistory) {
			h.cohortListens(11_700, "a1")
		}, []string{checkNotice}},

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
		{"an id that comes back to a member of a redlock, by a command that was under way", func(h *testHistory) {
			h.release(0, h.holdOf("redlock", 0, 10_000, 10_000, "a1"), 10_100, 10_101)
			appears(h, 10_102)
		}, nil},
		{"an id that comes back to a member of a redlock later", func(h *testHistory) {
			h.release(0, h.holdOf("redlock", 0, 10_000, 10_000, "a1"), 10_100, 10_101)
			appears(h, 10_450)
		}, []string{checkKept}},
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

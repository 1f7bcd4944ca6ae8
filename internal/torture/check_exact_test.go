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
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 12_020 * ms, after: 12_020 * ms}}
		}, nil},
		{"a lock that a client releases once more after a fault", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.fault(faultHole, 0, 10_490, 10_600)
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 13_400 * ms, after: 13_400 * ms}}
		}, nil},
		{"a lock that stays for longer, because the server's clock has jumped back", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.windows = append(h.windows, window{
				interval: interval{10_600 * ms, 10_610 * ms}, fault: faultBack, process: -1, jump: -3 * time.Second,
			})
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 14_800 * ms, after: 14_800 * ms}}
		}, nil},
		{"a lock that stays after its minimum hold", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 2 * time.Second}, 2968*time.Millisecond)
			h.release(0, a, 10_500, 10_501)
			h.samples = []sample{{name: "name", ids: []string{"a1"}, before: 12_050 * ms, after: 12_050 * ms}}
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

		{"a wait for what a process that died may have acquired", func(h *testHistory) { h.waitAfterDeath(13_200) }, nil},
		{"a longer wait for what a process that died may have acquired", func(h *testHistory) {
			h.waitAfterDeath(15_000)
		}, []string{checkFree}},
		{"a wait for what a process that died had sent before, and what arrives later", func(h *testHistory) {
			h.waitAfterDeath(15_000)
			h.fault(faultHole, 2, 10_190, 12_000)
		}, nil},

		{"a wait for what a late copy may have acquired, whose rollback found data of another program", func(h *testHistory) {
			h.do(2, 10_000, 10_010, record{Do: opAcquire, TTL: 3 * time.Second},
				record{Outcome: outcomeFailed, Err: "WRONGTYPE", Is: []string{isForeign}})
			h.windows = append(h.windows, window{
				interval: interval{9_990 * ms, 10_020 * ms}, fault: faultOverwrite, process: -1, names: []string{"name"},
			})
			w := h.holdOf("lock", 1, 10_100, 40_000, "b1")
			h.waits(1, w, 10_101)
			h.release(1, w, 40_010, 40_011)
		}, nil},
		{"permits of which an operator has freed one, and that are acquired by others", func(h *testHistory) {
			h.permitsFreedInPart()
		}, []string{checkOrder}},
		{"permits in doubt of which an operator has freed one: a late copy gives back the others", func(h *testHistory) {
			h.permitsFreedInPart()
			h.fault(faultCopies, 0, 9_000, 11_000)
		}, nil},

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

// waitAfterDeath adds an acquisition of a process that is killed, and one that waits for longer.
func (h *testHistory) waitAfterDeath(until int64) {
	h.killed = 10_200
	h.do(2, 10_000, 0, record{Do: opAcquire, TTL: 3 * time.Second}, record{})
	h.records[2] = h.records[2][:1] // it has not returned
	w := h.holdOf("lock", 1, 10_100, until, "b1")
	h.waits(1, w, 10_101)
	h.release(1, w, until+10, until+11)
}

// permitsFreedInPart adds two permits, of which an operator frees one, and then the acquisition of
// all permits.
func (h *testHistory) permitsFreedInPart() {
	acquire := func(process int, at int64, n int, ids string) int64 {
		return h.do(process, at, at+1,
			record{Do: opAcquire, Primitive: "permits", Permits: n, Limit: poolSize, TTL: 3 * time.Second, Fixed: true},
			record{Outcome: outcomeOK, ID: ids, Until: (at + 2968) * ms})
	}
	acquire(0, 10_000, 2, "a1,a2")
	h.do(1, 10_100, 10_101, record{Do: opReleaseID, Primitive: "permits", Permits: 1, Target: "a1"},
		record{Outcome: outcomeOK})
	b := acquire(1, 10_200, poolSize, "b1,b2,b3")
	h.release(1, b, 10_300, 10_301)
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

// The validity that a holder claims is compared with the lease that Redis has at that instant. It
// ends earlier, by the margin: else it counts from the reply.
func TestClaimsAreCompared(t *testing.T) {
	const ttl = 3 * time.Second
	claimed := int64(13_000)*ms - int64(marginOf(ttl)) // of a command that Redis executed at 10 s
	late := 10 * ms                                    // the time of the reply
	for _, tt := range []struct {
		name      string
		primitive string
		call      record
		id        string
		seen      sample
		later     int64 // than it may be
		want      int
	}{
		{"as it should be", "lock", record{}, "a1", sample{ids: []string{"a1"}, until: 13_000 * ms}, 0, 0},
		{"from the reply", "lock", record{}, "a1", sample{ids: []string{"a1"}, until: 13_000 * ms}, late, 1},
		{"a reader", "rwlock", record{Read: true}, "a1",
			sample{ids: []string{"a1", "b1"}, until: 15_000 * ms, own: map[string]int64{"a1": 13_000 * ms}}, 0, 0},
		{"a reader, from the reply", "rwlock", record{Read: true}, "a1",
			sample{ids: []string{"a1", "b1"}, until: 15_000 * ms, own: map[string]int64{"a1": 13_000 * ms}}, late, 1},
		{"two permits", "permits", record{Permits: 2, Limit: 3}, "a1,a2",
			sample{own: map[string]int64{"a1": 13_000 * ms, "a2": 13_000 * ms}}, 0, 0},
		{"two permits, of which one ends earlier", "permits", record{Permits: 2, Limit: 3}, "a1,a2",
			sample{own: map[string]int64{"a1": 13_000 * ms, "a2": 12_900 * ms}}, 0, 1},
		{"a multilock", "multi", record{}, "a1", sample{ids: []string{"a1"}, until: 13_000 * ms, member: true}, 0, 0},
		{"a multilock, from the reply", "multi", record{}, "a1",
			sample{ids: []string{"a1"}, until: 13_000 * ms, member: true}, late, 1},
		{"one member of a redlock", "redlock", record{}, "a1",
			sample{ids: []string{"a1"}, until: 13_000 * ms, member: true}, late, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newTestHistory(func(h *testHistory) {
				call := tt.call
				call.Do, call.Primitive, call.TTL = opAcquire, tt.primitive, ttl
				a := h.do(0, 10_000, 10_010, call, record{Outcome: outcomeOK, ID: tt.id, Until: claimed + tt.later})
				h.release(0, a, 10_500, 10_501)
			})
			h.exact = true
			tt.seen.name, tt.seen.before, tt.seen.after = "name", 10_010*ms, 10_010*ms
			h.samples = []sample{tt.seen}
			require.Len(t, h.checkSamples(), tt.want)
		})
	}
}

// A detached hold is claimed until its lease ends, unless somebody has taken it over.
func TestClaimOfADetachedHold(t *testing.T) {
	for takenOver, want := range map[bool]int{true: 0, false: 1} {
		h := newTestHistory(func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 15_000)
			h.do(0, 10_020, 10_021, record{Do: opDetach, Root: a}, record{Outcome: outcomeOK})
			if takenOver {
				h.do(1, 10_030, 10_031, record{Do: opReleaseID, Target: "a1"}, record{Outcome: outcomeOK})
			}
		})
		h.exact = true
		h.samples = []sample{{
			name: "name", ids: []string{"a1"}, before: 12_000 * ms, after: 12_000 * ms, until: 13_000 * ms,
		}}
		require.Len(t, h.checkSamples(), want, takenOver)
	}
}

// A reader waits for writers that hold or wait, and not for other readers.
func TestReadersDoNotWaitForReaders(t *testing.T) {
	waits := func(answered int64, other, result record) int {
		h := newTestHistory(func(h *testHistory) {
			other.Do, other.Primitive, other.TTL = opAcquire, "rwlock", 3*time.Second
			a := h.do(0, 10_000, answered, other, result)
			if result.Outcome == outcomeOK {
				h.release(0, a, 10_900, 10_901)
			}
			read := record{Do: opAcquire, Primitive: "rwlock", Read: true, TTL: 3 * time.Second}
			h.waits(1, h.do(1, 10_100, 10_700, read, record{Outcome: outcomeOK, ID: "b1", Until: 13_600 * ms}), 10_101)
		})
		h.exact = true
		return len(h.checkWaits())
	}
	held := record{Outcome: outcomeOK, ID: "a1", Until: 13_700 * ms}
	require.Equal(t, 1, waits(10_050, record{Read: true}, held))
	require.Zero(t, waits(10_050, record{}, held))
	require.Zero(t, waits(10_800, record{}, held))
	require.Zero(t, waits(10_800, record{}, record{Outcome: outcomeBusy}))
}

// No message tells a reader that the lease of a writer has ended which acquired when the reader was
// waiting already. It looks once a second. A reader that came later knows the writer's lease.
func TestReaderLooksForTheEndOfAWritersLease(t *testing.T) {
	waits := func(since, until int64) int {
		h := newTestHistory(func(h *testHistory) {
			writer := record{
				Do: opAcquire, Primitive: "rwlock", TTL: 300 * time.Millisecond, MaxHold: 100 * time.Millisecond,
			}
			a := h.do(0, 10_000, 10_050, writer, record{Outcome: outcomeOK, ID: "a1", Until: 10_150 * ms})
			h.lostBy(0, a, 10_150, "limit", 0)
			read := record{Do: opAcquire, Primitive: "rwlock", Read: true, TTL: 3 * time.Second}
			h.waits(1, h.do(1, since, until, read, record{Outcome: outcomeOK, ID: "b1", Until: (until + 2_900) * ms}), since+1)
		})
		h.exact = true
		return len(h.checkWaits())
	}
	require.Zero(t, waits(9_990, 11_500))
	require.Equal(t, 1, waits(9_990, 11_700))
	require.Equal(t, 1, waits(10_060, 11_500))
}

// In a simulation a client has recovered from a fault soon after its next poll.
func TestRecoveryFromFaults(t *testing.T) {
	waits := func(until int64) int {
		h := newTestHistory(func(h *testHistory) {
			h.fault(faultHole, 1, 10_000, 10_500)
			h.release(0, h.hold(0, 9_500, "a1"), 10_400, 10_401)
			b := h.holdOf("lock", 1, 9_900, until, "b1")
			h.waits(1, b, 9_901)
			h.release(1, b, until+1, until+2)
		})
		h.exact = true
		return len(h.checkWaits())
	}
	require.Zero(t, waits(11_800))
	require.Equal(t, 1, waits(11_900))
}

// A holder is told of the end of its validity at once, unless nobody watches: during a pause of the
// workload, or while an acquisition under the hold is under way.
func TestEndsAreToldAtOnce(t *testing.T) {
	tells := func(primitive string, end int64, inner string) int {
		h := newTestHistory(func(h *testHistory) {
			a := h.holdOf(primitive, 0, 10_000, 10_000, "a1") // until 12_968
			if inner != "" {
				h.do(0, 12_960, end-1, record{Do: opAcquire, Root: a, Primitive: primitive, TTL: 3 * time.Second},
					record{Outcome: outcomeOK, ID: inner, Until: 12_968 * ms})
			}
			h.release(0, a, end, end+1)
		})
		h.exact = true
		return len(h.checkLeases("name", h.ops))
	}
	require.Zero(t, tells("lock", 12_969, ""))
	require.Positive(t, tells("lock", 12_972, ""))
	require.Zero(t, tells("nested", 12_972, ""))
	require.Positive(t, tells("nested", 12_975, ""))
	require.Zero(t, tells("lock", 12_980, "a1"))
	require.Zero(t, tells("lock", 12_980, "a2")) // the outer hold had ended
}

// In a simulation, calls return in time: the machine is never busy.
func TestCallsReturnAtOnce(t *testing.T) {
	for exact, want := range map[bool]int{true: 1, false: 0} {
		h := newTestHistory(func(h *testHistory) {
			h.do(0, 10_000, 10_160, record{Do: opAcquire, Bound: 10_100 * ms}, record{Outcome: outcomeBusy})
		})
		h.exact = exact
		require.Len(t, h.checkReturns(), want, exact)
	}
}

// An owner may be refused if a takeover has ended its hold.
func TestOwnerIsRefusedAfterATakeover(t *testing.T) {
	refused := func(taken bool) int {
		h := newTestHistory(func(h *testHistory) {
			owner := record{Do: opAcquire, Owner: "owner", TTL: 3 * time.Second}
			h.do(0, 10_000, 10_001, owner, record{Outcome: outcomeOK, ID: "owner", Until: 12_900 * ms})
			if taken {
				h.do(1, 10_100, 10_101, record{Do: opReleaseID, Target: "owner"}, record{Outcome: outcomeOK})
			}
			owner.Try = true
			h.do(0, 10_200, 10_201, owner, record{Outcome: outcomeBusy})
		})
		return len(h.checkOwners())
	}
	require.Equal(t, 1, refused(false))
	require.Zero(t, refused(true))
}

// A late copy of an acquisition acquires again what an operator has ended. Then its id may be
// released a second time.
func TestHoldThatReturnsAfterAnOperatorHasEndedIt(t *testing.T) {
	for inDoubt, want := range map[bool]int{true: 0, false: 1} {
		h := newTestHistory(func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.do(0, 10_010, 10_011, record{Do: opDetach, Root: a}, record{Outcome: outcomeOK})
			h.operator(faultDelete, 10_100, 10_101, 10_101)
			h.quick(1, 10_200, "b1")
			h.do(0, 10_300, 10_301, record{Do: opReleaseID, Target: "a1"}, record{Outcome: outcomeOK})
			if inDoubt {
				h.fault(faultCopies, 0, 9_990, 10_090)
			}
		})
		violations, known := h.linearize("name", h.names["name"])
		require.True(t, known)
		require.Len(t, violations, want, inDoubt)
	}
}

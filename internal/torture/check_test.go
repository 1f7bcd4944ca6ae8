package torture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testHistory is a history that a test builds. Instants and durations are in milliseconds.
type testHistory struct {
	*history

	records [3][]record // by process
	killed  int64       // when process 2 was killed; 0: it was not
	outside int         // the process that uses another library; 0: none does
	last    int64       // the number of the latest operation
}

const ms = int64(time.Millisecond)

// do adds an operation of a process, from its call until its return, and returns its number.
func (h *testHistory) do(process int, from, to int64, call, result record) int64 {
	h.last++
	if call.Primitive == "" {
		call.Primitive = "lock"
	}
	if call.Names == nil {
		call.Names = []string{"name"}
	}
	call.Kind, call.Op, call.At = kindCall, h.last, from*ms
	result.Kind, result.Op, result.At = kindReturn, h.last, to*ms
	if call.Do == opAcquire {
		result.Events++
	}
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
		record{Outcome: outcomeOK, ID: id, Until: to*ms + int64(ttl-marginOf(ttl))})
}

// waits marks an acquisition as refused at first.
func (h *testHistory) waits(process int, acquisition, at int64) {
	h.records[process] = append(h.records[process], record{Kind: kindWait, Op: acquisition, At: at * ms})
}

// permits adds an acquisition of permits.
func (h *testHistory) permits(process int, from, to int64, n int) int64 {
	return h.do(process, from, to, record{Do: opAcquire, Primitive: "permits", Permits: n, Limit: 3, TTL: 3 * time.Second},
		record{Outcome: outcomeOK, ID: fmt.Sprint("p", from), Until: (to + 2900) * ms})
}

// adoptFromSmallerPool adds the adoption of a permit that was released, while no other permit is
// free.
func (h *testHistory) adoptFromSmallerPool(minHold time.Duration) {
	pool := record{Primitive: "permits", Permits: 1, Limit: 3, TTL: 3 * time.Second, MinHold: minHold}
	does := func(do string, permits int) record {
		call := pool
		call.Do, call.Permits = do, permits
		return call
	}
	h.permits(0, 10_000, 10_001, 2)
	a := h.do(1, 10_002, 10_003, does(opAcquire, 1), record{Outcome: outcomeOK, ID: "p1", Until: 12_900 * ms})
	h.do(2, 10_004, 10_005, does(opResize, 2), record{Outcome: outcomeOK})
	h.release(1, a, 10_010, 10_011)
	pool.Target, pool.MinHold = "p1", 0
	h.do(2, 10_020, 10_021, does(opAdopt, 1), record{Outcome: outcomeOK, ID: "p2", Until: 12_900 * ms})
}

// adoptUnknown adds the adoption of a permit that an acquisition of unknown outcome has taken, the
// last of the pool before it became smaller.
func (h *testHistory) adoptUnknown() {
	pool := record{Primitive: "permits", Permits: 1, Limit: 3, TTL: 3 * time.Second}
	h.permits(0, 10_000, 10_001, 2)
	pool.Do = opAcquire
	h.do(1, 10_002, 10_003, pool, record{Outcome: outcomeUnknown})
	pool.Do, pool.Permits = opResize, 2
	h.do(2, 10_004, 10_005, pool, record{Outcome: outcomeOK})
	pool.Do, pool.Permits, pool.Target = opAdopt, 1, "unknown"
	h.do(2, 10_020, 10_021, pool, record{Outcome: outcomeOK, ID: "p2", Until: 12_900 * ms})
}

// waitForPermits adds the release by id of some of two permits, and a wait for two while somebody
// has the third one.
func (h *testHistory) waitForPermits(released string, n int) {
	pool := record{Do: opAcquire, Primitive: "permits", Permits: 2, Limit: 3, TTL: 3 * time.Second}
	pair := h.do(0, 10_000, 10_001, pool, record{Outcome: outcomeOK, ID: "pa,pb", Until: 12_900 * ms})
	third := h.permits(1, 10_002, 10_003, 1)
	byID := pool
	byID.Do, byID.Permits, byID.Target = opReleaseID, n, released
	h.do(2, 10_010, 10_011, byID, record{Outcome: outcomeOK})
	h.lost(0, pair, 10_050)
	h.waits(2, h.do(2, 10_100, 11_300, pool, record{Outcome: outcomeOK, ID: "pc,pd", Until: 14_100 * ms}), 10_101)
	h.release(1, third, 11_290, 11_291)
}

// waitAfterLease adds a hold whose acquisition was sent more than once, and a wait after its lease.
// released is when its user releases it; 0: never.
func (h *testHistory) waitAfterLease(released int64) {
	h.fault(faultHole, 0, 9_900, 13_000)
	a := h.holdOf("lock", 0, 10_000, 10_100, "a1")
	h.lostBy(0, a, 13_068, "expired", 2_968*time.Millisecond)
	if released != 0 {
		h.do(0, released, released+1, record{Do: opRelease, Root: a}, record{Outcome: outcomeLost, Reason: "expired"})
	}
	h.waits(1, h.holdOf("lock", 1, 16_900, 18_300, "b1"), 16_901)
}

// failToRelease adds a hold whose release fails, and a wait after its lease.
func (h *testHistory) failToRelease() {
	a := h.holdOf("lock", 0, 10_000, 10_001, "a1")
	h.do(0, 10_500, 13_500, record{Do: opRelease, Root: a}, record{Outcome: outcomeFailed, Is: []string{isUnavailable}})
	h.waits(1, h.holdOf("lock", 1, 13_300, 15_500, "b1"), 13_301)
}

// nested adds a hold under another one of process 0.
func (h *testHistory) nested(outer, at int64) int64 {
	return h.do(0, at, at, record{Do: opAcquire, Root: outer, TTL: 3 * time.Second},
		record{Outcome: outcomeOK, ID: "a1", Until: (at + 2900) * ms})
}

// operator adds an act of the operator that found a holder.
func (h *testHistory) operator(fault string, from, acted, to int64) {
	h.windows = append(h.windows, window{
		interval: interval{from * ms, to * ms}, fault: fault, process: -1, names: []string{"name"},
		acted: acted * ms, hit: true,
	})
}

// valid is the end of a hold's validity after a renewal.
func (h *testHistory) valid(process int, hold, until int64) {
	h.records[process] = append(h.records[process], record{Kind: kindValid, Op: hold, Until: until * ms})
}

// lost ends a hold: its holder learned of its loss.
func (h *testHistory) lost(process int, hold, at int64) {
	h.lostBy(process, hold, at, "gone", 0)
}

func (h *testHistory) lostBy(process int, hold, at int64, reason string, silent time.Duration) {
	h.records[process] = append(h.records[process], record{
		Kind: kindEnd, Op: hold, At: at * ms, Outcome: outcomeLost, Reason: reason, Silent: silent,
	})
}

// toldLate adds a hold that nothing renews. Its holder learns of the loss half a second after its
// validity.
func (h *testHistory) toldLate() {
	h.fault(faultHole, 0, 10_010, 14_000)
	a := h.hold(0, 10_000, "a1")
	h.lostBy(0, a, 13_500, "expired", 3_500*time.Millisecond)
	h.do(0, 13_510, 13_511, record{Do: opRelease, Root: a}, record{Outcome: outcomeLost, Reason: "expired"})
}

func (h *testHistory) release(process int, hold, from, to int64) {
	h.do(process, from, to, record{Do: opRelease, Root: hold}, record{Outcome: outcomeOK})
}

// fault adds a fault that affects a process, or all of them if it is -1.
func (h *testHistory) fault(kind string, process int, from, to int64) {
	h.windows = append(h.windows, window{interval: interval{from * ms, to * ms}, fault: kind, process: process})
}

// switchover adds one by Sentinel, after which the servers may have forgotten anything.
func (h *testHistory) switchover(from, to int64) {
	h.windows = append(h.windows, window{
		interval: interval{from * ms, to * ms}, fault: faultSwitch, process: -1, lossy: true,
	})
}

// force adds a ForceRelease that ended a holder.
func (h *testHistory) force(process int, from, to int64) {
	h.do(process, from, to, record{Do: opForce}, record{Outcome: outcomeOK, Count: 1})
}

// failing adds an acquisition that failed.
func (h *testHistory) failing(from, to int64, class string) {
	failed := record{Outcome: outcomeFailed, Err: class, Is: []string{class}}
	h.do(0, from, to, record{Do: opAcquire, TTL: time.Second}, failed)
}

// quick adds a hold that is released at once.
func (h *testHistory) quick(process int, at int64, id string) {
	h.release(process, h.hold(process, at, id), at+1, at+2)
}

// limited adds a hold that is not renewed, or that has a maximum or a minimum.
func (h *testHistory) limited(at int64, call record, valid time.Duration) int64 {
	call.Do, call.TTL = opAcquire, 3*time.Second
	return h.do(0, at, at, call, record{Outcome: outcomeOK, ID: "a1", Until: at*ms + int64(valid)})
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

// absentAndReleased detaches the latest hold, the permit p10000. When its lease is over, it is
// absent, and then there.
func absentAndReleased(h *testHistory) {
	call := record{Do: opReleaseID, Primitive: "permits", Permits: 1, Limit: 3, Target: "p10000"}
	h.do(1, 10_400, 10_401, record{Do: opDetach, Root: h.last}, record{Outcome: outcomeOK})
	h.do(1, 13_300, 13_310, call, record{Outcome: outcomeAbsent})
	h.do(2, 13_400, 13_410, call, record{Outcome: outcomeOK})
}

// endsUnlost ends the context of a hold that was not lost. endless: that of its acquisition does
// not end.
func endsUnlost(h *testHistory, endless bool) {
	a := h.do(0, 10_000, 10_001, record{Do: opAcquire, TTL: 3 * time.Second, Endless: endless},
		record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms})
	h.records[0] = append(h.records[0], record{Kind: kindEnd, Op: a, At: 10_100 * ms, Outcome: outcomeFailed})
	h.release(0, a, 10_110, 10_111)
}

func newTestHistory(f func(*testHistory)) *testHistory {
	h := &testHistory{history: &history{ttl: 3 * time.Second, end: 30_000 * ms, stalls: map[int][]interval{}}}
	f(h)
	for process, records := range h.records {
		died := int64(never)
		if process == 2 && h.killed > 0 {
			died = h.killed * ms
		}
		h.add(process, records, died, process > 0 && process == h.outside)
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

		{"an acquisition that returns after its validity", func(h *testHistory) {
			h.do(0, 10_000, 14_000, record{Do: opAcquire, TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "a1", Until: 12_968 * ms})
			h.fault(faultStop, 0, 10_000, 14_000)
			h.hold(1, 13_500, "b1")
		}, nil},
		{"an acquisition that is valid when it returns", func(h *testHistory) {
			h.do(0, 10_000, 10_500, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeOK, ID: "a1", Until: 10_900 * ms})
			h.hold(1, 10_700, "b1")
		}, []string{checkOrder}},

		{"a loss without a reason", func(h *testHistory) {
			h.lost(0, h.hold(0, 10_000, "a1"), 11_000)
		}, []string{checkReason, checkWhy}},
		{"a wait that bounds the hold", func(h *testHistory) { endsUnlost(h, true) }, []string{checkReason}},
		{"a context that bounds the hold", func(h *testHistory) { endsUnlost(h, false) }, nil},
		{"a loss by a black hole", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lost(0, h.hold(0, 10_000, "a1"), 13_000)
		}, nil},
		{"a black hole elsewhere", func(h *testHistory) {
			h.fault("black-hole", 1, 10_100, 13_100)
			h.lost(0, h.hold(0, 10_000, "a1"), 13_000)
		}, []string{checkReason, checkWhy}},
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
		{"a failover may have forgotten what ended the hold", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 16_000)
			h.switchover(10_400, 10_600)
			h.force(1, 10_500, 10_501)
			h.lost(0, a, 14_500)
		}, nil},
		{"a replica that takes over has not heard what ended the hold", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 16_000)
			h.fault(faultFailover, noProcess, 10_450, 10_600)
			h.switchover(10_600, 10_700)
			h.force(1, 10_500, 10_501)
			h.lost(0, a, 14_500)
		}, nil},
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

		{"a hold that an operator had deleted before another one was taken over", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 14_900)
			h.operator(faultDelete, 12_000, 12_001, 12_001)
			b := h.hold(2, 12_010, "b1")
			h.force(1, 12_100, 12_101)
			h.lost(2, b, 12_110)
			h.lost(0, a, 12_990)
		}, nil},
		{"a hold that was adopted without a notice before another one was taken over", func(h *testHistory) {
			h.fault(faultHole, 1, 9_500, 10_000)
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 14_900)
			b := h.do(1, 12_000, 12_001, record{Do: opAdopt, Target: "a1", TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "b1", Until: 14_900 * ms})
			h.force(2, 12_100, 12_101)
			h.lost(1, b, 12_110)
			h.lost(0, a, 12_990)
		}, nil},
		{"a hold that was taken over after an operator had deleted an earlier one", func(h *testHistory) {
			h.operator(faultDelete, 9_000, 9_001, 9_001)
			a := h.hold(0, 10_000, "a1")
			h.valid(0, a, 14_900)
			h.force(1, 12_000, 12_001)
			h.lost(0, a, 12_990)
		}, []string{checkNotice}},

		{"an error of the library", func(h *testHistory) {
			h.failing(10_000, 10_001, isOther)
		}, []string{checkError}},
		{"an error of the network", func(h *testHistory) {
			h.fault("dials", 0, 9_000, 9_500)
			h.failing(10_000, 10_001, isTransport)
		}, nil},
		{"an error of the network that no fault explains", func(h *testHistory) {
			h.failing(10_000, 10_001, isTransport)
		}, []string{checkError}},
		{"a reader that also writes is not adopted", func(h *testHistory) {
			a := h.holdOf("rwlock", 0, 10_000, 10_001, "a1")
			h.do(0, 10_002, 10_003, record{Do: opAcquire, Primitive: "rwlock", TTL: 3 * time.Second, Read: true, Root: a},
				record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms})
			h.do(1, 10_004, 10_005, record{Do: opAdopt, Primitive: "rwlock", Target: "a1"},
				record{Outcome: outcomeFailed, Is: []string{isUnsupported}})
		}, nil},
		{"a reader that may also write is not adopted", func(h *testHistory) {
			a := h.holdOf("rwlock", 0, 10_000, 10_001, "a1")
			h.do(0, 10_002, 10_006, record{Do: opAcquire, Primitive: "rwlock", TTL: 3 * time.Second, Read: true, Root: a},
				record{Outcome: outcomeUnknown, Is: []string{isNotAcquired, isEnded}})
			h.do(1, 10_004, 10_005, record{Do: opAdopt, Primitive: "rwlock", Target: "a1"},
				record{Outcome: outcomeFailed, Is: []string{isUnsupported}})
		}, nil},
		{"a reader that does not write is not adopted", func(h *testHistory) {
			h.do(0, 10_002, 10_003, record{Do: opAcquire, Primitive: "rwlock", TTL: 3 * time.Second, Read: true},
				record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms})
			h.do(1, 10_004, 10_005, record{Do: opAdopt, Primitive: "rwlock", Target: "a1"},
				record{Outcome: outcomeFailed, Is: []string{isUnsupported}})
		}, []string{checkError}},
		{"a deadlock that nobody has made", func(h *testHistory) {
			h.failing(10_000, 10_001, isDeadlock)
		}, []string{checkError}},
		{"a short call that ends in silence", func(h *testHistory) {
			h.do(0, 10_100, 10_300, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isUnavailable, isUnknown, isEnded}})
		}, nil},
		{"a short wait that ends in silence", func(h *testHistory) {
			h.do(0, 10_100, 10_300, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isUnavailable, isUnknown}, Err: waitIsOver})
		}, nil},
		{"a long wait that ends in silence, although Redis has answered", func(h *testHistory) {
			h.do(0, 10_100, 10_600, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isUnavailable, isUnknown}, Err: waitIsOver})
		}, []string{checkError}},
		{"a call that ends in silence, although Redis has answered", func(h *testHistory) {
			h.do(0, 10_100, 10_600, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isUnavailable, isUnknown, isEnded}})
		}, []string{checkError}},
		{"a refusal in silence", func(h *testHistory) {
			h.fault(faultHole, 0, 10_000, 13_000)
			h.do(0, 10_100, 11_900, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired, isEnded}})
		}, []string{checkError}},
		{"a refusal in silence of a call that does not wait", func(h *testHistory) {
			h.fault(faultHole, 0, 10_000, 13_000)
			h.do(0, 10_100, 10_800, record{Do: opAcquire, TTL: time.Second, Once: true},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired}})
		}, []string{checkError}},
		{"a refusal while connections are refused, of a call that does not wait", func(h *testHistory) {
			h.fault(faultRefuse, 0, 10_000, 13_000)
			h.do(0, 10_100, 10_800, record{Do: opAcquire, TTL: time.Second, Once: true},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired}})
		}, []string{checkError}},
		{"a refusal in silence that may have begun late", func(h *testHistory) {
			h.stalls = map[int][]interval{1: {{10_020 * ms, 10_140 * ms}}}
			h.fault(faultHole, 0, 10_000, 13_000)
			h.do(0, 10_100, 10_800, record{Do: opAcquire, TTL: time.Second, Once: true},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired}})
		}, nil},
		{"a refusal in silence of a call that waits behind others", func(h *testHistory) {
			h.fault(faultHole, 0, 10_000, 13_000)
			h.do(0, 10_100, 10_800, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired}})
		}, nil},
		{"a refusal, and then silence", func(h *testHistory) {
			h.fault(faultHole, 0, 10_000, 13_000)
			h.do(0, 10_100, 11_900, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired, isUnavailable}})
		}, nil},
		{"a refusal that speaks of silence, although Redis has answered", func(h *testHistory) {
			h.do(0, 10_100, 11_900, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired, isUnavailable}})
		}, []string{checkError}},
		{"silence while the clients of the process connect", func(h *testHistory) {
			h.starts = map[int]int64{0: 9_800 * ms}
			h.do(0, 10_100, 10_255, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isUnavailable, isUnknown}})
		}, nil},
		{"silence after the clients of the process have connected", func(h *testHistory) {
			h.starts = map[int]int64{0: 9_500 * ms, 1: 9_800 * ms}
			h.do(0, 10_100, 10_255, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeUnknown, Is: []string{isUnavailable, isUnknown}})
		}, []string{checkError}},
		{"a refusal that speaks of silence, on a busy machine", func(h *testHistory) {
			h.stalls = map[int][]interval{1: {{11_000 * ms, 11_040 * ms}}}
			h.do(0, 10_100, 11_900, record{Do: opAcquire, TTL: time.Second},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired, isUnavailable}})
		}, nil},
		{"an acquisition with two events", func(h *testHistory) {
			h.do(0, 10_000, 10_001, record{Do: opAcquire, TTL: time.Second}, record{Outcome: outcomeBusy, Events: 1})
		}, []string{checkEvent}},

		{"a release after the context has told the loss", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			a := h.hold(0, 10_000, "a1")
			h.lost(0, a, 12_968)
			h.release(0, a, 13_000, 13_001)
		}, []string{checkRelease}},
		{"a release after another process has taken the lock", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.force(1, 10_500, 10_501)
			h.release(0, a, 10_600, 10_601)
		}, []string{checkRelease}},
		{"a release that is answered late, after another process has taken the lock", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.force(1, 10_500, 10_501)
			h.release(0, a, 10_600, 10_640)
		}, nil},
		{"a release while another process takes the lock", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.force(1, 10_500, 10_601)
			h.release(0, a, 10_600, 10_602)
		}, nil},
		{"a release after the key was deleted", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.operator(faultDelete, 10_500, 10_501, 10_501)
			h.release(0, a, 10_600, 10_601)
		}, []string{checkRelease}},
		{"a release whose first answer may be lost", func(h *testHistory) {
			h.fault(faultReplies, 0, 10_400, 10_700)
			a := h.hold(0, 10_000, "a1")
			h.operator(faultDelete, 10_500, 10_501, 10_501)
			h.release(0, a, 10_600, 10_601)
		}, nil},

		{"a validity that is too long", func(h *testHistory) {
			h.limited(10_000, record{}, 3*time.Second-10*time.Millisecond)
		}, []string{checkLease}},
		{"a validity that is longer than the lease in Redis", func(h *testHistory) {
			h.valid(0, h.hold(0, 10_000, "a1"), 14_000)
			h.records[0][len(h.records[0])-1].At = 11_000 * ms
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 11_500 * ms, after: 11_501 * ms, until: 13_000 * ms,
			}}
		}, []string{checkLease}},
		{"a loss by time that is told late", func(h *testHistory) { h.toldLate() }, []string{checkLease}},
		{"a loss by time that is told late on a busy machine", func(h *testHistory) {
			h.stalls = map[int][]interval{1: {{12_900 * ms, 13_400 * ms}}}
			h.toldLate()
		}, nil},
		{"a validity that was renewed after Redis was asked", func(h *testHistory) {
			h.valid(0, h.hold(0, 10_000, "a1"), 14_000)
			h.records[0][len(h.records[0])-1].At = 11_600 * ms
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 11_500 * ms, after: 11_501 * ms, until: 13_000 * ms,
			}}
		}, nil},
		{"a renewal of what Redis had forgotten", func(h *testHistory) {
			h.valid(0, h.hold(0, 10_000, "a1"), 14_700)
			h.records[0][len(h.records[0])-1].At = 11_760 * ms
			h.samples = []sample{{
				name: "name", ids: []string{"b1"}, before: 11_500 * ms, after: 11_501 * ms, until: 13_000 * ms,
			}}
		}, []string{checkLease}},
		{"a renewal before Redis forgot the hold", func(h *testHistory) {
			h.valid(0, h.hold(0, 10_000, "a1"), 14_700)
			h.records[0][len(h.records[0])-1].At = 11_760 * ms
			h.samples = []sample{{name: "name", before: 11_735 * ms, after: 11_736 * ms, until: 0}}
		}, nil},
		{"a release that a switchover has forgotten", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.release(0, a, 10_100, 10_101)
			h.switchover(10_050, 11_000)
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 17_000 * ms, after: 17_001 * ms, until: 18_000 * ms,
			}}
		}, nil},
		{"a release that Redis does not know of", func(h *testHistory) {
			h.release(0, h.hold(0, 10_000, "a1"), 10_100, 10_101)
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 12_000 * ms, after: 12_001 * ms, until: 13_000 * ms,
			}}
		}, []string{checkKept}},
		{"a release that is repeated after a fault", func(h *testHistory) {
			h.release(0, h.hold(0, 10_000, "a1"), 10_100, 10_101)
			h.fault(faultHole, 0, 10_050, 10_500)
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 12_000 * ms, after: 12_001 * ms, until: 13_000 * ms,
			}}
		}, nil},
		{"a nested hold that lasts for longer than the outer one", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.nested(a, 10_050)
			h.release(0, a, 10_100, 10_101)
			h.samples = []sample{{
				name: "name", ids: []string{"a1"}, before: 12_000 * ms, after: 12_001 * ms, until: 13_000 * ms,
			}}
		}, nil},
		{"a loss to an adoption that found nothing when it was repeated", func(h *testHistory) {
			h.do(1, 10_400, 11_000, record{Do: opAdopt, Target: "a1"}, record{Outcome: outcomeAbsent})
			h.fault(faultDials, 1, 10_450, 10_900)
			h.lost(0, h.hold(0, 10_000, "a1"), 10_800)
		}, nil},
		{"a loss beside an adoption that found nothing", func(h *testHistory) {
			h.do(1, 10_400, 11_000, record{Do: opAdopt, Target: "a1"}, record{Outcome: outcomeAbsent})
			h.lost(0, h.hold(0, 10_000, "a1"), 10_800)
		}, []string{checkReason, checkWhy}},
		{"a Detach that tells the loss", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.force(1, 10_500, 10_501)
			h.do(0, 10_600, 10_600, record{Do: opDetach, Root: a}, record{Outcome: outcomeLost})
		}, nil},
		{"a loss that nobody tells", func(h *testHistory) {
			h.hold(0, 10_000, "a1")
			h.force(1, 10_500, 10_501)
		}, []string{checkNotice}},
		{"a fixed lease that is renewed", func(h *testHistory) {
			a := h.limited(10_000, record{Fixed: true}, 2900*time.Millisecond)
			h.valid(0, a, 14_000)
		}, []string{checkLease}},
		{"a maximum that does not count", func(h *testHistory) {
			h.limited(10_000, record{MaxHold: time.Second}, 2*time.Second)
		}, []string{checkLease}},
		{"a loss that is told late", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 14_000)
			a := h.hold(0, 10_000, "a1")
			h.lost(0, a, 13_500)
			h.do(0, 13_600, 13_601, record{Do: opRelease, Root: a}, record{Outcome: outcomeLost, Reason: "gone"})
		}, []string{checkLease}},
		{"a permit that was released before its minimum was over, and adopted when the pool had become smaller",
			func(h *testHistory) { h.adoptFromSmallerPool(500 * time.Millisecond) }, nil},
		{"a permit that was released, and adopted when the pool had become smaller",
			func(h *testHistory) { h.adoptFromSmallerPool(0) }, []string{checkOrder}},
		{"a permit of an unknown acquisition, adopted when the pool had become smaller",
			(*testHistory).adoptUnknown, nil},
		{"a permit beside one of an unknown acquisition, which was adopted", func(h *testHistory) {
			h.adoptUnknown()
			h.permits(1, 10_030, 10_031, 1)
		}, []string{checkOrder}},
		{"an adoption that says that the hold was lost before its answer came", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.do(1, 10_100, 10_700, record{Do: opAdopt, Target: "a1", TTL: 500 * time.Millisecond},
				record{Outcome: outcomeLost})
			h.lostBy(0, a, 10_200, "forced", 0)
			h.hold(2, 10_800, "c1")
		}, nil},
		{"an adoption that is over when its answer comes", func(h *testHistory) {
			h.fault(faultDials, 0, 9_000, 10_500)
			a := h.do(0, 10_000, 10_500, record{Do: opAdopt, MaxHold: 100 * time.Millisecond, TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "a1", Until: 10_100 * ms})
			h.lost(0, a, 10_501)
			h.do(0, 10_600, 10_601, record{Do: opRelease, Root: a}, record{Outcome: outcomeLost, Reason: "limit"})
		}, nil},
		{"a minimum that is over too early", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 500 * time.Millisecond}, 2900*time.Millisecond)
			h.release(0, a, 10_010, 10_011)
			h.hold(1, 10_100, "b1")
		}, []string{checkOrder}},
		{"a minimum that is over", func(h *testHistory) {
			a := h.limited(10_000, record{MinHold: 500 * time.Millisecond}, 2900*time.Millisecond)
			h.release(0, a, 10_010, 10_011)
			h.hold(1, 10_500, "b1")
		}, nil},

		{"a limit of a hold without one", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lostBy(0, h.hold(0, 10_000, "a1"), 12_968, "limit", 0)
		}, []string{checkWhy}},
		{"a latch that a switchover forgets, set while it lasts", func(h *testHistory) {
			h.switchover(9_000, 11_000)
			h.do(0, 10_000, 10_001, record{Do: opInit, Primitive: "latch", Permits: 5}, record{Outcome: outcomeOK, Count: 1})
			h.do(1, 10_002, 10_003, record{Do: opInit, Primitive: "latch", Permits: 5}, record{Outcome: outcomeOK, Count: 1})
		}, nil},
		{"a latch that nothing forgets", func(h *testHistory) {
			h.switchover(9_000, 9_500)
			h.do(0, 10_000, 10_001, record{Do: opInit, Primitive: "latch", Permits: 5}, record{Outcome: outcomeOK, Count: 1})
			h.do(1, 10_002, 10_003, record{Do: opInit, Primitive: "latch", Permits: 5}, record{Outcome: outcomeOK, Count: 1})
		}, []string{checkOrder}},
		{"an expiry shortly after a confirmation", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lostBy(0, h.hold(0, 10_000, "a1"), 12_968, "expired", time.Second)
		}, []string{checkWhy}},
		{"an expiry of a fair lock that was granted for a short time", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			a := h.do(0, 10_000, 10_000, record{Do: opAcquire, Primitive: "fair", TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "a1", Until: 11_400 * ms})
			h.lostBy(0, a, 11_400, "expired", 1400*time.Millisecond)
		}, nil},
		{"an expiry that nothing explains", func(h *testHistory) {
			h.lostBy(0, h.hold(0, 10_000, "a1"), 12_968, "expired", 2968*time.Millisecond)
		}, []string{checkReason, checkWhy}},
		{"an expiry while another process did not run", func(h *testHistory) {
			h.stalls = map[int][]interval{1: {{11_000 * ms, 11_040 * ms}}}
			h.lostBy(0, h.hold(0, 10_000, "a1"), 12_968, "expired", 2968*time.Millisecond)
		}, []string{checkReason}},
		{"an expiry", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lostBy(0, h.hold(0, 10_000, "a1"), 12_968, "expired", 2968*time.Millisecond)
		}, nil},
		{"a loss by a standstill of a process that ran", func(h *testHistory) {
			h.fault("black-hole", 0, 10_100, 13_100)
			h.lostBy(0, h.hold(0, 10_000, "a1"), 12_968, "paused", 2968*time.Millisecond)
		}, []string{checkWhy}},
		{"a loss by a standstill", func(h *testHistory) {
			h.fault(faultStop, 0, 10_100, 13_500)
			h.lostBy(0, h.hold(0, 10_000, "a1"), 13_510, "paused", 3400*time.Millisecond)
		}, nil},
		{"force by nobody", func(h *testHistory) {
			h.operator(faultDelete, 10_500, 10_501, 10_501)
			h.lostBy(0, h.hold(0, 10_000, "a1"), 10_600, "forced", 0)
		}, []string{checkWhy}},

		{"two holds nested in one", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			b := h.nested(a, 10_100)
			c := h.nested(a, 10_200)
			h.release(0, b, 10_300, 10_301)
			h.release(0, c, 10_300, 10_301)
		}, []string{checkOrder}},
		{"two holds nested in one, one after the other", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			b := h.nested(a, 10_100)
			h.release(0, b, 10_150, 10_151)
			h.release(0, h.nested(a, 10_200), 10_300, 10_301)
		}, nil},
		{"a hold that was acquired after the data was lost", func(h *testHistory) {
			h.windows = append(h.windows, window{
				interval: interval{10_000 * ms, 12_000 * ms}, fault: faultDataLoss, process: -1, lossy: true, acted: 10_100 * ms,
			})
			h.hold(0, 10_500, "a1")
			h.hold(1, 10_600, "b1")
		}, []string{checkOrder}},
		{"a hold that was acquired before the data was lost", func(h *testHistory) {
			h.windows = append(h.windows, window{
				interval: interval{10_000 * ms, 12_000 * ms}, fault: faultDataLoss, process: -1, lossy: true, acted: 10_100 * ms,
			})
			h.hold(0, 9_500, "a1")
			h.hold(1, 10_600, "b1")
		}, nil},
		{"an error of full memory", func(h *testHistory) {
			h.fault(faultMemory, -1, 10_000, 11_000)
			h.failing(10_500, 10_600, isFull)
		}, nil},
		{"an error of full memory, reported a little later", func(h *testHistory) {
			h.fault(faultMemory, -1, 10_000, 11_000)
			h.failing(13_900, 13_950, isFull)
		}, nil},
		{"an error of full memory, long after", func(h *testHistory) {
			h.fault(faultMemory, -1, 10_000, 11_000)
			h.failing(14_100, 14_200, isFull)
		}, []string{checkError}},

		{"a repeated adoption that found nothing, because another one had found its id", func(h *testHistory) {
			h.fault(faultReplies, 1, 10_350, 10_500)
			h.lost(1, h.hold(1, 10_000, "a1"), 10_450)
			h.do(1, 10_400, 10_410, record{Do: opAdopt, Target: "a1"}, record{Outcome: outcomeAbsent})
			h.do(2, 10_405, 10_408, record{Do: opAdopt, Target: "a2", TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "b1", Until: 13_300 * ms})
		}, nil},
		{"an adoption of what was released by its id", func(h *testHistory) {
			h.lost(1, h.hold(1, 10_000, "a1"), 10_450)
			h.do(1, 10_400, 10_401, record{Do: opReleaseID, Target: "a1"}, record{Outcome: outcomeOK, Count: 1})
			h.do(2, 11_000, 11_001, record{Do: opAdopt, Target: "a1", TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "b1", Until: 13_900 * ms})
		}, []string{checkOrder}},
		{"an adopted hold that is passed on to one that waited before, and before a force", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.do(2, 10_015, 10_016, record{Do: opForce}, record{Outcome: outcomeOK, Count: 1})
			h.lost(0, a, 10_018)
			b := h.do(1, 10_022, 10_023, record{Do: opAcquire, TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "b1", Until: 12_900 * ms})
			h.do(1, 10_024, 10_024, record{Do: opDetach, Root: b, Until: 12_900 * ms}, record{Outcome: outcomeOK, ID: "b1"})
			c := h.do(1, 10_025, 10_026, record{Do: opAdopt, Target: "b1", TTL: 3 * time.Second, Passes: true},
				record{Outcome: outcomeOK, ID: "b2", Until: 12_900 * ms})
			h.release(1, c, 10_030, 10_030)
			d := h.do(1, 10_010, 10_031, record{Do: opAcquire, TTL: 3 * time.Second, Passes: true},
				record{Outcome: outcomeOK, ID: "b2", Until: 12_900 * ms})
			h.release(1, d, 10_032, 10_033)
		}, nil},
		{"a hold that was adopted away is passed on to one that was called before its first member", func(h *testHistory) {
			a := h.do(0, 10_002, 10_003, record{Do: opAcquire, TTL: 3 * time.Second, Passes: true},
				record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms})
			b := h.do(0, 10_005, 10_006, record{Do: opAdopt, Target: "a1", TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "a2", Until: 12_900 * ms})
			h.release(0, a, 10_010, 10_010)
			h.lost(0, h.do(0, 10_001, 10_011, record{Do: opAcquire, TTL: 3 * time.Second, Passes: true},
				record{Outcome: outcomeOK, ID: "a1", Until: 12_900 * ms}), 10_017)
			h.release(0, b, 10_020, 10_021)
			h.release(1, h.hold(1, 10_030, "b1"), 10_031, 10_032)
		}, nil},
		{"an adoption of what was released by its id, and acquired once more by a late copy", func(h *testHistory) {
			h.fault(faultCopies, 1, 9_900, 10_100)
			h.lost(1, h.hold(1, 10_000, "a1"), 10_450)
			h.do(1, 10_400, 10_401, record{Do: opReleaseID, Target: "a1"}, record{Outcome: outcomeOK, Count: 1})
			h.do(2, 11_000, 11_001, record{Do: opAdopt, Target: "a1", TTL: 3 * time.Second},
				record{Outcome: outcomeOK, ID: "b1", Until: 13_900 * ms})
		}, nil},

		{"a permit that was absent and then released, although it was acquired once", func(h *testHistory) {
			h.permits(1, 10_000, 10_300, 1)
			absentAndReleased(h)
		}, []string{checkOrder}},
		{"a permit that was absent, and acquired once more by a copy that a stall has delayed", func(h *testHistory) {
			h.fault(faultStall, -1, 10_020, 10_290)
			h.permits(1, 10_000, 10_300, 1)
			absentAndReleased(h)
		}, nil},

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

		{"a waiter that is not woken up", func(h *testHistory) {
			a := h.hold(0, 10_000, "a1")
			h.release(0, a, 10_500, 10_501)
			h.waits(1, h.holdOf("lock", 1, 10_100, 11_300, "b1"), 10_101)
		}, []string{checkWake}},
		{"a waiter for a lock that a late copy may have taken, because nobody released it", func(h *testHistory) {
			h.waitAfterLease(0)
		}, nil},
		{"a waiter for a lock that was released after its lease", func(h *testHistory) {
			h.waitAfterLease(14_000)
		}, []string{checkWake}},
		{"a waiter for a lock whose release was not answered, on a slow network", func(h *testHistory) {
			h.fault(faultHole, 0, 10_400, 11_000)
			h.failToRelease()
		}, nil},
		{"a waiter for a lock whose release was not answered, without a fault", func(h *testHistory) {
			h.failToRelease()
		}, []string{checkError, checkWake}},
		{"a waiter for permits, one of which another holder has kept", func(h *testHistory) {
			h.waitForPermits("pb", 1)
		}, nil},
		{"a waiter for permits that were released by id", func(h *testHistory) {
			h.waitForPermits("pa,pb", 2)
		}, []string{checkWake}},
		{"a waiter whose wake-up may be lost", func(h *testHistory) {
			h.fault(faultMessages, 1, 10_000, 10_600)
			a := h.hold(0, 10_000, "a1")
			h.release(0, a, 10_500, 10_501)
			h.waits(1, h.holdOf("lock", 1, 10_100, 11_300, "b1"), 10_101)
		}, nil},
		{"a reader after a writer's process was killed", func(h *testHistory) {
			h.killed = 10_200
			h.do(2, 10_000, 0, record{Do: opAcquire, Primitive: "rwlock", TTL: 600 * time.Millisecond}, record{})
			h.records[2] = h.records[2][:1] // it has not returned, and may have claimed the lock
			h.waits(1, h.do(1, 10_100, 12_650, record{Do: opAcquire, Primitive: "rwlock", TTL: 3 * time.Second, Read: true},
				record{Outcome: outcomeOK, ID: "b1", Until: 15_500 * ms}), 10_101)
		}, nil},
		{"a reader long after a writer's process was killed", func(h *testHistory) {
			h.killed = 10_200
			h.do(2, 10_000, 0, record{Do: opAcquire, Primitive: "rwlock", TTL: 600 * time.Millisecond}, record{})
			h.records[2] = h.records[2][:1]
			h.waits(1, h.do(1, 10_100, 14_500, record{Do: opAcquire, Primitive: "rwlock", TTL: 3 * time.Second, Read: true},
				record{Outcome: outcomeOK, ID: "b1", Until: 17_400 * ms}), 10_101)
		}, []string{checkWake}},
		{"a waiter for permits that are free", func(h *testHistory) {
			h.permits(0, 10_000, 10_000, 1)
			h.waits(1, h.permits(1, 10_100, 11_300, 2), 10_101)
		}, []string{checkWake}},
		{"a waiter for permits that are not free", func(h *testHistory) {
			h.permits(0, 10_000, 10_000, 2)
			h.waits(1, h.do(1, 10_100, 11_300, record{Do: opAcquire, Primitive: "permits", Permits: 2, Limit: 3},
				record{Outcome: outcomeBusy, Is: []string{isNotAcquired}}), 10_101)
		}, nil},
		{"a waiter for permits without a lease, whose release is repeated for seconds", func(h *testHistory) {
			semaphore := record{Do: opAcquire, Primitive: "semaphore", Permits: 2, Limit: 3, TTL: 600 * time.Millisecond}
			h.fault(faultRefuse, 0, 10_200, 20_000)
			a := h.do(0, 10_000, 10_001, semaphore, record{Outcome: outcomeOK})
			h.do(0, 10_300, 11_000, record{Do: opRelease, Primitive: "semaphore", Root: a}, record{Outcome: outcomeUnknown})
			h.waits(1, h.do(1, 10_100, 16_000, semaphore, record{Outcome: outcomeOK}), 10_101)
		}, nil},
		{"a client that keeps the lock", func(h *testHistory) {
			for at := int64(10_000); at < 11_500; at += 50 {
				h.quick(0, at, fmt.Sprint("a", at))
			}
			h.waits(1, h.holdOf("lock", 1, 10_010, 11_600, "b1"), 10_011)
		}, []string{checkTurn}},
		{"a client whose holds join one of their owner", func(h *testHistory) {
			for at := int64(10_000); at < 11_500; at += 50 {
				a := h.do(0, at, at, record{Do: opAcquire, Owner: "owner", TTL: 3 * time.Second},
					record{Outcome: outcomeOK, ID: "owner", Until: (at + 2968) * ms})
				h.release(0, a, at+1, at+2)
			}
			h.waits(1, h.holdOf("lock", 1, 10_010, 11_600, "b1"), 10_011)
		}, nil},
		{"a client that gets the lock again when its lease has ended", func(h *testHistory) {
			for at := int64(10_000); at < 11_350; at += 50 {
				if at == 10_450 || at == 10_900 {
					left := h.do(0, at, at, record{Do: opAcquire, TTL: 40 * time.Millisecond},
						record{Outcome: outcomeOK, ID: fmt.Sprint("a", at), Until: (at + 37) * ms})
					h.do(0, at+5, at+6, record{Do: opDetach, Root: left}, record{Outcome: outcomeOK})
					continue
				}
				h.quick(0, at, fmt.Sprint("a", at))
			}
			h.waits(1, h.holdOf("lock", 1, 10_010, 11_400, "b1"), 10_011)
		}, nil},
		{"a client that passes the lock on", func(h *testHistory) {
			for at := int64(10_000); at < 11_500; at += 50 {
				h.quick(0, at, fmt.Sprint("a", at))
			}
			h.quick(2, 10_470, "c0")
			h.quick(2, 10_920, "c1")
			h.waits(1, h.holdOf("lock", 1, 10_010, 11_600, "b1"), 10_011)
		}, nil},

		{"an owner that is refused", func(h *testHistory) {
			h.do(0, 10_000, 10_001, record{Do: opAcquire, Primitive: "owner", Owner: "o", TTL: time.Second},
				record{Outcome: outcomeOK, ID: "o", Until: 10_900 * ms})
			h.do(1, 10_100, 10_101, record{Do: opAcquire, Primitive: "owner", Owner: "o", TTL: time.Second, Try: true},
				record{Outcome: outcomeBusy})
		}, []string{checkOwner}},
		{"a call that returns late", func(h *testHistory) {
			h.do(0, 10_000, 10_900, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, []string{checkPrompt}},
		{"a call that returns late, while the clients of its process connect", func(h *testHistory) {
			h.starts = map[int]int64{0: 9_800 * ms}
			h.do(0, 10_000, 10_900, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, nil},
		{"a call that returns late, while another process waits for its turn", func(h *testHistory) {
			h.stalls = map[int][]interval{1: {{10_450 * ms, 10_800 * ms}}, 2: {{10_700 * ms, 10_850 * ms}}}
			h.do(0, 10_000, 10_900, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, nil},
		{"a call that returns later than its process waits for its turn, again and again", func(h *testHistory) {
			h.stalls = map[int][]interval{0: {{10_400 * ms, 10_700 * ms}, {10_750 * ms, 11_000 * ms}}}
			h.do(0, 10_000, 11_450, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, nil},
		{"a call that returns later than others wait for their turn", func(h *testHistory) {
			h.stalls = map[int][]interval{1: {{10_450 * ms, 10_500 * ms}}, 2: {{10_450 * ms, 10_500 * ms}}}
			h.do(0, 10_000, 10_950, record{Do: opCheck, Bound: 10_500 * ms}, record{Outcome: outcomeUnknown})
		}, []string{checkPrompt}},
		{"a call that returns late, while another process is stopped", func(h *testHistory) {
			h.fault(faultStop, 1, 10_450, 10_800)
			h.stalls = map[int][]interval{1: {{10_450 * ms, 10_800 * ms}}}
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
		{"a fair lock whose waiter did not run for longer than it may hold", func(h *testHistory) {
			passesB(h)
			for i := range h.records[1] {
				h.records[1][i].MaxHold, h.records[1][i].Until = 160*time.Millisecond, 11_350*ms
			}
			h.records[1] = append(h.records[1], record{Kind: kindStall, At: 11_150 * ms, Count: 400 * ms})
		}, nil},
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
		{"release not executed: it is repeated, perhaps until the lease is over", func(h *testHistory) {
			h.do(0, 10_400, 10_401, record{Do: opRelease, Root: acquire(h)}, record{Outcome: outcomeFailed})
		}, true},
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

// A server that has stopped answering explains what its clients report, whether it answers later or
// not.
func TestServerStallIsNoted(t *testing.T) {
	long, short := monotonic()-int64(time.Second), monotonic()
	r := &round{
		lane: &lane{runner: &runner{}}, counts: map[string]int{},
		asked: map[string]int64{"a": long, "b": long, "c": short},
	}
	r.answered("a")
	r.answered("c")
	require.Equal(t, 1, r.counts[faultStall])
	h := r.history()
	require.Len(t, h.windows, 2, "of a, that has answered, and of b")
	for _, w := range h.windows {
		require.True(t, w.isStall())
		require.Equal(t, long, w.begin)
	}
}

// Another build that records no events is too old: every acquisition of its would seem to emit
// none.
func TestOthersThatAreTooOld(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others []int
		events int
		want   bool
	}{
		{"as this build", []int{0}, 1, false},
		{"too old", []int{0}, 0, true},
		{"no other build", nil, 0, false},
		{"that has acquired nothing", []int{1}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newTestHistory(func(h *testHistory) { h.hold(0, 10_000, "a1") })
			h.others = tt.others
			h.ops[0].ret.Events = tt.events
			require.Equal(t, tt.want, h.areOthersTooOld())
		})
	}
}

// A process connects when it makes its first call, whenever the round and others have begun.
func TestStarts(t *testing.T) {
	h := newTestHistory(func(h *testHistory) {
		h.hold(1, 2_700, "b1")
		h.hold(0, 2_000, "a1")
		h.hold(0, 2_400, "a2")
		h.hold(0, 2_600, "a3")
	})
	h.noteStarts()
	require.Equal(t, map[int]int64{0: 2_000 * ms, 1: 2_700 * ms}, h.starts)
	var connecting []string
	for _, o := range h.ops {
		if h.isConnecting(o) {
			connecting = append(connecting, o.ret.ID)
		}
	}
	require.Equal(t, []string{"a1", "a2", "b1"}, connecting)
}

// A call that is late comes with what its process was doing.
func TestLateCallIsShownWithGoroutines(t *testing.T) {
	h := &history{stalls: map[int][]interval{}}
	h.add(3, []record{
		{Kind: kindCall, Op: 7, Do: opAcquire, Names: []string{"a"}},
		{Kind: kindLate, Op: 7, Stacks: "goroutine profile: total 1\n"},
	}, never, false)
	h.sort()
	var out strings.Builder
	h.print(&out, nil)
	require.Contains(t, out.String(), "goroutines of process 3 while op 7 was late:\ngoroutine profile: total 1\n")
}

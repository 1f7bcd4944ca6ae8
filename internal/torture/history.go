package torture

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// never is the end of an operation of which nobody knows whether and when it took effect.
const never = math.MaxInt64

// history is what happened in a round: the operations of all client processes, and the faults.
type history struct {
	tag     string
	ttl     time.Duration
	begin   int64
	end     int64
	ops     []*op // by the time of the call
	windows []window
	copies  []lateCopy
	stalls  map[int][]interval // by process
}

type interval struct{ begin, end int64 }

func (i interval) overlaps(begin, end int64) bool { return i.begin <= end && begin <= i.end }

// op is one operation of a client process.
type op struct {
	process int
	call    record
	ret     *record // nil: the process was killed before it returned
	waited  int64   // when it was known to wait; 0: it did not wait
	ended   *record // when the hold's context ended without a release
	until   int64   // the latest known end of the hold's validity
	release *op     // of an acquisition
	root    *op     // of a nested acquisition: the outermost one; else itself
	died    int64   // when its process was killed or stopped for good; never if it was not
}

func (o *op) outcome() string {
	if o.ret == nil {
		return outcomeUnknown
	}
	return o.ret.Outcome
}

// returned is never for a call that did not return.
func (o *op) returned() int64 {
	if o.ret == nil {
		return never
	}
	return o.ret.At
}

// holds reports whether o is an acquisition that succeeded.
func (o *op) holds() bool { return o.call.Do == opAcquire && o.outcome() == outcomeOK }

// claimEnd is when a hold ends by its own clock: the earliest of its release, the end of its context, the
// end of its validity, and the death of its process.
func (o *op) claimEnd() int64 {
	end := o.died
	if o.release != nil {
		end = min(end, o.release.call.At)
	}
	if o.ended != nil {
		end = min(end, o.ended.At)
	}
	if o.until != 0 {
		end = min(end, o.until)
	}
	return max(end, o.ret.At)
}

// window is a fault: when, where, and what it may do.
type window struct {
	interval

	fault   string
	process int      // -1: all of them
	names   []string // what an operator changed
	lossy   bool     // the servers may forget anything
	hit     bool     // the operator's act found a holder
}

// ends reports whether the window ends holds of this name.
func (w *window) ends(name string) bool { return w.lossy || slices.Contains(w.names, name) }

// disturbs reports whether the window may delay or fail what a process does with a name.
func (w *window) disturbs(process int, name string) bool {
	return w.process == process || w.process == -1 && (len(w.names) == 0 || slices.Contains(w.names, name))
}

// learn notes the end of the validity. A joint hold that was lost has none any more.
func (o *op) learn(until int64) {
	if until != 0 {
		o.until = until
	}
}

// add makes operations of the records of a process. died is when it was killed, or never.
func (h *history) add(process int, records []record, died int64) {
	ops := map[int64]*op{}
	for _, r := range records {
		o := ops[r.Op]
		switch r.Kind {
		case kindCall:
			o = &op{process: process, call: r, died: died}
			o.root = o
			ops[r.Op] = o
			h.ops = append(h.ops, o)
			if acquired := ops[r.Root]; r.Do == opRelease && acquired != nil {
				acquired.release = o
				acquired.learn(r.Until)
			} else if r.Do == opAcquire && acquired != nil {
				o.root = acquired
			}
		case kindReturn:
			o.ret = new(r)
			o.learn(r.Until)
			if acquired := ops[o.call.Root]; o.call.Do == opExtend && acquired != nil {
				acquired.learn(r.Until)
			}
		case kindWait:
			o.waited = r.At
		case kindValid:
			o.learn(r.Until)
		case kindEnd:
			o.ended = new(r)
		case kindStall:
			h.stalls[process] = append(h.stalls[process], interval{r.At - r.Count, r.At})
		}
	}
}

func (h *history) sort() {
	slices.SortFunc(h.ops, func(a, b *op) int { return cmp.Compare(a.call.At, b.call.At) })
}

// byName returns the operations on each name, in order.
func (h *history) byName() map[string][]*op {
	out := map[string][]*op{}
	for _, o := range h.ops {
		for _, name := range o.call.Names {
			out[name] = append(out[name], o)
		}
	}
	return out
}

// stalled is for how long the process did not run between two instants.
func (h *history) stalled(process int, begin, end int64) time.Duration {
	sum := int64(0)
	for _, s := range h.stalls[process] {
		sum += max(0, min(end, s.end)-max(begin, s.begin))
	}
	return time.Duration(sum)
}

// disturbed reports whether a fault may have affected what a process did with a name between two instants.
func (h *history) disturbed(process int, name string, begin, end int64) bool {
	return slices.ContainsFunc(h.windows, func(w window) bool {
		return w.disturbs(process, name) && w.overlaps(begin, end)
	})
}

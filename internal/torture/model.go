package torture

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The sequential models. The histories of clients are compared with them by porcupine, which looks
// for an order of the operations in which each takes effect once, between its call and its return.

// step is an operation of a model.
type step struct {
	do      string
	root    int // number of the outermost hold: what belongs to one owner never excludes itself
	id      int // number of the id in Redis, which the members of a cohort share
	from    int // number of the id that is taken over or released; -1 if nobody knows it
	read    bool
	permits int
	token   int64
	result  int64
	text    string // for people
	ordered bool   // a fair lock: nobody that has joined the queue before may be overtaken
	called  int64  // of a waiter of a fair lock: it joined the queue after this instant,
	joined  int64  // and before this one
	lenient bool   // what it ends may have ended before
	both    bool   // it takes over a writer with its readers
	total   bool   // it sees how many permits there are, not how many are free
}

// Steps that are no operations of clients.
const (
	stepEnd     = "end"     // a hold ends
	stepLoss    = "loss"    // the server may have forgotten everything
	stepJoin    = "join"    // an acquisition is in the queue
	stepPresent = "present" // somebody sees that an id holds something
	stepAbsent  = "absent"  // somebody sees that an id holds nothing
)

// held is a hold in a state of a model.
type held struct {
	root    int
	id      int
	read    bool
	permits int
	count   int
}

// holders is the state of locks and semaphores.
type holders struct {
	limit int // permits; 0 for locks
	held  []held
	used  int // permits
	token int64
	queue []place
}

// place is a waiter that was in the queue of a fair lock before an instant. Of waiters that joined
// at about the same time nobody knows who was first, and a queue in one order of many would take
// long to find.
type place struct {
	root   int
	joined int64
}

func (s holders) equal(t holders) bool {
	return s.limit == t.limit && s.used == t.used && s.token == t.token && slices.Equal(s.queue, t.queue) &&
		slices.Equal(s.held, t.held)
}

// String shows a state in a timeline.
func (s holders) String() string {
	var parts []string
	for _, h := range s.held {
		kind := map[bool]string{true: "reader", false: "holder"}[h.read]
		parts = append(parts, fmt.Sprintf("%s #%d ×%d", kind, h.root, h.count))
	}
	if len(parts) == 0 {
		parts = []string{"free"}
	}
	if s.token > 0 {
		parts = append(parts, fmt.Sprintf("token %d", s.token))
	}
	if len(s.queue) > 0 {
		parts = append(parts, fmt.Sprintf("%d in the queue", len(s.queue)))
	}
	return strings.Join(parts, ", ")
}

// holdersModel is the model of all primitives that are held: one writer or many readers, in any
// depth; or, with a limit, that many permits.
func holdersModel(limit int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return holders{limit: limit} },
		Step: func(state, input, _ any) (bool, any) {
			if limit > 0 {
				return state.(holders).takePermits(input.(step))
			}
			return state.(holders).take(input.(step))
		},
		Equal:             func(a, b any) bool { return a.(holders).equal(b.(holders)) },
		DescribeOperation: func(input, _ any) string { return input.(step).text },
		DescribeState:     func(state any) string { return state.(holders).String() },
	}
}

// take returns whether a step of a lock is possible in state s, and the next state.
func (s holders) take(in step) (bool, holders) {
	switch in.do {
	case opAcquire:
		if s.excludes(in) {
			return false, s
		}
		if in.token > 0 {
			if in.token <= s.token {
				return false, s
			}
			s.token = in.token
		}
		if in.ordered {
			if slices.ContainsFunc(s.queue, func(p place) bool { return p.root != in.root && p.joined < in.called }) {
				return false, s
			}
			s.queue = slices.DeleteFunc(slices.Clone(s.queue), func(p place) bool { return p.root == in.root })
		}
		return true, s.add(in)
	case opAdopt:
		rest, found := s.drop(in)
		if !found && !in.lenient || rest.excludes(in) {
			return false, s
		}
		return true, rest.add(in)
	case opForce:
		rest := s
		rest.held = slices.DeleteFunc(slices.Clone(s.held), func(h held) bool { return h.read == in.read })
		return in.result != 0 || len(rest.held) == len(s.held), rest
	case stepLoss:
		s.token = 0
		return true, s
	case stepJoin:
		s.queue = append(slices.Clone(s.queue), place{in.root, in.joined})
		return true, s
	}
	return s.end(in)
}

// takePermits is take for a semaphore.
func (s holders) takePermits(in step) (bool, holders) {
	switch in.do {
	case opAcquire:
		if s.used+in.permits > s.limit {
			return false, s
		}
		return true, s.add(in)
	case opAdopt:
		rest, found := s.drop(in)
		// What an acquisition of unknown outcome has taken needs no room: the pool may have become
		// smaller since.
		if !found && (!in.lenient || in.from >= 0 && rest.used+in.permits > rest.limit) {
			return false, s
		}
		return true, rest.add(in)
	case opAdd:
		s.limit += in.permits
		return true, s
	case opResize:
		s.limit = in.permits
		return true, s
	case opDrain:
		left := s.limit - s.used
		s.limit -= int(in.result)
		return int(in.result) <= left, s // less: acquisitions of unknown outcome have taken the others
	case opInfo:
		if in.total {
			return int(in.result) == s.limit, s
		}
		return int(in.result) <= s.limit-s.used, s
	}
	return s.end(in)
}

// end is take for the steps that end holds.
func (s holders) end(in step) (bool, holders) {
	switch in.do {
	case stepEnd:
		i := slices.IndexFunc(s.held, func(h held) bool { return h.root == in.root && h.read == in.read })
		if i < 0 {
			return in.lenient, s // else it has not been acquired yet
		}
		s.used -= s.held[i].permits
		s.held = slices.Clone(s.held)
		if s.held[i].count--; s.held[i].count == 0 {
			s.held = slices.Delete(s.held, i, i+1)
		}
		return true, s
	case opReleaseID:
		rest, found := s.drop(in)
		return found || in.lenient, rest
	case stepAbsent, stepPresent:
		_, found := s.drop(in)
		return found == (in.do == stepPresent), s
	}
	return true, s
}

// drop removes the holds of the id that a step takes over or releases: for permits, so many of
// them. It reports whether the id had them.
func (s holders) drop(in step) (_ holders, found bool) {
	var rest []held
	for _, h := range s.held {
		switch {
		case h.id != in.from || h.permits < in.permits || h.read != in.read && !in.both:
		case h.permits > in.permits:
			found = true
			h.permits -= in.permits
			s.used -= in.permits
		default:
			found = true
			s.used -= h.permits
			continue
		}
		rest = append(rest, h)
	}
	s.held = rest
	return s, found
}

// excludes reports whether another's hold forbids an acquisition.
func (s holders) excludes(in step) bool {
	return slices.ContainsFunc(s.held, func(h held) bool { return h.root != in.root && !(h.read && in.read) })
}

// add adds a hold and keeps the order, so that equal states are equal values.
func (s holders) add(in step) holders {
	h := held{in.root, in.id, in.read, in.permits, 1}
	i, found := slices.BinarySearchFunc(s.held, h, func(a, b held) int {
		return cmp.Or(a.root-b.root, map[bool]int{true: 1}[a.read]-map[bool]int{true: 1}[b.read])
	})
	s.used += in.permits
	s.held = slices.Clone(s.held)
	if found {
		s.held[i].count++
	} else {
		s.held = slices.Insert(s.held, i, h)
	}
	return s
}

// latchModel is the model of a latch. Its state is the count; 0 also stands for no latch.
var latchModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		count, in := state.(int64), input.(step)
		unknown := in.result < 0
		switch in.do {
		case opInit:
			created := count == 0
			if !unknown && created != (in.result == 1) {
				return false, count
			}
			if created {
				count = int64(in.permits)
			}
			return true, count
		case opCountDown:
			return true, max(0, count-1)
		case opCount:
			return unknown || in.result == count, count
		case opAwait:
			return unknown || count == 0, count
		}
		return true, count
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string { return input.(step).text },
	DescribeState:     func(state any) string { return fmt.Sprintf("count %d", state) },
}

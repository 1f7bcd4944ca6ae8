package torture

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The sequential models. The histories of clients are compared with them by porcupine, which looks for an
// order of the operations in which each takes effect once, between its call and its return.

// step is an operation of a model.
type step struct {
	do      string
	root    int // number of the outermost hold: what belongs to one owner never excludes itself
	read    bool
	permits int
	token   int64
	result  int64
	text    string // for people
	ordered bool   // a fair lock: nobody that has joined the queue before may be overtaken
}

// Steps that are no operations of clients.
const (
	stepEnd   = "end"   // a hold ends
	stepLoss  = "loss"  // the server may have forgotten everything
	stepJoin  = "join"  // an acquisition is in the queue
	stepLeave = "leave" // an acquisition has left the queue without the lock
)

// held is a hold in a state of a model.
type held struct {
	root    int
	read    bool
	permits int
	count   int
}

// holders is the state of locks and semaphores.
type holders struct {
	held  []held
	used  int // permits
	token int64
	queue []int
}

func (s holders) equal(t holders) bool {
	return s.used == t.used && s.token == t.token && slices.Equal(s.queue, t.queue) && slices.Equal(s.held, t.held)
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
		parts = append(parts, fmt.Sprintf("queue %v", s.queue))
	}
	return strings.Join(parts, ", ")
}

// holdersModel is the model of all primitives that are held: one writer or many readers, in any depth; or,
// with a limit, that many permits.
func holdersModel(limit int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return holders{} },
		Step: func(state, input, _ any) (bool, any) {
			return state.(holders).take(input.(step), limit)
		},
		Equal:             func(a, b any) bool { return a.(holders).equal(b.(holders)) },
		DescribeOperation: func(input, _ any) string { return input.(step).text },
		DescribeState:     func(state any) string { return state.(holders).String() },
	}
}

// take returns whether a step is possible in state s, and the next state.
func (s holders) take(in step, limit int) (bool, holders) {
	switch in.do {
	case opAcquire:
		if limit > 0 && s.used+in.permits > limit || limit == 0 && s.excludes(in) {
			return false, s
		}
		if in.token > 0 {
			if in.token <= s.token {
				return false, s
			}
			s.token = in.token
		}
		if i := slices.Index(s.queue, in.root); i > 0 && in.ordered || i < 0 && in.ordered && len(s.queue) > 0 {
			return false, s
		} else if i >= 0 {
			s.queue = slices.Delete(slices.Clone(s.queue), i, i+1)
		}
		s.used += in.permits
		s.held = add(s.held, held{in.root, in.read, in.permits, 1})
		return true, s
	case stepEnd:
		i := slices.IndexFunc(s.held, func(h held) bool { return h.root == in.root && h.read == in.read })
		if i < 0 {
			return false, s // it has not been acquired yet
		}
		s.used -= in.permits
		s.held = slices.Clone(s.held)
		if s.held[i].count--; s.held[i].count == 0 {
			s.held = slices.Delete(s.held, i, i+1)
		}
		return true, s
	case stepLoss:
		s.token = 0
		return true, s
	case stepJoin:
		s.queue = append(slices.Clone(s.queue), in.root)
		return true, s
	case stepLeave:
		i := slices.Index(s.queue, in.root)
		if i < 0 {
			return false, s
		}
		s.queue = slices.Delete(slices.Clone(s.queue), i, i+1)
		return true, s
	}
	return true, s
}

// excludes reports whether another's hold forbids an acquisition.
func (s holders) excludes(in step) bool {
	return slices.ContainsFunc(s.held, func(h held) bool { return h.root != in.root && !(h.read && in.read) })
}

// add adds a hold and keeps the order, so that equal states are equal values.
func add(all []held, h held) []held {
	i, found := slices.BinarySearchFunc(all, h, func(a, b held) int {
		if a.root != b.root {
			return a.root - b.root
		}
		return map[bool]int{true: 1}[a.read] - map[bool]int{true: 1}[b.read]
	})
	all = slices.Clone(all)
	if found {
		all[i].count++
		return all
	}
	return slices.Insert(all, i, h)
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
	DescribeOperation: func(input, _ any) string { return input.(step).text },
	DescribeState:     func(state any) string { return fmt.Sprintf("count %d", state) },
}

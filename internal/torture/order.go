package torture

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// findOrder looks for an order of the operations that the model allows. known is false if the time
// was over before.
//
// It tries the operation that must take effect soonest first. Porcupine tries the one that was
// called first: while many wait, that is one that gets its turn much later, and the search goes
// back again and again.
func findOrder(model porcupine.Model, history []porcupine.Operation, limit time.Duration) (found, known bool) {
	s := newOrderSearch(model, history)
	deadline := time.Now().Add(limit)
	return s.run(func(tries int) bool { return tries%1024 == 1023 && time.Now().After(deadline) })
}

func newOrderSearch(model porcupine.Model, history []porcupine.Operation) *orderSearch {
	ops := slices.Clone(history)
	slices.SortStableFunc(ops, func(a, b porcupine.Operation) int {
		return cmp.Or(cmp.Compare(a.Return, b.Return), cmp.Compare(a.Call, b.Call))
	})
	return &orderSearch{model: model, ops: ops, done: make([]byte, (len(ops)+7)/8), seen: map[uint64][]seenState{}}
}

// orderSearch is a depth-first search. Operations are in the order of their returns.
type orderSearch struct {
	model porcupine.Model
	ops   []porcupine.Operation
	done  []byte // the operations that have taken effect, a bit each
	seen  map[uint64][]seenState

	most    int    // operations that had taken effect in the longest order that was found
	longest []byte // done of that order
}

// seenState is where the search has been: the operations that had taken effect, and the state after
// them.
type seenState struct {
	done  string
	state any
}

// choice is an operation that has taken effect, and the state before it.
type choice struct {
	op    int
	state any
}

var orderSeed = maphash.MakeSeed()

// run searches until isOver is true.
func (s *orderSearch) run(isOver func(tries int) bool) (found, known bool) {
	var path []choice
	state := s.model.Init()
	next := 0 // the operation to try
	for tries := 0; ; tries++ {
		if isOver(tries) {
			return false, false
		}
		first := s.first()
		if first == len(s.ops) {
			return true, true
		}
		op, after := s.step(state, first, max(next, first))
		if op < len(s.ops) {
			path = append(path, choice{op, state})
			s.flip(op)
			if len(path) > s.most {
				s.most, s.longest = len(path), slices.Clone(s.done)
			}
			state, next = after, 0
			continue
		}
		if len(path) == 0 {
			return false, true
		}
		last := path[len(path)-1]
		path = path[:len(path)-1]
		s.flip(last.op)
		state, next = last.state, last.op+1
	}
}

// first returns the operation that must take effect soonest.
func (s *orderSearch) first() int {
	for i := range s.ops {
		if !s.isDone(i) {
			return i
		}
	}
	return len(s.ops)
}

// step returns an operation from next on that can take effect now and leads to a new state;
// len(s.ops) if there is none. Operations that were called after the return of first must wait for
// it.
func (s *orderSearch) step(state any, first, next int) (op int, after any) {
	for i := next; i < len(s.ops); i++ {
		if s.isDone(i) || s.ops[i].Call > s.ops[first].Return {
			continue
		}
		ok, after := s.model.Step(state, s.ops[i].Input, s.ops[i].Output)
		if !ok {
			continue
		}
		s.flip(i)
		isNew := s.note(after)
		s.flip(i)
		if isNew {
			return i, after
		}
	}
	return len(s.ops), nil
}

// note reports whether the search comes to a state for the first time.
func (s *orderSearch) note(state any) bool {
	hash := maphash.Bytes(orderSeed, s.done)
	for _, other := range s.seen[hash] {
		if other.done == string(s.done) && s.model.Equal(state, other.state) {
			return false
		}
	}
	s.seen[hash] = append(s.seen[hash], seenState{string(s.done), state})
	return true
}

func (s *orderSearch) isDone(i int) bool { return s.done[i/8]&(1<<(i%8)) != 0 }

func (s *orderSearch) flip(i int) { s.done[i/8] ^= 1 << (i % 8) }

// unexplained returns the text of the operation that was called first of those behind the longest
// order that was found.
func (s *orderSearch) unexplained() string {
	var first *porcupine.Operation
	for i := range s.ops {
		o := &s.ops[i]
		isDone := s.longest != nil && s.longest[i/8]&(1<<(i%8)) != 0
		if !isDone && o.Input.(step).do != stepEnd && (first == nil || o.Call < first.Call) {
			first = o
		}
	}
	if first == nil {
		return "the history"
	}
	return first.Input.(step).text
}

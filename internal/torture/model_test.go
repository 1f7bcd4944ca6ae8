package torture

import (
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// at returns an operation on a model between two instants.
func at(begin, end int64, s step) porcupine.Operation {
	return porcupine.Operation{Input: s, Call: begin, Return: end}
}

func acquire(root int) step { return step{do: opAcquire, root: root} }
func ends(root int) step    { return step{do: stepEnd, root: root} }
func reads(root int) step   { return step{do: opAcquire, root: root, read: true} }
func token(root int, n int64) step {
	return step{do: opAcquire, root: root, token: n}
}

func permits(root, n int) step { return step{do: opAcquire, root: root, permits: n} }

func TestModels(t *testing.T) {
	queued := func(root int) step { return step{do: opAcquire, root: root, ordered: true} }
	join := func(root int) step { return step{do: stepJoin, root: root} }
	for _, tt := range []struct {
		name    string
		model   porcupine.Model
		history []porcupine.Operation
		allowed bool
	}{
		{"one after the other", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 4, ends(1)), at(0, 6, acquire(2)), at(7, 8, ends(2)),
		}, true},
		{"two at once", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(5, 6, ends(1)), at(2, 4, acquire(2)), at(7, 8, ends(2)),
		}, false},
		{"an unanswered release", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 100, ends(1)), at(4, 5, acquire(2)), at(7, 8, ends(2)),
		}, true},
		{"nested", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 4, acquire(1)), at(5, 6, ends(1)), at(9, 10, ends(1)),
		}, true},
		{"free only after the last release", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 4, acquire(1)), at(5, 6, ends(1)), at(9, 10, ends(1)), at(6, 8, acquire(2)),
			at(11, 12, ends(2)),
		}, false},
		{"readers together", holdersModel(0), []porcupine.Operation{
			at(1, 2, reads(1)), at(3, 4, reads(2)), at(5, 6, readEnds(1)), at(5, 6, readEnds(2)),
		}, true},
		{"a writer beside a reader", holdersModel(0), []porcupine.Operation{
			at(1, 2, reads(1)), at(3, 4, acquire(2)), at(5, 6, readEnds(1)), at(5, 6, ends(2)),
		}, false},
		{"a reader under its own writer", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 4, reads(1)), at(5, 6, ends(1)), at(7, 8, reads(2)), at(9, 10, readEnds(1)),
			at(9, 10, readEnds(2)),
		}, true},
		{"a token that rises", holdersModel(0), []porcupine.Operation{
			at(1, 2, token(1, 5)), at(3, 4, ends(1)), at(5, 6, token(2, 7)), at(7, 8, ends(2)),
		}, true},
		{"a token that repeats", holdersModel(0), []porcupine.Operation{
			at(1, 2, token(1, 5)), at(3, 4, ends(1)), at(5, 6, token(2, 5)), at(7, 8, ends(2)),
		}, false},
		{"a token after a loss of data", holdersModel(0), []porcupine.Operation{
			at(1, 2, token(1, 5)), at(3, 4, ends(1)), at(4, 5, step{do: stepLoss}), at(5, 6, token(2, 1)), at(7, 8, ends(2)),
		}, true},
		{"all permits", holdersModel(3), []porcupine.Operation{
			at(1, 2, permits(1, 2)), at(3, 4, permits(2, 1)), at(5, 6, endsOf(1, 2)), at(5, 6, endsOf(2, 1)),
		}, true},
		{"too many permits", holdersModel(3), []porcupine.Operation{
			at(1, 2, permits(1, 2)), at(3, 4, permits(2, 2)), at(5, 6, endsOf(1, 2)), at(5, 6, endsOf(2, 2)),
		}, false},
		{"a queue in order", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 4, join(2)), at(5, 6, join(3)), at(7, 8, ends(1)), at(4, 9, queued(2)),
			at(10, 11, ends(2)), at(6, 13, queued(3)), at(14, 15, ends(3)),
		}, true},
		{"a queue overtaken", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), at(3, 4, join(2)), at(5, 6, join(3)), at(7, 8, ends(1)), at(6, 9, queued(3)),
			at(10, 11, ends(3)), at(4, 13, queued(2)), at(14, 15, ends(2)),
		}, false},
		{"a latch", latchModel, []porcupine.Operation{
			at(1, 2, step{do: opInit, permits: 2, result: 1}), at(3, 4, step{do: opCountDown}),
			at(5, 6, step{do: opCount, result: 1}), at(7, 100, step{do: opCountDown, result: -1}),
			at(8, 9, step{do: opAwait}),
		}, true},
		{"a latch that counts twice", latchModel, []porcupine.Operation{
			at(1, 2, step{do: opInit, permits: 3, result: 1}), at(3, 4, step{do: opCountDown}),
			at(5, 6, step{do: opCount, result: 1}),
		}, false},
		{"a latch that opens early", latchModel, []porcupine.Operation{
			at(1, 2, step{do: opInit, permits: 2, result: 1}), at(3, 4, step{do: opCountDown}), at(5, 6, step{do: opAwait}),
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.allowed, porcupine.CheckOperations(tt.model, tt.history))
		})
	}
}

// readEnds is the end of a reader.
func readEnds(root int) step { return step{do: stepEnd, root: root, read: true} }

func endsOf(root, n int) step { return step{do: stepEnd, root: root, permits: n} }

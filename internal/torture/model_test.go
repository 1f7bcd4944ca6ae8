package torture

import (
	"testing"
	"time"

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
	queued := func(root int, called int64) step {
		return step{do: opAcquire, root: root, ordered: true, called: called}
	}
	join := func(root int, joined int64) porcupine.Operation {
		return at(joined, joined, step{do: stepJoin, root: root, joined: joined})
	}
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
			at(1, 2, acquire(1)), join(2, 4), join(3, 6), at(7, 8, ends(1)), at(4, 9, queued(2, 3)),
			at(10, 11, ends(2)), at(6, 13, queued(3, 5)), at(14, 15, ends(3)),
		}, true},
		{"a queue overtaken", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), join(2, 4), join(3, 6), at(7, 8, ends(1)), at(6, 9, queued(3, 5)),
			at(10, 11, ends(3)), at(4, 13, queued(2, 3)), at(14, 15, ends(2)),
		}, false},
		{"a queue that two have joined at about the same time", holdersModel(0), []porcupine.Operation{
			at(1, 2, acquire(1)), join(2, 4), join(3, 6), at(7, 8, ends(1)), at(6, 9, queued(3, 4)),
			at(10, 11, ends(3)), at(4, 13, queued(2, 3)), at(14, 15, ends(2)),
		}, true},
		{"adopted", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, adopts(2, 1)), at(5, 6, gone(1)), at(7, 8, ends(2)), at(9, 10, acquire(3)),
		}, true},
		{"adopted from nobody", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, ends(1)), at(5, 6, adopts(2, 1)),
		}, false},
		{"adopted beside the holder", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, adopts(2, 1)), at(5, 6, has(3)), at(7, 8, ends(2)),
		}, false},
		{"released by id twice", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, frees(1)), at(5, 6, frees(1)), at(7, 8, gone(1)),
		}, false},
		{"a holder that is not seen", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, step{do: stepAbsent, from: 1}), at(5, 6, ends(1)),
		}, false},
		{"seen after it was released", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, frees(1)), at(5, 6, step{do: stepPresent, from: 1}), at(7, 8, gone(1)),
		}, false},
		{"a writer that no longer reads", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, step{do: stepAbsent, from: 1, read: true}), at(5, 6, ends(1)),
		}, true},
		{"forced", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, step{do: opForce, result: 1}), at(5, 6, has(2)), at(7, 8, gone(1)), at(9, 10, ends(2)),
		}, true},
		{"forced, but nobody held", holdersModel(0), []porcupine.Operation{
			at(1, 2, has(1)), at(3, 4, step{do: opForce}), at(5, 6, ends(1)),
		}, false},
		{"writers are forced, readers stay", holdersModel(0), []porcupine.Operation{
			at(1, 2, reads(1)), at(3, 4, step{do: opForce, result: 1}), at(5, 6, acquire(2)), at(7, 8, readEnds(1)),
		}, false},
		{"permits added", holdersModel(1), []porcupine.Operation{
			at(1, 2, permits(1, 1)), at(3, 4, step{do: opAdd, permits: 1}), at(5, 6, permits(2, 1)),
		}, true},
		{"permits added too late", holdersModel(1), []porcupine.Operation{
			at(1, 2, permits(1, 1)), at(5, 6, permits(2, 1)), at(7, 8, step{do: opAdd, permits: 1}),
		}, false},
		{"permits drained", holdersModel(3), []porcupine.Operation{
			at(1, 2, permits(1, 1)), at(3, 4, step{do: opDrain, result: 2}), at(5, 6, permits(2, 1)),
		}, false},
		{"more drained than there were", holdersModel(3), []porcupine.Operation{
			at(1, 2, permits(1, 1)), at(3, 4, step{do: opDrain, result: 3}), at(5, 6, endsOf(1, 1)),
		}, false},
		{"resized", holdersModel(3), []porcupine.Operation{
			at(1, 2, permits(1, 2)), at(3, 4, step{do: opResize, permits: 1}), at(5, 6, endsOf(1, 2)), at(7, 8, permits(2, 1)),
			at(9, 10, step{do: opInfo, total: true, result: 1}),
		}, true},
		{"one of two permits adopted", holdersModel(3), []porcupine.Operation{
			at(1, 2, step{do: opAcquire, root: 1, id: 1, permits: 2}),
			at(3, 4, step{do: opAdopt, root: 2, id: 2, from: 1, permits: 1}), at(5, 6, permits(3, 1)),
			at(7, 8, endsOf(1, 2)), at(9, 10, permits(4, 1)),
		}, true},
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
			found, known := findOrder(tt.model, tt.history, time.Minute)
			require.True(t, known)
			require.Equal(t, tt.allowed, found)
		})
	}
}

// has is an acquisition whose id can be taken over.
func has(root int) step { return step{do: opAcquire, root: root, id: root} }

func adopts(root, from int) step { return step{do: opAdopt, root: root, id: root, from: from} }
func frees(id int) step          { return step{do: opReleaseID, from: id} }

// gone is the end of a hold that may have been taken over.
func gone(root int) step { return step{do: stepEnd, root: root, lenient: true} }

// readEnds is the end of a reader.
func readEnds(root int) step { return step{do: stepEnd, root: root, read: true} }

func endsOf(root, n int) step { return step{do: stepEnd, root: root, permits: n} }

package torture

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// The search and porcupine come to the same answer, for histories of which about half have an
// order.
func TestOrderAgreesWithPorcupine(t *testing.T) {
	rng := seeded(1, 1)
	orders := 0
	const histories = 3000
	for n := range histories {
		limit := []int{0, 2}[n%2]
		history := randomHistory(rng, limit)
		found, known := findOrder(holdersModel(limit), history, time.Minute)
		require.True(t, known)
		require.Equal(t, porcupine.CheckOperations(holdersModel(limit), history), found, "%v", history)
		if found {
			orders++
		}
	}
	require.InDelta(t, histories/2, orders, histories/4)
	for range histories {
		history := randomLatch(rng)
		found, known := findOrder(latchModel, history, time.Minute)
		require.True(t, known)
		require.Equal(t, porcupine.CheckOperations(latchModel, history), found, "%v", history)
	}
}

// randomLatch is a history of a latch whose operations overlap at random.
func randomLatch(rng *rand.Rand) (out []porcupine.Operation) {
	out = append(out, at(0, 1, step{do: opInit, permits: 3, result: 1}))
	for range 3 + rng.IntN(4) {
		called := 2 + rng.Int64N(20)
		in := step{do: []string{opCountDown, opCount, opAwait}[rng.IntN(3)]}
		if in.do == opCount {
			in.result = rng.Int64N(4)
		}
		out = append(out, at(called, called+rng.Int64N(20), in))
	}
	return out
}

// randomHistory is one of a few holds that overlap at random, of takeovers, and of waiters of a
// fair lock.
func randomHistory(rng *rand.Rand, limit int) (out []porcupine.Operation) {
	for root := range 2 + rng.IntN(4) {
		called := rng.Int64N(40)
		joined := called + rng.Int64N(4)
		got := joined + rng.Int64N(12)
		left := got + rng.Int64N(6)
		in := step{do: opAcquire, root: root, id: root, read: limit == 0 && rng.IntN(2) == 0, called: called}
		if limit > 0 {
			in.permits = 1
		} else if in.ordered = rng.IntN(3) == 0; in.ordered {
			out = append(out, at(joined, joined, step{do: stepJoin, root: root, joined: joined}))
		}
		end := step{do: stepEnd, root: root, read: in.read, lenient: rng.IntN(3) == 0}
		out = append(out, at(joined, got, in), at(left, left+rng.Int64N(20), end))
		if rng.IntN(4) == 0 {
			taken := called + rng.Int64N(20)
			out = append(out, at(taken, taken+rng.Int64N(10), step{
				do: opReleaseID, from: root, read: in.read, permits: in.permits, lenient: rng.IntN(2) == 0,
			}))
		}
	}
	return out
}

// Many wait for a fair lock that all have asked for at about the same time, and some releases have
// no answer. Porcupine alone does not decide that within 40 s.
func TestOrderOfManyWaiters(t *testing.T) {
	const waiters = 60
	var history []porcupine.Operation
	for turn, root := range seeded(1, 2).Perm(waiters) {
		begin, done := int64(1000+10*turn), int64(1006+10*turn)
		if turn%7 == 0 {
			done = 10_000
		}
		history = append(history,
			at(900, 900, step{do: stepJoin, root: root, joined: 900}),
			at(900, begin+3, step{do: opAcquire, root: root, id: root, called: 900, ordered: true}),
			at(begin+5, done, ends(root)))
	}
	found, known := findOrder(holdersModel(0), history, 10*time.Second)
	require.True(t, known)
	require.True(t, found)
}

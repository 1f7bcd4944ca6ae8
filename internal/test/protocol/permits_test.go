//go:build !race

package protocol

import (
	"fmt"
	"testing"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The plain semaphore: acquisitions of one permit each, their rollbacks and releases, and what
// Redis remembers of them. There is no lease, so each command must count exactly once: a permit
// that is returned twice can be taken twice, and one that is never returned is gone.
//
// As for the lock, late copies of a command may be executed at any time, in any number, or never.
// Unlike there, what Redis remembers expires: of a release or a rollback, as soon as no copy is
// under way; of an acquisition, after a day, and a holder knows when that may have happened.

// memory is what Redis remembers of an acquisition.
type memory uint8

const (
	unknown      memory = iota // nothing
	hasPermit                  // it has acquired
	gaveBack                   // it was released
	mustNotAgain               // it was rolled back before it had acquired
)

// permitSide is the client's side of an acquisition.
type permitSide struct {
	phase     phase
	latest    answer // to the latest attempt
	doubt     bool   // an attempt was not answered
	late      bool   // copies of attempts may be executed for which nobody waits
	old       bool   // a day has passed: Redis may have forgotten the acquisition
	freeing   answer // to the latest release or rollback
	lateEnd   bool   // copies of the release may be executed for which nobody waits
	forgotten bool   // of the release: also what Redis does not remember
	clean     bool   // the client was told that it has no permit, or has sent nothing that could take one
}

type permitState struct {
	left   int8
	memory [acquisitions]memory
	taken  [acquisitions]bool // the permit of an acquisition is out: nobody knows that but the model
	side   [acquisitions]permitSide
}

// permitDefects are mistakes that the model must find.
type permitDefects struct {
	forgetsRelease    bool // a release is not remembered
	forgetsTooSoon    bool // a release is forgotten while copies of it are under way
	forgetsRollback   bool // a rollback that finds nothing is not remembered
	leavesInDoubt     bool // an acquisition in doubt is not rolled back
	forgetsDoubt      bool // the answer to a later attempt settles an earlier one
	rollbackReturns   bool // a rollback returns a permit that Redis does not remember
	trustsOldMemory   bool // a release after a day returns only what Redis remembers
	acquiresTwice     bool // a copy of an acquisition acquires again
	releaseIsForgiven bool // a release without an answer counts as done
}

// The server's side: what the scripts semaphore/acquire and semaphore/release do.

func (s *permitState) acquire(i int, d *permitDefects) answer {
	switch {
	case s.memory[i] == hasPermit && !d.acquiresTwice:
		return granted
	case s.memory[i] != unknown && s.memory[i] != hasPermit:
		return over
	case s.left == 0:
		return refused
	}
	s.left--
	s.memory[i], s.taken[i] = hasPermit, true
	return granted
}

func (s *permitState) release(i int, d *permitDefects) answer {
	switch s.memory[i] {
	case mustNotAgain:
		return nothing
	case gaveBack:
		return freed
	case unknown:
		if !s.side[i].forgotten {
			if s.side[i].remembers() && !d.forgetsRollback {
				s.memory[i] = mustNotAgain
			}
			return nothing
		}
	case hasPermit:
	}
	s.left++
	s.taken[i] = false
	s.memory[i] = unknown
	if s.side[i].remembers() && !d.forgetsRelease {
		s.memory[i] = gaveBack
	}
	return freed
}

// remembers reports whether Redis is to remember a release or a rollback: a copy of the acquisition
// may come, or a copy of the release would return what Redis does not remember. Else a copy of the
// release finds nothing to return.
func (a *permitSide) remembers() bool { return a.doubt || a.forgotten }

func permitModel(limit int8, d permitDefects) model[permitState] {
	start := permitState{left: limit}
	for i := range start.side {
		start.side[i].clean = true
	}
	equal := processes{0, 1, 2}.equals()
	return model[permitState]{
		start: start,
		check: func(s permitState) string { return s.check(limit) },
		same:  func(s permitState) permitState { sortNames(equal, s.rank, s.swap); return s },
		steps: func(s permitState, steps []step[permitState]) []step[permitState] {
			do := func(label string, id int, change func(s *permitState)) {
				steps = append(steps, step[permitState]{label: label, actor: id, next: s})
				change(&steps[len(steps)-1].next)
			}
			for i := range s.side {
				attemptSteps(&s, i, &d, do)
				returnSteps(&s, i, &d, do)
				forgetSteps(&s, i, &d, do)
			}
			return steps
		},
	}
}

// attemptSteps lists the steps of an acquisition until it holds, or gives up.
func attemptSteps(s *permitState, i int, d *permitDefects, do func(string, int, func(*permitState))) {
	send := func(s *permitState) {
		a := &s.side[i]
		a.phase, a.latest, a.clean = trying, inFlight, false
	}
	giveUp := func(s *permitState) {
		a := &s.side[i]
		if a.doubt && !d.leavesInDoubt {
			a.phase, a.freeing, a.forgotten = ending, inFlight, d.rollbackReturns
			return
		}
		a.phase, a.clean = ended, true
	}
	a := &s.side[i]
	switch {
	case a.phase == idle:
		do("%s tries", i, send)
	case a.phase == waiting:
		do("%s tries again", i, send)
		do("%s gives up", i, giveUp)
	case a.phase != trying:
	case a.latest == notSent:
		do("%s repeats its attempt", i, send)
		do("%s gives up", i, giveUp)
	case a.latest == inFlight:
		do("%s's attempt is executed", i, func(s *permitState) { s.side[i].latest = s.acquire(i, d) })
		do("%s stops waiting for its attempt, which is under way", i, func(s *permitState) {
			a := &s.side[i]
			a.latest, a.doubt, a.late = notSent, true, true
		})
	default:
		do("%s gets the answer to its attempt", i, func(s *permitState) {
			a := &s.side[i]
			got := a.latest
			a.latest = notSent
			a.doubt = a.doubt && !d.forgetsDoubt
			switch got {
			case granted:
				a.phase = holding
			case refused:
				a.phase = waiting
			default:
				a.phase = ended
			}
		})
		do("the answer to %s's attempt is lost", i, func(s *permitState) {
			a := &s.side[i]
			a.latest, a.doubt = notSent, true
		})
	}
}

// returnSteps lists the steps of the release or rollback of an acquisition.
func returnSteps(s *permitState, i int, d *permitDefects, do func(string, int, func(*permitState))) {
	a := &s.side[i]
	switch {
	case a.phase == holding:
		do("%s releases", i, func(s *permitState) {
			a := &s.side[i]
			a.phase, a.freeing, a.forgotten = ending, inFlight, a.old && !d.trustsOldMemory
		})
		return
	case a.phase != ending:
		return
	}
	switch a.freeing {
	case notSent:
		do("the release of %s is repeated", i, func(s *permitState) { s.side[i].freeing = inFlight })
		do("the release of %s fails", i, func(s *permitState) {
			s.side[i].phase, s.side[i].clean = ended, d.releaseIsForgiven
		})
	case inFlight:
		do("the release of %s is executed", i, func(s *permitState) { s.side[i].freeing = s.release(i, d) })
		do("nobody waits any longer for the release of %s, which is under way", i, func(s *permitState) {
			s.side[i].freeing, s.side[i].lateEnd = notSent, true
		})
	default:
		do("the release of %s is answered", i, func(s *permitState) {
			s.side[i].phase, s.side[i].freeing, s.side[i].clean = ended, notSent, true
		})
		do("the answer to the release of %s is lost", i, func(s *permitState) { s.side[i].freeing = notSent })
	}
}

// forgetSteps lists what happens by itself: late copies come, or come no more, and Redis forgets.
func forgetSteps(s *permitState, i int, d *permitDefects, do func(string, int, func(*permitState))) {
	a := &s.side[i]
	if a.late {
		do("a late copy of %s's attempt is executed", i, func(s *permitState) { s.acquire(i, d) })
		do("no copy of %s's attempt comes any more", i, func(s *permitState) { s.side[i].late = false })
	}
	if a.lateEnd {
		do("a late copy of %s's release is executed", i, func(s *permitState) { s.release(i, d) })
		do("no copy of %s's release comes any more", i, func(s *permitState) { s.side[i].lateEnd = false })
	}
	if a.phase == holding && !a.old && !a.late {
		do("a day passes for %s", i, func(s *permitState) { s.side[i].old = true })
	}
	underWay := a.late || a.lateEnd || a.latest != notSent || a.freeing != notSent || a.phase == trying ||
		a.phase == waiting || a.phase == ending
	switch m := s.memory[i]; {
	case m == hasPermit && a.phase == holding && a.old, // nothing is under way
		m == hasPermit && a.phase == ended && !underWay,
		(m == gaveBack || m == mustNotAgain) && (!underWay || d.forgetsTooSoon):
		do("Redis forgets %s", i, func(s *permitState) { s.memory[i] = unknown })
	}
}

// check returns the invariant that a state violates.
func (s *permitState) check(limit int8) string {
	out := int8(0)
	for i := range s.side {
		a := &s.side[i]
		if s.taken[i] {
			out++
		}
		if a.phase == holding && !s.taken[i] {
			return fmt.Sprintf("%c holds a permit that is free", "ABC"[i])
		}
		if a.phase == ended && a.clean && s.taken[i] {
			return fmt.Sprintf("%c has nothing left to release, and its permit is out", "ABC"[i])
		}
	}
	if s.left+out != limit {
		return fmt.Sprintf("%d permits are free and %d are out, of %d", s.left, out, limit)
	}
	return ""
}

// rank implements the argument of sortNames.
func (s *permitState) rank(i int) (n uint64) {
	a := &s.side[i]
	for _, bit := range []bool{a.doubt, a.late, a.old, a.lateEnd, a.forgotten, a.clean, s.taken[i]} {
		n <<= 1
		if bit {
			n |= 1
		}
	}
	for _, digit := range []uint64{uint64(a.phase), uint64(a.latest), uint64(a.freeing), uint64(s.memory[i])} {
		n = n<<4 | digit
	}
	return n
}

// swap exchanges the names of two acquisitions.
func (s *permitState) swap(i, j int8) {
	s.side[i], s.side[j] = s.side[j], s.side[i]
	s.memory[i], s.memory[j] = s.memory[j], s.memory[i]
	s.taken[i], s.taken[j] = s.taken[j], s.taken[i]
}

func TestPermitProtocol(t *testing.T) {
	for _, limit := range []int8{1, 2} {
		t.Run(fmt.Sprintf("%d of 3", limit), func(t *testing.T) {
			if limit > 1 {
				redistest.NeedFull(t, "half a million states")
			}
			t.Parallel()
			r := exploreUnlessFull(permitModel(limit, permitDefects{}), nil)
			r.requireNoViolation(t)
		})
	}
}

func TestPermitProtocolFindsDefects(t *testing.T) {
	redistest.NeedFull(t, "models with defects")
	for name, d := range map[string]permitDefects{
		"a release is not remembered":                           {forgetsRelease: true},
		"a release is forgotten while copies are under way":     {forgetsTooSoon: true},
		"a rollback that finds nothing is not remembered":       {forgetsRollback: true},
		"an acquisition in doubt is not rolled back":            {leavesInDoubt: true},
		"a later answer settles an earlier attempt":             {forgetsDoubt: true},
		"a rollback returns what Redis does not remember":       {rollbackReturns: true},
		"a release after a day returns only what is remembered": {trustsOldMemory: true},
		"a copy of an acquisition acquires again":               {acquiresTwice: true},
		"a release without an answer counts as done":            {releaseIsForgiven: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(permitModel(1, d), nil)
			if r.violation == "" {
				r = explore(permitModel(2, d), nil)
			}
			r.requireViolation(t)
		})
	}
}

//go:build !race

package protocol

import (
	"testing"
)

// When a lingering lock is given up. Each step is what package engine or turns does with its mutex
// held, so that others come in between. Every command and every message arrives. The time after
// which a lingering lock is given up anyway never comes: whoever waits for the lock must get it
// before.
//
// A client that is refused asks the client of the holder to give the lock up. If that client does
// not know the holder yet, or another acquisition has the lock by then, the next poll asks again. A
// poll without such a reason never comes: an attempt must not be what saves a waiter that is
// forgotten.

// lingerStage is how far an acquisition has come.
type lingerStage uint8

const (
	notBegun   lingerStage = iota
	looks                  // for a lock of its client that lingers
	sent                   // its attempt is under way
	wasGranted             // the answer is on its way
	wasRefused
	queued    // it waits
	holds     // its caller has the lock
	placed    // its caller has released it; the lock does not linger yet
	kept      // the lock lingers
	releasing // the command that frees the lock is under way
	left
)

type lingerSide struct {
	stage   lingerStage
	wire    int8 // from holds to releasing: the id that the server knows
	by      int8 // the id that has refused its attempt
	inQueue bool // of its client
	due     bool // it has a reason to try
	ask     int8 // the id that it asks for; the message is under way
	asked   int8 // the id for which its message has arrived
}

var hasLeft = lingerSide{stage: left, wire: nobody, by: nobody, ask: nobody, asked: nobody}

type lingerState struct {
	holder int8
	wanted [acquisitions]bool // the client knows that another one has asked for the id
	side   [acquisitions]lingerSide
}

// lingerDefects are mistakes that the model must find.
type lingerDefects struct {
	keepsBlindly   bool // a lock comes to linger although it was asked for since its release began
	joinsBlindly   bool // a waiter joins, and does not look for a lock that has come to linger since
	forgetsWanted  bool // nobody remembers that a lock in use was asked for
	ignoresWaiters bool // a lock lingers although its client has waiters
	neverAsksAgain bool // a waiter asks the first holder only
	resumesGivenUp bool // a lock is resumed although it is being given up
}

func lingerModel(of processes, d lingerDefects) model[lingerState] {
	start := lingerState{holder: nobody}
	for i := range start.side {
		start.side[i] = hasLeft
		start.side[i].stage = notBegun
	}
	return model[lingerState]{
		start: start,
		check: checkLinger,
		same:  func(s lingerState) lingerState { return s },
		done: func(s lingerState) bool {
			for i := range s.side {
				if stage := s.side[i].stage; stage != notBegun && stage != kept && stage != left {
					return false
				}
			}
			return true
		},
		steps: func(s lingerState, steps []step[lingerState]) []step[lingerState] {
			do := func(sure bool, label string, id int, change func(s *lingerState)) {
				steps = append(steps, step[lingerState]{label, id, sure, s})
				change(&steps[len(steps)-1].next)
			}
			for i := range s.side {
				lingerWaitSteps(&s, i, of, &d, do)
				lingerHoldSteps(&s, i, of, &d, do)
			}
			return steps
		},
	}
}

type lingerStep = func(sure bool, label string, id int, change func(s *lingerState))

// lingerWaitSteps lists the steps of an acquisition until its caller has the lock.
func lingerWaitSteps(s *lingerState, i int, of processes, d *lingerDefects, do lingerStep) {
	switch a := &s.side[i]; a.stage {
	case notBegun:
		do(false, "%s begins", i, func(s *lingerState) { s.side[i].stage = looks })
	case looks:
		do(true, "%s looks for a lock that lingers", i, func(s *lingerState) {
			a := &s.side[i]
			a.stage = sent
			for j := range s.side {
				k := &s.side[j]
				if of[i] == of[j] && (k.stage == kept || d.resumesGivenUp && k.stage == releasing) {
					a.stage, a.wire = holds, k.wire
					if k.stage == kept {
						*k = hasLeft
					}
				}
			}
		})
	case sent:
		do(true, "%s's attempt is executed", i, func(s *lingerState) {
			a := &s.side[i]
			if a.stage, a.by = wasRefused, s.holder; s.holder == nobody || s.holder == int8(i) {
				a.stage, a.by, s.holder = wasGranted, nobody, int8(i)
			}
		})
	case wasGranted:
		do(true, "%s learns that it has the lock", i, func(s *lingerState) {
			a := &s.side[i]
			a.stage, a.wire, a.inQueue, a.due, a.asked = holds, int8(i), false, false, nobody
		})
	case wasRefused:
		do(true, "%s learns that it was refused", i, func(s *lingerState) { s.refused(i, of, d) })
	case queued:
		do(false, "%s gives up", i, func(s *lingerState) {
			a := &s.side[i]
			a.stage, a.inQueue, a.due, a.asked = left, false, false, nobody
		})
		if a.due {
			do(true, "%s tries again", i, func(s *lingerState) { s.side[i].stage, s.side[i].due = sent, false })
		} else if h := s.holder; h != nobody && of[h] != of[i] && a.ask == nobody && a.asked != h && !d.neverAsksAgain {
			do(true, "%s polls, because it has not asked the holder", i, func(s *lingerState) { s.side[i].due = true })
		}
	default:
	}
	if id := s.side[i].ask; id != nobody {
		do(true, "%s's message that it wants the lock arrives", i, func(s *lingerState) { s.askFor(id, i, of, d) })
	}
}

// refused takes in a refusal: the acquisition asks another client to give the lock up, and joins
// the queue of its own.
func (s *lingerState) refused(i int, of processes, d *lingerDefects) {
	a := &s.side[i]
	if of[a.by] != of[i] {
		a.ask = a.by
	}
	a.stage, a.by = queued, nobody
	if a.inQueue {
		if s.holder == int8(i) { // a hand-off, meanwhile
			a.stage = wasGranted
		}
		return
	}
	a.inQueue, a.due = true, true // it tries as soon as its subscription is confirmed
	for j := range s.side {
		if of[j] == of[i] && s.side[j].stage == kept && !d.joinsBlindly {
			s.side[j].stage = releasing
		}
	}
}

// askFor takes in, at the client of a holder, that i has asked for the lock.
func (s *lingerState) askFor(id int8, i int, of processes, d *lingerDefects) {
	s.side[i].ask = nobody
	for j := range s.side {
		k := &s.side[j]
		if of[j] != of[id] || k.wire != id || k.stage < holds || k.stage > kept {
			continue
		}
		s.wanted[id] = !d.forgetsWanted
		if s.side[i].inQueue {
			s.side[i].asked = id
		}
		if k.stage == kept {
			k.stage = releasing
		}
	}
}

// lingerHoldSteps lists the steps of a hold, and of its release.
func lingerHoldSteps(s *lingerState, i int, of processes, d *lingerDefects, do lingerStep) {
	// next is the next stage of a lock that lingers unless somebody is known to want it.
	next := func(s *lingerState, lingers lingerStage, blindly bool) {
		a := &s.side[i]
		a.stage = lingers
		if !blindly && (s.wanted[a.wire] || s.firstWaiter(of, of[i]) != nobody && !d.ignoresWaiters) {
			a.stage = releasing
		}
	}
	switch s.side[i].stage {
	case holds:
		do(true, "%s releases", i, func(s *lingerState) { next(s, placed, false) })
	case placed:
		do(true, "%s's lock comes to linger", i, func(s *lingerState) { next(s, kept, d.keepsBlindly) })
	case releasing:
		do(true, "%s's lock is freed", i, func(s *lingerState) { s.free(i, of) })
	default:
	}
}

// firstWaiter returns a waiter of the client, nobody if it has none.
func (s *lingerState) firstWaiter(of processes, client int8) int8 {
	for j := range s.side {
		if of[j] == client && s.side[j].inQueue {
			return int8(j)
		}
	}
	return nobody
}

// free executes the release of a hold: it hands the lock off to a waiter of its client, or wakes
// all waiters.
func (s *lingerState) free(i int, of processes) {
	s.wanted[s.side[i].wire] = false // the id is not used again
	s.holder = s.firstWaiter(of, of[i])
	s.side[i] = hasLeft
	if s.holder != nobody {
		if to := &s.side[s.holder]; to.stage == queued {
			to.stage = wasGranted
		}
		return
	}
	for j := range s.side {
		s.side[j].due = s.side[j].inQueue
	}
}

// checkLinger returns the invariant that a state violates.
func checkLinger(s lingerState) string {
	for i := range s.side {
		if a := &s.side[i]; a.stage >= holds && a.stage <= kept && s.holder != a.wire {
			return "a client has the lock, and Redis does not know it"
		}
	}
	return ""
}

var lingerSetups = map[string]processes{
	"two goroutines of one client, and another client": {0, 0, 1},
	"three clients": {0, 1, 2},
}

func TestLingerProtocol(t *testing.T) {
	for name, of := range lingerSetups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(lingerModel(of, lingerDefects{}), nil)
			r.requireNoViolation(t)
		})
	}
}

func TestLingerProtocolFindsDefects(t *testing.T) {
	for name, d := range map[string]lingerDefects{
		"a lock comes to linger although it was asked for": {keepsBlindly: true},
		"a waiter joins and does not look for a lock":      {joinsBlindly: true},
		"a request for a lock in use is forgotten":         {forgetsWanted: true},
		"a lock lingers although its client has waiters":   {ignoresWaiters: true},
		"a waiter does not ask again":                      {neverAsksAgain: true},
		"a lock is resumed although it is being given up":  {resumesGivenUp: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := explore(lingerModel(processes{0, 0, 1}, d), nil)
			r.requireViolation(t)
		})
	}
}

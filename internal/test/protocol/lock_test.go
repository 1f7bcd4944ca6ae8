//go:build !race

package protocol

import (
	"fmt"
	"testing"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/internal/waitq"
)

// The plain lock: acquisitions with ids of their own, releases, hand-offs to a waiter of the same
// client, and turns on one hold, which are passed on without a command. Another acquisition then
// releases the id. A lock may linger after its release, until it is given up, or until an
// acquisition of the same client that has not tried yet resumes it. The model in linger_test.go
// says when it is given up.
//
// Beside the clients of the model there may be any number of others, which acquire and release the
// lock too. Their ids are their own, and whatever becomes of their commands, the others know only
// that they hold the lock, or do not.
//
// At most one copy of a command is awaited. Once a client has stopped waiting for a copy, copies of
// it may be executed at any later time, in any number, or never. Answers may be lost.
//
// Assumed, and not part of the model: Redis remembers a release for longer than a copy can be under
// way, and a lease does not end on the server before it ends for its holder, whose clock starts
// earlier.

// phase is how far an acquisition has come.
type phase uint8

const (
	idle    phase = iota
	trying        // waits for the answer to an attempt, or decides what to do without one
	waiting       // was refused
	holding       // its hold is valid
	ending        // waits for the answer to its release or rollback
	ended         // also of a hold that has ended by time
	lingers       // it was released, and keeps the lock: no command was sent
)

// answer is what the server answered to a copy, or why there is no answer yet.
type answer uint8

const (
	notSent  answer = iota // no copy has an answer that the client still waits for
	inFlight               // the latest copy is under way
	// The latest copy was executed, and the answer is on its way back.
	granted
	refused
	over // the acquisition was released before
	handedOff
	freed
	nothing // there was nothing to release
)

// acquisition is the client's side of one Acquire, and of the hold that follows.
type acquisition struct {
	phase          phase
	waitq.Progress        // while it waits; of a hold, Doubt is left
	latest         answer // to the latest attempt
	stale          bool   // the lease that it was granted has ended before it knew
	wire           int8   // of a hold: the id that the server knows, another one's within a cohort
	// clean: the client was told that its id holds nothing, or has sent nothing that could make it
	// hold.
	clean bool
}

// release of an id, or its rollback. All copies are equal.
type release struct {
	latest    answer
	late      bool // copies may be executed for which nobody waits
	doubt     bool // a copy was not answered
	by        int8 // the acquisition that waits for the answer
	successor int8
	told      bool // the successor was told that the outcome of the hand-off is unknown
	remember  bool
}

// others is the holder if the lock belongs to none of the model's acquisitions.
const others = acquisitions

// lockServer is what Redis knows.
type lockServer struct {
	holder int8
	over   [acquisitions]bool // remembered: the id was released
}

type lockState struct {
	server   lockServer
	others   bool // a hold of another client is valid
	acquired [acquisitions]acquisition
	late     [acquisitions]bool // copies of attempts may be executed for which nobody waits
	released [acquisitions]release
}

// lockDefects are mistakes that the model must find.
type lockDefects struct {
	forgetsRelease       bool // a release is never remembered
	forgetsDoubt         bool // the answer to a later attempt settles an earlier one
	leavesWithoutAsking  bool // a waiter that gives up in doubt rolls nothing back
	offeredLeavesFreely  bool // a waiter that may be handed the lock gives up without a rollback
	grantedLeavesFreely  bool // a waiter that was handed the lock gives up without a rollback
	forgetsUnknown       bool // a waiter forgets a hand-off whose outcome is unknown
	forgetsOffer         bool // a waiter that acquires by itself forgets that a release may hand it the lock
	handsToDeparted      bool // a hand-off does not ask whether the successor has given up
	releasesByName       bool // a release frees the lock whoever holds it
	countsFromAnswer     bool // a lease counts from the answer
	passesInDoubt        bool // a cohort passes on to a waiter whose attempt is in doubt
	noticesLossLate      bool // a hold is used after its lease has ended
	cohortForgetsDoubt   bool // the release of a cohort does not know that its first attempt was in doubt
	rollbackIsNotTracked bool // a rollback counts as done although it was not answered
	lingersUnrenewed     bool // nobody renews the lease of a lock that lingers
	resumesInDoubt       bool // an acquisition resumes although an attempt of it is in doubt
	resumesTwice         bool // two acquisitions resume the same lock
}

// lockSetup is what never changes in a model of a plain lock.
type lockSetup struct {
	of      processes
	lingers bool // the locks of all clients may linger
	defects lockDefects
}

// The server's side: what the scripts lock/acquire and lock/release do.

func (s *lockServer) acquire(id int8) answer {
	switch {
	case s.over[id]:
		return over
	case s.holder == nobody || s.holder == id:
		s.holder = id
		return granted
	}
	return refused
}

func (s *lockServer) release(id, successor int8, remember bool, d *lockDefects) answer {
	got := nothing
	switch {
	case s.holder == id && successor != nobody && (!s.over[successor] || d.handsToDeparted):
		s.holder, got = successor, handedOff
	case s.holder == id, d.releasesByName && s.holder != nobody:
		s.holder, got = nobody, freed
	}
	if remember && !d.forgetsRelease {
		s.over[id] = true
	}
	return got
}

func lockModel(f *lockSetup) model[lockState] {
	of, d := f.of, f.defects
	equal := of.equals()
	start := lockState{server: lockServer{holder: nobody}}
	for i := range start.released {
		start.released[i].successor, start.released[i].by = nobody, nobody
		start.acquired[i].phase, start.acquired[i].wire = waiting, nobody
		if f.lingers {
			start.acquired[i].phase = idle
		}
	}
	return model[lockState]{
		start: start,
		check: checkLock,
		same:  func(s lockState) lockState { sortNames(equal, s.rank, s.swap); return s },
		steps: func(s lockState, steps []step[lockState]) []step[lockState] {
			// do adds a step, made by change on a copy of the state.
			do := func(label string, id int, change func(s *lockState)) {
				steps = append(steps, step[lockState]{label: label, actor: id, next: s})
				next := &steps[len(steps)-1].next
				change(next)
				next.normalize()
			}
			for i := range s.acquired {
				acquireSteps(&s, i, &d, do)
				holdSteps(&s, i, of, &d, do)
				if f.lingers {
					lingerSteps(&s, i, of, &d, do)
				}
				releaseSteps(&s, i, &d, do)
				if s.late[i] {
					do("a late copy of %s's attempt is executed", i, func(s *lockState) { s.server.acquire(int8(i)) })
				}
				if s.released[i].late {
					do("a late copy of %s's release is executed", i, func(s *lockState) { s.executeRelease(int8(i), &d) })
				}
			}
			switch h := s.server.holder; {
			case h == nobody:
				do("another client acquires", 0, func(s *lockState) { s.server.holder, s.others = others, true })
			case h == others:
				do("another client releases", 0, func(s *lockState) { s.server.holder, s.others = nobody, false })
			case d.noticesLossLate || !s.isUsed(h, !d.lingersUnrenewed):
				do("%s's lease ends", int(h), func(s *lockState) {
					s.server.holder = nobody
					s.acquired[h].stale = true
				})
			}
			return steps
		},
	}
}

// normalize clears what no later step reads, so that states that differ in nothing else are one
// state.
func (s *lockState) normalize() {
	used := [acquisitions]bool{} // by a cohort's hold
	for i := range s.acquired {
		if a := &s.acquired[i]; a.phase == holding || a.phase == lingers {
			used[a.wire] = true
		}
	}
	for i := range s.acquired {
		r := &s.released[i]
		if s.server.over[i] { // then late copies change nothing
			s.late[i] = false
			r.late = r.late && s.server.holder == int8(i)
		}
		if r.by == nobody && !r.late {
			*r = release{by: nobody, successor: nobody}
		}
		a := &s.acquired[i]
		if a.phase >= holding {
			a.latest, a.Progress, a.stale = notSent, waitq.Progress{Doubt: a.Doubt && used[i]}, false
		}
		if a.phase == ended {
			a.wire = nobody
		}
	}
}

// rank implements the argument of sortNames.
func (s *lockState) rank(i int) (n uint64) {
	a, r := &s.acquired[i], &s.released[i]
	for _, bit := range []bool{
		a.Doubt, a.Offered, a.stale, a.clean, r.doubt, r.told, r.remember, s.server.over[i], s.server.holder == int8(i),
		a.wire == int8(i), r.successor == nobody, r.late, s.late[i],
	} {
		n <<= 1
		if bit {
			n |= 1
		}
	}
	for _, digit := range []uint64{uint64(a.phase), uint64(a.State), uint64(a.latest), uint64(r.latest)} {
		n = n<<4 | digit
	}
	return n
}

// swap exchanges the names of two acquisitions.
func (s *lockState) swap(i, j int8) {
	s.acquired[i], s.acquired[j] = s.acquired[j], s.acquired[i]
	s.late[i], s.late[j] = s.late[j], s.late[i]
	s.released[i], s.released[j] = s.released[j], s.released[i]
	s.server.over[i], s.server.over[j] = s.server.over[j], s.server.over[i]
	rename(&s.server.holder, i, j)
	for k := range s.acquired {
		rename(&s.acquired[k].wire, i, j)
		rename(&s.released[k].by, i, j)
		rename(&s.released[k].successor, i, j)
	}
}

// isUsed reports whether a valid hold relies on the id, or a lock that lingers, if these count.
func (s *lockState) isUsed(id int8, lingering bool) bool {
	for i := range s.acquired {
		a := &s.acquired[i]
		if a.wire == id && (a.phase == holding || lingering && a.phase == lingers) {
			return true
		}
	}
	return false
}

func (s *lockState) executeRelease(id int8, d *lockDefects) answer {
	r := &s.released[id]
	got := s.server.release(id, r.successor, r.remember, d)
	if got == handedOff {
		s.acquired[r.successor].stale = false
	}
	return got
}

// endBy sends the release or the rollback of an id.
func (s *lockState) endBy(by int, id, successor int8, remember bool) {
	s.acquired[by].phase = ending
	s.released[id] = release{latest: inFlight, by: int8(by), successor: successor, remember: remember}
}

// giveUp ends an acquisition without a hold.
func (s *lockState) giveUp(i int, d *lockDefects) {
	a := &s.acquired[i]
	p := a.Progress
	p.Doubt = p.Doubt && !d.leavesWithoutAsking
	p.Offered = p.Offered && !d.offeredLeavesFreely
	if p.InDoubt() || (p.State == waitq.Granted && !d.grantedLeavesFreely) {
		s.endBy(i, int8(i), nobody, true)
		return
	}
	a.phase, a.clean = ended, true
}

// grant makes i a holder, unless its lease is over already. A command that offers it the lock may
// still be executed.
func (s *lockState) grant(i int, d *lockDefects) {
	a := &s.acquired[i]
	a.Doubt = a.Doubt || (a.Offered && !d.forgetsOffer)
	a.phase, a.wire, a.Offered = holding, int8(i), false
	if a.stale && !d.countsFromAnswer {
		a.phase = ended
	}
}

// acquireSteps lists the steps of an acquisition until it holds, or gives up. It may have a reason
// to try at any time.
func acquireSteps(s *lockState, i int, d *lockDefects, do func(string, int, func(*lockState))) {
	a := &s.acquired[i]
	switch {
	case a.phase != waiting:
	case a.latest == inFlight:
		do("%s's attempt is executed", i, func(s *lockState) {
			a := &s.acquired[i]
			if a.latest = s.server.acquire(int8(i)); a.latest == granted {
				a.stale = false
			}
		})
		do("%s stops waiting for its attempt, which is under way", i, func(s *lockState) {
			a := &s.acquired[i]
			a.latest = notSent
			a.Tried(true, false)
			s.late[i] = true
		})
	case a.latest == notSent:
		do("%s gives up", i, func(s *lockState) { s.giveUp(i, d) })
		if a.State == waitq.Granted {
			do("%s takes the lock that it was handed", i, func(s *lockState) { s.grant(i, d) })
			return
		}
		do("%s tries", i, func(s *lockState) {
			a := &s.acquired[i]
			a.Wake()
			a.State, a.latest = waitq.Trying, inFlight
		})
	default:
		do("%s gets the answer to its attempt", i, func(s *lockState) {
			a := &s.acquired[i]
			got := a.latest
			a.latest = notSent
			a.Doubt = a.Doubt && !d.forgetsDoubt
			switch got {
			case granted:
				s.grant(i, d)
			case refused:
				a.Tried(false, false)
			default:
				a.phase = ended
			}
		})
		do("the answer to %s's attempt is lost", i, func(s *lockState) {
			a := &s.acquired[i]
			a.latest = notSent
			a.Tried(true, false)
		})
	}
}

// The labels of the steps that name two acquisitions.
var (
	handOffTo = [acquisitions]string{"%s hands off to A", "%s hands off to B", "%s hands off to C"}
	passOnTo  = [acquisitions]string{"%s passes on to A", "%s passes on to B", "%s passes on to C"}
	resumedBy = [acquisitions]string{"A resumes the lock of %s", "B resumes the lock of %s", "C resumes the lock of %s"}
)

// holdSteps lists the steps of a hold.
func holdSteps(s *lockState, i int, of processes, d *lockDefects, do func(string, int, func(*lockState))) {
	a := &s.acquired[i]
	id := a.wire
	if a.phase != holding && a.phase != lingers { // a lock that lingers is given up in the same ways
		return
	}
	remember := s.acquired[id].Doubt && !(d.cohortForgetsDoubt && id != int8(i))
	do("%s's validity ends", i, func(s *lockState) { s.acquired[i].phase = ended })
	do("%s releases", i, func(s *lockState) { s.endBy(i, id, nobody, remember) })
	for j := range s.acquired {
		w := &s.acquired[j]
		if of[j] != of[i] || w.phase != waiting {
			continue
		}
		if w.MayOffer() {
			do(handOffTo[j], i, func(s *lockState) {
				s.acquired[j].Offered = true
				s.endBy(i, id, int8(j), remember)
			})
		}
		if w.mayTakeTurn(d) {
			do(passOnTo[j], i, func(s *lockState) {
				s.acquired[i].phase = ended
				w := &s.acquired[j]
				w.phase, w.wire, w.clean = holding, id, true // it will never use its own id
			})
		}
	}
}

// mayTakeTurn reports whether a waiter may have a turn on a hold of its client. A user who takes
// turns has sent nothing that may be executed later.
func (a *acquisition) mayTakeTurn(d *lockDefects) bool {
	isInDoubt := a.Offered || (a.Doubt && !d.passesInDoubt)
	return a.State == waitq.Idle && !isInDoubt
}

// lingerSteps lists how an acquisition begins if locks linger, and how a lock comes to linger.
func lingerSteps(s *lockState, i int, of processes, d *lockDefects, do func(string, int, func(*lockState))) {
	switch a := &s.acquired[i]; {
	case a.phase == idle:
		do("%s finds no lock that lingers", i, func(s *lockState) { s.acquired[i].phase = waiting })
	case a.phase == holding:
		do("%s releases, and the lock lingers", i, func(s *lockState) { s.acquired[i].phase = lingers })
	case a.phase == lingers:
		for j := range s.acquired {
			w := &s.acquired[j]
			if of[j] != of[i] || w.phase != idle && !(d.resumesInDoubt && w.phase == waiting && w.latest == notSent) {
				continue
			}
			do(resumedBy[j], i, func(s *lockState) {
				k, w := &s.acquired[i], &s.acquired[j]
				w.phase, w.wire, w.clean = holding, k.wire, true // it will never use its own id
				if !d.resumesTwice {
					k.phase = ended
				}
			})
		}
	default:
	}
}

// releaseSteps lists the steps of the release or rollback of an id.
func releaseSteps(s *lockState, i int, d *lockDefects, do func(string, int, func(*lockState))) {
	r := &s.released[i]
	if r.by == nobody {
		return
	}
	switch r.latest {
	case notSent:
		do("the release of %s is repeated", i, func(s *lockState) { s.released[i].latest = inFlight })
		do("the release of %s fails", i, func(s *lockState) {
			s.tell(i, notSent, d)
			r := &s.released[i]
			s.acquired[r.by].phase = ended
			s.acquired[i].clean = d.rollbackIsNotTracked
			r.by = nobody
		})
		if r.successor != nobody && !r.told {
			do("the successor of %s is told that the outcome is unknown", i, func(s *lockState) { s.tell(i, notSent, d) })
		}
	case inFlight:
		do("the release of %s is executed", i, func(s *lockState) {
			s.released[i].latest = s.executeRelease(int8(i), d)
		})
		do("nobody waits any longer for the release of %s, which is under way", i, func(s *lockState) {
			r := &s.released[i]
			r.latest, r.doubt, r.late = notSent, true, true
		})
	default:
		do("the release of %s is answered", i, func(s *lockState) { s.endOf(i, d) })
		do("the answer to the release of %s is lost", i, func(s *lockState) {
			s.released[i].latest, s.released[i].doubt = notSent, true
		})
	}
}

// endOf handles the answer to the release of an id.
func (s *lockState) endOf(id int, d *lockDefects) {
	r := &s.released[id]
	got := r.latest
	r.latest = notSent
	s.acquired[r.by].phase = ended
	s.acquired[id].clean = true
	r.by = nobody
	s.tell(id, got, d)
}

// tell tells the successor of a release what has become of the hand-off, once: got is the answer,
// or notSent.
func (s *lockState) tell(id int, got answer, d *lockDefects) {
	r := &s.released[id]
	if r.successor == nobody || r.told {
		return
	}
	r.told = true
	w := &s.acquired[r.successor]
	if w.phase != waiting { // it has given up, and rolls back; or its own attempt has acquired
		return
	}
	// If there was nothing to release, an earlier copy may have handed off.
	unknown := got == notSent || (got == nothing && r.doubt)
	w.Answered(got == handedOff, (r.doubt || unknown) && !d.forgetsUnknown)
}

// checkLock returns the invariant that a state violates.
func checkLock(s lockState) string {
	holders := 0
	for i := range s.acquired {
		a := &s.acquired[i]
		if a.phase == holding {
			holders++
			if s.server.holder != a.wire {
				return fmt.Sprintf("%c has a valid hold, and Redis does not know it", "ABC"[i])
			}
		}
		if a.clean && s.server.holder == int8(i) {
			return fmt.Sprintf("%c has nothing left to release, and its id holds the lock", "ABC"[i])
		}
	}
	switch {
	case s.others && s.server.holder != others:
		return "another client has a valid hold, and Redis does not know it"
	case holders > 1:
		return "two holds are valid"
	}
	return ""
}

func TestLockProtocol(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   lockSetup
		long bool // it takes many seconds
	}{
		{"three clients", lockSetup{of: processes{0, 1, 2}}, false},
		{"two goroutines of one client, and another client", lockSetup{of: processes{0, 0, 1}}, true},
		{"three goroutines of one client", lockSetup{of: processes{0, 0, 0}}, true},
		{"two goroutines of a client, another client, locks linger", lockSetup{of: processes{0, 0, 1}, lingers: true}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.long {
				redistest.NeedFull(t, "millions of states")
			}
			t.Parallel()
			r := exploreUnlessFull(lockModel(&tt.in), nil)
			r.requireNoViolation(t)
		})
	}
}

func TestLockProtocolFindsDefects(t *testing.T) {
	redistest.NeedFull(t, "models with defects")
	for name, d := range map[string]lockDefects{
		"a release in doubt is not remembered":              {forgetsRelease: true},
		"a later answer settles an earlier attempt":         {forgetsDoubt: true},
		"a waiter in doubt gives up without a rollback":     {leavesWithoutAsking: true},
		"an offered waiter gives up without a rollback":     {offeredLeavesFreely: true},
		"a waiter that acquires forgets that it is offered": {forgetsOffer: true},
		"a waiter that was handed the lock just leaves":     {grantedLeavesFreely: true},
		"a hand-off of unknown outcome is forgotten":        {forgetsUnknown: true},
		"a hand-off to a waiter that has given up":          {handsToDeparted: true},
		"a release frees the lock whoever holds it":         {releasesByName: true},
		"a lease counts from the answer":                    {countsFromAnswer: true},
		"a cohort passes on to a waiter in doubt":           {passesInDoubt: true},
		"a loss is noticed late":                            {noticesLossLate: true},
		"a cohort forgets that its acquisition is in doubt": {cohortForgetsDoubt: true},
		"a rollback counts as done without an answer":       {rollbackIsNotTracked: true},
		"nobody renews the lease of a lock that lingers":    {lingersUnrenewed: true},
		"an acquisition in doubt resumes a lock":            {resumesInDoubt: true},
		"two acquisitions resume a lock":                    {resumesTwice: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lingers := d.lingersUnrenewed || d.resumesInDoubt || d.resumesTwice
			r := explore(lockModel(&lockSetup{of: processes{0, 0, 1}, lingers: lingers, defects: d}), nil)
			r.requireViolation(t)
		})
	}
}

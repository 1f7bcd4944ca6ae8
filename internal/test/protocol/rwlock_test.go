//go:build !race

package protocol

import (
	"fmt"
	"testing"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/internal/waitq"
)

// The read-write lock: acquisitions with ids of their own. One command may acquire for two readers
// of a client. A writer hands the lock off to a writer of the same client. A writer that is refused
// because of readers leaves a reservation, which keeps new readers out until it expires.
//
// As for the plain lock, late copies of a command may be executed at any time, in any number, or
// never. What Redis remembers of a release is forgotten at any time, unless an attempt was in
// doubt. The lease of a reader that is dead has ended, but its field may stay.
//
// Not part of the model: nested acquisitions, such as a writer that also reads, and cohorts of
// writers, which work like cohorts of the plain lock.

// Further answers to an attempt.
const (
	reserved    = nothing + 1 + iota // refused, and it has left a reservation
	bothGranted                      // to the companion, too
)

// rwServer is what Redis knows. The hash is gone if there is no writer and no reader's field.
type rwServer struct {
	writer int8
	field  [acquisitions]bool // readers in the hash
	alive  [acquisitions]bool // readers whose leases have not ended
	claim  int8               // the reservation
	memory [acquisitions]memory
}

// rwSide is the client's side of one acquisition, and of the hold that follows.
type rwSide struct {
	phase          phase
	waitq.Progress // while it waits; of a hold, Doubt is left
	latest         answer
	forBoth        bool // the latest attempt acquires for the companion, too
	stale          bool // the lease that it was granted has ended before it knew
	reserved       bool // it was told that it has left a reservation
	clean          bool // as in acquisition
	late, lateBoth bool // copies of attempts may be executed for which nobody waits
	freeing        answer
	lateEnd        bool // copies of the release may be executed for which nobody waits
	endDoubt       bool // a copy of the release was not answered
	successor      int8
	told           bool // the successor was told that the outcome of the hand-off is unknown
	remember       bool // of the release: Redis must remember it for as long as copies of an attempt may come
}

type rwState struct {
	server rwServer
	side   [acquisitions]rwSide
}

// rwSetup is what never changes in a model of a read-write lock.
type rwSetup struct {
	of     processes
	writes [acquisitions]bool
	// triesAlone: a reader may try without the other reader of its client that waits, as first
	// attempts do.
	triesAlone bool
	defects    rwDefects
}

// rwDefects are mistakes that the model must find.
type rwDefects struct {
	// of the scripts
	writesBesideReaders bool // a writer does not look for readers
	readsBesideWriter   bool // a reader does not look for a writer
	freesAll            bool // one reader's release frees the lock
	forgetsRelease      bool // a release is forgotten although an attempt was in doubt
	handsToDeparted     bool // a hand-off does not ask whether the successor has given up
	readsForDeparted    bool // an attempt for two does not ask whether the other one has given up
	keepsReservation    bool // a rollback leaves the reservation behind
	// of the clients
	forgetsDoubt        bool // the answer to a later attempt settles an earlier one
	leavesInDoubt       bool // a waiter that gives up in doubt rolls nothing back
	offeredLeavesFreely bool // a reader gives up without a rollback while another one tries for it
	companionIsCertain  bool // a companion is not told that the outcome is unknown
	forgetsReservation  bool // a waiter with a reservation gives up without a rollback
	countsFromAnswer    bool // a lease counts from the answer
	noticesLossLate     bool // a hold is used after its lease has ended
}

// The server's side: what the scripts of rwlock do.

// read is rwlock/read_acquire. companion is a second reader to acquire for, or nobody.
func (s *rwServer) read(i, companion int8, d *rwDefects) answer {
	isCopy := s.alive[i]
	switch {
	case s.memory[i] != unknown:
		return over
	case isCopy:
	case s.writer != nobody && !d.readsBesideWriter, s.claim != nobody:
		return refused
	}
	s.field[i], s.alive[i] = true, true
	if companion == nobody || s.memory[companion] != unknown && !d.readsForDeparted || isCopy && !s.alive[companion] {
		return granted
	}
	s.field[companion], s.alive[companion] = true, true
	return bothGranted
}

// write is rwlock/write_acquire.
func (s *rwServer) write(i int8, d *rwDefects) answer {
	switch {
	case s.memory[i] != unknown:
		return over
	case s.writer == i:
		return granted
	case s.writer != nobody:
		return refused
	case s.field != [acquisitions]bool{} && !d.writesBesideReaders:
		s.claim = i
		return reserved
	}
	s.writer, s.claim = i, nobody
	return granted
}

// endRead is rwlock/read_release.
func (s *rwServer) endRead(i int8, d *rwDefects) answer {
	switch {
	case s.memory[i] == gaveBack:
		return freed
	case s.memory[i] == mustNotAgain:
		return nothing
	case !s.field[i]:
		s.memory[i] = mustNotAgain
		return nothing
	}
	wasAlive := s.alive[i]
	s.field[i], s.alive[i] = false, false
	for j := range s.field {
		s.alive[j] = s.alive[j] && !d.freesAll
		s.field[j] = s.alive[j]
	}
	if s.memory[i] = mustNotAgain; wasAlive {
		s.memory[i] = gaveBack
		return freed
	}
	return nothing
}

// endWrite is rwlock/write_release.
func (s *rwServer) endWrite(i, successor int8, d *rwDefects) answer {
	switch {
	case s.memory[i] == mustNotAgain:
		return nothing
	case s.memory[i] == gaveBack && successor != nobody && s.writer == successor:
		return handedOff
	case s.memory[i] == gaveBack:
		return freed
	}
	if s.claim == i && !d.keepsReservation {
		s.claim = nobody
	}
	if s.writer != i {
		s.memory[i] = mustNotAgain
		return nothing
	}
	s.memory[i] = gaveBack
	if successor != nobody && (s.memory[successor] == unknown || d.handsToDeparted) {
		s.writer, s.claim = successor, nobody
		return handedOff
	}
	s.writer = nobody
	return freed
}

func (s *rwServer) has(i int8) bool { return s.writer == i || s.alive[i] }

// companion returns the other reader of the same client, for which a reader's attempt acquires too;
// nobody if there is none.
func (f *rwSetup) companion(i int) int8 {
	for j := range f.of {
		if j != i && f.of[j] == f.of[i] && !f.writes[i] && !f.writes[j] {
			return int8(j)
		}
	}
	return nobody
}

func (f *rwSetup) equals() [acquisitions - 1]bool {
	equal := f.of.equals()
	for i := range equal {
		equal[i] = equal[i] && f.writes[i] == f.writes[i+1]
	}
	return equal
}

func rwModel(f *rwSetup) model[rwState] {
	start := rwState{server: rwServer{writer: nobody, claim: nobody}}
	for i := range start.side {
		start.side[i].phase, start.side[i].successor = waiting, nobody
	}
	equal := f.equals()
	return model[rwState]{
		start: start,
		check: func(s rwState) string { return s.check(f) },
		same:  func(s rwState) rwState { sortNames(equal, s.rank, s.swap); return s },
		steps: func(s rwState, steps []step[rwState]) []step[rwState] {
			do := func(label string, id int, change func(s *rwState)) {
				steps = append(steps, step[rwState]{label: label, actor: id, next: s})
				next := &steps[len(steps)-1].next
				change(next)
				next.normalize(f)
			}
			for i := range s.side {
				rwAttemptSteps(&s, i, f, do)
				rwHoldSteps(&s, i, f, do)
				rwReleaseSteps(&s, i, f, do)
				rwServerSteps(&s, i, f, do)
			}
			if s.server.claim != nobody {
				do("%s's reservation expires", int(s.server.claim), func(s *rwState) { s.server.claim = nobody })
			}
			return steps
		},
	}
}

type rwStep = func(label string, actor int, change func(s *rwState))

// rwAttemptSteps lists the steps of an acquisition until it holds or gives up. It may have a reason
// to try at any time.
func rwAttemptSteps(s *rwState, i int, f *rwSetup, do rwStep) {
	a, j := &s.side[i], f.companion(i)
	switch {
	case a.phase != waiting:
	case a.latest == inFlight:
		do("%s's attempt is executed", i, func(s *rwState) { s.side[i].latest = s.execute(i, s.side[i].forBoth, f) })
		do("%s stops waiting for its attempt, which is under way", i, func(s *rwState) {
			a := &s.side[i]
			a.late, a.lateBoth = a.late || !a.forBoth, a.lateBoth || a.forBoth
			s.unanswered(i, f)
		})
	case a.latest == notSent:
		do("%s gives up", i, func(s *rwState) { s.giveUp(i, f) })
		if a.State == waitq.Granted {
			do("%s takes the lock that another command has acquired for it", i, func(s *rwState) { s.grant(i, f) })
			return
		}
		try := func(s *rwState, forBoth bool) {
			a := &s.side[i]
			a.Wake()
			a.State, a.latest, a.forBoth = waitq.Trying, inFlight, forBoth
		}
		mayOffer := j != nobody && s.side[j].phase == waiting && s.side[j].MayOffer()
		if !mayOffer || f.triesAlone {
			do("%s tries", i, func(s *rwState) { try(s, false) })
		}
		if mayOffer {
			do("%s tries, and for the other reader of its client", i, func(s *rwState) {
				try(s, true)
				s.side[j].Offered = true
			})
		}
	default:
		do("%s gets the answer to its attempt", i, func(s *rwState) { s.answered(i, f) })
		do("the answer to %s's attempt is lost", i, func(s *rwState) { s.unanswered(i, f) })
	}
}

// execute executes an attempt.
func (s *rwState) execute(i int, forBoth bool, f *rwSetup) answer {
	if f.writes[i] {
		got := s.server.write(int8(i), &f.defects)
		s.side[i].stale = s.side[i].stale && got != granted
		return got
	}
	companion := int8(nobody)
	if forBoth {
		companion = f.companion(i)
	}
	got := s.server.read(int8(i), companion, &f.defects)
	if got == bothGranted {
		s.side[companion].stale = false
	}
	s.side[i].stale = s.side[i].stale && got != granted && got != bothGranted
	return got
}

// answered handles the answer to an attempt.
func (s *rwState) answered(i int, f *rwSetup) {
	a := &s.side[i]
	got := a.latest
	a.latest = notSent
	a.Doubt = a.Doubt && !f.defects.forgetsDoubt
	switch got {
	case granted, bothGranted:
		s.grant(i, f)
	case reserved:
		a.reserved = !f.defects.forgetsReservation
		a.Tried(false, false)
	case refused:
		a.Tried(false, false)
	default:
		a.phase = ended
	}
	s.tellCompanion(i, got == bothGranted, false, f)
}

// unanswered notes that nobody knows what an attempt has acquired.
func (s *rwState) unanswered(i int, f *rwSetup) {
	a := &s.side[i]
	a.latest = notSent
	a.Tried(true, false)
	s.tellCompanion(i, false, !f.defects.companionIsCertain, f)
}

// tellCompanion tells the other reader what an attempt for both has acquired for it.
func (s *rwState) tellCompanion(i int, granted, doubt bool, f *rwSetup) {
	if a := &s.side[i]; a.forBoth {
		a.forBoth = false
		if o := &s.side[f.companion(i)]; o.phase == waiting { // else it has acquired by itself, or given up
			o.Answered(granted, doubt)
		}
	}
}

// grant makes i a holder, unless its lease is over already. A command that acquires for it may
// still be executed.
func (s *rwState) grant(i int, f *rwSetup) {
	a := &s.side[i]
	a.Doubt = a.InDoubt()
	if a.phase = holding; a.stale && !f.defects.countsFromAnswer {
		a.phase = ended
	}
}

// giveUp ends an acquisition without a hold.
func (s *rwState) giveUp(i int, f *rwSetup) {
	a := &s.side[i]
	p, d := a.Progress, &f.defects
	p.Doubt = p.Doubt && !d.leavesInDoubt
	p.Offered = p.Offered && !d.offeredLeavesFreely
	if p.InDoubt() || p.State == waitq.Granted || a.reserved {
		s.end(i, nobody, p.InDoubt())
		return
	}
	a.phase, a.clean = ended, true
}

// end sends the release or the rollback of an acquisition.
func (s *rwState) end(i int, successor int8, remember bool) {
	a := &s.side[i]
	a.phase, a.freeing, a.successor, a.remember = ending, inFlight, successor, remember
}

// rwHoldSteps lists the steps of a hold.
func rwHoldSteps(s *rwState, i int, f *rwSetup, do rwStep) {
	if s.side[i].phase != holding {
		return
	}
	do("%s's validity ends", i, func(s *rwState) { s.side[i].phase = ended })
	do("%s releases", i, func(s *rwState) { s.end(i, nobody, s.side[i].Doubt) })
	for j := range s.side {
		w := &s.side[j]
		if f.of[j] == f.of[i] && f.writes[i] && f.writes[j] && w.phase == waiting && w.MayOffer() {
			do(handOffTo[j], i, func(s *rwState) {
				s.side[j].Offered = true
				s.end(i, int8(j), s.side[i].Doubt)
			})
		}
	}
}

// rwReleaseSteps lists the steps of a release or rollback.
func rwReleaseSteps(s *rwState, i int, f *rwSetup, do rwStep) {
	a := &s.side[i]
	if a.phase != ending {
		return
	}
	switch a.freeing {
	case notSent:
		do("the release of %s is repeated", i, func(s *rwState) { s.side[i].freeing = inFlight })
		do("the release of %s fails", i, func(s *rwState) {
			s.tell(i, notSent)
			s.side[i].phase = ended
		})
		if a.successor != nobody && !a.told {
			do("the successor of %s is told that the outcome is unknown", i, func(s *rwState) { s.tell(i, notSent) })
		}
	case inFlight:
		do("the release of %s is executed", i, func(s *rwState) { s.side[i].freeing = s.executeRelease(i, f) })
		do("nobody waits any longer for the release of %s, which is under way", i, func(s *rwState) {
			a := &s.side[i]
			a.freeing, a.endDoubt, a.lateEnd = notSent, true, true
		})
	default:
		do("the release of %s is answered", i, func(s *rwState) {
			a := &s.side[i]
			s.tell(i, a.freeing)
			a.phase, a.freeing, a.clean = ended, notSent, true
		})
		do("the answer to the release of %s is lost", i, func(s *rwState) {
			s.side[i].freeing, s.side[i].endDoubt = notSent, true
		})
	}
}

// executeRelease executes a release or rollback.
func (s *rwState) executeRelease(i int, f *rwSetup) answer {
	if !f.writes[i] {
		return s.server.endRead(int8(i), &f.defects)
	}
	got := s.server.endWrite(int8(i), s.side[i].successor, &f.defects)
	if got == handedOff {
		s.side[s.side[i].successor].stale = false
	}
	return got
}

// tell tells the successor of a release what has become of the hand-off, once: got is the answer,
// or notSent.
func (s *rwState) tell(i int, got answer) {
	a := &s.side[i]
	if a.successor == nobody || a.told {
		return
	}
	a.told = true
	if w := &s.side[a.successor]; w.phase == waiting { // else it has acquired by itself, or given up
		unknown := got == notSent || got == nothing && a.endDoubt
		w.Answered(got == handedOff, a.endDoubt || unknown)
	}
}

// rwServerSteps lists what happens by itself: late copies come, leases end, and Redis forgets.
func rwServerSteps(s *rwState, i int, f *rwSetup, do rwStep) {
	a, server := &s.side[i], &s.server
	if a.late {
		do("a late copy of %s's attempt is executed", i, func(s *rwState) { s.executeLate(i, false, f) })
	}
	if a.lateBoth {
		do("a late copy of %s's attempt for both is executed", i, func(s *rwState) { s.executeLate(i, true, f) })
	}
	if a.lateEnd {
		do("a late copy of %s's release is executed", i, func(s *rwState) { s.executeRelease(i, f) })
	}
	used := a.phase == holding && !f.defects.noticesLossLate
	if server.writer == int8(i) && !used {
		do("%s's lease ends", i, func(s *rwState) {
			s.server.writer = nobody
			s.side[i].stale = true
		})
	}
	if server.alive[i] && !used {
		do("%s's lease ends", i, func(s *rwState) {
			s.server.alive[i] = false
			s.side[i].stale = true
		})
	}
	if server.field[i] && server.alive == [acquisitions]bool{} {
		do("the hash expires, with the field of %s", i, func(s *rwState) { s.server.field = [acquisitions]bool{} })
	}
	if server.memory[i] != unknown && (!a.remember || f.defects.forgetsRelease) {
		do("Redis forgets the release of %s", i, func(s *rwState) { s.server.memory[i] = unknown })
	}
}

// executeLate executes a copy that nobody waits for: the lease that it gives may be over before a
// client knows of it.
func (s *rwState) executeLate(i int, forBoth bool, f *rwSetup) {
	before := *s
	s.execute(i, forBoth, f)
	for j := range s.side {
		s.side[j].stale = before.side[j].stale
	}
}

// normalize clears what no later step reads, so that states that differ in nothing else are one
// state.
func (s *rwState) normalize(f *rwSetup) {
	var granting [acquisitions]bool // there is a grant that the acquisition does not know of yet
	for i := range s.side {
		a := &s.side[i]
		granting[i] = granting[i] || a.State == waitq.Granted || a.latest == granted || a.latest == bothGranted
		if a.latest == bothGranted {
			granting[f.companion(i)] = true
		}
		if a.freeing == handedOff {
			granting[a.successor] = true
		}
	}
	for i := range s.side {
		a := &s.side[i]
		a.stale = a.stale && granting[i]
		remembered := a.remember && !f.defects.forgetsRelease
		if s.server.memory[i] != unknown && remembered { // then late copies change nothing
			a.late, a.lateBoth, a.lateEnd = false, false, false
		}
		if a.phase != waiting {
			a.latest, a.forBoth, a.stale, a.reserved = notSent, false, false, false
			a.Progress = waitq.Progress{Doubt: a.Doubt && a.phase == holding}
		}
		if a.phase == ended {
			if !remembered { // Redis may forget it at any time: now
				s.server.memory[i] = unknown
			}
			if a.clean { // then there is nothing to release
				a.lateEnd = false
			}
			if !a.lateEnd && s.server.memory[i] == unknown {
				a.remember = false
			}
		}
		if a.phase != ending {
			a.freeing, a.told = notSent, false
			if !a.lateEnd {
				a.successor = nobody
			}
		}
		if a.phase != ending || a.successor == nobody || a.told {
			a.endDoubt = false
		}
	}
}

// check returns the invariant that a state violates.
func (s *rwState) check(f *rwSetup) string {
	writers, readers := 0, 0
	for i := range s.side {
		a := &s.side[i]
		switch {
		case a.phase == holding && !s.server.has(int8(i)):
			return fmt.Sprintf("%c has a valid hold, and Redis does not know it", "ABC"[i])
		case a.phase == holding && f.writes[i]:
			writers++
		case a.phase == holding:
			readers++
		case a.clean && s.server.has(int8(i)):
			return fmt.Sprintf("%c has nothing left to release, and its id holds the lock", "ABC"[i])
		case a.clean && s.server.claim == int8(i):
			return fmt.Sprintf("%c has given up, and its reservation stays", "ABC"[i])
		}
	}
	if writers > 1 || writers == 1 && readers > 0 {
		return "a writer is not alone"
	}
	return ""
}

// rank implements the argument of sortNames.
func (s *rwState) rank(i int) (n uint64) {
	a, v := &s.side[i], &s.server
	for _, bit := range []bool{
		a.Doubt, a.Offered, a.forBoth, a.stale, a.reserved, a.clean, a.late, a.lateBoth, a.lateEnd, a.endDoubt, a.told,
		a.remember, a.successor == nobody, v.writer == int8(i), v.claim == int8(i), v.field[i], v.alive[i],
	} {
		n <<= 1
		if bit {
			n |= 1
		}
	}
	for _, digit := range []uint64{
		uint64(a.phase), uint64(a.State), uint64(a.latest), uint64(a.freeing), uint64(v.memory[i]),
	} {
		n = n<<4 | digit
	}
	return n
}

// swap exchanges the names of two acquisitions.
func (s *rwState) swap(i, j int8) {
	v := &s.server
	s.side[i], s.side[j] = s.side[j], s.side[i]
	v.field[i], v.field[j] = v.field[j], v.field[i]
	v.alive[i], v.alive[j] = v.alive[j], v.alive[i]
	v.memory[i], v.memory[j] = v.memory[j], v.memory[i]
	rename(&v.writer, i, j)
	rename(&v.claim, i, j)
	for k := range s.side {
		rename(&s.side[k].successor, i, j)
	}
}

var (
	twoReaders = rwSetup{of: processes{0, 0, 1}, writes: [acquisitions]bool{false, false, true}}
	twoWriters = rwSetup{of: processes{0, 0, 1}, writes: [acquisitions]bool{true, true, false}}
	anyAttempt = rwSetup{of: twoReaders.of, writes: twoReaders.writes, triesAlone: true}
	allApart   = rwSetup{of: processes{0, 1, 2}, writes: [acquisitions]bool{false, true, true}}
)

func TestRWProtocol(t *testing.T) {
	for name, f := range map[string]rwSetup{
		"two readers of one client, and another client's writer": twoReaders,
		"the same, with attempts for one reader only":            anyAttempt,
		"two writers of one client, and another client's reader": twoWriters,
		"a reader and two writers, of three clients":             allApart,
	} {
		t.Run(name, func(t *testing.T) {
			switch f {
			case allApart:
			case anyAttempt:
				redistest.NeedNightly(t, "millions of states")
			default:
				redistest.NeedFull(t, "many states")
			}
			t.Parallel()
			var servers reached[rwServer]
			r := exploreUnlessFull(rwModel(&f), func(s rwState) { servers.add(s.server) })
			r.requireNoViolation(t)
			compareRW(t, &f, servers.list)
		})
	}
}

func TestRWProtocolFindsDefects(t *testing.T) {
	redistest.NeedFull(t, "models with defects")
	for name, tt := range map[string]struct {
		in rwSetup
		d  rwDefects
	}{
		"a writer does not look for readers":                  {twoReaders, rwDefects{writesBesideReaders: true}},
		"a reader does not look for a writer":                 {twoReaders, rwDefects{readsBesideWriter: true}},
		"one reader's release frees the lock":                 {twoReaders, rwDefects{freesAll: true}},
		"a release in doubt is not remembered":                {allApart, rwDefects{forgetsRelease: true}},
		"a hand-off to a writer that has given up":            {twoWriters, rwDefects{handsToDeparted: true}},
		"an attempt for a reader that has given up":           {twoReaders, rwDefects{readsForDeparted: true}},
		"a rollback leaves the reservation":                   {allApart, rwDefects{keepsReservation: true}},
		"a later answer settles an earlier attempt":           {allApart, rwDefects{forgetsDoubt: true}},
		"a waiter in doubt gives up without a rollback":       {allApart, rwDefects{leavesInDoubt: true}},
		"an offered reader gives up without a rollback":       {twoReaders, rwDefects{offeredLeavesFreely: true}},
		"a companion is not told that the outcome is unknown": {twoReaders, rwDefects{companionIsCertain: true}},
		"a waiter with a reservation gives up freely":         {allApart, rwDefects{forgetsReservation: true}},
		"a lease counts from the answer":                      {allApart, rwDefects{countsFromAnswer: true}},
		"a loss is noticed late":                              {allApart, rwDefects{noticesLossLate: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.in.defects = tt.d
			r := explore(rwModel(&tt.in), nil)
			r.requireViolation(t)
		})
	}
}

//go:build !race

package protocol

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// The fair lock: acquisitions with ids of their own join a queue. The script that frees the lock
// grants it to the first, or a message tells the first, which then acquires. Clients refresh the
// queue. Waiters give up, holds are released or end by time, and clients fall silent or crash.
//
// At most one copy of a command is awaited. Once a client has stopped waiting for a copy, copies of
// it may be executed at any later time, in any number, or never. Answers and messages may be lost.
// Messages arrive at any later time, in any order.
//
// A refresh and its answer are one step: a late answer could only cause an attempt, and waiters may
// make one at any time. Any client that has queued may have a refresh under way.
//
// Assumed, and not part of the model: Redis remembers a release for longer than a copy can be under
// way, and a lease does not end on the server before it ends for its holder, whose clock starts
// earlier.

// gone is a further phase: nobody acts for the acquisition any more, and the server may not know
// that. An acquisition is in the phase ended only if the server knows.
const gone = ended + 1

// fairWaiter is the client's side of one acquisition.
type fairWaiter struct {
	phase  phase
	latest answer // to the latest attempt or release
	// told is the position in a refusal.
	told since
	// grant is the one in the answer to a release.
	grant fairGrant
	// stale: the lease that the answer grants has ended.
	stale bool
	// doubt: an attempt was not answered. Only for acquisitions that do not wait; others always
	// roll back.
	doubt bool
	// position is the one that the client knows.
	position since
	// messages under way: bit i is a grant for position i. Bit 0: the lock is free.
	messages  uint8
	confirmed bool // in a model without faults: the waiter receives messages
	// Copies may be executed for which nobody waits.
	lateAttempt, lateRelease bool
}

// isQueued reports whether the client knows that the acquisition is in the queue.
func (w *fairWaiter) isQueued() bool {
	return w.phase == waiting || (w.phase == trying && w.position != notQueued)
}

func (w *fairWaiter) isWaiting() bool { return w.phase == waiting || w.phase == trying }

type fairState struct {
	server  fairServer
	waiters [acquisitions]fairWaiter
	// silent clients: no command of theirs was executed for the waiter timeout.
	silent [acquisitions]bool
	wrong  fairMistake
}

// fairMistake is what a command has done wrong.
type fairMistake uint8

const (
	noMistake fairMistake = iota
	grantedToSilent
	lostPlace
	changedPlaces
	overtaken
	keysLeft
)

func (m fairMistake) String() string {
	return [...]string{
		grantedToSilent: "the lock is granted to a silent waiter",
		lostPlace:       "a waiter that is not silent loses its place",
		changedPlaces:   "waiters change places",
		overtaken:       "the lock is granted to another one than the first waiter",
		keysLeft:        "an empty queue has keys",
	}[m]
}

// fairDefects are mistakes that the model must find.
type fairDefects struct {
	// of the scripts
	forgetsLeaving   bool // a waiter that leaves is not remembered
	forgetsRelease   bool // a release is not remembered
	forgetsEarly     bool // a release is remembered for a shorter time than copies are under way
	releasesByName   bool // a release frees the lock whoever holds it
	handsToDead      bool // a hand-off does not ask whether the waiter is silent
	leavesListOnly   bool // a waiter that leaves stays in the sorted set
	leavesSilently   bool // the head leaves, and the next waiter does not learn that the lock is free
	refreshMovesBack bool // a refresh moves a waiter to the end of the queue
	ignoresExpiry    bool // a refresh neither hands off a lock whose lease has ended, nor says who is next
	keepsDeadHead    bool // a silent head is not removed
	keepsEmptyQueue  bool // the last waiter leaves heartbeats behind
	overtakes        bool // a newcomer acquires a free lock although others wait
	countsCopies     bool // a copy of an attempt adds a count
	// of the clients
	leavesFreely         bool // a waiter gives up without a command
	rollbackIsNotTracked bool // a rollback counts as done although it was not answered
	countsFromMessage    bool // the lease of a grant counts from its message
	takesOldGrants       bool // a grant for an earlier position counts
	forgetsDoubt         bool // the refusal of a later attempt settles an earlier one
	keepsOrphans         bool // a refresh does not remove a head that the client does not know
	forgetsConfirmation  bool // no refresh follows the confirmation of a subscription
}

// nature is why a step happens.
type nature uint8

const (
	sure    nature = iota // nothing prevents it for ever
	poll                  // sure, too: it happens once a second
	choice                // somebody decides
	fault                 // also an attempt without a reason
	copying               // a copy is executed late
)

// fairModel returns the model of a fair lock.
func fairModel(f *fairSetup) model[fairState] {
	equal := f.of.equals()
	for i := range equal {
		equal[i] = equal[i] && f.kinds[i] == f.kinds[i+1]
	}
	start := fairState{server: fairServer{holder: nobody}}
	for i := range start.waiters {
		start.server.queue[i] = nobody
		start.server.memory[i].grant, start.waiters[i].grant = noGrant, noGrant
	}
	return model[fairState]{
		start: start,
		same: func(s fairState) fairState {
			sortNames(equal, s.rank, func(i, j int8) { s.swap(i, j, f) })
			return s
		},
		check: checkFair,
		done:  isQuiet,
		steps: func(s fairState, steps []step[fairState]) []step[fairState] {
			do := func(n nature, label string, actor int, change func(s *fairState)) {
				if n > f.upTo || n == poll && f.upTo < fault {
					return
				}
				steps = append(steps, step[fairState]{label, actor, n <= poll, s})
				next := &steps[len(steps)-1].next
				change(next)
				next.normalize(f)
			}
			for i := range s.waiters {
				fairAttemptSteps(&s, i, f, do)
				fairReleaseSteps(&s, i, f, do)
				fairLateSteps(&s, i, f, do)
			}
			for c := range int8(acquisitions) {
				fairClientSteps(&s, c, f, do)
			}
			if h := s.server.holder; h != nobody && s.waiters[h].phase != holding {
				n := fault
				if s.waiters[h].phase == gone {
					n = sure
				}
				do(n, "%s's lease ends", int(h), func(s *fairState) { s.endLease(f) })
			}
			return steps
		},
	}
}

type fairStep = func(n nature, label string, actor int, change func(s *fairState))

// fairAttemptSteps lists the steps of an acquisition until it holds, or gives up.
func fairAttemptSteps(s *fairState, i int, f *fairSetup, do fairStep) {
	w := &s.waiters[i]
	if w.isWaiting() && w.latest != inFlight {
		do(choice, "%s gives up", i, func(s *fairState) {
			w := &s.waiters[i]
			if f.defects.leavesFreely {
				w.phase = ended
				return
			}
			w.phase, w.latest = ending, inFlight
		})
	}
	switch {
	case w.phase == idle:
		do(choice, "%s tries", i, func(s *fairState) { s.send(i, trying) })
	case w.phase == waiting:
		do(fault, "%s tries again without a reason", i, func(s *fairState) { s.send(i, trying) })
		fairMessageSteps(s, i, f, do)
	case w.phase != trying:
	case w.latest == notSent:
		do(sure, "%s repeats its attempt", i, func(s *fairState) { s.send(i, trying) })
	case w.latest == inFlight:
		do(sure, "%s's attempt is executed", i, func(s *fairState) {
			s.waiters[i].latest, s.waiters[i].told = s.executeAttempt(i, f)
		})
		do(fault, "%s stops waiting for its attempt, which is under way", i, func(s *fairState) {
			s.waiters[i].lateAttempt = true
			s.unanswered(i)
		})
	default:
		do(sure, "%s gets the answer to its attempt", i, func(s *fairState) {
			w := &s.waiters[i]
			switch w.latest {
			case refused:
				w.phase, w.position = waiting, w.told
				if f.kinds[i] == doesNotWait {
					s.endTry(i, f)
					return
				}
			case granted:
				if w.phase = holding; w.stale {
					s.send(i, ending)
					return
				}
			default:
				w.phase = gone
			}
			w.latest = notSent
		})
		do(fault, "the answer to %s's attempt is lost", i, func(s *fairState) { s.unanswered(i) })
	}
}

// fairMessageSteps lists the steps in which a message reaches a waiter.
func fairMessageSteps(s *fairState, i int, f *fairSetup, do fairStep) {
	w := &s.waiters[i]
	if !w.confirmed && f.upTo < fault {
		do(sure, "%s's subscription is confirmed, and it refreshes", i, func(s *fairState) {
			s.waiters[i].confirmed = true
			if !f.defects.forgetsConfirmation {
				s.refresh(f.of[i], f, true)
			}
		})
	}
	if w.messages == 0 {
		return
	}
	do(fault, "the messages to %s are lost", i, func(s *fairState) { s.waiters[i].messages = 0 })
	if w.messages&1 != 0 {
		do(sure, "%s gets the message that the lock is free, and tries", i, func(s *fairState) {
			s.waiters[i].messages &^= 1
			s.send(i, trying)
		})
	}
	mine := w.messages & (1 << w.position)
	if f.defects.takesOldGrants {
		mine = w.messages &^ (1 | 1<<w.position)
	}
	if mine != 0 {
		do(sure, "%s gets the message that it holds the lock", i, func(s *fairState) {
			s.waiters[i].phase = holding
		})
	}
}

// fairReleaseSteps lists the steps of a hold, and of the release or rollback of an id.
func fairReleaseSteps(s *fairState, i int, f *fairSetup, do fairStep) {
	w := &s.waiters[i]
	switch {
	case w.phase == holding:
		do(sure, "%s releases", i, func(s *fairState) { s.send(i, ending) })
		do(fault, "%s's validity ends", i, func(s *fairState) { s.waiters[i].phase = gone })
	case w.phase != ending:
	case w.latest == notSent:
		do(sure, "%s's release is repeated", i, func(s *fairState) { s.send(i, ending) })
		do(fault, "%s's release fails", i, func(s *fairState) {
			if s.waiters[i].phase = gone; f.defects.rollbackIsNotTracked {
				s.waiters[i].phase = ended
			}
		})
	case w.latest == inFlight:
		do(sure, "%s's release is executed", i, func(s *fairState) {
			s.waiters[i].latest, s.waiters[i].grant = s.executeRelease(i, f)
		})
		do(fault, "%s stops waiting for its release, which is under way", i, func(s *fairState) {
			s.waiters[i].latest, s.waiters[i].lateRelease = notSent, true
		})
	default:
		do(sure, "%s's release is answered", i, func(s *fairState) {
			w := &s.waiters[i]
			w.phase = ended
			s.publish(w.grant, f)
		})
		do(fault, "the answer to %s's release is lost", i, func(s *fairState) { s.waiters[i].latest = notSent })
	}
}

// fairLateSteps lists the steps of copies for which nobody waits.
func fairLateSteps(s *fairState, i int, f *fairSetup, do fairStep) {
	if s.waiters[i].lateAttempt {
		do(copying, "a late copy of %s's attempt is executed", i, func(s *fairState) {
			s.executeAttempt(i, f)
		})
	}
	if s.waiters[i].lateRelease {
		do(copying, "a late copy of %s's release is executed", i, func(s *fairState) {
			s.executeRelease(i, f)
		})
	}
	if f.defects.forgetsEarly && s.server.memory[i].answer != notSent {
		do(fault, "%s's release is forgotten", i, func(s *fairState) {
			s.server.memory[i] = fairMemory{grant: noGrant}
		})
	}
}

// fairClientSteps lists the steps of a client: its refreshes, and what happens to all its
// acquisitions at once.
func fairClientSteps(s *fairState, c int8, f *fairSetup, do fairStep) {
	actor := slices.Index(f.of[:], c)
	if actor < 0 {
		return
	}
	queued, acting, sent := false, false, false
	for i, w := range s.waiters {
		if f.of[i] != c {
			continue
		}
		queued = queued || w.isQueued()
		acting = acting || (w.phase != idle && w.phase < ended)
		sent = sent || w.phase != idle
	}
	if queued {
		do(poll, "%s's client refreshes", actor, func(s *fairState) { s.refresh(c, f, true) })
	}
	if sent {
		do(copying, "a late refresh of %s's client is executed", actor, func(s *fairState) { s.refresh(c, f, false) })
	}
	if s.server.fresh[c] {
		n := fault
		if !acting {
			n = sure
		}
		do(n, "%s's client is silent for the waiter timeout", actor, func(s *fairState) {
			s.server.fresh[c], s.silent[c] = false, true
		})
	}
	if acting {
		do(fault, "%s's client crashes", actor, func(s *fairState) {
			for i := range s.waiters {
				if f.of[i] == c {
					s.waiters[i].crash()
				}
			}
		})
	}
}

func (w *fairWaiter) crash() {
	w.lateAttempt = w.lateAttempt || (w.phase == trying && w.latest == inFlight)
	w.lateRelease = w.lateRelease || (w.phase == ending && w.latest == inFlight)
	switch w.phase {
	case idle, ended:
		w.phase = ended
	default:
		w.phase = gone
	}
}

// endTry ends an acquisition that was refused and does not wait.
func (s *fairState) endTry(i int, f *fairSetup) {
	if w := &s.waiters[i]; !w.doubt || f.defects.forgetsDoubt {
		w.phase = ended
		return
	}
	s.send(i, ending)
}

// send sends an attempt or a release.
func (s *fairState) send(i int, p phase) { s.waiters[i].phase, s.waiters[i].latest = p, inFlight }

// unanswered notes that an attempt was not answered.
func (s *fairState) unanswered(i int) {
	w := &s.waiters[i]
	if w.latest, w.doubt = notSent, true; w.position != notQueued {
		w.phase = waiting
	}
}

// publish sends the message about a hand-off. A client tells its own waiter in the same way.
func (s *fairState) publish(g fairGrant, f *fairSetup) {
	if g.to != nobody && (f.upTo >= fault || s.waiters[g.to].confirmed) {
		s.waiters[g.to].messages |= 1 << g.since
	}
}

// endLease ends the lease of the holder, and of all grants that it may still learn of.
func (s *fairState) endLease(f *fairSetup) {
	h := s.server.holder
	s.server.holder, s.server.count = nobody, 0
	w := &s.waiters[h]
	w.stale = w.latest == granted
	if !f.defects.countsFromMessage && !f.defects.takesOldGrants {
		w.messages &= 1
	}
	for i := range s.waiters {
		if w := &s.waiters[i]; w.latest == handedOff && w.grant.to == h {
			w.grant = noGrant
		}
	}
}

func (s *fairState) executeAttempt(i int, f *fairSetup) (answer, since) {
	before := *s
	got, told := s.server.acquire(int8(i), f)
	if got == refused {
		s.silent[f.of[i]] = false
	}
	s.judge(&before, f, f.of[i], nobody)
	return got, told
}

// executeRelease returns the grant in the answer.
func (s *fairState) executeRelease(i int, f *fairSetup) (answer, fairGrant) {
	before := *s
	got, g := s.server.release(int8(i), f)
	if got != handedOff {
		s.publish(g, f)
		g = noGrant
	}
	s.judge(&before, f, nobody, int8(i))
	return got, g
}

// refresh runs a refresh of a client. If it is answered, waiters with a reason try again. A head
// that the client does not know leaves the queue.
func (s *fairState) refresh(c int8, f *fairSetup, answered bool) {
	before := *s
	leaver := int8(nobody)
	s.publish(s.server.refresh(c, f), f)
	s.silent[c] = false
	if head := s.server.head(); answered && s.server.holder == nobody && head != nobody && f.of[head] == c &&
		!s.waiters[head].isQueued() && !f.defects.keepsOrphans {
		leaver = head
		s.publish(s.server.leave(head, f), f)
	}
	s.judge(&before, f, c, leaver)
	for i := range s.waiters {
		id, w := int8(i), &s.waiters[i]
		next := s.server.holder == nobody && s.server.head() == id && !f.defects.ignoresExpiry
		if answered && f.of[i] == c && w.phase == waiting && (s.server.holder == id || !s.server.scored[i] || next) {
			s.send(i, trying)
		}
	}
}

// judge compares the server before and after a command, and notes what is wrong. beats is the
// client whose heartbeat it is. leaver is the acquisition that leaves the queue by it.
func (s *fairState) judge(before *fairState, f *fairSetup, beats, leaver int8) {
	old, now := &before.server, &s.server
	winner := now.holder
	if winner == old.holder {
		winner = nobody
	}
	last := -1 // position of the previous waiter that stays
	for _, id := range old.queue {
		if id == nobody {
			break
		}
		if id == winner {
			if before.silent[f.of[id]] && f.of[id] != beats {
				s.wrong = grantedToSilent
			}
			winner = nobody // whoever is behind did not get it
			continue
		}
		if before.silent[f.of[id]] {
			continue
		}
		i := now.index(id)
		switch {
		case id == leaver && i < 0:
		case i < 0:
			s.wrong = lostPlace
		case i < last:
			s.wrong = changedPlaces
		case winner != nobody:
			s.wrong = overtaken
		}
		last = max(last, i)
	}
	if now.head() == nobody && now.fresh != [acquisitions]bool{} {
		s.wrong = keysLeft
	}
}

// normalize clears what no later step reads, so that states that differ in nothing else are one
// state.
func (s *fairState) normalize(f *fairSetup) {
	var present [acquisitions]bool // clients with waiters in the queue
	for _, id := range s.server.queue {
		if id != nobody {
			present[f.of[id]] = true
		}
	}
	for c, is := range present {
		s.server.fresh[c] = s.server.fresh[c] && is
		s.silent[c] = s.silent[c] && is
	}
	for i := range s.waiters {
		w, memory := &s.waiters[i], &s.server.memory[i]
		if w.phase != ending {
			w.grant = noGrant
			if w.phase >= holding {
				w.latest = notSent
			}
			if memory.answer != notSent {
				*memory = fairMemory{answer: freed, grant: noGrant}
			}
		} else if w.latest != handedOff {
			w.grant = noGrant
		}
		if !w.isWaiting() {
			w.position, w.messages, w.confirmed, w.stale = notQueued, 0, false, false
		}
		w.doubt = w.doubt && w.phase == trying && f.kinds[i] == doesNotWait
		if w.latest != refused {
			w.told = notQueued
		}
		if w.latest != granted {
			w.stale = false
		}
		if f.upTo < copying || (memory.answer != notSent && !f.defects.forgetsEarly) {
			w.lateAttempt, w.lateRelease = false, false // they are not executed, or change nothing
		}
	}
	granting := false
	for i := range s.waiters {
		granting = granting || s.waiters[i].grant != noGrant || s.server.memory[i].grant != noGrant
	}
	for i := range s.waiters {
		w := &s.waiters[i]
		p := w.position | w.told | s.server.joined[i]
		if p > firstTime || w.messages >= 2<<p || granting { // else there is nothing to renumber
			s.renumber(int8(i), f)
		}
	}
}

// renumber gives the positions of a waiter small numbers. It drops grants for a position that the
// waiter does not have and will not learn of.
func (s *fairState) renumber(id int8, f *fairSetup) {
	w := &s.waiters[id]
	var number [joinsNow + 1]since
	next := firstTime
	for _, p := range []since{w.position, w.told, s.server.joined[id]} {
		if p != notQueued && number[p] == notQueued {
			number[p] = next
			next++
		}
	}
	w.position, w.told = number[w.position], number[w.told]
	s.server.joined[id] = number[s.server.joined[id]]
	messages := w.messages & 1
	for p := firstTime; p <= joinsNow; p++ {
		if w.messages&(1<<p) == 0 {
			continue
		}
		if to := number[p]; to != notQueued {
			messages |= 1 << to
		} else if f.defects.takesOldGrants {
			messages |= 1 << joinsNow
		}
	}
	w.messages = messages
	for i := range s.waiters {
		for _, g := range []*fairGrant{&s.waiters[i].grant, &s.server.memory[i].grant} {
			if g.to == id {
				g.since = number[g.since]
			}
		}
		if w := &s.waiters[i]; w.latest == handedOff && w.grant.since == notQueued {
			w.grant, w.latest = noGrant, freed
		}
		if m := &s.server.memory[i]; m.answer == handedOff && m.grant.since == notQueued {
			*m = fairMemory{answer: freed, grant: noGrant}
		}
	}
}

// rank implements the argument of sortNames.
func (s *fairState) rank(i int) (n uint64) {
	w, memory := &s.waiters[i], &s.server.memory[i]
	for _, digit := range []uint8{
		uint8(w.phase), uint8(s.server.index(int8(i)) + 1), uint8(w.latest), uint8(memory.answer),
		uint8(w.position), uint8(w.told), uint8(s.server.joined[i]), w.messages, uint8(w.grant.since),
	} {
		n = n<<4 | uint64(digit)
	}
	for _, bit := range []bool{
		w.stale, w.doubt, w.confirmed, w.lateAttempt, w.lateRelease, s.server.scored[i], s.server.holder == int8(i),
	} {
		n <<= 1
		if bit {
			n |= 1
		}
	}
	return n
}

// swap exchanges the names of two acquisitions.
func (s *fairState) swap(i, j int8, f *fairSetup) {
	v := &s.server
	s.waiters[i], s.waiters[j] = s.waiters[j], s.waiters[i]
	v.scored[i], v.scored[j] = v.scored[j], v.scored[i]
	v.joined[i], v.joined[j] = v.joined[j], v.joined[i]
	v.memory[i], v.memory[j] = v.memory[j], v.memory[i]
	ci, cj := f.of[i], f.of[j]
	v.fresh[ci], v.fresh[cj] = v.fresh[cj], v.fresh[ci]
	s.silent[ci], s.silent[cj] = s.silent[cj], s.silent[ci]
	rename(&v.holder, i, j)
	for k := range s.waiters {
		rename(&v.queue[k], i, j)
		rename(&v.memory[k].grant.to, i, j)
		rename(&s.waiters[k].grant.to, i, j)
	}
}

// isQuiet reports whether nobody waits or holds.
func isQuiet(s fairState) bool {
	for i := range s.waiters {
		if p := s.waiters[i].phase; p != idle && p < ended {
			return false
		}
	}
	return s.server.holder == nobody
}

// checkFair returns the invariant that a state violates.
func checkFair(s fairState) string {
	if s.wrong != noMistake {
		return s.wrong.String()
	}
	v := &s.server
	holders := 0
	for i := range s.waiters {
		id, phase, queued := int8(i), s.waiters[i].phase, v.index(int8(i)) >= 0
		if phase == holding {
			holders++
			if v.holder != id {
				return fmt.Sprintf("%c has a valid hold, and Redis does not know it", "ABC"[i])
			}
		}
		if (phase == idle || phase == ended) && (v.holder == id || queued || v.scored[i] || v.joined[i] != notQueued) {
			return fmt.Sprintf("%c has nothing left to release, and its id holds or waits", "ABC"[i])
		}
		if queued != v.scored[i] || queued != (v.joined[i] != notQueued) {
			return fmt.Sprintf("the list, the sorted set and the hash of waiters differ about %c", "ABC"[i])
		}
		if queued && v.holder == id {
			return fmt.Sprintf("%c holds and waits", "ABC"[i])
		}
	}
	switch {
	case holders > 1:
		return "two holds are valid"
	case v.holder == nobody && v.count != 0, v.holder != nobody && v.count != 1:
		return fmt.Sprintf("the count is %d", v.count)
	}
	return ""
}

var (
	threeClients = fairSetup{of: processes{0, 1, 2}, kinds: kinds(byGrant, byGrant, byGrant)}
	oneNotified  = fairSetup{of: processes{0, 1, 2}, kinds: kinds(byGrant, byGrant, byMessage)}
	oneTry       = fairSetup{of: processes{0, 1, 2}, kinds: kinds(byGrant, byGrant, doesNotWait)}
	twoOfOne     = fairSetup{of: processes{0, 0, 1}, kinds: kinds(byGrant, byGrant, byGrant)}
	twoNotified  = fairSetup{of: processes{0, 0, 1}, kinds: kinds(byMessage, byMessage, byGrant)}
)

func kinds(k ...fairKind) [acquisitions]fairKind { return [acquisitions]fairKind(k) }

func TestFairProtocol(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   fairSetup
		upTo nature
		long bool // it takes many seconds
	}{
		{"three clients", threeClients, copying, true},
		{"three clients, one does not wait", oneTry, copying, true},
		{"two goroutines of one client, and another client", twoOfOne, copying, true},
		{"two goroutines of one client without grants, and another client", twoNotified, copying, true},
		{"three clients, one without grants, no late copies", oneNotified, fault, true},
		{"three clients, messages alone", threeClients, choice, false},
		{"three clients, one without grants, messages alone", oneNotified, choice, false},
		{"two goroutines of one client without grants, and another client, messages alone", twoNotified, choice, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			switch {
			case tt.long && tt.upTo == copying:
				redistest.NeedNightly(t, "millions of states")
			case tt.long:
				redistest.NeedFull(t, "many states")
			}
			t.Parallel()
			tt.in.upTo = tt.upTo
			r := explore(fairModel(&tt.in), nil)
			r.requireNoViolation(t)
		})
	}
}

func TestFairProtocolFindsDefects(t *testing.T) {
	redistest.NeedFull(t, "models with defects")
	for _, tt := range []struct {
		name string
		in   fairSetup
		// A waiter that waits for ever is found when all states are known, so such a model leaves
		// out copies.
		upTo nature
		d    fairDefects
	}{
		{"a waiter that leaves is not remembered", twoOfOne, copying, fairDefects{forgetsLeaving: true}},
		{"a release is not remembered", twoOfOne, copying, fairDefects{forgetsRelease: true}},
		{"a release is forgotten too early", twoOfOne, copying, fairDefects{forgetsEarly: true}},
		{"a release frees the lock whoever holds it", twoOfOne, copying, fairDefects{releasesByName: true}},
		{"a hand-off to a silent waiter", twoOfOne, copying, fairDefects{handsToDead: true}},
		{"a waiter leaves the list only", twoOfOne, copying, fairDefects{leavesListOnly: true}},
		{"the head leaves, and the next waiter is not told", oneNotified, choice, fairDefects{leavesSilently: true}},
		{"a refresh moves a waiter to the end", twoOfOne, copying, fairDefects{refreshMovesBack: true}},
		{"a refresh ignores that a lease has ended", twoOfOne, fault, fairDefects{ignoresExpiry: true}},
		{"a silent head is not removed", twoOfOne, fault, fairDefects{keepsDeadHead: true}},
		{"the last waiter leaves its heartbeat", twoOfOne, copying, fairDefects{keepsEmptyQueue: true}},
		{"a newcomer overtakes", twoNotified, copying, fairDefects{overtakes: true}},
		{"a copy of an attempt adds a count", twoOfOne, copying, fairDefects{countsCopies: true}},
		{"a waiter gives up without a command", twoOfOne, copying, fairDefects{leavesFreely: true}},
		{"a rollback counts as done without an answer", twoOfOne, copying, fairDefects{rollbackIsNotTracked: true}},
		{"the lease of a grant counts from its message", twoOfOne, copying, fairDefects{countsFromMessage: true}},
		{"a grant for an earlier position counts", twoOfOne, copying, fairDefects{takesOldGrants: true}},
		{"a later answer settles an earlier attempt", oneTry, copying, fairDefects{forgetsDoubt: true}},
		{"an orphan stays at the head", twoNotified, fault, fairDefects{keepsOrphans: true}},
		{"no refresh when a subscription is confirmed", oneNotified, choice, fairDefects{forgetsConfirmation: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.in.upTo, tt.in.defects = tt.upTo, tt.d
			r := explore(fairModel(&tt.in), nil)
			r.requireViolation(t)
		})
	}
}

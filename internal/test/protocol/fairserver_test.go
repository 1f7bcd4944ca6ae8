//go:build !race

package protocol

import "slices"

// The server's side of the fair lock: what the scripts fairlock/acquire, release, leave_queue and
// refresh do for acquisitions with ids of their own. Methods are named after the functions of the
// scripts.
//
// Times are reduced to the decisions that depend on them: is a client's heartbeat older than the
// waiter timeout, and do two positions in the queue have the same time?

// fairKind is how an acquisition waits for the lock. fairlock/acquire gets the same values in
// ARGV[6].
type fairKind uint8

const (
	doesNotWait fairKind = iota
	byMessage            // a message says that the lock is free, and it acquires as the head of the queue
	byGrant              // the script that frees the lock makes it the holder
)

// fairSetup is what never changes in a model of a fair lock.
type fairSetup struct {
	of    processes
	kinds [acquisitions]fairKind
	// upTo leaves out steps of a higher nature. Without faults nobody polls either: messages alone
	// must keep the queue moving.
	upTo    nature
	defects fairDefects
}

// since is a waiter's position: the time at which it joined the queue. Only equality counts.
type since uint8

const (
	notQueued since = iota
	firstTime
	joinsNow = firstTime + 3 // differs from all that a normalized state has
)

// fairGrant is a message, or part of an answer: the lock is granted to a waiter. The zero since: it
// is not granted, but free.
type fairGrant struct {
	to    int8
	since since
}

var noGrant = fairGrant{to: nobody}

// fairMemory is what Redis remembers of a release.
type fairMemory struct {
	answer answer // notSent: nothing
	grant  fairGrant
}

// fairServer is what Redis knows.
type fairServer struct {
	holder int8
	count  int8
	queue  [acquisitions]int8  // the list, then nobody
	scored [acquisitions]bool  // the sorted set has the id
	joined [acquisitions]since // the hash of waiters
	fresh  [acquisitions]bool  // heartbeats of clients that are not older than the waiter timeout
	memory [acquisitions]fairMemory
}

func (s *fairServer) head() int8 { return s.queue[0] }

// index returns the position of an id in the queue, -1 if it has none.
func (s *fairServer) index(id int8) int { return slices.Index(s.queue[:], id) }

func (s *fairServer) removeFromList(id int8) {
	if i := s.index(id); i >= 0 {
		copy(s.queue[i:], s.queue[i+1:])
		s.queue[acquisitions-1] = nobody
	}
}

func (s *fairServer) append(id int8) { s.queue[s.index(nobody)] = id }

func (s *fairServer) removeWaiter(id int8) {
	s.removeFromList(id)
	s.scored[id], s.joined[id] = false, notQueued
}

// deleteIfEmpty deletes the keys of an empty queue.
func (s *fairServer) deleteIfEmpty(f *fairSetup) {
	if s.head() == nobody && !f.defects.keepsEmptyQueue {
		s.scored, s.joined, s.fresh = [acquisitions]bool{}, [acquisitions]since{}, [acquisitions]bool{}
	}
}

// liveHead returns the next owner, and removes dead waiters before it.
func (s *fairServer) liveHead(f *fairSetup) int8 {
	for s.head() != nobody && !s.fresh[f.of[s.head()]] && !f.defects.keepsDeadHead {
		s.removeWaiter(s.head())
	}
	s.deleteIfEmpty(f)
	return s.head()
}

// handOff hands the free lock off to the next waiter in the queue.
func (s *fairServer) handOff(f *fairSetup) fairGrant {
	head := s.head()
	if !f.defects.handsToDead {
		head = s.liveHead(f)
	}
	if head == nobody {
		return noGrant
	}
	if f.kinds[head] == byMessage {
		return fairGrant{to: head}
	}
	g := fairGrant{head, s.joined[head]}
	s.removeWaiter(head)
	s.deleteIfEmpty(f)
	s.holder, s.count = head, 1
	return g
}

// acquire returns the position of a waiter that was refused.
func (s *fairServer) acquire(id int8, f *fairSetup) (answer, since) {
	if s.memory[id].answer != notSent {
		return over, notQueued
	}
	if s.holder == id {
		if f.defects.countsCopies {
			s.count = 2
		}
		return granted, notQueued
	}
	if s.holder == nobody {
		if head := s.liveHead(f); head == id || head == nobody || f.defects.overtakes {
			s.removeWaiter(id)
			s.deleteIfEmpty(f)
			s.holder, s.count = id, 1
			return granted, notQueued
		}
	}
	if f.kinds[id] == doesNotWait {
		return refused, notQueued
	}
	if !s.scored[id] {
		s.scored[id] = true
		s.append(id)
	}
	if s.joined[id] == notQueued {
		s.joined[id] = joinsNow
		if f.kinds[id] == byMessage {
			s.joined[id] = firstTime
		}
	}
	s.fresh[f.of[id]] = true
	return refused, s.joined[id]
}

// release returns the grant that is in the answer, with handedOff, or that a message reports.
func (s *fairServer) release(id int8, f *fairSetup) (answer, fairGrant) {
	d, memory := &f.defects, &s.memory[id]
	switch {
	case s.holder == id, d.releasesByName && s.holder != nobody:
		s.holder, s.count = nobody, 0
		g := s.handOff(f)
		got := fairMemory{answer: freed, grant: noGrant}
		if g.since != notQueued && f.of[g.to] == f.of[id] {
			got = fairMemory{handedOff, g}
		}
		if !d.forgetsRelease {
			*memory = got
		}
		return got.answer, g
	case memory.answer == notSent:
		if !d.forgetsLeaving {
			*memory = fairMemory{answer: nothing, grant: noGrant}
		}
		return nothing, s.leave(id, f)
	case memory.answer == handedOff && s.holder != memory.grant.to:
		return freed, noGrant
	}
	return memory.answer, memory.grant
}

// leave removes a waiter, and hands off a lock that it was the next to own.
func (s *fairServer) leave(id int8, f *fairSetup) fairGrant {
	if !s.scored[id] {
		return noGrant
	}
	wasHead := s.head() == id
	s.removeWaiter(id)
	s.scored[id] = f.defects.leavesListOnly
	if wasHead && s.holder == nobody && !f.defects.leavesSilently {
		return s.handOff(f)
	}
	s.deleteIfEmpty(f)
	return noGrant
}

// refresh is a heartbeat of a client, and a look at the queue.
func (s *fairServer) refresh(client int8, f *fairSetup) fairGrant {
	g, d := noGrant, &f.defects
	s.fresh[client] = true
	if head := s.liveHead(f); head != nobody && s.holder == nobody && !d.ignoresExpiry {
		g = s.handOff(f)
		s.liveHead(f)
	}
	if i := slices.IndexFunc(s.queue[:], func(id int8) bool { return id != nobody && f.of[id] == client }); i >= 0 &&
		d.refreshMovesBack {
		id := s.queue[i]
		s.removeFromList(id)
		s.append(id)
	}
	return g
}

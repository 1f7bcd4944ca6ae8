// Package engine runs an acquisition from the call to the end of its hold: attempts, waiting,
// nesting, renewal, release and loss. It sends no Redis command itself: a [Driver] talks to the
// server.
//
// # Who is authoritative
//
// The server decides who holds a lock. The engine keeps the server's last answer, and how long it
// can be trusted:
//
//	validUntil = time when the last confirmed command was sent + TTL - safety margin
//
// A slow reply, or a missing one, only shortens that time. At validUntil the hold is lost, even if
// the server still keeps the key.
//
// # A request
//
//	Try -> granted                      -> Ownership and Hold
//	    -> refused -> wait in a Queue   -> Try again, or granted by another
//	    -> in doubt: no answer came     -> Try again; rolled back if it is not granted in the end
//
// A request that fails after an attempt in doubt is rolled back in the background until the server
// has answered. The reason is a copy of the attempt that is executed late:
//
//  1. The attempt is sent. The connection breaks: no reply.
//  2. The caller gives up and returns an error.
//  3. The server executes the attempt. Without a rollback, nobody would release the lock now.
//
// # A hold
//
//	live -> released   Release or Detach
//	     -> lost       the server refused, validUntil has passed, or the limit of the hold has come
//	     -> abandoned  the client closed
//
// An [Ownership] is the server's view: one id with a count. Nested holds share it. A [Hold] is one
// acquisition. Loss travels one way: watchdog, ownership, holds, their contexts.
//
// # Where to start
//
//	acquire.go     the path of an acquisition; whether a grant may be used
//	rollback.go    what is removed when an acquisition fails
//	verdict.go     what the reply to an attempt means for a request that may wait
//	wait.go        the waiting loop, and the Queue interface
//	waitqueue.go   the local queue of a name: package waitq decides, and this file does what it says
//	poll.go        a request that polls, in no local queue
//	waitline.go    the subscription and the commands of a client that stands in line
//	shorten.go     a lease that lasts too long, because the server's clock was set back
//	handoff.go     what the last release does: it frees the lock, hands it off, or leaves it taken
//	tenure.go      what package turns needs: users take turns on one hold without commands
//	linger.go      how a client asks for a lock that stays with another client after its last release
//	minhold.go     a lock that stays taken for a minimum time
//	wanted.go      how a holder hears that somebody waits
//	contact.go     what an acquisition has heard: the lock is busy, or the server is silent
//	gaveup.go      the errors of acquisitions that gave up
//	hold.go        one hold: its ends, and the calls of its user
//	context.go     the context of a hold, and the holds that a context carries
//	holdlist.go    all holds of a client
//	holders.go     the holders that waiters wait for, so that errors can name their clients
//	ownership.go   id and count on the server; release and renewal
//	loss.go        how the holds of an ownership end when it is lost
//	keeper.go      what the watchdog tells of a renewal
//	lease.go       for how long the leases of holds must last
//	wire.go        the order of the commands about one ownership
//	nest.go        acquisitions under a hold that the context carries
//	token.go       fencing tokens that went backwards
//	log.go         the log of losses and renewals
//	member.go      what package joint needs of the members of a joint lock
//	core.go        what belongs to a client; Close
//	driver.go      what a kind of primitive does, and the values that pass between it and the engine
//	event.go       events for the observer
//	errors.go      the errors of the engine
//	background.go  work that goes on after its call has returned
//	leak.go        holds that their user dropped without a Release
//	reach.go       how quickly servers answer
//
// # Mutexes
//
// A mutex on the left may be held while a mutex on its right is taken. No other pair is nested.
//
//	Ownership.wire    -> Ownership.mu, Hold.mu, waitQueues.mu, Lanes.mu of duty, Presence.mu of presence,
//	                     and the mutexes of drivers and scripts
//	waitQueues.mu     -> Ownership.mu, Hold.mu, Contact.mu, the mutexes that Driver.Subscribe and Logger take
//	Ownership.mu      -> Hold.mu, holdList.mu, Core.mu, Dog.mu of package watchdog
//	Lanes.mu of duty  -> Core.mu
//	leaks.mu          -> Core.mu, holdList.mu
//	holdList.mu       -> Hold.mu
//	waitedFor.mu      -> Contact.mu
//
// Hold.mu, seenTokens.mu, Contact.mu, Core.mu, reach.mu, listening.mu and the mutex in wireLock are
// innermost: no mutex is taken while one of them is held.
//
// Ownership.wire is held around commands, so it is taken with a context. None of these mutexes is
// held when a hold ends, when a subscription is closed, or when the observer is called. The
// comments of the other packages list theirs.
//
// # Goroutines
//
// A request waits in the goroutine of its caller. Close itself (core.go) starts some goroutines.
// Core.Spawn starts all others, and Close waits for them:
//
//   - commands that are repeated in the background (background.go),
//   - calls of the observer that must not delay the watchdog (event.go),
//   - the end of a hold whose limit has come (hold.go),
//   - the release of a hold that ends later than its call (tenure.go),
//   - a command that shortens a lease (shorten.go),
//   - in a bubble of testing/synctest, the search for leaked holds (leak.go).
//
// Short AfterFuncs are the only exceptions: the alarm of a wait queue, the timer of a lane of
// package duty, the limit of a hold, and the pause of a request that polls. One does more than
// look: if the observer is slow, a timer takes the waiter out of its queue (wait.go).
package engine

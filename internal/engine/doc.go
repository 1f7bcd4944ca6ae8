// Package engine is the machinery of one acquisition, from the call that wants a lock to the end of its
// hold. It knows no Redis: a [Driver] talks to the server.
//
// # Who is authoritative
//
// The server decides who holds. The engine keeps what it was told, and for how long that can be
// trusted:
//
//	validUntil = time when the last confirmed command was sent + TTL - safety margin
//
// A slow reply, or none, only shortens that trust. At validUntil the hold is lost, even if the server
// still keeps the key.
//
// # A request
//
//	Try -> granted                      -> Ownership and Hold
//	    -> refused -> wait in a Queue   -> Try again, or granted by another
//	    -> in doubt: no answer came     -> Try again; rolled back if it is not granted in the end
//
// A request that fails after an attempt in doubt is rolled back in the background until the server has
// answered, because a copy of the attempt may still be executed.
//
// # A hold
//
//	live -> released   Release or Detach
//	     -> lost       the server refused, validUntil has passed, or the limit of the hold has come
//	     -> abandoned  the client closed
//
// An [Ownership] is what the server knows: one id with a count. Nested holds share it. A [Hold] is one
// acquisition. Loss travels one way: watchdog, ownership, holds, their contexts.
//
// # Mutexes
//
// A mutex on the left may be held while those on its right are taken. No other pair is nested.
//
//	JointOwnership.mu -> Hold.mu
//	Ownership.wire    -> Ownership.mu, Hold.mu, waitQueues.mu, and those that a driver's command takes
//	Ownership.mu      -> Hold.mu, the watchdog's
//	waitQueues.mu     -> those that Driver.Subscribe and Subscription.Err take
//
// Hold.mu, turnQueue.mu, holdList.mu, Core.mu and the mutex in red.Subscribe are innermost.
//
// Ownership.wire is held around commands, so it is taken with a context. A hold ends, a subscription is
// closed and the observer is called with none of these held. doc/design.md has the mutexes of all
// packages.
package engine

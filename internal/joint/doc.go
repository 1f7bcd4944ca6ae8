// Package joint makes one lock of several: a multilock needs all its members, a redlock a
// majority. It is a layer above package engine, which acquires, renews and releases each member.
//
// A joint lock acquires each of its members in the usual way, on the member's own client, with one
// id for all. The [Holding] behind its hold consists of one hold of each member. The user's hold
// of the joint lock is live while enough of the members' holds are live. Each member's hold reports
// its end to the holding, for whatever reason it ended.
//
//	user's Hold -> joint.Holding -> Hold of member 1 -> engine.Ownership on server 1
//	                             -> Hold of member 2 -> engine.Ownership on server 2
//
// The time of an attempt is limited (attemptTime). When it is over, the members acquired so far are
// released. A member that answers later is released as soon as it answers. The caller does not wait
// for that. A redlock is acquired before all its members have answered: late members join its
// hold.
//
// # Where to start
//
//	lock.go       the lock and its members: one attempt, one member
//	whole.go      all members by one command, where a server can do that
//	multi.go      all members, one after another
//	red.go        a majority, all at the same time
//	asked.go      the attempts for a redlock's members, which may outlast the acquisition
//	reserve.go    the reservations that a waiting redlock leaves on servers that have refused it
//	holding.go    the members' holds behind a joint hold: when it is lost; Release, Check and Extend
//	retake.go     a redlock's member that has forgotten the lock is acquired again
//	fanout.go     one question to several members
//
// # Mutexes
//
// A mutex on the left may be held while a mutex on its right is taken.
//
//	Holding.mu -> Hold.mu and Core.mu of package engine
//
// The mutex in red.Subscribe is innermost.
//
// # Goroutines
//
// Core.Spawn of package engine starts all of them: the attempts for the members of a redlock, the
// questions to several members, the attempts to acquire a forgotten member again, and the commands
// that give up reservations. Close of the client waits for them.
package joint

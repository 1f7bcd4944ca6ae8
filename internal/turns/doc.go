// Package turns lets the users of one client take turns on one hold: cohorts
// ([engine.Terms].Cohort), and locks that linger ([engine.Terms].Linger). It is a layer above
// package engine, which acquires and releases the outer hold as it does any other hold, and does
// not know what the users do in between.
//
//	Acquire by a -> command      the server: id 7 holds    a tenure begins, and a has its first turn
//	Release by a -> nothing      the server: id 7 holds    b waits, and has the next turn
//	Release by b -> nothing      the server: id 7 holds    nobody waits: the lock lingers
//	Acquire by c -> nothing      the server: id 7 holds    c has the next turn
//	Release by c -> command      the server: free          the tenure ends, and other clients go first
//
//	Turns  of a client
//	entry  a name, with the terms of users who may share a hold: its waiters, and its tenure
//	tenure one outer hold, from its acquisition to its release
//	turn   one acquisition: a waiter, and then what the hold of its user is of
//
//	the user's hold -> turn -> tenure -> outer hold -> engine.Ownership
//
// # An acquisition
//
// The first row that applies:
//
//	the entry                                        the acquisition
//	its lock lingers, and may be kept                has the next turn; nothing is sent
//	its lock lingers otherwise                       releases the tenure, waits for the answer, then makes an attempt
//	a turn is under way, and the user waits for none is refused by the hold of its own client
//	the user waits for none                          makes an attempt
//	no tenure, and nobody waits or tries             makes an attempt. If that is refused, it is the first waiter
//	any other                                        waits in order of arrival
//
// # The end of a turn
//
// A tenure may be kept if it is the entry's, its outer hold is sole ([engine.Hold.IsSole]), it has
// a fencing token left, and no message of a release has come, which would mean that the lock was
// taken away. It is young as long as the cohort lasts, or as long as the linger time if there is no
// cohort. It is wanted if another client has asked for it, if a request of this client waits for it
// in another way, or if another tenure has begun meanwhile: one of the two has lost the lock, and
// nobody knows which. The first row that applies:
//
//	may be kept  a user waits  young  wanted  then
//	no                                        release
//	yes          yes           yes    no      the first waiter has the next turn
//	yes          yes           yes    yes     the same within a cohort; else release
//	yes          no            yes    no      with a linger time the lock lingers
//	yes          no            no     no      the same without a cohort
//	any other                                 release
//
// A lock that lingers is given up when its linger time is over, when another client asks for it,
// when this client acquires the name in another way, and when the client closes.
//
// # The next tenure
//
// The request for the next tenure is the entry's, and not that of a waiter. It stands in the
// engine's queue before the outer hold is released. So the client has its place among the others,
// and the release leaves the lock to them first. Within a cohort it stands there as soon as a user
// waits. With a linger time alone, which others cannot foresee, it comes when a tenure ends, or
// when a user has waited for 100 ms. It leaves when no user waits.
//
// # Losses
//
// The loss of the outer hold ends the hold of the user whose turn it is, in the same goroutine. A
// waiter that was given the turn and has not seen that yet waits on: nobody loses a hold that he
// never had.
//
// # Mutexes
//
//	Turns.mu -> Ownership.wire (it only tries), Ownership.mu, waitQueues.mu, Hold.mu, Contact.mu, Core.mu
//
// Turns.mu is never held around a command, nor when a hold ends.
//
// # Goroutines
//
// Core.Spawn starts one for each request that stands in a queue. The AfterFuncs are the end of a
// linger time, and the look at a waiter that has waited for 100 ms.
package turns

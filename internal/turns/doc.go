// Package turns lets the users of one client take turns on one hold: cohorts
// ([engine.Terms].Cohort), and locks that linger ([engine.Terms].Linger). It is a layer above
// package engine, which acquires and releases the tenure hold like any other hold, and does not
// know what the users do in between.
//
//	Acquire by a -> command      the server: id 7 holds    a tenure begins, and a has its first turn
//	Release by a -> nothing      the server: id 7 holds    b waits, and has the next turn
//	Release by b -> nothing      the server: id 7 holds    nobody waits: the lock lingers
//	Acquire by c -> nothing      the server: id 7 holds    c has the next turn
//	Release by c -> command      the server: free          the tenure ends, and other clients go first
//
//	Turns  of a client
//	entry  a name and the terms of users who may share a hold: its waiters, and its tenure
//	tenure one tenure hold, from its acquisition to its release
//	turn   one acquisition: first a waiter, then the engine.Holding behind the user's hold
//
//	the user's hold -> turn -> tenure -> tenure hold -> engine.Ownership
//
// # An acquisition
//
// The first row that applies:
//
//	the entry                                        the acquisition
//	its lock lingers, and may be kept                has the next turn; nothing is sent
//	its lock lingers otherwise                       releases the tenure, waits for the answer, then makes an attempt
//	a turn is under way, and this is a single try    is refused by the hold of its own client
//	this is a single try                             makes an attempt
//	no tenure, and nobody waits or tries             makes an attempt. If that is refused, it is the first waiter
//	any other                                        waits in order of arrival
//
// # The end of a turn
//
// A tenure may be kept if it is the entry's current one, its tenure hold is sole
// ([engine.Hold.IsSole]), it has a fencing token left, and no release message has come: a message
// would mean that the lock was taken away. It is young as long as the cohort lasts, or as long as
// the linger time if there is no cohort. It is wanted if another client has asked for it, if a
// request of this client waits for it outside the entry, or if it began while another tenure was
// under way: one of the two has lost the lock, and nobody knows which. The first row that applies:
//
//	may be kept  a user waits  young  wanted  then
//	no                                        release
//	yes          yes           yes    no      the first waiter has the next turn
//	yes          yes           yes    yes     the same within a cohort; else release
//	yes          no            yes    no      with a linger time the lock lingers
//	yes          no            no     no      the same without a cohort
//	any other                                 release
//
// A lock lingers only while this client hears what others ask for.
//
// A lock that lingers is given up when its linger time is over, when another client asks for it,
// when this client acquires the name in another way, and when the client closes.
//
// # The next tenure
//
// The request for the next tenure belongs to the entry, not to a waiter. It joins the engine's
// queue before the tenure hold is released. So the client has its place among the other clients,
// and the release leaves the lock to them first. Within a cohort the request joins as soon as a
// user waits. With a linger time alone, which others cannot foresee, it joins when a tenure ends,
// or when a user has waited for 100 ms. It leaves when no user waits; within a cohort it stays
// until the turn ends. While two users of a cohort wait, a second request waits behind the first,
// so that the client keeps its place when the first is granted.
//
// # Losses
//
// The loss of the tenure hold ends the hold of the user whose turn it is, in the same goroutine. A
// waiter that was given the turn but has not seen it yet goes on waiting: nobody loses a hold that
// they never had.
//
// # Mutexes
//
//	Turns.mu -> Ownership.wire (it only tries), Ownership.mu, waitQueues.mu, Hold.mu, Contact.mu, Core.mu
//
// Turns.mu is never held during a command, nor when a hold ends.
//
// # Goroutines
//
// Core.Spawn starts one for each request in a queue. The functions of time.AfterFunc
// end a linger time, or check whether a waiter has waited for 100 ms.
package turns

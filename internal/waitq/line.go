package waitq

// How a client stands in line.
//
// If every waiting client heard every release, a thousand clients would send a thousand attempts
// for each, and one would succeed. So waiting clients stand in line on the server, and a release
// wakes the first of them. A few of them, the listeners, also hear the common channel, for releases
// by clients that do not know the line, such as Redisson's. The line is only a hint: it may be
// deleted, and messages may be lost. The lock itself decides who gets it.
//
// The states of a queue whose client has a place:
//
//	listening           as without a line: the client hears each release, and tries
//	  | an attempt with a place is refused
//	  v
//	listener <-> quiet  in line; a listener hears the common channel too
//
// An attempt takes a place only when the subscription to the place's messages is confirmed: a
// wake-up that nobody hears would be wasted. Each refusal says again whether the client must
// listen, and puts the place back if it was lost. So whatever is lost or deleted is restored within
// one poll.
//
// When a client that knows the line releases, a listener hears two messages: first one at its
// place, which says whose turn it is, then the common one. If it is another client's turn, the
// listener leaves the lock to that client, but only for MaxTurn: that client may hang or have died.
//
// A client leaves the line when its last waiter leaves the queue: by the command that grants the
// lock, or by a separate one.

// isLast reports whether no other request waits.
func (q *Queue) isLast(w *Waiter) bool { return q.waiters.First == w && w.Next == nil }

// placeFor returns the place for w's next attempt. It is zero for a shared id, and if the client
// does not hear the messages to the place.
func (q *Queue) placeFor(w *Waiter, heard bool) (place Place) {
	canStand := q.place.Number != 0 && !w.Shared
	if !canStand || !heard {
		w.last = false
		return Place{}
	}
	q.inLine = true
	place = q.place
	place.Last = q.isLast(w)
	w.last = place.Last
	return place
}

// listenToo makes a quiet client a listener.
func (q *Queue) listenToo() {
	q.do(Action{Kind: Subscribe})
	q.do(Action{Kind: Wake, Who: q.waiters.First}) // so that its next step includes the confirmation
}

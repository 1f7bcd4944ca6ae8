package waitq

// How a client stands in line.
//
// If every client that waits heard every release, a thousand clients would send a thousand attempts
// for each, and one would succeed. So clients that wait stand in line on the server, where the
// release wakes the first of them. Few of them, the listeners, also hear the common channel, for
// releases by clients that do not know the line, such as Redisson's. The line is only a help: it
// may be deleted, and messages may be lost. The lock itself decides who gets it.
//
// The states of a queue whose client has a place:
//
//	listening           as without a line: it hears each release, and tries
//	  | an attempt with a place is refused
//	  v
//	listener <-> quiet  in line; a listener hears the common channel too
//
// An attempt takes a place only when the subscription to the messages of that place is confirmed: a
// wake-up that nobody hears would be wasted. Each refusal says again whether the client must
// listen, and puts the place back if it was lost. So all that is lost or deleted comes back within
// a poll.
//
// A listener hears two messages of a release by a client that knows the line: first, at its place,
// whose turn it is, then the common one. If it is the turn of another client, it leaves the lock to
// that client for MaxTurn, in case that client has died or hangs.
//
// A client leaves the line when its last waiter does: by the command that grants it, or by one of
// its own.

// isLast reports whether no other request waits.
func (q *Queue) isLast(w *Waiter) bool { return q.waiters.First == w && w.Next == nil }

// placeFor returns the place for the next attempt of w. There is none for a shared id, and if the
// messages to the place are not heard.
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
	q.do(Action{Do: Subscribe})
	q.do(Action{Do: Wake, Who: q.waiters.First}) // so that its next step includes the confirmation
}

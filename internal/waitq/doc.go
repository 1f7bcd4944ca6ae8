// Package waitq decides who goes next among requests that wait for the same lock. It is pure: it
// has no clock, no mutex, no timer, no context and no command. The time comes in with each event,
// and what is to be done comes out. Package engine keeps the mutex and the timer, and does it.
//
//	event.go   what can happen, and what is to be done: Queue.On takes an [Event], and returns each [Action]
//	waiter.go  one waiter: its [State], whether it is offered the lock, and whether it is in doubt
//	queue.go   the waiters of one name: which of them tries, and when
//	line.go    the client's place in line on the server
//	turn.go    when this client leaves a lock to other clients, and for how long
package waitq

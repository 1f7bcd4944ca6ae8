// Package waitq decides who goes next among requests that wait for the same lock. It is pure: it
// has no clock, no mutex, no timer, no context and no command. Each event carries the time, and the
// result is a list of actions. Package engine keeps the mutex and the timer, and carries them out.
//
//	event.go   events and actions: Queue.On takes an [Event] and returns a list of [Action]
//	waiter.go  one waiter: its [State], whether it is offered the lock, and whether it is in doubt
//	queue.go   the waiters of one name: which of them tries, and when
//	line.go    the client's place in line on the server
//	turn.go    when this client leaves a lock to other clients, and for how long
package waitq

// Package waitq decides who goes next among requests that wait for the same lock. It is pure: it has no clock, no
// mutex, no timer, no context and no command. The time comes in with each event, and what is to be done comes
// out. Package engine keeps the mutex and the timer, and does it.
//
// [Turn] decides when this client leaves a lock to other clients, and for how long.
package waitq

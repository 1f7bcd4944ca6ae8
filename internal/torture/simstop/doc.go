// Package simstop lets the goroutines of one simulated client process stand still, while those of
// the others go on. It does what SIGSTOP does to a process of the machine.
//
// Goroutines have groups. A goroutine, and a function of [time.AfterFunc], belongs to the group of
// the goroutine that has started it. While a group is stopped, the scheduler runs none of its
// goroutines: their timers come late, and what they receive waits. Group 0 cannot be stopped.
//
// It needs a runtime that knows groups, which package simbuild compiles. In other programs,
// [Supported] is false, and nothing stops.
package simstop

// Package stage is what the playground plays with: two client processes, a Redis server in memory, a network between
// them, and one lock.
//
// [Stage.Do] carries out what a visitor wants, and [Stage.State] says what has happened. The clients are those that
// programs use: package primitives over go-redis. Each start of a client is a [process], whose goroutines form a group
// that can be stopped: see package simstop. If the runtime cannot stop goroutines, the stage refuses to.
package stage

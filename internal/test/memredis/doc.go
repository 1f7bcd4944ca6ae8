// Package memredis is a Redis server in memory, for simulations.
//
// It has no sockets, no goroutines and no clock of its own. [Conn.Do] executes one command at the
// time that the server's clock tells, and returns the reply as bytes of the protocol. Equal
// commands at equal times give equal replies: nothing depends on the order of a Go map. Keys expire
// to the millisecond.
//
// It has the commands and the functions of Lua that the scripts of this module use, and those that
// their tests and go-redis send. Others are unknown commands. Scripts are compiled once and share
// one Lua state, which makes them many times faster than in miniredis.
//
// [Server.SetFault] makes it answer as a server in trouble does. [Server.Snapshot] and
// [Server.Restore] are for restarts with old data.
package memredis

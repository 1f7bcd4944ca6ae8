// Package simnet is a network in memory between client processes and Redis servers, for
// simulations.
//
// [Net.Serve] adds a server, and [Net.Client] a client process, whose [Client.Dial] is the dialer
// of its clients of go-redis. What one side writes arrives at the other after a delay that the seed
// decides. Each direction of a route between a client and a server has faults of its own: see
// [Route].
//
// As with TCP, data that was written before a connection was closed still arrives, also if it was
// held back meanwhile: so a command may be executed long after its client has given up. Data of a
// connection that was reset is lost.
//
// All time is that of package time. A simulation runs on a virtual clock and on one thread, and
// then all of it follows from the seed.
package simnet

// Package protocol contains models of the library's protocols, as tests. A model is small enough to
// visit every state that it can reach: every order in which commands, their copies and their
// answers can arrive, and every instant at which a client can stop waiting.
//
// A model is checked in three ways:
//
//   - No reachable state violates an invariant, such as "two holds are valid at once". From each
//     state of the fair lock, what is sure to happen ends all waiting.
//   - With a defect planted, such as "a release is not remembered", some reachable state does, so
//     the invariants are not empty.
//   - The server in the model does what the Lua scripts do: each step of it is compared with the
//     script on a Redis.
//
// There are models of the plain lock, with hand-offs, cohorts and locks that linger (2.7 million
// states), of the fair lock (5.9 million), of the read-write lock (3.0 million), of shared ids (1.1
// million) and of the plain semaphore (0.6 million). In the last three, what Redis remembers
// expires. Each has three acquisitions of up to three clients; the plain lock has any number of
// other clients, too. Copies of a command that nobody waits for any longer may be executed at any
// later time, in any number: so two copies in any order are included. States count once if they
// differ in the names of acquisitions only. Two small models are of nested holds, and of when a
// lingering lock is given up.
//
// Unless all tests run ($REDLATCH_FULL), each large model is explored in one of its variants, and
// only up to 100,000 states, the nearest to its start.
//
// The tests are built without the race detector only: they use one goroutine, and it would make
// them slow.
//
// A waiter of the plain lock is the one of package waitq, which the engine uses: its states and its
// doubt are no copy. The rest of the client follows package engine, which the tests of that package
// check.
package protocol

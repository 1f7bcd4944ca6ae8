// Package protocol contains models of the library's protocols, as tests. A model is small enough to visit
// every state that it can reach: every order in which commands, their copies and their answers can arrive,
// and every instant at which a client can stop waiting.
//
// A model is checked in three ways:
//
//   - No reachable state violates an invariant, such as "two holds are valid at once".
//   - With a defect planted, such as "a release is not remembered", some reachable state does. So the
//     invariants are not empty.
//   - The server in the model does what the Lua scripts do: each step of it is compared with the script
//     on a Redis.
//
// The tests are built without the race detector only: they use one goroutine, and it would make them slow.
//
// The client in a model follows package engine, which the tests of that package check.
package protocol

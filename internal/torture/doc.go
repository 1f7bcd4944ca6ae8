// Package torture breaks everything around the library, and checks that the library keeps its
// promises.
//
// [Run] starts client processes, which use all primitives at once (workload.go). It injects faults
// into them, their networks and their servers (fault.go, topology.go). Each process writes a record
// of what it calls and of what returns, with the time on the machine's monotonic clock (record.go).
// At the end of a round the records of all processes become one history, and the history is checked
// (check.go):
//
//   - Exclusion: there is an order of the operations that a sequential model allows (model.go,
//     order.go). A hold counts from the return of Acquire until the earliest of the call of Release, the
//     end of its context, the end of its validity, and the death of its process. Tokens rise in that order,
//     and a fair lock goes by the order of arrival.
//   - Every call returns in time, and no waiter waits although nobody can hold.
//   - No hold is lost without a reason. A holder that was lost to an operator learns of it in time.
//   - Nothing is left in Redis, and no goroutine in a closed client.
//
// An operation of unknown outcome may take effect at any time after its call. An operator who
// deletes a key and a server that loses its data end the holds that they may have ended, and no
// others.
//
// Some of the processes may use another library, such as Redisson ([LibraryWorker]). Only exclusion
// is checked of those.
//
// The tests of this package plant known defects in the client processes (defect_test.go), and each
// check must find the defects that are meant for it.
package torture

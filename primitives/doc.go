// Package primitives provides locks (plain, fair, fenced, read-write, on several servers),
// semaphores and count-down latches on Redis, for goroutines in any number of processes.
//
// # Handles and holds
//
// A primitive is a handle: a name and options, immutable, shareable, and made without I/O.
// Acquiring it returns a [Hold], which is one acquisition. [Lock.Do] acquires, runs a function, and
// releases in any case.
//
// Goroutines that share a handle exclude each other, as with a [sync.Mutex]. A lock is reentrant
// only through a context: acquiring it with [Hold.Context] nests.
//
// # Losing a hold
//
// A lease can end while its holder still runs: after a pause of the process, a network partition,
// or an operator's DEL. Then the hold's context ends with cause [ErrLost], as a [*LossError] that
// says why. That happens no later than when Redis may free the lock. A slow reply alone never ends
// a hold; expired validity always does. A lost hold is never taken again behind the caller's back.
//
// A hold is renewed by default ([WithWatchdog]). Its lease counts from before the command was sent,
// on the monotonic clock. Inside Redis only the server's clock counts, so the wall clocks of
// clients may differ.
//
// # Errors
//
// Methods return an [*Error], which says what failed on which primitive. Use [errors.Is] for the
// reason:
//
//   - [ErrNotAcquired]: somebody else held it when the wait or the context ended.
//   - [ErrUnavailable]: Redis does not answer.
//   - [ErrLost]: the hold ended before it was released.
//   - [ErrOutcomeUnknown]: Redis did not answer, and may have executed the command.
//   - [ErrInvalid]: an argument is out of range, and nothing was sent.
//
// A command whose reply was lost is repeated, and then has the effect of one execution.
//
// # Options
//
// Options are given to a client ([WithDefaults]), to a handle or to a call, and the nearest one
// counts. The everyday ones:
//
//   - The wait: [WithWait].
//   - The lease: [WithWatchdog], [WithLease], [WithMaxHold], [WithMinHold].
//   - Semaphores: [WithPermits].
//   - Clients: [WithLogger], [WithObserver], [WithPrefix], [WithClientName].
//
// The others are for special cases:
//
//   - Contexts and nesting: [WithHoldContext], [WithNonReentrant].
//   - Servers that may lose data: [WithReplicas], and [MinUptime] for a [NewRedLock].
//   - Speed within one process: [WithCohort], [WithLinger].
//   - Other ways of waiting: [WithPolling], [WithWaiterTimeout], [WithShardedPubSub].
//   - Ids that the caller manages: [WithOwner], [WithClientID].
//   - Other times: [WithSafetyMargin] and [WithCommandTimeout].
//
// Operators and their tools use [Client.Locks], [Client.Numbers], [Client.Inspect],
// [Client.Waiting] and [Client.ClientNames].
//
// # What is not promised
//
// No lock stops a critical section that continues after its context has ended. The resource that it
// writes to can refuse it by the fencing token of a [Client.FencedLock]. A single Redis that loses
// its memory, or fails over to a replica that had not received a lock yet, may grant it twice.
// [WithReplicas] and [NewRedLock] make that less likely.
//
// # On the wire
//
// Keys, fields, channels and payloads are those of Redisson, the Java library, so Go and Java
// services share the same locks.
package primitives

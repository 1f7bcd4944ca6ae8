// Package primitives is a family of coordination primitives on Redis: what several processes use to agree who may go.
//
// # The shape
//
// A primitive is a handle: a name and options, immutable, shareable, made without I/O. Acquiring gives a [Hold]: everything
// that belongs to one acquisition lives there. [Lock.Do] does both, and releases whatever happens.
//
// # Losing a hold
//
// A lease can end while its holder still runs: after a pause, a partition, an operator's DEL. The hold's context ends then, with cause
// [ErrLost], at the instant up to which Redis is known to keep the lock, or before: never because a reply is late, always when it is too
// late. A lost hold is never taken again behind the caller's back.
//
// # What is not promised
//
// A section that runs on after its context has ended is not stopped by any lock. What it writes to can refuse it by the
// fencing token of a [Client.FencedLock]. A single Redis that loses its memory, or fails over to a replica that had not heard of
// a lock yet, may grant it twice; [WithReplicas] and [NewRedLock] narrow that.
//
// # On the wire
//
// Keys, fields, channels and payloads are those of Redisson, the Java library: Go and Java services share the same locks.
package primitives

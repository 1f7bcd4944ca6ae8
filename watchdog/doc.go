// Package watchdog is not for users, and any release may change it: it renews leases. One goroutine
// renews any number of leases, in batches. It notifies the keeper of a lease as soon as the lease
// can no longer be trusted. The package does not talk to a server itself: the caller supplies a
// [Renew] func.
//
//	dog := watchdog.New(renew)
//	defer dog.Close()
//
//	schedule := watchdog.Schedule{Group: slot, TTL: ttl, Margin: margin}
//	err := dog.Keep(&hold.lease, hold, schedule, start.Add(ttl-margin))
//	...
//	dog.Drop(&hold.lease)
//
// # Validity
//
//	validUntil = start of the last confirmed command + TTL - Margin
//
// The clock is monotonic. The start is read before the command is sent, so a slow network shortens
// validity and never extends it. The answers to a renewal:
//
//   - Renewed extends validity.
//   - Lost ends it at once.
//   - Unknown, or no answer, changes nothing. The Dog retries while the lease is valid.
//
// When validity ends, the lease is lost, even if renewals are in flight. A later answer does not
// restore it.
//
//	Keep --> valid --+-- Renewed, Confirm ------------> valid for longer
//	                 +-- Unknown, no answer ----------> valid, retried
//	                 +-- Drop ------------------------> not registered, no event
//	                 +-- Lost, or validity has ended -> not registered, LeaseLost
//
// # Timing
//
// With period = TTL/3, halved until it is not longer than Schedule.Period:
//
//	first attempt   a period after the start of the last confirmed command
//	batching        a batch also takes leases of its group that are due within period/10,
//	                while it has room
//	after Unknown   min(50 ms, period/10), doubled each time up to period/3, minus up to a
//	                quarter of jitter; near the end of validity at most half of the time left
//	no answer       after max(period/2, 50 ms) a further call renews the lease; the first call may
//	                still answer. At most 4 attempts overlap; a fifth replaces the oldest
//
// Validity may be longer than a TTL if another command has extended it: see [Dog.Confirm]. The
// attempts go on at this pace all the same, to find out if the lease is gone.
//
// At most 16 calls per group are in flight within that time limit, and at most 64 in total per
// group. Further batches wait in the queue of their group. Other groups and loss events never wait
// for them.
//
// # Goroutines
//
// There is one scheduler, from the first Keep until no lease is left. Each call of Renew in flight
// has a goroutine, and so has each round of events that the scheduler delivers. Dog.wg counts them.
// They end when the context of the Dog is cancelled, and [Dog.Close] waits for all of them.
//
// # Mutexes
//
// Dog.mu is the only one, and it is innermost. It is never held while a keeper or Renew runs.
package watchdog

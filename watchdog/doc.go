// Package watchdog keeps leases alive. It renews any number of them from one goroutine, in batches, and tells each
// lease's keeper, in time, when the lease can no longer be relied on. It knows no server: it is given a [Renew] func.
//
//	dog := watchdog.New(renew)
//	defer dog.Close()
//
//	err := dog.Keep(&hold.lease, hold, watchdog.Terms{Group: slot, TTL: ttl, Margin: margin}, start.Add(ttl-margin))
//	...
//	dog.Drop(&hold.lease)
//
// # Validity
//
// A lease is valid until the start of the last confirmed command + TTL - Margin, on the monotonic clock. The start is
// read before the command is sent, so a slow network only shortens our trust, never stretches it. A Renewed answer
// moves validity on. A Lost answer ends it at once. Unknown, or no answer at all, changes nothing: the lease is asked
// for again, for as long as it is valid. At the end of its validity it is lost, whatever the renewals under way are
// doing, and an answer that comes later does not bring it back.
//
// # Timing
//
// With period = TTL/3:
//
//	first attempt      a period after the start of the last confirmed command
//	together with it   what falls due in its group within period/10, as far as the batch has room
//	after Unknown      min(50 ms, period/10), doubled each time up to period/3, less up to a quarter of jitter;
//	                   towards the end of validity never more than half of what is left
//	no answer          after max(TTL/6, 50 ms) the lease is asked for in a further call, and the one under way
//	                   may still answer. At most 4 attempts overlap: as many as fit into a validity
//
// Per group at most 16 calls are under way within that limit, and at most 64 in all. What is due beyond waits in its
// group; other groups and the telling of losses never wait for it.
//
// # Goroutines
//
// One scheduler, from the first Keep until nothing is left to keep; one for each call of Renew under way; one for each
// round of keepers told by the scheduler. [Dog.Close] waits for all of them.
package watchdog

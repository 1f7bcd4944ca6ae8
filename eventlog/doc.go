// Package eventlog writes the events of clients to a file, for "redlatch timeline", which draws the
// waits, holds, hand-offs and losses of several processes on one time axis.
//
//	events, err := eventlog.Open("/var/log/shop/locks.jsonl", eventlog.WithProcess("shop@host-1"))
//	if err != nil {
//		return err
//	}
//	defer events.Close() // after the client's Close
//	client, err := primitives.New(rdb, primitives.WithObserver(events.Observe))
//
// A [Writer] never delays a lock: Observe hands the event to a goroutine, and drops it if the
// goroutine is 4,096 events behind. The file says how many were dropped. The file is rotated, so
// that its disk space is bounded. Each process needs a file of its own.
//
// Each line of the file is a JSON object. Fields that do not apply are absent. Readers should
// ignore fields and events that they do not know:
//
//	at           when it happened, by the process's clock, in RFC 3339 with up to nine decimals
//	process      the process, as WithProcess names it
//	event        the kind of the event, as in package primitives; or opened: the process has opened the file;
//	             or dropped: events are missing here
//	kind         the primitive: lock, fair, fenced, reader, writer, multi, red, semaphore, permits, latch
//	name         the lock's name. If it is not UTF-8, name_base64 has its bytes
//	id           the hold's id
//	election     true for a candidate of an election
//	waited_ms    how long the acquisition has waited; absent if it has not
//	held_ms      how long the hold has lasted
//	outcome      the acquisition's outcome, as in package primitives
//	reason       why a hold was lost, as in package primitives
//	err          the error
//	count        how many events were dropped
//
// Confirmed renewals are not written: there is one for each third of a TTL, and a timeline does not
// need them.
package eventlog

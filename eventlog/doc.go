// Package eventlog writes the events of clients to a file, for "redlatch timeline", which draws
// what several processes did on one axis: waits, holds, hand-overs and losses.
//
//	events, err := eventlog.Open("/var/log/shop/locks.jsonl", eventlog.WithProcess("shop@host-1"))
//	if err != nil {
//		return err
//	}
//	defer events.Close() // after the client's Close
//	client, err := primitives.New(rdb, primitives.WithObserver(events.Observe))
//
// A [Writer] never delays a lock: Observe hands the event to a goroutine, and drops it if that is
// behind by 4,096 events. The file says how many were dropped. It is rotated, so the space on the
// disk is bounded. Each process needs a file of its own.
//
// The file has an object of JSON in each line. Fields that do not apply are absent. Readers should
// ignore fields and events that they do not know:
//
//	at           when it happened, by the clock of the process, in RFC 3339 with up to nine decimals
//	process      the process, as WithProcess names it
//	event        the kind of the event, as in package primitives; or opened: the process has opened the file;
//	             or dropped: events are missing here
//	kind         of the primitive: lock, fair, fenced, reader, writer, multi, red, semaphore, permits, latch
//	name         of the lock. If it is not UTF-8, name_base64 has its bytes
//	id           of the hold
//	election     true: of a candidate of an election
//	waited_ms    how long the acquisition has waited; absent if it has not
//	held_ms      how long the hold has lasted
//	outcome      of an acquisition, as in package primitives
//	reason       why a hold was lost, as in package primitives
//	err          the error
//	count        of events that were dropped
//
// Confirmed renewals are not written: there is one for each third of a TTL, and a timeline needs
// none.
package eventlog

// Package pubsub is not for users, and any release may change it: it delivers wake-up messages. One
// client shares one subscription per channel among many listeners. The package knows nothing about
// locks.
//
// A [Hub] counts the listeners of each channel. The first listener subscribes to the channel. The
// channel is unsubscribed when the last one closes, or 10 ms later with [Subscription.CloseSoon].
// Every message goes to all listeners of its channel. Plain pub/sub uses one connection, sharded
// pub/sub one connection per shard. An idle hub has no connections and no goroutines.
//
// The states of a channel:
//
//	Subscribe -> unplaced -> placed on a link (one connection) -> confirmed
//	                ^                     |                           |
//	                +---- link closed ----+---------------------------+
//
// A channel that is confirmed again sends Signal{Resubscribed: true} to its old listeners.
//
// A hub (hub.go, subscription.go) places channels on links, where a router (router.go) tells it to.
// A link (link.go, connect.go) sends commands (commands.go), and reads replies and messages
// (answers.go, resp.go).
//
// # Guarantees
//
//   - While a link is open, its listeners get every message that the server sends after Confirmed
//     was closed.
//   - A broken link is replaced at once, a link that has gone silent within about 10 s. Redis
//     stores nothing for absent subscribers. After each such gap every listener gets one Signal
//     with Resubscribed set.
//   - A listener is never called before its subscription is confirmed, and never after Close has
//     returned. Listeners must not call Close.
//
// # Not guaranteed
//
//   - Delivery. A wake-up is a hint: a waiter also needs a timer.
//   - Large messages. Any client may publish on a channel. A payload longer than 128 KiB is read
//     and discarded. No message of this library is that long.
//
// # Why links do not use redis.PubSub to read and write
//
// go-redis dials the server for a link and does the handshake (TLS, HELLO, AUTH, CLIENT SETNAME)
// with the client's options. After that the link reads and writes the socket itself, because
// redis.PubSub:
//
//   - blocks reads and Close while it writes or reconnects,
//   - reconnects without notifying its user,
//   - does not name the channel when the server refuses one.
//
// The client's hooks do not see these connections.
//
// # Mutexes
//
// A mutex on the left may be held while a mutex on its right is taken.
//
//	Subscription.calling -> whatever the listener takes
//
// Subscription.calling is held while the listener runs, and [Subscription.Close] takes it to wait
// for the listener. So a caller must not hold a mutex that its listener takes while it closes a
// subscription. Hub.mu and unasked.mu are innermost. Hub.mu is never held during I/O, or while a
// listener or the log handler runs.
//
// # Goroutines
//
// Hub.tasks counts them: two for each link, one that places channels, and one that chooses the
// router. They end when the hub's context is cancelled, and [Hub.Close] waits for them. Dialing a
// server takes further goroutines, which end with the dial. A link's timers only take Hub.mu and
// return.
package pubsub

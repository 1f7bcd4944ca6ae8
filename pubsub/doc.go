// Package pubsub carries wake-ups: one shared subscription per client, many listeners. It knows nothing of locks.
//
// A [Hub] counts the listeners of each channel. The first one subscribes, the last one unsubscribes, and what arrives is
// handed to all of them. Plain
// pub/sub uses exactly one connection, sharded pub/sub one per shard; an idle hub has neither connections nor goroutines.
//
//	Subscribe -> homeless -> router -> link (one connection) -> confirmed
//	                ^                    |
//	                +---- link lost -----+    confirmed again: Signal{Resubscribed: true}
//
// # What is promised
//
//   - No message that the server sends after Confirmed was closed is withheld while the link lives, and a link that dies, half-open
//     ones included, is noticed within seconds and made anew. Redis keeps nothing for those who are away: after each such gap
//     every listener gets one Signal with Resubscribed set.
//   - A listener is never called before its subscription is confirmed, and never after Close has
//     returned. Listeners must not call Close.
//
// # What is not
//
//   - Delivery. A wake-up is a hint: whoever waits also needs a timer.
//   - Long messages. Anybody may publish on a channel: a payload that is longer than any of ours
//     (128 KiB) is read and discarded, and no listener hears of it.
//
// # Why links do not use redis.PubSub to read and write
//
// A link lets go-redis dial and greet the server (TLS, HELLO, AUTH, CLIENT SETNAME, exactly as the client is configured) and then
// speaks the few words of pub/sub on the socket itself. redis.PubSub locks writing against reading, re-connects by itself and
// in silence, delivers a refusal without saying what was refused, and cannot be closed while its peer is silent.
// The hooks of the client do not see these connections.
package pubsub

package primitives

import "time"

// Replicas that confirm what a client acquires ([WithReplicas]).
//
// They confirm the commands after which somebody else could hold the lock, too, if a failover
// forgets them:
//
//   - An acquisition, even a nested one. The engine rolls it back if too few replicas confirm,
//     because package failure says that its outcome is in doubt.
//   - Extend. The caller may rely on the new end for a long time, and nothing repeats the command.
//   - Adopt. A new master that has forgotten it would keep the lock for the former holder, which
//     may not know that it should stop. Without the confirmations nobody holds the lock. The id on
//     the server is the new one, so the former holder has lost the lock, and the lock is left to
//     its lease.
//
// Client.confirmed sends these commands. If too few replicas have confirmed, Unconfirmed of the
// reply is the error of an acquisition that was granted. It does not concern an acquisition that
// was refused.
//
// The other commands need no confirmation. A forgotten release leaves the lock held until its lease
// ends. After a forgotten renewal, the lease of the renewal before it is left, of which two thirds
// remain, and the next renewal goes to the new master.

// WithReplicas confirms each acquisition, even a nested one, with WAIT. If fewer than n replicas
// confirm it within timeout, the acquisition is rolled back and fails with [ErrNotReplicated].
// [Hold.Extend] is confirmed, too, and fails without effect. Adopt is confirmed, too. If that
// fails, nobody holds the lock, because the former holder has lost the lock on the server, and the
// lock becomes free when its lease ends. With 0 replicas, which is the default, nothing is
// confirmed.
//
// So a failover to one of these replicas does not forget the lock. A replica that has not confirmed
// may still be promoted. An acquisition takes a round trip to the replicas longer, and locks are
// not handed off within a client.
//
// Renewals are not confirmed. A forgotten renewal does no harm while a replica lags by less than
// two thirds of the TTL, because the replica has the renewal before it, and the next one goes to
// the new master.
//
// WAIT needs a connection to itself. That works with every go-redis client, and with types that
// embed one.
func WithReplicas(n int, timeout time.Duration) ClientOption {
	return ClientOption{func(c *Client) {
		valid := n >= 0 && timeout >= 0 && timeout <= maxDuration && (n == 0 || timeout >= minDuration)
		c.defaults.check(valid, "%d replicas within %v", n, timeout)
		c.replicas = n
		c.waitTimeout = timeout
	}}
}

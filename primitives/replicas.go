package primitives

import "time"

// Replicas that confirm what a client acquires ([WithReplicas]).
//
// Which commands need it? Those after which somebody else could hold too if a failover forgets them:
//
//   - An acquisition, nested ones included. The engine rolls it back if too few replicas confirm, because
//     [classify] says that its outcome is in doubt.
//   - Extend. The caller may rely on the new end for a long time, and nothing repeats the command.
//   - Adopt. A new master that has forgotten it would keep the lock for the former holder, which may not
//     know that it was to stop. Without the confirmations nobody holds: the id on the server is the new
//     one, so the former holder is lost, and the lock is left to its lease.
//
// Client.confirmed sends these. If too few replicas have confirmed, Unconfirmed of the reply is the error of an
// acquisition that was granted. It does not concern one that was refused.
//
// The others need none. A forgotten release leaves the lock held until its lease ends. A forgotten renewal
// leaves the lease of the renewal before, of which two thirds are left, and the next renewal goes to the
// new master.

// replication is what WithReplicas asks for.
type replication struct {
	n       int           // replicas; 0: no confirmation
	timeout time.Duration // of WAIT
}

package scripts

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A user's type may embed a client, and add something to its methods. The runner sends with these
// methods, so that the type sees the commands. It uses Pipeline for a single server, and Process
// for a cluster. Connections, the slot map and timeouts are the embedded client's. There are
// differences from using that client itself:
//
//   - No caller sends in its own goroutine, because the type may do more than go-redis does.
//   - On a cluster each command is sent alone. The batches for a node would bypass the type, and a
//     pipeline of the cluster client may report a wrong outcome: see shards. Renewals bypass the
//     type, because they are sent in pipelines.

// throughCluster is a [processor] for a type that embeds a cluster client.
type throughCluster struct{ r *Runner }

// Process implements [processor]. The command ends with its context's deadline, like commands that
// the node's client sends, unless the node redirects it to a node that has had no command yet.
func (t throughCluster) Process(ctx context.Context, cmd redis.Cmder) error {
	node, err := t.r.slots.client.MasterForKey(ctx, keyOf(cmd))
	if err == nil {
		punctualOf(node).prepare(cmd)
	}
	return t.r.rdb.Process(ctx, cmd)
}

package scripts

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// pageSize is the COUNT of each SCAN, which is how many keys it looks at.
const pageSize = 1000

// Hashes iterates over the keys of all hashes that match the glob: see [Runner.Keys].
func (r *Runner) Hashes(ctx context.Context, match string) iter.Seq2[string, error] {
	return r.Keys(ctx, match, "hash")
}

// Keys iterates over the keys of a type that match the glob, on every master. A key may come twice,
// and may have been deleted already. The iteration ends with the first error, an Error of package
// failure. While the loop body runs, no command is in flight for which Close would wait.
func (r *Runner) Keys(ctx context.Context, match, kind string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		// The nodes are asked one after another, because a cursor belongs to its node.
		nodes, err := r.masters(ctx)
		for i := 0; err == nil && i < len(nodes); i++ {
			var found scanned
			for {
				found, err = r.scan(ctx, nodes[i], found.cursor, match, kind)
				if err != nil {
					break
				}
				for _, key := range found.keys {
					if !yield(key, nil) {
						return
					}
				}
				if found.cursor == 0 { // the node has no more keys
					break
				}
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

// scan is the name of the command.
const scan = "scan"

// scanned is the reply to one SCAN.
type scanned struct {
	keys   []string
	cursor uint64
}

// scan sends one SCAN from a cursor, 0 at first. The next cursor is 0 when the node has no more
// keys. It fails on a node that is a replica: see former.go.
func (r *Runner) scan(
	ctx context.Context, node redis.UniversalClient, cursor uint64, match, kind string,
) (scanned, error) {
	return attemptOnce(ctx, r, scan, func(ctx context.Context) (scanned, error) {
		role := newRoleCmd(ctx)
		cmd := newCmd(ctx, 0, scan, cursor, "match", match, "count", pageSize, "type", kind)
		sending := newPipelines(node, nil)
		if single, ok := node.(*redis.Client); ok {
			sending = newPipelines(single, punctualOf(single))
		}
		broken := sending.batch(ctx, []redis.Cmder{role, cmd})
		if repliedWith(role.Err(), readOnly) {
			return scanned{}, errFormer
		}
		reply, err := cmd.reply(time.Time{}, broken) // whatever the server says to HELLO
		if err != nil {
			return scanned{}, err
		}
		return readScan(reply.Value)
	})
}

// readScan reads the reply to SCAN.
func readScan(value any) (found scanned, err error) {
	parts, _ := value.([]any)
	if len(parts) == 2 {
		cursor, _ := parts[0].(string)
		found.cursor, err = strconv.ParseUint(cursor, 10, 64)
		keys, ok := parts[1].([]any)
		for _, key := range keys {
			name, _ := key.(string)
			found.keys = append(found.keys, name)
		}
		if ok && err == nil {
			return found, nil
		}
	}
	return scanned{}, fmt.Errorf("scripts: reply to SCAN: %v", value)
}

// masters returns the master nodes. For a cluster these are all of them, and otherwise the one
// client. A master that is down is listed, too, and its SCAN fails, so that no keys are left out
// without notice.
func (r *Runner) masters(ctx context.Context) ([]redis.UniversalClient, error) {
	return attemptOnce(ctx, r, scan, func(ctx context.Context) ([]redis.UniversalClient, error) {
		return redisutil.Masters(ctx, r.base)
	})
}

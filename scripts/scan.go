package scripts

import (
	"context"
	"iter"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// pageSize is the COUNT of each SCAN: how many keys it looks at.
const pageSize = 1000

// Hashes iterates over the keys of all hashes that match the glob: see [Runner.Keys].
func (r *Runner) Hashes(ctx context.Context, match string) iter.Seq2[string, error] {
	return r.Keys(ctx, match, "hash")
}

// Keys iterates over the keys of a type that match the glob, on every master. A key may come twice,
// and may have been deleted already. The iteration ends with the first error, an [*Error]. While the
// loop body runs, no command is in flight for which Close would wait.
func (r *Runner) Keys(ctx context.Context, match, kind string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		// One node after the other: cursors belong to their node.
		nodes, err := r.masters(ctx)
		for i := 0; err == nil && i < len(nodes); i++ {
			var found scanned
			for more := true; more; more = found.cursor != 0 {
				if found, err = r.scan(ctx, nodes[i], found.cursor, match, kind); err != nil {
					break
				}
				for _, key := range found.keys {
					if !yield(key, nil) {
						return
					}
				}
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

// scanned is the reply to one SCAN.
type scanned struct {
	keys   []string
	cursor uint64
}

// scan sends one SCAN from a cursor, 0 at first. The next cursor is 0 when the node has no more
// keys. It fails on a node that is a replica: see former.go.
func (r *Runner) scan(
	ctx context.Context, node redis.Cmdable, cursor uint64, match, kind string,
) (scanned, error) {
	return attemptOnce(ctx, r, "scan", func(ctx context.Context) (scanned, error) {
		var found *redis.ScanCmd
		role := newRoleCmd(ctx)
		_, err := node.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			_ = pipe.Process(ctx, role) // only queues it
			found = pipe.ScanType(ctx, cursor, match, pageSize, kind)
			return nil
		})
		if repliedWith(role.Err(), readOnly) {
			return scanned{}, errFormer
		}
		if err == nil || answers(role.Err()) { // the role is a help: its error does not count
			err = found.Err()
		}
		keys, next := found.Val()
		return scanned{keys, next}, err
	})
}

// masters returns the master nodes: of a cluster all, else the one client. A master that is down is
// listed too, and its SCAN fails: so no keys are left out without notice.
func (r *Runner) masters(ctx context.Context) ([]redis.UniversalClient, error) {
	return attemptOnce(ctx, r, "scan", func(ctx context.Context) ([]redis.UniversalClient, error) {
		return redisutil.Masters(ctx, r.rdb)
	})
}

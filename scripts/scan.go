package scripts

import (
	"context"
	"iter"
	"sync"

	"github.com/redis/go-redis/v9"
)

// page is how many keys one SCAN looks at.
const page = 1000

// Hashes walks over the keys of all hashes that match the glob, on every master. A key may come
// twice, and may be gone when it comes. The walk ends with the first error, an [*Error]. Between two
// keys nothing is under way that Close would wait for.
func (r *Runner) Hashes(ctx context.Context, match string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		nodes, err := r.masters(ctx)
		for i := 0; err == nil && i < len(nodes); i++ {
			var found scanned
			for more := true; more; more = found.cursor != 0 {
				if found, err = r.scan(ctx, nodes[i], found.cursor, match); err != nil {
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

// scanned is one page of a SCAN.
type scanned struct {
	keys   []string
	cursor uint64
}

// scan gets one page. Repeating it changes nothing, so go-redis may.
func (r *Runner) scan(ctx context.Context, node redis.Cmdable, cursor uint64, match string) (scanned, error) {
	return attemptOnce(ctx, r, "scan", func(ctx context.Context) (scanned, error) {
		keys, next, err := node.ScanType(ctx, cursor, match, page, "hash").Result()
		return scanned{keys, next}, err
	})
}

// masters are the nodes that share the keys among them.
func (r *Runner) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := r.rdb.(interface {
		ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
	})
	if !ok {
		return []redis.Cmdable{r.rdb}, nil
	}
	return attemptOnce(ctx, r, "scan", func(ctx context.Context) ([]redis.Cmdable, error) {
		var mu sync.Mutex
		var nodes []redis.Cmdable
		err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			nodes = append(nodes, node)
			return nil
		})
		return nodes, err
	})
}

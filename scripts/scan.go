package scripts

import (
	"context"
	"iter"
	"sync"

	"github.com/redis/go-redis/v9"
)

// page is how many keys one SCAN looks at.
const page = 1000

// Hashes walks over the keys of all hashes that match the glob, on every master. A key may come twice, and be gone when it comes.
// It ends with the first error, an [*Error]. Between two keys nothing is under way that Close would wait for.
func (r *Runner) Hashes(ctx context.Context, match string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		nodes, err := r.masters(ctx)
		for i := 0; err == nil && i < len(nodes); i++ {
			var keys []string
			for cursor, more := uint64(0), true; more; more = cursor != 0 {
				if keys, cursor, err = r.scan(ctx, nodes[i], cursor, match); err != nil {
					break
				}
				for _, key := range keys {
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

// scan gets one page. Repeating it changes nothing, so go-redis may.
func (r *Runner) scan(ctx context.Context, node redis.Cmdable, cursor uint64, match string) ([]string, uint64, error) {
	if !r.enter() {
		return nil, 0, &Error{"scan", NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	keys, next, err := node.ScanType(ctx, cursor, match, page, "hash").Result()
	if err != nil {
		return nil, 0, &Error{"scan", classify(err).outcome, err}
	}
	return keys, next, nil
}

// masters are those who share the keys among them.
func (r *Runner) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := r.rdb.(interface {
		ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
	})
	if !ok {
		return []redis.Cmdable{r.rdb}, nil
	}
	if !r.enter() {
		return nil, &Error{"scan", NotExecuted, ErrClosed}
	}
	defer r.running.Done()
	var mu sync.Mutex
	var nodes []redis.Cmdable
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, node)
		return nil
	})
	if err != nil {
		return nil, &Error{"scan", NotExecuted, err}
	}
	return nodes, nil
}

package redisutil

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Masters returns the clients of all masters of a cluster, or rdb alone if it is no cluster client.
// A type that embeds a cluster client counts as one. A master that is down is included.
func Masters(ctx context.Context, rdb redis.UniversalClient) ([]redis.UniversalClient, error) {
	cluster, ok := rdb.(interface {
		ForEachMaster(ctx context.Context, fn func(context.Context, *redis.Client) error) error
	})
	if !ok {
		return []redis.UniversalClient{rdb}, nil
	}
	var mu sync.Mutex // ForEachMaster calls the function concurrently
	var nodes []redis.UniversalClient
	err := cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, node)
		return nil
	})
	return nodes, err
}

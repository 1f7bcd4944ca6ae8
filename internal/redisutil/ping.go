package redisutil

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Ping asks Redis for an answer until ctx ends. go-redis notices a deadline, but not that ctx is canceled.
func Ping(ctx context.Context, rdb redis.UniversalClient) error {
	answered := make(chan error, 1)
	go func() { answered <- rdb.Ping(ctx).Err() }()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

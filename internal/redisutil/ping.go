package redisutil

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Ping asks Redis for an answer until ctx ends. go-redis notices a deadline, but not that ctx is
// canceled. In a cluster any master's answer counts: a master that hangs need not be the one that a
// command will use.
func Ping(ctx context.Context, rdb redis.UniversalClient) error {
	answered := make(chan error, 1)
	go func() { answered <- pingAny(ctx, rdb) }()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func pingAny(ctx context.Context, rdb redis.UniversalClient) error {
	nodes, err := Masters(ctx, rdb)
	if err != nil {
		return err
	}
	errs := make(chan error, len(nodes))
	for _, node := range nodes {
		go func() { errs <- node.Ping(ctx).Err() }()
	}
	for range nodes {
		if err = <-errs; err == nil {
			break
		}
	}
	return err
}

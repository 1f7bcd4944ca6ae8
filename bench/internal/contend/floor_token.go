package contend

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// tokenFloor: a list that holds a token for each permit. BLPOP takes one, in the order of asking, and LPUSH gives it back.
type tokenFloor struct{ *floorClient }

func openToken(_ context.Context, s Setting) (Client, error) {
	return tokenFloor{newFloorClient(s)}, nil
}

func prepareTokens(ctx context.Context, rdb *redis.Client, w Workload) error {
	for range max(w.Permits, 1) {
		if err := rdb.LPush(ctx, w.Name, "token").Err(); err != nil {
			return fmt.Errorf("contend: tokens: %w", err)
		}
	}
	return nil
}

func (c tokenFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return &token{c.rdb, name}, nil
}

type token struct {
	rdb  *redis.Client
	name string
}

func (l *token) Acquire(ctx context.Context) (Held, error) {
	for ctx.Err() == nil {
		err := l.rdb.BLPop(ctx, lookAgain, l.name).Err()
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, redis.Nil) {
			return nil, err
		}
	}
	return nil, context.Cause(ctx)
}

func (l *token) Release(ctx context.Context) error { return l.rdb.LPush(ctx, l.name, "token").Err() }

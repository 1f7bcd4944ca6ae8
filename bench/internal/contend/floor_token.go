package contend

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// tokenFloor keeps a token per permit in a list. BLPOP takes one, and Redis serves blocked clients
// in FIFO order. LPUSH returns it.
type tokenFloor struct{ *floorClient }

func openToken(_ context.Context, c ClientConfig) (Client, error) {
	return tokenFloor{newFloorClient(c)}, nil
}

func pushTokens(ctx context.Context, rdb redis.UniversalClient, w Workload) error {
	for range max(w.Permits, 1) {
		if err := rdb.LPush(ctx, w.Name, "token").Err(); err != nil {
			return fmt.Errorf("contend: push token: %w", err)
		}
	}
	return nil
}

func (c tokenFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return &tokenLock{c.rdb, name}, nil
}

type tokenLock struct {
	rdb  redis.UniversalClient
	name string
}

func (l *tokenLock) Acquire(ctx context.Context) (Hold, error) {
	for ctx.Err() == nil {
		err := l.rdb.BLPop(ctx, wakeUpTimeout, l.name).Err()
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, redis.Nil) { // Nil: BLPOP timed out
			return nil, err
		}
	}
	return nil, context.Cause(ctx)
}

func (l *tokenLock) Release(ctx context.Context) error {
	return l.rdb.LPush(ctx, l.name, "token").Err()
}

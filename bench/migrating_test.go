package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The code of doc/migrating.md is the code of this file: TestCodeOfThePage compares them.

func withRedsync(
	ctx context.Context, old *redsync.Mutex, lock *primitives.Lock, f func(context.Context) error,
) error {
	if err := old.LockContext(ctx); err != nil {
		return err
	}
	defer func() { _, _ = old.UnlockContext(context.WithoutCancel(ctx)) }()
	ctx, cancel := context.WithDeadline(ctx, old.Until()) // nothing renews the old lock
	defer cancel()
	return lock.Do(ctx, f)
}

func withRedislock(
	ctx context.Context, old *redislock.Client, key string, lock *primitives.Lock, f func(context.Context) error,
) error {
	const ttl = 30 * time.Second
	retry := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	held, err := old.Obtain(ctx, key, ttl, retry)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release(context.WithoutCancel(ctx)) }()
	asked := time.Now()
	left, err := held.TTL(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, asked.Add(left)) // nothing renews the old lock
	defer cancel()
	return lock.Do(ctx, f)
}

func clientsOfThePage() []redis.UniversalClient {
	single := redis.NewClient(&redis.Options{Addr: "redis:6379", DB: 0})

	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"node-1:6379", "node-2:6379"},
	})

	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:    "mymaster",
		SentinelAddrs: []string{"sentinel-1:26379", "sentinel-2:26379"},
		DB:            0,
	})

	return []redis.UniversalClient{single, cluster, sentinel}
}

func redlatchOfThePage(rdb redis.UniversalClient) (*primitives.Client, error) {
	client, err := primitives.New(rdb,
		primitives.WithPrefix("shop:"),
		primitives.WithDefaults(primitives.WithWatchdog(30*time.Second)))
	return client, err
}

func TestCodeOfThePage(t *testing.T) {
	flat := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(string(text), "")
	}
	code := flat("migrating_test.go")
	blocks := strings.Split(flat(filepath.Join("..", "doc", "migrating.md")), "```go\n")[1:]
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		require.Contains(t, code, block)
	}
	for _, rdb := range clientsOfThePage() {
		_, err := redlatchOfThePage(rdb)
		require.NoError(t, err)
		require.NoError(t, rdb.Close())
	}
}

// While a fleet changes from another library to this one, a process of the second step excludes
// processes of the first and of the third step.
func TestStepsOfAChangeExcludeEachOther(t *testing.T) {
	rdb := redistest.Fresh(t).Client(t)
	client, err := primitives.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(t.Context()) }) // waits for no hold
	lock := client.Lock("redlatch:orders")
	mutexes, locks := redsync.New(goredis.NewPool(rdb)), redislock.New(rdb)
	for _, tt := range []struct {
		name   string
		first  func() (giveBack func(), err error) // acquires as before the change
		second func(f func(context.Context) error) error
	}{
		{
			"redsync",
			func() (func(), error) {
				mutex := mutexes.NewMutex("mutex")
				return func() { _, _ = mutex.Unlock() }, mutex.TryLock()
			},
			func(f func(context.Context) error) error {
				return withRedsync(t.Context(), mutexes.NewMutex("mutex", redsync.WithTries(2)), lock, f)
			},
		},
		{
			"redislock",
			func() (func(), error) {
				held, err := locks.Obtain(t.Context(), "key", time.Minute, nil)
				return func() { _ = held.Release(t.Context()) }, err
			},
			func(f func(context.Context) error) error {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				return withRedislock(ctx, locks, "key", lock, f)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			giveBack, err := tt.first()
			require.NoError(t, err)
			require.Error(t, tt.second(func(context.Context) error {
				t.Error("the first step and the second one hold at once")
				return nil
			}))
			giveBack()

			require.NoError(t, tt.second(func(context.Context) error {
				_, err := tt.first()
				require.Error(t, err, "the second step holds")
				_, err = lock.TryAcquire(t.Context())
				require.ErrorIs(t, err, primitives.ErrNotAcquired, "the second step holds")
				return nil
			}))

			giveBack, err = tt.first()
			require.NoError(t, err, "the second step gives back both locks")
			giveBack()
			hold, err := lock.TryAcquire(t.Context())
			require.NoError(t, err, "the second step gives back both locks")
			require.NoError(t, hold.Release(t.Context()))
		})
	}
}

// With one name for both libraries nobody waits for the other one's lock, but there are never two
// holders.
func TestOneNameForTwoLibraries(t *testing.T) {
	rdb := redistest.Fresh(t).Client(t)
	client, err := primitives.New(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(t.Context()) }) // waits for no hold
	mutexes, locks := redsync.New(goredis.NewPool(rdb)), redislock.New(rdb)

	require.NoError(t, mutexes.NewMutex("theirs").TryLock())
	_, err = client.Lock("theirs").Acquire(t.Context())
	require.ErrorContains(t, err, "WRONGTYPE")

	hold, err := client.Lock("ours").Acquire(t.Context())
	require.NoError(t, err)
	var taken *redsync.ErrTaken
	require.ErrorAs(t, mutexes.NewMutex("ours").TryLock(), &taken)
	_, err = locks.Obtain(t.Context(), "ours", time.Minute, nil)
	require.ErrorContains(t, err, "WRONGTYPE")
	require.NoError(t, hold.Release(t.Context()))
}

package wire

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/pubsub"
)

// These scripts imitate the fair lock of Redisson 4.7: the same keys, scores, channels and steps,
// and the client's clock. KEYS[5] is a log of what happens in the queue, for the tests only.
const (
	javaPurge = `
local function purge(at)
  while true do
    local first = redis.call('lindex', KEYS[2], 0)
    local score = first and redis.call('zscore', KEYS[3], first)
    if not score or tonumber(score) > tonumber(at) then
      return
    end
    redis.call('zrem', KEYS[3], first)
    redis.call('lpop', KEYS[2])
    redis.call('rpush', KEYS[5], 'purged ' .. first)
  end
end
`
	// ARGV: lease, id, wait, now, 1 to queue
	javaAcquire = javaPurge + `
purge(ARGV[4])
local id = ARGV[2]
local first = redis.call('exists', KEYS[2]) == 0 or redis.call('lindex', KEYS[2], 0) == id
if redis.call('exists', KEYS[1]) == 0 and first then
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], id)
  for _, other in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
    redis.call('zincrby', KEYS[3], -tonumber(ARGV[3]), other)
  end
  redis.call('hset', KEYS[1], id, 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return false
end
if redis.call('hexists', KEYS[1], id) == 1 then
  redis.call('hincrby', KEYS[1], id, 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return false
end
if ARGV[5] ~= '1' then
  return 1
end
if redis.call('zscore', KEYS[3], id) then
  return math.max(0, redis.call('pttl', KEYS[1]))
end
local last = redis.call('lindex', KEYS[2], -1)
local score = last and last ~= id and redis.call('zscore', KEYS[3], last)
local ttl = score and tonumber(score) - tonumber(ARGV[4]) or redis.call('pttl', KEYS[1])
if redis.call('zadd', KEYS[3], ttl + ARGV[3] + ARGV[4], id) == 1 then
  redis.call('rpush', KEYS[2], id)
  redis.call('rpush', KEYS[5], 'queued ' .. id .. ' woken ' .. (ttl < 0 and 'never' or 'when'))
end
return ttl
`
	// ARGV: id, now, lease
	javaRelease = javaPurge + `
purge(ARGV[2])
local function tell()
  local first = redis.call('lindex', KEYS[2], 0)
  if first then
    redis.call('publish', KEYS[4] .. ':' .. first, '0')
  end
end
if redis.call('exists', KEYS[1]) == 0 then
  tell()
  return 1
end
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return false
end
if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[3])
  return 0
end
redis.call('del', KEYS[1])
tell()
return 1
`
	// ARGV: id, wait
	javaLeave = `
local behind = false
for _, id in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
  if behind then
    redis.call('zincrby', KEYS[3], -tonumber(ARGV[2]), id)
  end
  behind = behind or id == ARGV[1]
end
redis.call('zrem', KEYS[3], ARGV[1])
redis.call('lrem', KEYS[2], 0, ARGV[1])
`
)

// java is a Redisson client with a fair lock.
type java struct {
	t     testing.TB
	rdb   *redis.Client
	hub   *pubsub.Hub
	name  string
	skew  time.Duration // of its clock
	wait  time.Duration // fairLockWaitTimeout
	lease time.Duration

	mu    sync.Mutex
	tries int // the number of attempts so far
}

// newJava returns a Redisson client with its default timeouts.
func newJava(t testing.TB, s *redistest.Server, name string) *java {
	j := &java{t: t, rdb: s.Client(t), name: name, wait: 5 * time.Minute, lease: 30 * time.Second}
	j.hub = pubsub.New(j.rdb, pubsub.Config{})
	t.Cleanup(j.hub.Close)
	return j
}

// run runs a script. ok is false if the script returns nil.
func (j *java) run(script string, args ...any) (n int64, ok bool) {
	tag := "{" + j.name + "}"
	keys := []string{
		j.name, "redisson_lock_queue:" + tag, "redisson_lock_timeout:" + tag, "redisson_lock__channel:" + tag,
		queueLog(j.name),
	}
	n, err := redis.NewScript(script).Run(context.Background(), j.rdb, keys, args...).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		j.t.Error(err)
	}
	return n, err == nil
}

// now returns the time of the client's clock in milliseconds.
func (j *java) now() int64 { return time.Now().Add(j.skew).UnixMilli() }

// try makes one attempt of a thread. If it is refused, ttl is the time after which Redisson
// retries.
func (j *java) try(thread int, wait time.Duration, queue int) (ttl time.Duration, refused bool) {
	j.mu.Lock()
	j.tries++
	j.mu.Unlock()
	ms, refused := j.run(javaAcquire, j.lease.Milliseconds(), j.id(thread), wait.Milliseconds(), j.now(), queue)
	return time.Duration(ms) * time.Millisecond, refused
}

// id returns the id of a thread.
func (j *java) id(thread int) string {
	return fmt.Sprintf("0a1b2c3d-0000-4000-8000-0123456789ab:%d", thread)
}

// lock waits without a limit. If ctx ends, the thread dies: it stops without leaving the queue.
func (j *java) lock(ctx context.Context, thread int) bool { return j.acquire(ctx, thread, j.wait) }

// tryLock waits for at most wait, and then leaves the queue. Without a lease, Redisson passes the
// number of seconds to the script, which takes it for milliseconds.
func (j *java) tryLock(thread int, wait time.Duration, leased bool) bool {
	slice := wait
	if !leased {
		slice = wait / 1000
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if j.acquire(ctx, thread, slice) {
		return true
	}
	j.run(javaLeave, j.id(thread), wait.Milliseconds())
	return false
}

// acquire retries until it gets the lock or ctx ends. slice is the wait that it passes to the
// script.
func (j *java) acquire(ctx context.Context, thread int, slice time.Duration) bool {
	if _, refused := j.try(thread, slice, 1); !refused {
		return true
	}
	woken := make(chan struct{}, 100)
	sub := j.hub.Subscribe("redisson_lock__channel:{"+j.name+"}:"+j.id(thread), func(s pubsub.Signal) {
		if !s.Resubscribed {
			woken <- struct{}{}
		}
	})
	defer sub.Close()
	<-sub.Confirmed()
	for {
		ttl, refused := j.try(thread, slice, 1)
		if !refused {
			return true
		}
		var until <-chan time.Time // nil: a negative ttl makes Redisson wait for a message only
		if ttl >= 0 {
			// Redisson has no such minimum: with a ttl of 0 it retries after each round trip.
			until = time.After(max(ttl, 10*time.Millisecond))
		}
		select {
		case <-woken:
		case <-until:
		case <-ctx.Done():
			return false
		}
	}
}

// unlock releases one count of a thread.
func (j *java) unlock(thread int) {
	if _, held := j.run(javaRelease, j.id(thread), j.now(), j.lease.Milliseconds()); !held {
		j.t.Errorf("Java thread %d does not hold the lock", thread)
	}
}

// queueLog returns the key of the log that the scripts keep.
func queueLog(name string) string { return "log:{" + name + "}" }

// checkLog checks what happened in the queue, and deletes the log: only dead waiters were purged,
// none was queued twice, and none was told to wait without a time limit.
func (j *java) checkLog(t testing.TB, dead ...string) {
	t.Helper()
	events := j.rdb.LRange(t.Context(), queueLog(j.name), 0, -1).Val()
	seen := map[string]bool{}
	for _, e := range events {
		require.False(t, seen[e], "logged twice: %s", e)
		seen[e] = true
		if id, purged := strings.CutPrefix(e, "purged "); purged {
			require.Contains(t, dead, id, "a live waiter was purged")
		}
		require.False(t, strings.HasSuffix(e, "never"), e)
	}
	require.NoError(t, j.rdb.Del(t.Context(), queueLog(j.name)).Err())
}

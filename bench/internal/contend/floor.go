package contend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lease is the TTL of the floors' keys. Only the floor of the renewal workload renews them.
	lease = 30 * time.Second
	// wakeUpTimeout bounds how long a floor waits for a lost wake-up.
	wakeUpTimeout = time.Second
	// releasedMessage is Redisson's wake-up payload.
	releasedMessage = "0"
)

var errBusy = errors.New("contend: lock is held by another owner, and this floor does not wait")

// Minimal scripts in Redisson's format.
const (
	// KEYS[1]  lock hash
	// ARGV[1]  lease, ms
	// ARGV[2]  owner id
	// returns  nil if acquired, else the holder's pttl
	acquireScript = `
if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])`

	// KEYS[1]  lock hash
	// KEYS[2]  wake-up channel
	// ARGV[1]  owner id
	// ARGV[2]  message
	// returns  1 if released, 0 if the owner does not hold the lock
	releaseScript = `
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[2])
return 1`

	// shardedReleaseScript is releaseScript for a cluster, where PUBLISH would reach every node.
	shardedReleaseScript = `
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
redis.call('spublish', KEYS[2], ARGV[2])
return 1`

	// KEYS[1]  lock hash
	// ARGV[1]  lease, ms
	// ARGV[2]  owner id
	// ARGV[3]  previous owner's id
	// returns  1 if handed off, 0 if the previous owner does not hold the lock
	handOffScript = `
if redis.call('hdel', KEYS[1], ARGV[3]) == 0 then
  return 0
end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return 1`

	// KEYS[1..]  lock hashes
	// ARGV[1]    lease, ms
	// ARGV[2]    owner id
	// returns    nil if all were acquired, else 0
	acquireAllScript = `
if redis.call('exists', unpack(KEYS)) > 0 then
  return 0
end
for _, key in ipairs(KEYS) do
  redis.call('hincrby', key, ARGV[2], 1)
  redis.call('pexpire', key, ARGV[1])
end
return nil`

	// KEYS[1..]  lock hashes and their wake-up channels, in turn
	// ARGV[1]    owner id
	// ARGV[2]    message
	// returns    1 if released, 0 if the owner does not hold all of them
	releaseAllScript = `
for i = 1, #KEYS, 2 do
  if redis.call('hexists', KEYS[i], ARGV[1]) == 0 then
    return 0
  end
  redis.call('del', KEYS[i])
  redis.call('publish', KEYS[i + 1], ARGV[2])
end
return 1`
)

// script is the text of a Lua script. Prepare loads it, so that floors send nothing but EVALSHA.
type script string

func (s script) sha() string { return redis.NewScript(string(s)).Hash() }

// loadScripts returns a Contender.Prepare function that loads the scripts.
func loadScripts(scripts ...script) func(context.Context, redis.UniversalClient, Workload) error {
	return func(ctx context.Context, rdb redis.UniversalClient, _ Workload) error {
		for _, s := range scripts {
			if err := rdb.ScriptLoad(ctx, string(s)).Err(); err != nil {
				return fmt.Errorf("contend: load script: %w", err)
			}
		}
		return nil
	}
}

// evalCall is the arguments of one EVALSHA. They are built once, so that a call allocates little.
type evalCall struct {
	sha  string
	keys []string
	args []any
}

func (c *evalCall) run(ctx context.Context, rdb redis.Scripter) *redis.Cmd {
	return rdb.EvalSha(ctx, c.sha, c.keys, c.args...)
}

// evalLock acquires and releases a key with one EVALSHA each. One worker uses it.
type evalLock struct {
	rdb     redis.Scripter
	acquire evalCall
	release evalCall
}

func newEvalLock(rdb redis.Scripter, name, owner string) *evalLock {
	return &evalLock{
		rdb: rdb,
		acquire: evalCall{
			script(acquireScript).sha(),
			[]string{name},
			[]any{lease.Milliseconds(), owner},
		},
		release: evalCall{
			script(releaseScript).sha(),
			[]string{name, channelOf(name)},
			[]any{owner, releasedMessage},
		},
	}
}

// threeOf returns the names of the three locks that are acquired at once.
func threeOf(name string) []string { return []string{name + ":1", name + ":2", name + ":3"} }

// newEvalLockOfThree returns a lock of three names, acquired and released by one EVALSHA each.
func newEvalLockOfThree(rdb redis.Scripter, name, owner string) *evalLock {
	l := newEvalLock(rdb, name, owner)
	l.acquire.sha, l.release.sha = script(acquireAllScript).sha(), script(releaseAllScript).sha()
	l.acquire.keys, l.release.keys = threeOf(name), nil
	for _, key := range l.acquire.keys {
		l.release.keys = append(l.release.keys, key, channelOf(key))
	}
	return l
}

func channelOf(name string) string { return "redisson_lock__channel:{" + name + "}" }

// try reports whether it acquired the lock.
func (l *evalLock) try(ctx context.Context) (bool, error) {
	err := l.acquire.run(ctx, l.rdb).Err()
	if errors.Is(err, redis.Nil) {
		return true, nil
	}
	return false, err
}

// Acquire tries once and fails if the lock is held.
func (l *evalLock) Acquire(ctx context.Context) (Hold, error) {
	acquired, err := l.try(ctx)
	if err == nil && !acquired {
		err = errBusy
	}
	return l, err
}

func (l *evalLock) Release(ctx context.Context) error {
	n, err := l.release.run(ctx, l.rdb).Int()
	if err == nil && n != 1 {
		err = errors.New("contend: the floor released a lock that it did not hold")
	}
	return err
}

// floorClient is the common part of all floors: a connection pool and a generator of owner ids.
type floorClient struct {
	rdb    redis.UniversalClient
	id     string
	owners int // ids generated so far
}

func newFloorClient(c ClientConfig) *floorClient {
	return &floorClient{rdb: c.Dial(), id: fmt.Sprintf("00000000-0000-4000-8000-%012d", c.Number)}
}

func (c *floorClient) newOwner() string {
	c.owners++
	return c.id + ":" + strconv.Itoa(c.owners)
}

// newLock returns a lock of a new owner, for a server or for a cluster.
func (c *floorClient) newLock(rdb redis.Scripter, name string) *evalLock {
	l := newEvalLock(rdb, name, c.newOwner())
	if _, ok := c.rdb.(*redis.ClusterClient); ok {
		l.release.sha = script(shardedReleaseScript).sha()
	}
	return l
}

func (c *floorClient) Close() error { return c.rdb.Close() }

// plainFloor sends two EVALSHA per section.
type plainFloor struct {
	*floorClient
	three bool // three locks at once
}

func openPlain(_ context.Context, c ClientConfig) (Client, error) {
	return plainFloor{newFloorClient(c), c.Workload.Primitive == Three}, nil
}

func (c plainFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	if c.three {
		return newEvalLockOfThree(c.rdb, name, c.newOwner()), nil
	}
	return c.newLock(c.rdb, name), nil
}

// pipelinedFloor sends two EVALSHA per section. go-redis pipelines the commands of all goroutines.
type pipelinedFloor struct {
	*floorClient
	pipe *redis.AutoPipeliner
}

func openPipelined(_ context.Context, c ClientConfig) (Client, error) {
	floor := newFloorClient(c)
	pipe, err := floor.rdb.AutoPipeline()
	if err != nil {
		_ = floor.Close()
		return nil, fmt.Errorf("contend: %w", err)
	}
	return &pipelinedFloor{floor, pipe}, nil
}

func (c *pipelinedFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return c.newLock(c.pipe, name), nil
}

// queueFloor puts a FIFO queue in the process in front of two EVALSHA. It works with one client
// only.
type queueFloor struct {
	*floorClient
	mutexes map[string]chan struct{} // by key
}

func openQueue(_ context.Context, c ClientConfig) (Client, error) {
	return &queueFloor{newFloorClient(c), map[string]chan struct{}{}}, nil
}

func (c *queueFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	mutex, ok := c.mutexes[name]
	if !ok {
		mutex = make(chan struct{}, 1)
		c.mutexes[name] = mutex
	}
	return &queueLock{newEvalLock(c.rdb, name, c.newOwner()), mutex}, nil
}

type queueLock struct {
	*evalLock
	// mutex is full while a worker of the client holds or acquires the lock. The runtime serves
	// blocked senders in FIFO order, which a sync.Mutex does not promise.
	mutex chan struct{}
}

func (l *queueLock) Acquire(ctx context.Context) (Hold, error) {
	select {
	case l.mutex <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if _, err := l.evalLock.Acquire(ctx); err != nil {
		<-l.mutex
		return nil, err
	}
	return l, nil
}

func (l *queueLock) Release(ctx context.Context) error {
	defer func() { <-l.mutex }()
	return l.evalLock.Release(ctx)
}

// handOffFloor puts a FIFO queue in the process in front of one EVALSHA that changes the owner. It
// works with one client only, and never frees the lock.
type handOffFloor struct {
	*floorClient
	lastOwners map[string]chan string // by key
}

func openHandOff(_ context.Context, c ClientConfig) (Client, error) {
	return &handOffFloor{newFloorClient(c), map[string]chan string{}}, nil
}

func (c *handOffFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	last, ok := c.lastOwners[name]
	if !ok {
		last = make(chan string, 1)
		last <- ""
		c.lastOwners[name] = last
	}
	owner := c.newOwner()
	handOff := evalCall{script(handOffScript).sha(), []string{name}, []any{lease.Milliseconds(), owner, ""}}
	return &handOffLock{newEvalLock(c.rdb, name, owner), handOff, owner, last}, nil
}

type handOffLock struct {
	*evalLock
	handOff evalCall
	owner   string
	// lastOwner is empty while a worker is in its section. Otherwise it contains the id that Redis
	// has as owner, or "" before the first acquisition.
	lastOwner chan string
}

func (l *handOffLock) Acquire(ctx context.Context) (Hold, error) {
	var previous string
	select {
	case previous = <-l.lastOwner:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	err := l.acquireFrom(ctx, previous)
	if err != nil {
		l.lastOwner <- previous
	}
	return l, err
}

func (l *handOffLock) acquireFrom(ctx context.Context, previous string) error {
	if previous == "" {
		_, err := l.evalLock.Acquire(ctx)
		return err
	}
	l.handOff.args[2] = previous
	n, err := l.handOff.run(ctx, l.rdb).Int()
	if err == nil && n != 1 {
		err = errors.New("contend: the floor handed off a lock that it did not hold")
	}
	return err
}

func (l *handOffLock) Release(context.Context) error {
	l.lastOwner <- l.owner
	return nil
}

package contend

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pubsubFloor lets one worker per client and key wait on Redis; the client's other workers queue
// behind it in the process. The waiting worker tries, waits for the message of a release, and tries
// again. The first refused attempt subscribes; the subscription lasts until the client closes.
type pubsubFloor struct {
	*floorClient
	rw     bool
	queues map[string]*pubsubQueue // by key
}

func openPubsub(_ context.Context, c ClientConfig) (Client, error) {
	return &pubsubFloor{newFloorClient(c), c.Workload.Primitive == RW, map[string]*pubsubQueue{}}, nil
}

func (c *pubsubFloor) Locker(_ context.Context, name string, read bool) (Locker, error) {
	q, ok := c.queues[name]
	if !ok {
		q = newPubsubQueue(c.rdb, channelOf(name))
		if c.rw {
			q.channel = rwChannelOf(name)
		}
		c.queues[name] = q
	}
	switch {
	case !c.rw:
		return &pubsubLock{newEvalLock(c.rdb, name, c.newOwner()), q}, nil
	case read:
		return &pubsubRWLock{newReadLock(c.rdb, name, c.newOwner()), q}, nil
	default:
		return &pubsubRWLock{newWriteLock(c.rdb, name, c.newOwner()), q}, nil
	}
}

func (c *pubsubFloor) Close() error {
	for _, q := range c.queues {
		q.close()
	}
	return c.floorClient.Close()
}

// pubsubQueue is the FIFO queue of one client's workers for one key.
type pubsubQueue struct {
	rdb     redis.UniversalClient
	channel string

	// head is full while a worker is at the head of the queue. Blocked senders are the rest of the
	// queue: the runtime serves them in FIFO order.
	head   chan struct{}
	wakeUp chan struct{} // capacity 1: messages coalesce, as one is enough to try again

	// Only the head uses the fields below.
	timer *time.Timer
	sub   *redis.PubSub // nil until an attempt is refused

	done sync.WaitGroup
}

func newPubsubQueue(rdb redis.UniversalClient, channel string) *pubsubQueue {
	return &pubsubQueue{
		rdb: rdb, channel: channel,
		head: make(chan struct{}, 1), wakeUp: make(chan struct{}, 1), timer: time.NewTimer(wakeUpTimeout),
	}
}

// subscribe waits for the confirmation, so that no later message is missed.
func (q *pubsubQueue) subscribe(ctx context.Context) error {
	sub := q.rdb.Subscribe(ctx, q.channel)
	if _, err := sub.Receive(ctx); err != nil {
		_ = sub.Close()
		return fmt.Errorf("contend: subscribe: %w", err)
	}
	q.sub = sub
	messages := sub.Channel()
	q.done.Go(func() {
		for range messages {
			select {
			case q.wakeUp <- struct{}{}:
			default: // a wake-up is already pending
			}
		}
	})
	return nil
}

func (q *pubsubQueue) close() {
	if q.sub != nil {
		_ = q.sub.Close() // closes the message channel, which ends the goroutine
		q.done.Wait()
	}
}

// acquire queues, then acquires l. On success the caller is still the head and must receive from
// q.head to let the next worker in. On failure it is not.
func (q *pubsubQueue) acquire(ctx context.Context, l *evalLock) error {
	select {
	case q.head <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := q.acquireAsHead(ctx, l); err != nil {
		<-q.head
		return err
	}
	return nil
}

func (q *pubsubQueue) acquireAsHead(ctx context.Context, l *evalLock) error {
	for {
		select {
		case <-q.wakeUp: // stale: the attempt below is newer
		default:
		}
		if acquired, err := l.try(ctx); acquired || err != nil {
			return err
		}
		if q.sub == nil {
			if err := q.subscribe(ctx); err != nil {
				return err
			}
			continue // try again: a release before the subscription sent us no message
		}
		q.timer.Reset(wakeUpTimeout) // also discards an earlier expiry
		select {
		case <-q.wakeUp: // another client may be faster, so this is a reason to try only
		case <-q.timer.C: // in case the message was lost, or the holder's lease expired
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pubsubLock stays the head of the queue until its release, because no other worker of the client
// can acquire the lock earlier.
type pubsubLock struct {
	*evalLock
	queue *pubsubQueue
}

func (l *pubsubLock) Acquire(ctx context.Context) (Hold, error) {
	return l, l.queue.acquire(ctx, l.evalLock)
}

func (l *pubsubLock) Release(ctx context.Context) error {
	defer func() { <-l.queue.head }()
	return l.evalLock.Release(ctx)
}

// pubsubRWLock leaves the queue as soon as it is acquired, because the next worker may be another
// reader.
type pubsubRWLock struct {
	*evalLock
	queue *pubsubQueue
}

func (l *pubsubRWLock) Acquire(ctx context.Context) (Hold, error) {
	err := l.queue.acquire(ctx, l.evalLock)
	if err == nil {
		<-l.queue.head
	}
	return l, err
}

// Minimal scripts for a read-write lock in Redisson's format.
const (
	// KEYS[1]  lock hash
	// KEYS[2]  the reader's hold key
	// ARGV[1]  lease, ms
	// ARGV[2]  owner id
	// returns  nil if acquired, else the writer's pttl
	acquireReadScript = `
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == 'write' then
  return redis.call('pttl', KEYS[1])
end
if not mode then
  redis.call('hset', KEYS[1], 'mode', 'read')
end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('set', KEYS[2], '1', 'px', ARGV[1])
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`

	// KEYS[1]  lock hash
	// KEYS[2]  wake-up channel
	// KEYS[3]  the reader's hold key
	// ARGV[1]  owner id
	// ARGV[2]  message
	// returns  1 if released, 0 if the owner does not hold the lock
	releaseReadScript = `
local held = redis.call('hdel', KEYS[1], ARGV[1])
redis.call('del', KEYS[3])
if redis.call('hlen', KEYS[1]) == 1 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[2], ARGV[2])
end
return held`

	// KEYS[1]  lock hash
	// ARGV[1]  lease, ms
	// ARGV[2]  owner id
	// returns  nil if acquired, else the pttl of the current holders
	acquireWriteScript = `
if redis.call('exists', KEYS[1]) == 1 then
  return redis.call('pttl', KEYS[1])
end
redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`
)

func rwChannelOf(name string) string { return "redisson_rwlock:{" + name + "}" }

func newReadLock(rdb redis.Scripter, name, owner string) *evalLock {
	hold := "{" + name + "}:" + owner + ":rwlock_timeout:1"
	return &evalLock{
		rdb: rdb,
		acquire: evalCall{
			script(acquireReadScript).sha(),
			[]string{name, hold},
			[]any{lease.Milliseconds(), owner},
		},
		release: evalCall{
			script(releaseReadScript).sha(),
			[]string{name, rwChannelOf(name), hold},
			[]any{owner, releasedMessage},
		},
	}
}

func newWriteLock(rdb redis.Scripter, name, owner string) *evalLock {
	owner += ":write"
	return &evalLock{
		rdb: rdb,
		acquire: evalCall{
			script(acquireWriteScript).sha(),
			[]string{name},
			[]any{lease.Milliseconds(), owner},
		},
		release: evalCall{
			script(releaseScript).sha(),
			[]string{name, rwChannelOf(name)},
			[]any{owner, "1"},
		},
	}
}

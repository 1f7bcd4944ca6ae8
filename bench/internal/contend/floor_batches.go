package contend

import (
	"context"
	"errors"
	"sync"
	"time"
)

// batchSize is the number of keys that one EVALSHA renews.
const batchSize = 100

// batchFloor renews all holds from one goroutine: batchSize keys per EVALSHA, three times per TTL.
type batchFloor struct {
	*floorClient
	ttl time.Duration

	mu    sync.Mutex
	holds map[*batchLock]struct{} // guarded by mu

	stop     context.CancelFunc // ends the renewing goroutine
	done     sync.WaitGroup
	renewErr error // written by the renewing goroutine, read after done.Wait
}

// KEYS[1..]  lock hashes
// ARGV[1]    lease, ms
// ARGV[2..]  owner id of each lock
// returns    the number of locks renewed
const renewScript = `
local kept = 0
for i, key in ipairs(KEYS) do
  if redis.call('hexists', key, ARGV[i + 1]) == 1 then
    kept = kept + redis.call('pexpire', key, ARGV[1])
  end
end
return kept`

func openBatches(_ context.Context, config ClientConfig) (Client, error) {
	ctx, stop := context.WithCancel(context.Background())
	c := &batchFloor{
		floorClient: newFloorClient(config), ttl: config.Workload.TTL, holds: map[*batchLock]struct{}{}, stop: stop,
	}
	c.done.Go(func() { c.renewLoop(ctx) })
	return c, nil
}

// Close stops the renewals, and returns the last error of one.
func (c *batchFloor) Close() error {
	c.stop()
	c.done.Wait() // before the pool closes, and before renewErr is read
	return errors.Join(c.renewErr, c.floorClient.Close())
}

func (c *batchFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	l := &batchLock{newEvalLock(c.rdb, name, c.newOwner()), c}
	l.acquire.args[0] = c.ttl.Milliseconds()
	return l, nil
}

// renewLoop renews until ctx is done. It does not retry a failed renewal before the next tick.
func (c *batchFloor) renewLoop(ctx context.Context) {
	tick := time.NewTicker(c.ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.renewAll(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// renewAll sends the batches one after another, so that the floor has one command in flight.
func (c *batchFloor) renewAll(ctx context.Context) {
	batch := &evalCall{sha: script(renewScript).sha()}
	flush := func() {
		if len(batch.keys) == 0 {
			return
		}
		// Close cancels ctx during a command: that is no failure.
		if err := batch.run(ctx, c.rdb).Err(); err != nil && ctx.Err() == nil {
			c.renewErr = err
		}
		batch.keys, batch.args = nil, nil
	}
	for _, l := range c.snapshot() {
		if len(batch.keys) == 0 {
			batch.args = append(batch.args, c.ttl.Milliseconds())
		}
		batch.keys = append(batch.keys, l.acquire.keys[0])
		batch.args = append(batch.args, l.release.args[0])
		if len(batch.keys) == batchSize {
			flush()
		}
	}
	flush()
}

// snapshot copies the holds, so that mu is not locked during a round trip to Redis.
func (c *batchFloor) snapshot() []*batchLock {
	c.mu.Lock()
	defer c.mu.Unlock()
	holds := make([]*batchLock, 0, len(c.holds))
	for l := range c.holds {
		holds = append(holds, l)
	}
	return holds
}

type batchLock struct {
	*evalLock
	client *batchFloor
}

func (l *batchLock) Acquire(ctx context.Context) (Hold, error) {
	if _, err := l.evalLock.Acquire(ctx); err != nil {
		return nil, err
	}
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	l.client.holds[l] = struct{}{}
	return l, nil
}

// Release removes the hold from the batches first. A batch in flight may still contain it: the
// script checks the owner, so a late renewal does not touch the next owner's lock.
func (l *batchLock) Release(ctx context.Context) error {
	l.client.mu.Lock()
	delete(l.client.holds, l)
	l.client.mu.Unlock()
	return l.evalLock.Release(ctx)
}

package contend

import (
	"context"
	"errors"
	"sync"
	"time"
)

// batchSize is how many keys one EVALSHA renews.
const batchSize = 100

// batchFloor: one goroutine renews all that is held, a hundred keys by each EVALSHA, three times in each TTL.
type batchFloor struct {
	*floorClient
	ttl time.Duration

	mu   sync.Mutex
	held map[*batchHold]struct{} // guarded by mu

	stop   context.CancelFunc
	done   sync.WaitGroup
	failed error // a batch that was not renewed; who is done may be asked
}

// KEYS[1..] hashes; ARGV[1] lease, ms; ARGV[2..] the owner of each. Returns how many were kept.
const renewText = `
local kept = 0
for i, key in ipairs(KEYS) do
  if redis.call('hexists', key, ARGV[i + 1]) == 1 then
    kept = kept + redis.call('pexpire', key, ARGV[1])
  end
end
return kept`

func openBatches(_ context.Context, s Setting) (Client, error) {
	ctx, stop := context.WithCancel(context.Background())
	c := &batchFloor{floorClient: newFloorClient(s), ttl: s.Workload.TTL, held: map[*batchHold]struct{}{}, stop: stop}
	c.done.Go(func() { c.renew(ctx) })
	return c, nil
}

func (c *batchFloor) Close() error {
	c.stop()
	c.done.Wait()
	return errors.Join(c.failed, c.floorClient.Close())
}

func (c *batchFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	h := &batchHold{newPair(c.rdb, name, c.owner()), c}
	h.acquire.args[0] = c.ttl.Milliseconds()
	return h, nil
}

func (c *batchFloor) renew(ctx context.Context) {
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

func (c *batchFloor) renewAll(ctx context.Context) {
	b := &call{sha: script(renewText).sha()}
	flush := func() {
		if len(b.keys) == 0 {
			return
		}
		if err := b.run(ctx, c.rdb).Err(); err != nil && ctx.Err() == nil {
			c.failed = err
		}
		b.keys, b.args = nil, nil
	}
	for _, h := range c.all() {
		if len(b.keys) == 0 {
			b.args = append(b.args, c.ttl.Milliseconds())
		}
		b.keys = append(b.keys, h.acquire.keys[0])
		b.args = append(b.args, h.release.args[0])
		if len(b.keys) == batchSize {
			flush()
		}
	}
	flush()
}

func (c *batchFloor) all() []*batchHold {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*batchHold, 0, len(c.held))
	for h := range c.held {
		all = append(all, h)
	}
	return all
}

type batchHold struct {
	*pair
	c *batchFloor
}

func (h *batchHold) Acquire(ctx context.Context) (Held, error) {
	if _, err := h.pair.Acquire(ctx); err != nil {
		return nil, err
	}
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.c.held[h] = struct{}{}
	return h, nil
}

func (h *batchHold) Release(ctx context.Context) error {
	h.c.mu.Lock()
	delete(h.c.held, h)
	h.c.mu.Unlock()
	return h.pair.Release(ctx)
}

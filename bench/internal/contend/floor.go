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
	// lease of what a floor acquires; nothing renews it but where that is what is measured.
	lease = 30 * time.Second
	// lookAgain bounds what a message that never came can cost a floor.
	lookAgain = time.Second
	released  = "0"
)

var errBusy = errors.New("contend: held by another, and this floor does not wait")

// The scripts of the floors: the least that Redisson's format takes.
const (
	// KEYS[1] hash; ARGV[1] lease, ms; ARGV[2] owner. Returns nil, or the holder's pttl.
	acquireText = `
if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])`

	// KEYS[1] hash; KEYS[2] channel; ARGV[1] owner; ARGV[2] message.
	releaseText = `
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[2])
return 1`

	// KEYS[1] hash; ARGV[1] lease, ms; ARGV[2] owner; ARGV[3] the one before, who has it.
	handOverText = `
if redis.call('hdel', KEYS[1], ARGV[3]) == 0 then
  return 0
end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return 1`
)

// script is a Lua text that is already loaded: a floor sends nothing but EVALSHA.
type script string

func (s script) sha() string { return redis.NewScript(string(s)).Hash() }

// loading returns a Prepare that loads scripts.
func loading(scripts ...script) func(context.Context, *redis.Client, Workload) error {
	return func(ctx context.Context, rdb *redis.Client, _ Workload) error {
		for _, s := range scripts {
			if err := rdb.ScriptLoad(ctx, string(s)).Err(); err != nil {
				return fmt.Errorf("contend: load: %w", err)
			}
		}
		return nil
	}
}

// call is one EVALSHA.
type call struct {
	sha  string
	keys []string
	args []any
}

func (c *call) run(ctx context.Context, via redis.Scripter) *redis.Cmd {
	return via.EvalSha(ctx, c.sha, c.keys, c.args...)
}

// pair acquires and releases with one EVALSHA each. It belongs to one worker.
type pair struct {
	via     redis.Scripter
	acquire call
	release call
}

func newPair(via redis.Scripter, name, owner string) *pair {
	return &pair{
		via:     via,
		acquire: call{script(acquireText).sha(), []string{name}, []any{lease.Milliseconds(), owner}},
		release: call{script(releaseText).sha(), []string{name, channelOf(name)}, []any{owner, released}},
	}
}

func channelOf(name string) string { return "redisson_lock__channel:{" + name + "}" }

func (p *pair) try(ctx context.Context) (bool, error) {
	err := p.acquire.run(ctx, p.via).Err()
	if errors.Is(err, redis.Nil) {
		return true, nil
	}
	return false, err
}

func (p *pair) Release(ctx context.Context) error {
	n, err := p.release.run(ctx, p.via).Int()
	if err == nil && n != 1 {
		err = errors.New("contend: the floor did not hold what it released")
	}
	return err
}

// Acquire takes what is free.
func (p *pair) Acquire(ctx context.Context) (Held, error) {
	got, err := p.try(ctx)
	if err == nil && !got {
		err = errBusy
	}
	return p, err
}

// floorClient makes its workers' owner ids.
type floorClient struct {
	rdb *redis.Client
	id  string
	n   int
}

func newFloorClient(s Setting) *floorClient {
	return &floorClient{rdb: s.Dial(), id: fmt.Sprintf("00000000-0000-4000-8000-%012d", s.Number)}
}

func (c *floorClient) owner() string {
	c.n++
	return c.id + ":" + strconv.Itoa(c.n)
}

func (c *floorClient) Close() error { return c.rdb.Close() }

// plainFloor: two EVALSHA.
type plainFloor struct{ *floorClient }

func openPlain(_ context.Context, s Setting) (Client, error) {
	return plainFloor{newFloorClient(s)}, nil
}

func (c plainFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return newPair(c.rdb, name, c.owner()), nil
}

// pipelinedFloor: two EVALSHA, which go-redis puts into pipelines with those of other goroutines.
type pipelinedFloor struct {
	*floorClient
	pipe *redis.AutoPipeliner
}

func openPipelined(_ context.Context, s Setting) (Client, error) {
	c := newFloorClient(s)
	pipe, err := c.rdb.AutoPipeline()
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("contend: %w", err)
	}
	return &pipelinedFloor{c, pipe}, nil
}

func (c *pipelinedFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	return newPair(c.pipe, name, c.owner()), nil
}

// queueFloor: a first come, first served queue in the process, then two EVALSHA. It serves one client.
type queueFloor struct {
	*floorClient
	gates map[string]chan struct{}
}

func openQueue(_ context.Context, s Setting) (Client, error) {
	return &queueFloor{newFloorClient(s), map[string]chan struct{}{}}, nil
}

func (c *queueFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	gate, ok := c.gates[name]
	if !ok {
		gate = make(chan struct{}, 1)
		c.gates[name] = gate
	}
	return &queuedPair{newPair(c.rdb, name, c.owner()), gate}, nil
}

type queuedPair struct {
	*pair
	gate chan struct{} // full while one of the client's workers is inside; those who wait to fill it are served in order
}

func (l *queuedPair) Acquire(ctx context.Context) (Held, error) {
	select {
	case l.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if _, err := l.pair.Acquire(ctx); err != nil {
		<-l.gate
		return nil, err
	}
	return l, nil
}

func (l *queuedPair) Release(ctx context.Context) error {
	defer func() { <-l.gate }()
	return l.pair.Release(ctx)
}

// handOverFloor: a first come, first served queue in the process, and one EVALSHA that hands the lock on. It serves one client, and never frees
// the lock.
type handOverFloor struct {
	*floorClient
	gates map[string]chan string
}

func openHandOver(_ context.Context, s Setting) (Client, error) {
	return &handOverFloor{newFloorClient(s), map[string]chan string{}}, nil
}

func (c *handOverFloor) Locker(_ context.Context, name string, _ bool) (Locker, error) {
	gate, ok := c.gates[name]
	if !ok {
		gate = make(chan string, 1)
		gate <- ""
		c.gates[name] = gate
	}
	owner := c.owner()
	take := call{script(handOverText).sha(), []string{name}, []any{lease.Milliseconds(), owner, ""}}
	return &heir{newPair(c.rdb, name, owner), take, owner, gate}, nil
}

type heir struct {
	*pair
	take  call
	owner string
	gate  chan string // has who was in last, while nobody is in; "": nobody was
}

func (h *heir) Acquire(ctx context.Context) (Held, error) {
	var before string
	select {
	case before = <-h.gate:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	err := h.inherit(ctx, before)
	if err != nil {
		h.gate <- before
	}
	return h, err
}

func (h *heir) inherit(ctx context.Context, before string) error {
	if before == "" {
		_, err := h.pair.Acquire(ctx)
		return err
	}
	h.take.args[2] = before
	n, err := h.take.run(ctx, h.via).Int()
	if err == nil && n != 1 {
		err = errors.New("contend: the floor handed on what it did not hold")
	}
	return err
}

func (h *heir) Release(context.Context) error {
	h.gate <- h.owner
	return nil
}

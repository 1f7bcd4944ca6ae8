package contend

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// pubsubFloor: of each client's workers one waits on Redis for each name, the others behind it. It tries, and when refused waits for the
// message that the release publishes, and tries again. The first to be refused subscribes; the subscription lasts as long as the client.
type pubsubFloor struct {
	*floorClient
	rw    bool
	rooms map[string]*room
}

func openPubsub(_ context.Context, s Setting) (Client, error) {
	return &pubsubFloor{newFloorClient(s), s.Workload.Primitive == RW, map[string]*room{}}, nil
}

func (c *pubsubFloor) Locker(_ context.Context, name string, read bool) (Locker, error) {
	r, ok := c.rooms[name]
	if !ok {
		r = newRoom(c.rdb, channelOf(name))
		if c.rw {
			r.channel = rwChannelOf(name)
		}
		c.rooms[name] = r
	}
	switch {
	case !c.rw:
		return &roomLock{newPair(c.rdb, name, c.owner()), r}, nil
	case read:
		return &roomEntry{newReadPair(c.rdb, name, c.owner()), r}, nil
	default:
		return &roomEntry{newWritePair(c.rdb, name, c.owner()), r}, nil
	}
}

func (c *pubsubFloor) Close() error {
	for _, r := range c.rooms {
		r.close()
	}
	return c.floorClient.Close()
}

// room is where a client's workers wait for one name.
type room struct {
	door chan struct{} // full while one of them is through it; those before it are served in order
	news chan struct{} // a message has come; one tells as much as many

	// Of who is through the door.
	timer *time.Timer
	sub   *redis.PubSub // nil before anybody was refused

	rdb     *redis.Client
	channel string
	done    sync.WaitGroup
}

func newRoom(rdb *redis.Client, channel string) *room {
	return &room{door: make(chan struct{}, 1), news: make(chan struct{}, 1), timer: time.NewTimer(lookAgain), rdb: rdb, channel: channel}
}

// listen subscribes. What is published after it has returned is heard.
func (r *room) listen(ctx context.Context) error {
	sub := r.rdb.Subscribe(ctx, r.channel)
	if _, err := sub.Receive(ctx); err != nil {
		_ = sub.Close()
		return fmt.Errorf("contend: subscribe: %w", err)
	}
	r.sub = sub
	heard := sub.Channel()
	r.done.Go(func() {
		for range heard {
			select {
			case r.news <- struct{}{}:
			default:
			}
		}
	})
	return nil
}

func (r *room) close() {
	if r.sub != nil {
		_ = r.sub.Close() // ends the channel
		r.done.Wait()
	}
}

// enter goes through the door and takes p. It leaves the door closed behind it, unless it fails.
func (r *room) enter(ctx context.Context, p *pair) error {
	select {
	case r.door <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.take(ctx, p); err != nil {
		<-r.door
		return err
	}
	return nil
}

func (r *room) take(ctx context.Context, p *pair) error {
	for {
		select {
		case <-r.news: // older than the try that follows
		default:
		}
		if got, err := p.try(ctx); got || err != nil {
			return err
		}
		if r.sub == nil {
			if err := r.listen(ctx); err != nil {
				return err
			}
			continue // a release may have come before
		}
		r.timer.Reset(lookAgain)
		select {
		case <-r.news:
		case <-r.timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// roomLock keeps the door closed while it is held: nobody else of its client can have it.
type roomLock struct {
	*pair
	room *room
}

func (l *roomLock) Acquire(ctx context.Context) (Held, error) { return l, l.room.enter(ctx, l.pair) }

func (l *roomLock) Release(ctx context.Context) error {
	defer func() { <-l.room.door }()
	return l.pair.Release(ctx)
}

// roomEntry lets the next through as soon as it is in: it may be another reader.
type roomEntry struct {
	*pair
	room *room
}

func (l *roomEntry) Acquire(ctx context.Context) (Held, error) {
	err := l.room.enter(ctx, l.pair)
	if err == nil {
		<-l.room.door
	}
	return l, err
}

// The least that a read-write lock in Redisson's format takes.
const (
	// KEYS[1] hash; KEYS[2] key of the reader's hold; ARGV[1] lease, ms; ARGV[2] owner. Returns nil, or the writer's pttl.
	readText = `
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

	// KEYS[1] hash; KEYS[2] channel; KEYS[3] key of the reader's hold; ARGV[1] owner; ARGV[2] message.
	unreadText = `
local held = redis.call('hdel', KEYS[1], ARGV[1])
redis.call('del', KEYS[3])
if redis.call('hlen', KEYS[1]) == 1 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[2], ARGV[2])
end
return held`

	// KEYS[1] hash; ARGV[1] lease, ms; ARGV[2] owner. Returns nil, or the pttl of what is in the way.
	writeText = `
if redis.call('exists', KEYS[1]) == 1 then
  return redis.call('pttl', KEYS[1])
end
redis.call('hset', KEYS[1], 'mode', 'write', ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`
)

func rwChannelOf(name string) string { return "redisson_rwlock:{" + name + "}" }

func newReadPair(via redis.Scripter, name, owner string) *pair {
	hold := "{" + name + "}:" + owner + ":rwlock_timeout:1"
	return &pair{
		via:     via,
		acquire: call{script(readText).sha(), []string{name, hold}, []any{lease.Milliseconds(), owner}},
		release: call{script(unreadText).sha(), []string{name, rwChannelOf(name), hold}, []any{owner, released}},
	}
}

func newWritePair(via redis.Scripter, name, owner string) *pair {
	owner += ":write"
	return &pair{
		via:     via,
		acquire: call{script(writeText).sha(), []string{name}, []any{lease.Milliseconds(), owner}},
		release: call{script(releaseText).sha(), []string{name, rwChannelOf(name)}, []any{owner, "1"}},
	}
}

package contend

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// publishFloor: a message says that the lock is free, and who hears it takes it by one EVALSHA. It is only good for two clients of one worker
// each, by turns: there the message can go to nobody else.
type publishFloor struct {
	*floorClient
	sub *redis.PubSub
}

func openPublish(_ context.Context, s Setting) (Client, error) {
	return &publishFloor{floorClient: newFloorClient(s)}, nil
}

// KEYS[1] hash; ARGV[1] lease, ms; ARGV[2] owner: the lock goes to the owner, whose turn it is.
const turnText = `
redis.call('del', KEYS[1])
redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[1])
return nil`

func (c *publishFloor) Locker(ctx context.Context, name string, _ bool) (Locker, error) {
	channel := channelOf(name)
	c.sub = c.rdb.Subscribe(ctx, channel)
	if _, err := c.sub.Receive(ctx); err != nil {
		return nil, fmt.Errorf("contend: subscribe: %w", err)
	}
	owner := c.owner()
	l := &turn{rdb: c.rdb, heard: c.sub.Channel(), channel: channel, owner: owner, pair: newPair(c.rdb, name, owner)}
	l.take = call{script(turnText).sha(), l.pair.acquire.keys, l.pair.acquire.args}
	return l, nil
}

func (c *publishFloor) Close() error {
	if c.sub != nil {
		_ = c.sub.Close()
	}
	return c.floorClient.Close()
}

type turn struct {
	rdb     *redis.Client
	heard   <-chan *redis.Message
	channel string
	owner   string
	pair    *pair
	take    call
	begun   bool
}

// Acquire takes what is free to begin with. From then on the key is never free: it goes over, and a message that nobody waits for is kept.
func (l *turn) Acquire(ctx context.Context) (Held, error) {
	if !l.begun {
		l.begun = true
		if got, err := l.pair.try(ctx); got || err != nil {
			return l, err
		}
	}
	for {
		select {
		case m := <-l.heard:
			if m.Payload == l.owner { // our own
				continue
			}
			if err := l.take.run(ctx, l.rdb).Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
			return l, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *turn) Release(ctx context.Context) error {
	return l.rdb.Publish(ctx, l.channel, l.owner).Err()
}

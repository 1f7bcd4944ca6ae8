package contend

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// publishFloor publishes a message to release the lock. The subscriber that receives it acquires
// the lock with one EVALSHA.
//
// It is only correct for two clients with one worker each that alternate: there, each message has a
// single receiver.
type publishFloor struct {
	*floorClient
	sub *redis.PubSub
}

func openPublish(_ context.Context, c ClientConfig) (Client, error) {
	return &publishFloor{floorClient: newFloorClient(c)}, nil
}

// takeOverScript replaces the owner unconditionally.
//
// KEYS[1]  lock hash
// ARGV[1]  lease, ms
// ARGV[2]  owner id
// returns  nil
const takeOverScript = `
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
	owner := c.newOwner()
	first := newEvalLock(c.rdb, name, owner)
	return &publishLock{
		rdb: c.rdb, messages: c.sub.Channel(), channel: channel, owner: owner,
		first:    first,
		takeOver: evalCall{script(takeOverScript).sha(), first.acquire.keys, first.acquire.args},
	}, nil
}

func (c *publishFloor) Close() error {
	if c.sub != nil {
		_ = c.sub.Close()
	}
	return c.floorClient.Close()
}

type publishLock struct {
	rdb      redis.UniversalClient
	messages <-chan *redis.Message
	channel  string
	owner    string
	first    *evalLock // for the first attempt only
	takeOver evalCall
	started  bool
}

// Acquire tries the free lock once. After the first acquisition the key always exists, so later
// calls only wait for a message. The channel buffers a message that arrives before the call.
func (l *publishLock) Acquire(ctx context.Context) (Hold, error) {
	if !l.started {
		l.started = true
		if acquired, err := l.first.try(ctx); acquired || err != nil {
			return l, err
		}
	}
	for {
		select {
		case m := <-l.messages:
			if m.Payload == l.owner { // our own release
				continue
			}
			if err := l.takeOver.run(ctx, l.rdb).Err(); err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
			return l, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (l *publishLock) Release(ctx context.Context) error {
	return l.rdb.Publish(ctx, l.channel, l.owner).Err()
}

package primitives

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewRedLock makes one lock of several on independent Redis servers: Redisson's RedissonRedLock. It
// is held while a majority of its members is, so it survives the loss of the others. All members
// are asked at the same time, and an acquisition returns as soon as a majority is confirmed: a
// server that is dead or slow delays nothing. A member that answers later joins the hold. An
// attempt without a majority ends after a tenth of the TTL, at least 100 ms and at most 2 s.
//
// A member whose server was restarted empty has forgotten the lock. A renewed RedLock acquires it
// again if nobody else holds it, provided that the other members have been a majority all the time.
// Therefore the lock survives a rolling restart. A majority that was lost is never acquired again.
//
// The algorithm was published as Redlock
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). Its safety needs two
// things:
//
//   - Clocks drift by no more than the margin. [WithSafetyMargin] is by default as published: a
//     hundredth of the TTL plus 2 ms.
//   - A server that crashes without its data on disk stays away for as long as the longest TTL:
//     [MinUptime] ensures that.
//
// Martin Kleppmann's "How to do distributed locking" (2016) explains what follows if they do not
// hold. A RedLock has no fencing token.
//
// Members, options and identity are as [NewMultiLock] says.
func NewRedLock(locks []*Lock, opts ...Option) *Lock { return newJoint("red", locks, opts) }

// MinUptime returns a function for [redis.Options].OnConnect. It makes the client refuse a server
// that has been up for less than d, or up to a second more. Use it for the members of a RedLock
// whose servers do not keep all their data on disk, with the longest TTL in use:
//
//	rdb := redis.NewClient(&redis.Options{Addr: addr, OnConnect: primitives.MinUptime(30 * time.Second)})
//
// A server that was restarted empty could otherwise help a second holder to a majority, because it
// has forgotten the first one. After d, the lease of the first holder is over. Until then the
// server counts as down.
//
// A connection leads to one process, so it is enough to ask once for each connection, by INFO. A
// server that refuses INFO is refused, too. All clients that use the lock must do this. The
// function does not notice that a running server loses data, for example by FLUSHALL.
func MinUptime(d time.Duration) func(ctx context.Context, conn *redis.Conn) error {
	return func(ctx context.Context, conn *redis.Conn) error {
		info, err := conn.InfoMap(ctx, "server").Result()
		if err != nil {
			return err
		}
		seconds, err := strconv.ParseInt(info["Server"]["uptime_in_seconds"], 10, 64)
		// The server rounds both the time of its start and the present down to seconds.
		if uptime := time.Duration(seconds-1) * time.Second; err == nil && uptime < d {
			err = fmt.Errorf("%w: %v, at least %v needed", errYoungServer, max(uptime, 0), d)
		}
		if err == nil {
			return nil
		}
		// To callers this is a dial that failed, so they know that nothing was executed. go-redis
		// removes the outermost error.
		return fmt.Errorf("redlatch: min uptime: %w", &net.OpError{Op: "dial", Net: "tcp", Err: err})
	}
}

var errYoungServer = errors.New("the server was started too recently")

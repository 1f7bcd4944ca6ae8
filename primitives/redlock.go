package primitives

import "github.com/redlatch/redlatch/internal/engine"

// NewRedLock makes one lock of several on independent Redis servers: Redisson's RedissonRedLock. It is held
// while a majority of its members is, so it survives the loss of the others. All members are asked at
// the same time. Each has a budget: a tenth of the TTL, at least 100 ms and at most 2 s. An acquisition
// waits that long for a dead server.
//
// A member whose server was restarted empty has forgotten the lock. A renewed RedLock acquires it again if
// nobody else holds it, provided that the other members have been a majority all the time. So the lock
// survives a rolling restart. A majority that was lost is never acquired again.
//
// The algorithm was published as Redlock
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). Its safety needs two things:
//
//   - Clocks drift by no more than the margin. [WithSafetyMargin] is by default as published: a hundredth
//     of the TTL plus 2 ms.
//   - A server that crashes without its data on disk stays away for as long as the longest TTL.
//
// Martin Kleppmann's "How to do distributed locking" (2016) explains what follows if they do not hold.
// A RedLock has no fencing token.
//
// Members, options and identity are as [NewMultiLock] says.
func NewRedLock(locks []*Lock, opts ...Option) *Lock {
	l, joint := newJoint("red", locks, opts)
	if joint != nil {
		engine.NewRed(joint)
	}
	return l
}

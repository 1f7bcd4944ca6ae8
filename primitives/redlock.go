package primitives

import "github.com/redlatch/redlatch/internal/engine"

// NewRedLock makes one lock of several on independent Redis servers: it is held while a majority of them
// is, so it survives the loss of the others. All members are asked at the same time. Each has a budget: a
// tenth of the TTL, at least 100 ms and at most 2 s. A dead server costs that much.
//
// While the majority stands without a break, a renewed RedLock acquires a member again that has forgotten
// it (restarted empty) and that nobody else holds. So it survives a rolling restart. A majority that was
// lost is never acquired again.
//
// It is the algorithm published as Redlock
// (https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/). Its safety rests on two
// things: clocks drift by no more than the margin ([WithSafetyMargin]: a hundredth of the TTL and 2 ms, as
// published), and servers that crash without their data on disk stay away for as long as the longest TTL.
// It gives no fencing token.
//
// Members, options and identity are as [NewMultiLock] says.
func NewRedLock(locks []*Lock, opts ...Option) *Lock {
	l, joint := newJoint("red", locks, opts)
	if joint != nil {
		engine.NewRed(joint)
	}
	return l
}

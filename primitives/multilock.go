package primitives

import "github.com/redlatch/redlatch/internal/joint"

// NewMultiLock makes one lock of several: Redisson's RedissonMultiLock. It is held while all of its members
// are. They may live on different clients. The hold has one id, the owner in every member. It is lost
// when one member is lost.
//
// The members are acquired one after another, sorted by name, whatever order they were given in. So of
// two rivals that come at the same time, one wins. If somebody else holds a member, the multi lock soon
// releases the others, and waits for that member while it holds none.
//
// The multi lock's client (defaults, observer, ids, Close) is that of the first member by name. Options
// given here or to a call replace the members' same options; their other options stay. A member given
// twice counts once.
//
// Every method of the lock returns [ErrInvalid] if there is no member, or one that is nil or a joint lock.
// Two kinds of lock on one name of one client are invalid, too.
func NewMultiLock(locks []*Lock, opts ...Option) *Lock {
	l, whole := newJoint("multi", locks, opts)
	if whole != nil {
		joint.NewMulti(whole)
	}
	return l
}

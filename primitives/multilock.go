package primitives

import "github.com/redlatch/redlatch/internal/engine"

// NewMultiLock makes one lock of several: it is held while all of them are. Members may live on different
// clients. They are acquired one after another, sorted by name, whatever order they were given in. So of
// two rivals that come at the same time, one wins. If a member is held by another, the others are soon
// released, and the multi lock waits for that member with nothing in its hands. The hold has one id, the
// owner in every member. It is lost when one member is lost.
//
// The multi lock's client (defaults, observer, ids, Close) is its first member's. Options given here or
// to a call replace the members' same options; their other options stay. A member given twice counts
// once. These are [ErrInvalid]: no member at all, a nil member, a joint lock as a member, and two kinds of
// lock on one name of one client.
func NewMultiLock(locks []*Lock, opts ...Option) *Lock {
	l, joint := newJoint("multi", locks, opts)
	if joint != nil {
		engine.NewMulti(joint)
	}
	return l
}

package primitives

const tokenPrefix = "redisson_lock_token"

// FencedLock is Redisson's RFencedLock: a lock whose holds have a fencing token, greater than that of every earlier holder, Java's
// included. What the section writes to should refuse a smaller token than it has seen: that stops a holder that goes on after its loss,
// which no lock can. (Martin Kleppmann, "How to do distributed locking", 2016.)
//
// A nested hold has the outer one's token; an adopted hold has none (0). The counter has no expiry: it rises as long as Redis keeps it, and
// starts again at 1 on a Redis that lost its data.
func (c *Client) FencedLock(name string, opts ...Option) *Lock {
	l := &Lock{}
	l.init(c, "fenced", name, opts)
	e := &mutex{exclusiveOf(&l.handle, lockScripts, prefixed(tokenPrefix, l.raw))}
	l.speaks(e, e.keys(l.memory("")))
	return l
}

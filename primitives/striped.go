package primitives

import (
	"hash/fnv"
	"strconv"
)

// Striped is n plain locks behind one name. Many keys share these few locks. Each key always has the same
// lock, and keys with the same lock exclude each other. Redisson has no such object; each stripe is an
// RLock for it.
//
// A critical section that holds the lock of one key must not wait for the lock of another key, unless it
// acquires with the hold's context. The two keys may have the same lock, which would be a deadlock.
type Striped struct {
	_ noCopy

	name    string
	stripes []*Lock // made at once, never changed; one that is invalid, if the name or the number is
}

// Striped makes n plain locks named "name:0" to "name:<n-1>". The methods of its locks return [ErrInvalid]
// if n is below 1. All processes must use the same n, or they do not exclude each other.
func (c *Client) Striped(name string, n int, opts ...Option) *Striped {
	if name == "" || n < 1 {
		l := c.Lock(name, opts...)
		if name != "" { // else c.Lock has said what is wrong
			l.refuse(invalid("%d stripes", n))
		}
		return &Striped{name: name, stripes: []*Lock{l}}
	}
	stripes := make([]*Lock, n)
	for i := range stripes {
		stripes[i] = c.Lock(name+":"+strconv.Itoa(i), opts...)
	}
	return &Striped{name: name, stripes: stripes}
}

// Name returns the name that the stripes share.
func (s *Striped) Name() string { return s.name }

// Lock returns the stripe of a key. Its number is the FNV-1a hash of the key (64 bits) mod n. That is part
// of the wire format and will not change, so that processes of different versions agree.
func (s *Striped) Lock(key string) *Lock {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return s.stripes[h.Sum64()%uint64(len(s.stripes))]
}

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

	c       *Client
	name    string
	opts    []Option // for the lock that reports what is invalid
	stripes []*Lock  // made at once, never changed
	invalid error
}

// Striped makes n plain locks named "name:0" to "name:<n-1>". The methods of its locks return [ErrInvalid]
// if n is below 1. All processes must use the same n, or they do not exclude each other.
func (c *Client) Striped(name string, n int, opts ...Option) *Striped {
	s := &Striped{c: c, name: name, opts: opts}
	switch {
	case name == "":
		s.invalid = invalid("an empty name")
		return s
	case n < 1:
		s.invalid = invalid("%d stripes", n)
		return s
	}
	s.stripes = make([]*Lock, n)
	for i := range s.stripes {
		s.stripes[i] = c.Lock(name+":"+strconv.Itoa(i), opts...)
	}
	return s
}

// Name returns the name that the stripes share.
func (s *Striped) Name() string { return s.name }

// Lock returns the stripe of a key. Its number is the FNV-1a hash of the key (64 bits) mod n. That is part
// of the wire format and will not change, so that processes of different versions agree.
func (s *Striped) Lock(key string) *Lock {
	if s.invalid != nil {
		l := s.c.Lock(s.name, s.opts...)
		l.invalid = s.invalid
		return l
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return s.stripes[h.Sum64()%uint64(len(s.stripes))]
}

package primitives

import (
	"hash/fnv"
	"strconv"
)

// Striped is n locks behind one name: many keys share few locks, and each key always has the same lock.
// Two keys with the same lock exclude each other. A critical section that holds the lock of one key must
// not wait for the lock of another under another context: that may be a deadlock.
type Striped struct {
	_ noCopy

	c       *Client
	name    string
	opts    []Option
	stripes []*Lock
	invalid error
}

// Striped makes n plain locks named "name:0" to "name:<n-1>". n below 1 is [ErrInvalid] from its locks.
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

// Name is the name that the stripes share.
func (s *Striped) Name() string { return s.name }

// Lock is the stripe of a key: number FNV-1a 64 of the key, mod n, today and in every process.
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

package primitives

import (
	"hash/fnv"
	"slices"
	"strconv"
	"sync/atomic"
)

// Striped is n plain locks behind one name. Many keys share these few locks. Each key always has
// the same lock, and keys with the same lock exclude each other. Redisson has no such object; each
// stripe is an RLock for it.
//
// A critical section that holds the lock of one key must not wait for the lock of another key,
// unless it acquires with the hold's context. The two keys may have the same lock, which would be a
// deadlock.
type Striped struct {
	_ noCopy

	c       *Client
	name    string
	opts    []Option
	n       uint64
	invalid *Lock // what Lock returns if the name or the number is invalid; nil if they are valid
	// made contains handles that Lock has made. The handle of stripe i is at i mod the length,
	// unless the handle of another stripe is there. This bounds the memory, whatever n is. With up
	// to maxMade stripes each has a place of its own, and so one handle.
	made []atomic.Pointer[stripe]
}

// stripe is a handle of a Striped. It does not change.
type stripe struct {
	number uint64
	lock   *Lock
}

// maxMade is how many handles a Striped keeps.
const maxMade = 1024

// Striped returns n plain locks named "name:0" to "name:<n-1>". It costs nothing for a stripe that
// is not used, so n may be large. The methods of its locks return [ErrInvalid] if n is below 1. All
// processes must use the same n, or they do not exclude each other.
func (c *Client) Striped(name string, n int, opts ...Option) *Striped {
	s := &Striped{c: c, name: name, opts: slices.Clone(opts)}
	if name == "" || n < 1 {
		s.invalid = c.Lock(name, opts...)
		if name != "" { // else c.Lock has set the error
			s.invalid.refuse(invalid("%d stripes", n))
		}
		return s
	}
	s.n = uint64(n)
	s.made = make([]atomic.Pointer[stripe], min(n, maxMade))
	return s
}

// Name returns the name that the stripes share.
func (s *Striped) Name() string { return s.name }

// Lock returns the stripe of a key. Its number is the FNV-1a hash of the key (64 bits) mod n. That
// is part of the wire format and will not change, so that processes of different versions agree.
func (s *Striped) Lock(key string) *Lock {
	if s.invalid != nil {
		return s.invalid
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // this never fails
	number := h.Sum64() % s.n
	place := &s.made[number%uint64(len(s.made))]
	found := place.Load()
	if found != nil && found.number == number {
		return found.lock
	}
	made := &stripe{number, s.c.Lock(s.name+":"+strconv.FormatUint(number, 10), s.opts...)}
	if place.CompareAndSwap(found, made) {
		return made.lock
	}
	// Another goroutine was faster, perhaps with the same stripe.
	found = place.Load()
	if found.number == number {
		return found.lock
	}
	return made.lock
}

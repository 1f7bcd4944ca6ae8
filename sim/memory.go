package main

import (
	"sync"

	"github.com/tetratelabs/wazero/experimental"
)

// A guest asks for memory in small steps. wazero would copy all of it at each step, which took a
// tenth of the time of a round. So each guest has one block of the largest size, which the machine
// provides only as far as it is used.

// largestMemory is how much memory a guest may have, in bytes.
const largestMemory = 1 << 30

// memories has the blocks of guests that have ended.
type memories struct {
	mu   sync.Mutex
	free []*memory
}

// memory is the block of one guest. All of it beyond used is zero.
type memory struct {
	from *memories
	data []byte
	used uint64
}

// Allocate implements experimental.MemoryAllocator.
func (m *memories) Allocate(uint64, uint64) experimental.LinearMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := len(m.free) - 1
	if last < 0 {
		return &memory{from: m, data: make([]byte, largestMemory)}
	}
	block := m.free[last]
	m.free = m.free[:last]
	return block
}

// Reallocate implements experimental.LinearMemory.
func (b *memory) Reallocate(size uint64) []byte {
	if size > largestMemory {
		return nil // the guest ends: it is out of memory
	}
	b.used = max(b.used, size)
	return b.data[:size:largestMemory]
}

// Free implements experimental.LinearMemory.
func (b *memory) Free() {
	clear(b.data[:b.used])
	b.used = 0
	b.from.mu.Lock()
	defer b.from.mu.Unlock()
	b.from.free = append(b.from.free, b)
}

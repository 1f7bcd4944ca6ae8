package measure

import "runtime"

// Memory is the memory use of this process.
type Memory struct {
	Heap       int64 // bytes
	Stack      int64 // bytes
	Goroutines int64
}

// MemoryNow collects garbage and returns the memory still in use.
func MemoryNow() Memory {
	runtime.GC()
	runtime.GC() // the first run only moves the contents of sync.Pools to their victim caches
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Memory{int64(m.HeapAlloc), int64(m.StackInuse), int64(runtime.NumGoroutine())}
}

// Since returns the growth since before.
func (m Memory) Since(before Memory) Memory {
	return Memory{m.Heap - before.Heap, m.Stack - before.Stack, m.Goroutines - before.Goroutines}
}

// Mallocs returns the number of heap objects that this process has allocated so far.
func Mallocs() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Mallocs)
}

// Bytes returns the memory of the heap and of all stacks.
func (m Memory) Bytes() int64 { return m.Heap + m.Stack }

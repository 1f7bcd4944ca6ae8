package measure

import "runtime"

// Memory is what this process uses.
type Memory struct {
	Heap       int64 // bytes
	Stack      int64 // bytes
	Goroutines int64
}

// MemoryNow collects the garbage and tells what is left.
func MemoryNow() Memory {
	runtime.GC()
	runtime.GC() // the first one only puts into the victim caches what sync.Pools hold
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return Memory{int64(m.HeapAlloc), int64(m.StackInuse), int64(runtime.NumGoroutine())}
}

// Since returns what has come on top of before.
func (m Memory) Since(before Memory) Memory {
	return Memory{m.Heap - before.Heap, m.Stack - before.Stack, m.Goroutines - before.Goroutines}
}

// Mallocs counts the heap objects that this process has allocated so far.
func Mallocs() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Mallocs)
}

//go:build unix

package workload

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// guardFile is a Guard in a file that several processes map into memory.
type guardFile struct {
	*Guard
	memory []byte
	path   string
	owned  bool // Close removes the file
}

// newGuardFile creates a file with a zero Guard.
func newGuardFile() (*guardFile, error) {
	f, err := os.CreateTemp("", "bench-guard-")
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	path := f.Name()
	err = errors.Join(f.Truncate(int64(unsafe.Sizeof(Guard{}))), f.Close())
	if err != nil {
		return nil, fmt.Errorf("workload: %w", errors.Join(err, os.Remove(path)))
	}
	g, err := openGuardFile(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	g.owned = true
	return g, nil
}

func openGuardFile(path string) (*guardFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	defer func() { _ = f.Close() }() // the mapping outlives the descriptor
	memory, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(Guard{})),
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("workload: mmap: %w", err)
	}
	// A mapping starts at a page boundary, so the atomics are aligned.
	guard := (*Guard)(unsafe.Pointer(unsafe.SliceData(memory))) //nolint:gosec // memory has the size of a Guard
	return &guardFile{Guard: guard, memory: memory, path: path}, nil
}

// Close unmaps the guard, which must not be used afterwards.
func (g *guardFile) Close() error {
	err := syscall.Munmap(g.memory)
	if g.owned {
		err = errors.Join(err, os.Remove(g.path))
	}
	return err
}

//go:build unix

package workload

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// boardFile is a Board in memory that processes share by a file.
type boardFile struct {
	*Board
	memory []byte
	path   string
	owned  bool // ours to remove
}

// newBoardFile makes a file with a board as new.
func newBoardFile() (*boardFile, error) {
	f, err := os.CreateTemp("", "bench-board-")
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	path := f.Name()
	err = errors.Join(f.Truncate(int64(unsafe.Sizeof(Board{}))), f.Close())
	if err != nil {
		return nil, fmt.Errorf("workload: %w", errors.Join(err, os.Remove(path)))
	}
	b, err := openBoardFile(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	b.owned = true
	return b, nil
}

func openBoardFile(path string) (*boardFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	defer func() { _ = f.Close() }() // the mapping stays
	memory, err := syscall.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(Board{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("workload: mmap: %w", err)
	}
	// A mapping begins at a page's start, so its words are aligned.
	board := (*Board)(unsafe.Pointer(unsafe.SliceData(memory))) //nolint:gosec // it is as long as a Board
	return &boardFile{Board: board, memory: memory, path: path}, nil
}

// Close gives the memory back; nobody may use the board any more.
func (b *boardFile) Close() error {
	err := syscall.Munmap(b.memory)
	if b.owned {
		err = errors.Join(err, os.Remove(b.path))
	}
	return err
}

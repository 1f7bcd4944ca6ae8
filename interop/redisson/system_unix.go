//go:build unix

package redisson

import (
	"fmt"
	"os"
	"syscall"
)

// lockFile waits for an exclusive lock on the file at path. unlock releases it, as does the end of
// the process.
func lockFile(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("redisson: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("redisson: lock %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}

// Pause suspends the whole Java process until Resume, as a long garbage collection does.
func (d *Driver) Pause() error { return d.signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (d *Driver) Resume() error { return d.signal(syscall.SIGCONT) }

func (d *Driver) signal(signal os.Signal) error {
	if err := d.process.Process.Signal(signal); err != nil {
		return fmt.Errorf("redisson: %v: %w", signal, err)
	}
	return nil
}

//go:build unix

package redistest

import (
	"fmt"
	"syscall"
)

func pauseProcess(pid int) error  { return signal(pid, syscall.SIGSTOP) }
func resumeProcess(pid int) error { return signal(pid, syscall.SIGCONT) }

func signal(pid int, s syscall.Signal) error {
	if err := syscall.Kill(pid, s); err != nil {
		return fmt.Errorf("redistest: signal %v: %w", s, err)
	}
	return nil
}

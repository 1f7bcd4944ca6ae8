//go:build unix

package torture

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// supported: processes share a clock, and can be stopped.
const supported = true

// monotonic returns the clock that all processes of the machine share, in nanoseconds. It is the clock
// behind the monotonic readings of package time.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("torture: no monotonic clock: %v", err)) // POSIX requires it
	}
	return t.Nano()
}

func pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

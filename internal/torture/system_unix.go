//go:build unix

package torture

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// supported: processes share a clock, and can be stopped.
const supported = true

// monotonic returns the clock that all processes of the machine share, in nanoseconds. It is the
// clock behind the monotonic readings of package time.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("torture: no monotonic clock: %v", err)) // POSIX requires it
	}
	return t.Nano()
}

func pauseGroup(p *os.Process) error { return signalGroup(p, unix.SIGSTOP) }

func resumeGroup(p *os.Process) error { return signalGroup(p, unix.SIGCONT) }

func killGroup(p *os.Process) error { return signalGroup(p, unix.SIGKILL) }

// signalGroup sends a signal to a client process and to all that it has started.
func signalGroup(p *os.Process, s unix.Signal) error { return unix.Kill(-p.Pid, s) }

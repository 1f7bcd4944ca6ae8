package redistest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// killWithParent makes the kernel kill the child when the test binary ends for
// any reason, including a panic or a timeout.
func killWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// stateOf says what a process does, for an error message.
func stateOf(pid int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	waits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	for line := range strings.Lines(string(status)) {
		if state, ok := strings.CutPrefix(line, "State:"); ok {
			return strings.TrimSpace(state) + " in " + string(waits)
		}
	}
	return "no such process"
}

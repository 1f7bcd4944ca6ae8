package redistest

import "syscall"

// killWithParent makes the kernel kill the child when the test binary ends for
// any reason, including a panic or a timeout.
func killWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

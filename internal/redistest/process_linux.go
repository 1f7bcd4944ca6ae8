package redistest

import "syscall"

// diesWithUs has the kernel kill the child when we end in whatever way, be it a
// panic or the time limit of the test binary.
func diesWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

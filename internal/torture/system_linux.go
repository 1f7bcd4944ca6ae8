package torture

import "syscall"

// asGroup gives a client process a group of its own, and makes the kernel kill it when this one ends for any reason.
func asGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

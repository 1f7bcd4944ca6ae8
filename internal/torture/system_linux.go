package torture

import "syscall"

// killWithParent makes the kernel kill a client process when this one ends for any reason.
func killWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

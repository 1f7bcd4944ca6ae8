package server

import "syscall"

// killWithParent makes the kernel kill the child when the thread that started it ends.
func killWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

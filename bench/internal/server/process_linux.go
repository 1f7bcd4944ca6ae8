package server

import "syscall"

// diesWithUs has the kernel kill the child when the thread that started it ends.
func diesWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

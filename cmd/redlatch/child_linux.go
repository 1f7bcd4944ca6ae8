package main

import "syscall"

// groupOfItsOwn makes the child lead a group. It is killed if redlatch dies without a chance to end
// it, because nobody would keep its lock.
func groupOfItsOwn() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

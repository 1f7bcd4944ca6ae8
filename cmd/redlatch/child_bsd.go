//go:build unix && !linux

package main

import "syscall"

// groupOfItsOwn makes the child lead a group.
func groupOfItsOwn() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

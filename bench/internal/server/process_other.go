//go:build !linux

package server

import "syscall"

// killWithParent returns nil: there is no death signal on this system.
func killWithParent() *syscall.SysProcAttr { return nil }

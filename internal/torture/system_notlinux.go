//go:build !linux

package torture

import "syscall"

// killWithParent has no effect here: a client process ends when its input does.
func killWithParent() *syscall.SysProcAttr { return nil }

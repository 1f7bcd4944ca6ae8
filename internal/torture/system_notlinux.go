//go:build unix && !linux

package torture

import "syscall"

// asGroup gives a client process a group of its own. It ends when its input does.
func asGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

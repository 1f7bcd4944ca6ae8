//go:build !linux

package redistest

import "syscall"

// diesWithUs is Linux only; elsewhere a server outlives a test binary that
// panics or hits its time limit.
func diesWithUs() *syscall.SysProcAttr { return nil }

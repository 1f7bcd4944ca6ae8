//go:build !linux

package redistest

import "syscall"

// killWithParent returns nil, because only Linux can kill the child with its
// parent. Elsewhere a server outlives a test binary that panics or times out.
func killWithParent() *syscall.SysProcAttr { return nil }

// stateOf says what a process does, for an error message.
func stateOf(int) string { return "unknown state" }

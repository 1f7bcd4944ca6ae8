//go:build unix && !linux

package torture

import (
	"sync"
	"syscall"
)

// asGroup gives a client process a group of its own. It ends when its input does.
func asGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// onEachProcessor runs f in a goroutine: it cannot choose the processor here.
func onEachProcessor(all *sync.WaitGroup, f func()) { all.Go(f) }

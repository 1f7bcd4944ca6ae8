package torture

import (
	"math/bits"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// asGroup gives a client process a group of its own, and makes the kernel kill it when this one
// ends for any reason.
func asGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// onEachProcessor runs f once for each processor that this process may use, in a goroutine that
// runs on no other.
func onEachProcessor(all *sync.WaitGroup, f func()) {
	var usable unix.CPUSet
	if unix.SchedGetaffinity(0, &usable) != nil {
		all.Go(f)
		return
	}
	for i := range len(usable) * bits.UintSize {
		if usable.IsSet(i) {
			all.Go(func() {
				runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
				var one unix.CPUSet
				one.Set(i)
				_ = unix.SchedSetaffinity(0, &one)
				f()
			})
		}
	}
}

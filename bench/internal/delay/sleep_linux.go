package delay

import (
	"syscall"
	"time"
)

// timerSlack is PR_SET_TIMERSLACK of prctl(2).
const timerSlack = 29

// sharpen makes the kernel wake the calling thread as soon as its sleep is over. By default it may
// wait for 50 µs longer, to wake several threads at once.
func sharpen() {
	_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, timerSlack, 1, 0) // best effort
}

// SleepUntil blocks the thread, for a goroutine that has locked it. See ParkUntil.
func SleepUntil(due time.Time) {
	for wait := time.Until(due); wait > 0; wait = time.Until(due) {
		spec := syscall.NsecToTimespec(int64(wait))
		_ = syscall.Nanosleep(&spec, nil) // a signal may end it early
	}
}

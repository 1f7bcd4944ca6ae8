package delay

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ParkUntil blocks the goroutine alone. Neither of the other ways is good for a critical section:
//
//   - time.Sleep would be too long: the Go runtime waits for network and timers together, in whole
//     milliseconds. So in a process with little to do, 200 µs would become 1.1 ms, and the fewer commands a
//     library sends, the longer its sections would last.
//   - A thread that sleeps keeps its P until the runtime takes it away, after 20 µs to 10 ms. Then the other
//     goroutines cannot run, and how long depends on what the process has done before.
//
// A timer of the kernel is a file, and its end wakes the goroutine as an answer from the network
// does.
func ParkUntil(due time.Time) {
	t := timers.Get().(*kernelTimer)
	defer timers.Put(t)
	for wait := time.Until(due); wait > 0; wait = time.Until(due) {
		if t.err == nil {
			t.err = t.sleep(wait)
		}
		if t.err != nil {
			SleepUntil(due)
		}
	}
}

// timers keeps timers for the next section. The garbage collector closes the files of those it
// drops.
var timers = sync.Pool{New: func() any {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &kernelTimer{err: err}
	}
	return &kernelTimer{fd: fd, file: os.NewFile(uintptr(fd), "timer")}
}}

type kernelTimer struct {
	fd   int
	file *os.File
	err  error // why it cannot be used
	ends [8]byte
}

func (t *kernelTimer) sleep(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(t.fd, 0, &spec, nil); err != nil {
		return err
	}
	n, err := t.file.Read(t.ends[:])
	if err == nil && n != len(t.ends) {
		err = errors.New("delay: a short read of a timer")
	}
	return err
}

package watchdog

import "time"

// A process may stand still: it was stopped by a signal, its virtual machine or container was
// frozen, or it got no CPU. Then nothing renews its leases, although the server answers. The
// scheduler finds out afterwards, because it wakes up late. While there are leases it wakes up
// every beatEvery or so, and knows how long the process stood.
//
// The monotonic clock goes on while a process is stopped. It stops while a Linux machine is
// suspended. Then validity has not ended by this clock, and the next renewal finds that the server
// no longer has the lease.

const (
	beatEvery = 500 * time.Millisecond
	// fewestBeats bounds the beats before a far alarm.
	fewestBeats = 60
	// minStandstill is how late the scheduler must wake up. A busy machine delays it less than
	// that.
	minStandstill = time.Second
)

// standstill is a time in which nothing ran. The zero value means that there was none.
type standstill struct {
	from, to instant       // the scheduler went to sleep, and woke up
	late     time.Duration // how much later than planned it woke up
}

// nextBeat returns when the scheduler wakes up at the latest. Long before the first alarm it sleeps
// longer. mu is held.
func (d *Dog) nextBeat(now instant) instant {
	left := time.Duration(d.alarms.leases[0].alarmAt() - now)
	return now.add(max(beatEvery, left/fewestBeats))
}

// noteStandstill notes a standstill that has just ended. mu is held.
func (d *Dog) noteStandstill(now instant) {
	if s := d.standstillBefore(now); s.late > 0 {
		d.stood = s
	}
}

// standstillBefore returns the standstill that has just ended, if the scheduler has not woken up
// since. mu is held.
func (d *Dog) standstillBefore(now instant) standstill {
	late := time.Duration(now - d.wakesAt)
	if !d.running || late < minStandstill {
		return standstill{}
	}
	return standstill{d.beat, now, late}
}

// Stood returns how long the process stood still when l's validity ended, or 0 if it was running.
// If the server had not answered before, only a standstill of a period or more counts: a shorter
// one is not why the lease was lost.
func (l *Lease) Stood() time.Duration {
	d := l.dog.Load()
	if d == nil {
		return 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	end := l.valid()
	least := minStandstill
	if l.failures > 0 {
		least = max(least, l.period())
	}
	for _, s := range []standstill{d.stood, d.standstillBefore(d.now())} {
		coversEnd := s.from < end && end <= s.to
		if coversEnd && s.late >= least {
			return s.late
		}
	}
	return 0
}

package watchdog

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// A standstill is how late the scheduler wakes up. Fake time cannot stop a process, so the test
// moves the times that the scheduler compares.
func TestStood(t *testing.T) {
	const ttl = 30 * time.Second
	for _, tt := range []struct {
		name     string
		stood    time.Duration // how long ago the scheduler went to sleep, for half a second
		left     time.Duration // of the lease when it went to sleep
		failures uint8
		want     time.Duration
	}{
		{"it ran", 500 * time.Millisecond, 100 * time.Millisecond, 0, 0},
		{"a busy machine", 1300 * time.Millisecond, 100 * time.Millisecond, 0, 0},
		{"stopped", 40500 * time.Millisecond, 25 * time.Second, 0, 40 * time.Second},
		{"stopped, and the lease is valid", 20500 * time.Millisecond, 25 * time.Second, 0, 0},
		{"stopped after the end", 40500 * time.Millisecond, -time.Second, 0, 0},
		{"silent, then stopped for a moment", 3500 * time.Millisecond, time.Second, 5, 0},
		{"silent, then stopped for long", 20500 * time.Millisecond, 15 * time.Second, 5, 20 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := New(nil)
				defer d.Close()
				time.Sleep(time.Hour)
				l := &Lease{ttl: ttl, failures: tt.failures}
				l.dog.Store(d)
				now := d.now()
				d.running = true
				d.beat = now.add(-tt.stood)
				d.wakesAt = d.beat.add(500 * time.Millisecond)
				l.until.Store(int64(d.beat.add(tt.left)))
				assert.Equal(t, tt.want, l.Stood(), "before the scheduler has noticed")
				d.noteStandstill(now)
				d.beat, d.wakesAt = now, now.add(500*time.Millisecond)
				assert.Equal(t, tt.want, l.Stood())
				d.running = false
			})
		})
	}
}

//go:build !linux

package delay

import "time"

// sharpen does nothing on this system.
func sharpen() {}

// sleepUntil may sleep for a millisecond too long.
func sleepUntil(due time.Time) { time.Sleep(time.Until(due)) }

//go:build !linux

package delay

import "time"

// sharpen does nothing on this system.
func sharpen() {}

// SleepUntil may sleep for a millisecond too long.
func SleepUntil(due time.Time) { time.Sleep(time.Until(due)) }

// ParkUntil may sleep for a millisecond too long.
func ParkUntil(due time.Time) { time.Sleep(time.Until(due)) }

//go:build !unix

package redisson

import "errors"

// lockFile does nothing on this platform, so concurrent builds may disturb each other.
func lockFile(string) (unlock func(), err error) { return func() {}, nil }

// Pause cannot suspend a process on this platform.
func (d *Driver) Pause() error { return errors.ErrUnsupported }

// Resume cannot either.
func (d *Driver) Resume() error { return errors.ErrUnsupported }

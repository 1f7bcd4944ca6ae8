//go:build !simruntime

package simstop

// Supported reports whether goroutines can be stopped.
const Supported = false

// Join does nothing.
func Join(int) (former int) { return 0 }

// Stop does nothing.
func Stop(int, bool) {}

//go:build !wasip1

package torture

// advance does nothing on a real clock.
func advance(int64) {}

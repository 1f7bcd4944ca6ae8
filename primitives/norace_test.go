//go:build !race

package primitives_test

// raced reports whether the race detector is on.
const raced = false

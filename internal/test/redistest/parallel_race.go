//go:build race

package redistest

// parallel is how many parallel tests run at a time. The race detector makes all of them slower,
// and some have time limits.
const parallel = "6"

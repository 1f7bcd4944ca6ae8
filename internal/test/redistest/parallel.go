//go:build !race

package redistest

// parallel is how many parallel tests run at a time. Most of them wait, for leases, servers and
// clocks.
const parallel = "16"

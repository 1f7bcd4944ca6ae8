//go:build simruntime

package simstop

import _ "unsafe" // for go:linkname

// Supported reports whether goroutines can be stopped.
const Supported = true

// Join puts the calling goroutine into a group, and returns its former one. If the group is
// stopped, it stands still at once.
func Join(group int) (former int) { return int(join(int32(group))) }

// Stop stops the goroutines of a group, or lets them go on. One that was preempted stops, too. None
// of them is running now, because there is only one thread.
func Stop(group int, on bool) { stop(int32(group), on) }

//go:linkname join runtime.simJoin
func join(group int32) int32

//go:linkname stop runtime.simStop
func stop(group int32, on bool)

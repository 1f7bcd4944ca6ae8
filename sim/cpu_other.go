//go:build !unix

package main

import "time"

var started = time.Now()

// processorTime is the time since the start: that of the processor is not known here.
func processorTime() time.Duration { return time.Since(started) }

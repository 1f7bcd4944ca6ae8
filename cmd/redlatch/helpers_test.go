package main

import (
	"os"
	"strings"
	"time"
)

// soon bounds what is awaited. On a busy machine processes start slowly.
const soon = 20 * time.Second

func cutSpace(s string) (before, after string, found bool) { return strings.Cut(s, " ") }

func containsName(channel, name string) bool { return strings.Contains(channel, "{"+name+"}") }

// remembersARequest reports whether key stops late copies of a command. It expires by itself.
func remembersARequest(key string) bool { return strings.HasPrefix(key, "redisson_unlock_latch:") }

// environment returns that of a redlatch that tests start.
func environment(url string, more ...string) []string {
	// The race detector would delay exits by a second.
	return append(append(os.Environ(), redlatchVariable+"=1", urlVariable+"="+url, "GORACE=atexit_sleep_ms=0"), more...)
}

// redlatchVariable makes the test binary run as redlatch.
const redlatchVariable = "REDLATCH_TEST_MAIN"

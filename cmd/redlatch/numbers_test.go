package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// Each line is a command, its exit code, and its JSON.
func TestVerbsOfNumbers(t *testing.T) {
	t.Parallel()
	type step struct {
		verb, n string
		code    int
		want    fields // without name and kind; nil: no output
	}
	for kind, steps := range map[string][]step{
		kindSemaphore: {
			{"info", "", 1, nil},
			{"delete --yes", "", 1, nil},
			{"init", "-1", 2, nil},
			{"init", "x", 2, nil},
			{"init", "", 2, nil},
			{"init", "3", 0, fields{"created": true, "permits": 3, "available": 3}},
			{"init", "5", 1, fields{"created": false}},
			{"info", "", 0, fields{"permits": 3, "available": 3}},
			{"add", "2", 0, fields{}},
			{"add", "-1", 0, fields{}},
			{"drain", "", 0, fields{"drained": 4}},
			{"info", "", 0, fields{"permits": 0, "available": 0}},
			{"init", "5", 1, fields{"created": false}},
			{"delete --yes", "", 0, fields{"deleted": true}},
			{"init", "0", 0, fields{"created": true, "permits": 0, "available": 0}},
			{"resize", "1", 2, nil},
			{"", "", 2, nil},
		},
		kindPermits: {
			{"info", "", 1, nil},
			{"delete --yes", "", 1, nil},
			{"init", "3", 0, fields{"created": true, "permits": 3, "available": 3}},
			{"init", "3", 1, fields{"created": false}},
			{"add", "2", 0, fields{}},
			{"resize", "7", 0, fields{"permits": 7}},
			{"info", "", 0, fields{"permits": 7, "available": 7}},
			{"resize", "-7", 2, nil},
			{"delete --yes", "", 0, fields{"deleted": true}},
		},
		kindLatch: {
			{"count", "", 0, fields{"count": 0}},
			{"wait", "", 0, fields{"count": 0}},
			{"delete --yes", "", 1, nil},
			{"init", "0", 2, nil},
			{"init", "4", 0, fields{"created": true, "count": 4}},
			{"init", "4", 1, fields{"created": false}},
			{"count", "", 0, fields{"count": 4}},
			{"count-down", "", 0, fields{"count": 3}},
			{"count-down", "2", 0, fields{"count": 1}},
			{"count-down", "0", 2, nil},
			{"wait --wait 0s", "", exitNotAcquired, nil},
			{"wait -w 50ms", "", exitNotAcquired, nil},
			{"wait -w -1s", "", 2, nil},
			{"count-down", "1000000000", 0, fields{"count": 0}}, // at once
			{"wait", "", 0, fields{"count": 0}},
			{"init", "1", 0, fields{"created": true, "count": 1}},
			{"delete --yes", "", 0, fields{"deleted": true}},
		},
	} {
		t.Run(kind, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				name := redistest.Name(t)
				for i, step := range steps {
					args := []string{"--json", name}
					if step.n != "" {
						args = append(args, step.n)
					}
					code, stdout, stderr := on(t, s, kind+" "+step.verb, args...)
					require.Equal(t, step.code, code, "%d. %s: %s", i+1, step.verb, stderr)
					if step.want == nil {
						require.Empty(t, stdout)
					} else {
						step.want["name"], step.want["kind"] = name, kind
						requireJSON(t, stdout, step.want)
					}
					if count, ok := step.want["count"]; ok && count == 0 && step.verb != "count-down" {
						require.Contains(t, stderr, "there is no latch") // or it has opened
					} else if code == 0 {
						require.Empty(t, stderr)
					} else {
						require.Contains(t, stderr, `{"error":`)
					}
				}
			})
		})
	}
}

func TestLatchWaitsUntilItOpens(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	latch := client(t, s).CountDownLatch(name)
	require.NoError(t, fixture.ErrOf(latch.Init(t.Context(), 1)))
	done := make(chan int, 1)
	go func() {
		code, _, _ := on(t, s, "latch wait", "-w", "1m", name)
		done <- code
	}()
	redistest.WaitFor(t, 10*time.Second, func() bool {
		return strings.Contains(strings.Join(redistest.Channels(t, s), " "), name)
	}, "it waits")
	require.NoError(t, latch.CountDown(t.Context()))
	require.Zero(t, <-done)
}

// A name that was mistyped is no failure, but the user is told.
func TestAMissingLatchIsMentioned(t *testing.T) {
	t.Parallel()
	for _, verbs := range []string{
		"latch wait", "latch wait -w 1s", "latch wait -w 0s", "latch count", "latch count-down",
	} {
		_, stderr := exitsOn(t, 0, redistest.Miniredis(t), verbs, "typo")
		require.Contains(t, stderr, `there is no latch "typo"`, verbs)
	}
}

func TestLatchThatDoesNotOpenIsNamedOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	require.NoError(t, fixture.ErrOf(client(t, s).CountDownLatch(name).Init(t.Context(), 1)))
	for _, wait := range []string{"0s", "50ms"} {
		_, stderr := exitsOn(t, exitNotAcquired, s, "latch wait", "-w", wait, name)
		require.Contains(t, stderr, fmt.Sprintf("latch %q is not open after %s", name, wait))
		require.Equal(t, 1, strings.Count(stderr, name), stderr)
	}
}

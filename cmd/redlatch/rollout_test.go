package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The commands of doc/rollout.md find the lock that the other side holds. A client holds it in the place of Java.
func TestCommandsOfTheRollout(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../doc/rollout.md")
	require.NoError(t, err)
	var lines []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for line := range strings.Lines(block[1]) {
			command, _, _ := strings.Cut(strings.TrimSpace(line), " # ")
			lines = append(lines, command)
		}
	}
	require.Len(t, lines, 4)
	s := redistest.Miniredis(t)
	run := shell(t, s.Addr())
	lock := client(t, s, primitives.WithPrefix("shop:")).Lock("migration-check")
	hold := fixture.Acquire(t, t.Context(), lock)

	code, output := run(lines[0])
	require.Zero(t, code, output)
	require.Contains(t, output, hold.ID())
	code, output = run(lines[1])
	require.Equal(t, exitNotAcquired, code, output)
	go func() {
		time.Sleep(300 * time.Millisecond)
		_ = hold.Release(t.Context())
	}()
	code, output = run(lines[2])
	require.Zero(t, code, output)
	require.NotEmpty(t, output, "the date")
	code, output = run(strings.Replace(lines[3], "sleep 60", "sleep 0", 1))
	require.Zero(t, code, output)
}

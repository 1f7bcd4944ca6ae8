package redistest

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Processes that run side by side use different ports: the port of a server that is down for a moment stays free.
func TestProcessesUseDifferentPorts(t *testing.T) {
	if os.Getenv(envChild) != "" {
		ports, err := freePorts(1)
		require.NoError(t, err)
		_, _ = os.Stdout.WriteString("port " + strconv.Itoa(ports[0]) + "\n")
		return
	}
	own := ownBlock()
	if own.guard == nil {
		t.Skip("other processes use all ports")
	}
	ports, err := freePorts(5)
	require.NoError(t, err)
	for _, port := range ports {
		require.True(t, own.has(port), port)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 60 { // a block is chosen at random
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run", "^TestProcessesUseDifferentPorts$")
		cmd.Env = append(os.Environ(), envChild+"=1")
		out, err := cmd.Output()
		require.NoError(t, err)
		match := regexp.MustCompile(`port (\d+)`).FindSubmatch(out)
		require.Len(t, match, 2, string(out))
		port, err := strconv.Atoi(string(match[1]))
		require.NoError(t, err)
		require.False(t, own.has(port), "%d is in the block of ports from %d", port, own.first)
	}
}

func (b *block) has(port int) bool { return b.first <= port && port < b.first+b.size }

package redistest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The block of a process is not taken by another one: the port of a server that is down for a
// moment stays free.
func TestBlocksOfPortsAreTakenOnce(t *testing.T) {
	t.Parallel()
	own := ownBlock()
	if own.guard == nil {
		t.Skip("other processes use all ports")
	}
	ports, err := freePorts(5)
	require.NoError(t, err)
	for _, port := range ports {
		require.True(t, own.has(port), port)
	}
	another := reserve([]int{(own.first - firstPort) / blockPorts})
	require.Nil(t, another.guard, "the block from %d was taken twice", own.first)
	require.Equal(t, firstPort, another.first, "all ports")
	require.Equal(t, lastPort-firstPort, another.size)
}

func (b *block) has(port int) bool { return b.first <= port && port < b.first+b.size }

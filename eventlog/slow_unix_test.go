//go:build unix

package eventlog

import (
	"bufio"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/primitives"
)

// A disk that does not answer delays nobody: events are dropped, and the file says how many. A pipe
// that nobody reads stands for the disk.
func TestObserveNeverBlocks(t *testing.T) {
	path := pathOf(t)
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	w, err := Open(path)
	require.NoError(t, err)
	for range 10 * queueLength {
		w.Observe(primitives.Event{Kind: primitives.EventReleased, Name: "name"})
	}
	dropped := w.Dropped()
	require.Positive(t, dropped)
	lines := make(chan int)
	go func() {
		in, n := bufio.NewScanner(pipe), 0
		for in.Scan() {
			n++
			if n == 1+10*queueLength-int(dropped)+1 { // with the lines "opened" and "dropped"
				break
			}
		}
		lines <- n
	}()
	require.NoError(t, w.Close())
	require.Equal(t, 1+10*queueLength-int(dropped)+1, <-lines)
	require.NoError(t, pipe.Close())
}

package redistest

import (
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBufferedBehavesLikeASocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		conn := newBuffered(near)
		for range 3 {
			_, err := conn.Write([]byte("abc"))
			require.NoError(t, err, "a write must not wait for a reader")
		}
		got := make([]byte, 9)
		_, err := io.ReadFull(far, got)
		require.NoError(t, err)
		require.Equal(t, "abcabcabc", string(got))

		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Second)))
		_, err = conn.Read(got)
		require.ErrorContains(t, err, "i/o timeout")

		require.NoError(t, far.Close())
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
		_, err = conn.Read(got)
		require.Equal(t, io.EOF, err)
		_, err = conn.Write([]byte("the first write after the end is lost"))
		require.NoError(t, err)
		synctest.Wait()
		_, err = conn.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.EPIPE)

		require.NoError(t, conn.Close())
		require.NoError(t, conn.Close())
	})
}

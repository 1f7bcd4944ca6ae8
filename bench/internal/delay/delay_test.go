package delay

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// TestMain runs Serve when Start starts this test binary as a child process.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// echo starts a server that returns all data.
func echo(t *testing.T) contend.Target {
	t.Helper()
	target := contend.Target{Network: "unix", Addr: filepath.Join(t.TempDir(), "echo")}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), target.Network, target.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return target
}

func dial(t *testing.T, target contend.Target) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), target.Network, target.Addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	return conn
}

// proxy starts a proxy in this process, in front of an echo server, and returns a connection.
func proxy(t *testing.T, roundTrip time.Duration) (*Proxy, net.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	p, err := Listen(t.Context(), path, echo(t), roundTrip)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p, dial(t, contend.Target{Network: "unix", Addr: path})
}

// roundTrips returns the sorted times of n round trips, one after another.
func roundTrips(t *testing.T, conn net.Conn, n int) (times []time.Duration) {
	t.Helper()
	buf := []byte("PING\r\n")
	for range n {
		start := time.Now()
		_, err := conn.Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, buf)
		require.NoError(t, err)
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times
}

func TestRoundTripTakesTheDelay(t *testing.T) {
	for _, delay := range []time.Duration{500 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(delay.String(), func(t *testing.T) {
			_, conn := proxy(t, delay)
			times := roundTrips(t, conn, 50)
			t.Logf("at least %v, median %v", times[0], times[25])
			require.GreaterOrEqual(t, times[0], delay)
			require.Less(t, times[0], delay+10*time.Millisecond, "the fastest, as the machine may be busy")
		})
	}
}

// Data that is sent while other data is on its way takes no longer.
func TestDelayDoesNotLimitThroughput(t *testing.T) {
	const delay, messages = 200 * time.Millisecond, 1000
	_, conn := proxy(t, delay)
	sent := make(chan error, 1)
	start := time.Now()
	go func() {
		for i := range messages {
			if _, err := conn.Write([]byte{byte(i)}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	got := make([]byte, messages)
	_, err := io.ReadFull(conn, got)
	took := time.Since(start)
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.GreaterOrEqual(t, took, delay)
	require.Less(t, took, 10*delay, "one after another they would take %v", messages*delay)
	for i, b := range got {
		require.Equal(t, byte(i), b, "in order")
	}
}

func TestConnectionsDoNotMix(t *testing.T) {
	p, first := proxy(t, time.Millisecond)
	second := dial(t, contend.Target{Network: "unix", Addr: p.listener.Addr().String()})
	random := rand.NewChaCha8([32]byte{1})
	for _, conn := range []net.Conn{first, second} {
		data := make([]byte, 1<<20) // more than one read
		_, _ = random.Read(data)
		go func() { _, _ = conn.Write(data) }()
		got := make([]byte, len(data))
		_, err := io.ReadFull(conn, got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	}
}

func TestEndOfAConnectionIsForwarded(t *testing.T) {
	p, conn := proxy(t, time.Millisecond)
	_ = roundTrips(t, conn, 1)
	conn.Close()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.conns) == 0
	}, 10*time.Second, time.Millisecond, "both sides are closed")
}

func TestUnreachableTargetClosesTheConnection(t *testing.T) {
	dir := t.TempDir()
	nowhere := contend.Target{Network: "unix", Addr: filepath.Join(dir, "nowhere")}
	p, err := Listen(t.Context(), filepath.Join(dir, "s"), nowhere, time.Millisecond)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	conn := dial(t, contend.Target{Network: "unix", Addr: p.listener.Addr().String()})
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestCloseEndsConnectionsAndGoroutines(t *testing.T) {
	target := echo(t)
	ignore := goleak.IgnoreCurrent()
	path := filepath.Join(t.TempDir(), "s")
	p, err := Listen(t.Context(), path, target, time.Millisecond)
	require.NoError(t, err)
	conn := dial(t, contend.Target{Network: "unix", Addr: path})
	_ = roundTrips(t, conn, 1)
	p.Close()
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.NoFileExists(t, path)
	goleak.VerifyNone(t, ignore)
}

func TestProcessForwardsUntilItIsClosed(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else the child takes a second to exit under the race detector
	p, err := Start(t.Context(), echo(t), 2*time.Millisecond)
	require.NoError(t, err)
	conn := dial(t, p.Target)
	times := roundTrips(t, conn, 50)
	t.Logf("at least %v, median %v", times[0], times[25])
	require.GreaterOrEqual(t, times[0], 2*time.Millisecond)
	require.NoError(t, p.Close())
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoDirExists(t, p.dir)
}

func TestStartReportsTheErrorOfTheChild(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	_, err := Start(t.Context(), contend.Target{}, time.Millisecond)
	require.ErrorIs(t, err, os.ErrNotExist)

	long := filepath.Join(t.TempDir(), string(bytes.Repeat([]byte("x"), 120))) // too long for a socket
	require.NoError(t, os.Mkdir(long, 0o700))
	t.Setenv("TMPDIR", long)
	_, err = Start(t.Context(), contend.Target{}, time.Millisecond)
	require.ErrorContains(t, err, "invalid argument")
	left, err := os.ReadDir(long)
	require.NoError(t, err)
	require.Empty(t, left)
}

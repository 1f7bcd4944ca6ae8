package topology

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
)

// serveSentinel is a sentinel that says who the master is. It tells nobody of a change, so a former master goes on
// as before.
func serveSentinel(t *testing.T, master *atomic.Pointer[redistest.Server]) (addr string) {
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	return redistest.Serve(t, func(conn net.Conn) {
		for r := bufio.NewReader(conn); ; {
			args, err := readCommand(r)
			if err != nil {
				return
			}
			reply := "+OK\r\n"
			switch command := strings.ToLower(args[0]); {
			case command == "hello":
				reply = "-ERR unknown command\r\n"
			case command == "subscribe":
				reply = "*3\r\n" + bulk(command) + bulk(args[1]) + ":1\r\n"
			case command == "sentinel" && strings.EqualFold(args[1], "get-master-addr-by-name"):
				host, port, _ := net.SplitHostPort(master.Load().Addr())
				reply = "*2\r\n" + bulk(host) + bulk(port)
			case command == "sentinel":
				reply = "*0\r\n"
			}
			if _, err := conn.Write([]byte(reply)); err != nil {
				return
			}
		}
	})
}

// readCommand reads a command: an array of bulk strings.
func readCommand(r *bufio.Reader) (args []string, err error) {
	var n, size int
	if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	for range n {
		if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		arg := make([]byte, size+len("\r\n"))
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		args = append(args, string(arg[:size]))
	}
	return args, nil
}

// A former master closes nothing until a sentinel has told it of its successor, which may take ten seconds. A waiter
// that stayed subscribed there would hear of no release until then, and wait for its next poll each time.
func TestWaitersLeaveAFormerMaster(t *testing.T) {
	t.Parallel()
	former, current := redistest.Fresh(t), redistest.Fresh(t)
	var master atomic.Pointer[redistest.Server]
	master.Store(former)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.MasterName, SentinelAddrs: []string{serveSentinel(t, &master)},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	c := NewClient(t, rdb)
	for _, s := range []*redistest.Server{former, current} { // as if it was replicated
		Acquire(t, t.Context(), NewClient(t, s.Client(t)).Lock("held"))
	}
	waiting := StartAcquire(t.Context(), c.Lock("held"))
	AwaitWaiter(t, former, "held")

	master.Store(current)
	require.NoError(t, former.Client(t).ClientKillByFilter(t.Context(), "type", "normal", "skipme", "yes").Err())
	began := time.Now()
	AwaitWaiter(t, current, "held")
	require.Less(t, time.Since(began), 5*time.Second)
	require.NotContains(t, strings.Join(redistest.Channels(t, former), " "), "{held}")
	require.NoError(t, ErrOf(NewClient(t, current.Client(t)).Lock("held").ForceRelease(t.Context())))
	Release(t, AwaitHold(t, waiting))
}

package scripts

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// testTimeout bounds waits for events that take milliseconds on an idle machine.
const testTimeout = 10 * time.Second

var check = Load("lock/check") // reads: KEYS[1], ARGV[1]

// fastRetries configures a client with three immediate retries and short timeouts.
func fastRetries(o *redis.Options) {
	o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 3, time.Microsecond, time.Millisecond
	o.ReadTimeout, o.WriteTimeout = 150*time.Millisecond, 150*time.Millisecond
	o.DialTimeout, o.PoolTimeout = 150*time.Millisecond, 150*time.Millisecond
}

// longTimeouts configures a client that waits for answers on a busy machine. It is for all faults
// but silence.
func longTimeouts(o *redis.Options) {
	const long = 5 * time.Second
	o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.PoolTimeout = long, long, long, long
}

// env is a runner, connected to a server through a proxy.
type env struct {
	s *redistest.Server
	p *redistest.Proxy
	r *Runner
}

func newEnv(t *testing.T, s *redistest.Server, tweaks ...func(*redis.Options)) *env {
	w := &env{s: s, p: s.Proxy(t)}
	w.r = NewRunner(w.p.Client(t, append([]func(*redis.Options){fastRetries}, tweaks...)...), 0)
	t.Cleanup(w.r.Close)
	return w
}

func eachServer(t *testing.T, f func(t *testing.T, w *env), tweaks ...func(*redis.Options)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { f(t, newEnv(t, s, tweaks...)) })
}

// dialsOnce makes a refused dial fail at once. go-redis would dial five times.
func dialsOnce(o *redis.Options) { o.DialerRetries = 1 }

// refuseAll breaks all connections and refuses new ones. A client that has not noticed yet that its
// connections are broken would write a command to them. So refuseAll makes a call, after which the
// client has no connections left.
func (w *env) refuseAll() {
	w.p.Cut()
	_, _ = w.r.Do(context.Background(), check, []any{"used up"}, "x")
}

// sent counts the commands with that name since Record.
func (w *env) sent(name string) (n int) {
	for _, c := range w.p.Commands() {
		if strings.EqualFold(c.Args[0], name) {
			n++
		}
	}
	return n
}

var evals = redistest.Named("evalsha", "eval")

// inMemory returns a client of a server in the bubble of a test. answer returns the reply to what a
// connection has received, in lower case; "" is none.
func inMemory(t *testing.T, answer func(received string) string) *redis.Client {
	return inMemoryBehind(t, func() func(received string) string { return answer })
}

// inMemoryBehind is inMemory for a name that may move: server returns the server that a new
// connection reaches.
func inMemoryBehind(t *testing.T, server func() func(received string) string) *redis.Client {
	var mu sync.Mutex
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:1", Protocol: 2, DisableIdentity: true, PoolSize: 1, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			client, behind := net.Pipe()
			answer := server()
			go func() {
				defer func() { _ = behind.Close() }()
				received := make([]byte, 1<<16)
				for {
					n, err := behind.Read(received)
					if err != nil {
						return
					}
					mu.Lock()
					text := answer(strings.ToLower(string(received[:n])))
					mu.Unlock()
					_, _ = io.WriteString(behind, text)
				}
			}()
			return client, nil
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// errOf returns only the error of a call that returns two values.
func errOf[T any](_ T, err error) error { return err }

package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

const (
	startLimit    = 10 * time.Second // for a server to answer its first PING
	startAttempts = 10               // ports tried before a start is given up
	pollInterval  = 2 * time.Millisecond
)

var (
	errStopped   = errors.New("redistest: the server is not running")
	errPortTaken = errors.New("redistest: the port is taken")
)

// process is one redis-server that we started. It dies with us.
type process struct {
	binary string
	args   []string // all of them, the port included
	dir    string   // its working directory; its output is in log there

	mu   sync.Mutex
	pid  int
	kill func() error  // nil when not running
	gone chan struct{} // closed when it has been reaped
}

// start runs the binary. It does not wait for the server to listen.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill != nil {
		return errors.New("redistest: the server is running already")
	}
	out, err := os.OpenFile(p.logfile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, out, out
	cmd.SysProcAttr = diesWithUs()

	started, gone := make(chan error), make(chan struct{})
	go tend(cmd, started, gone)
	if err := <-started; err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	p.pid, p.kill, p.gone = cmd.Process.Pid, cmd.Process.Kill, gone
	return nil
}

// tend starts cmd and reaps it. It keeps its thread as long as cmd lives: the
// death signal of Linux is tied to the thread that started the child.
func tend(cmd *exec.Cmd, started chan<- error, gone chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // killed, as a rule
	}
	close(gone)
}

// stop kills the process and waits until it is gone. It may be called again.
func (p *process) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill == nil {
		return nil
	}
	if err := p.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redistest: %w", err)
	}
	<-p.gone
	p.kill, p.pid = nil, 0
	return nil
}

// running returns the pid, and a channel closed when it has ended.
func (p *process) running() (int, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill == nil {
		return 0, nil, errStopped
	}
	return p.pid, p.gone, nil
}

func (p *process) logfile() string { return filepath.Join(p.dir, "log") }

// ended is the error of a server that ended by itself.
func (p *process) ended() error {
	words := p.lastWords()
	err := fmt.Errorf("redistest: %s ended: %s", filepath.Base(p.binary), words)
	if strings.Contains(words, "already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// lastWords is the end of the output, for an error message.
func (p *process) lastWords() string {
	out, _ := os.ReadFile(p.logfile())
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// ready waits until the process answers on addr, and makes sure that it is ours
// that answers: the port could have gone to another one.
func (p *process) ready(addr string) error {
	pid, gone, err := p.running()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		err := answers(ctx, addr, pid)
		if err == nil {
			return nil
		}
		select {
		case <-gone:
			_ = p.stop()
			return p.ended()
		case <-ctx.Done():
			return fmt.Errorf("redistest: %s does not answer on %s: %w: %s", filepath.Base(p.binary), addr, err, p.lastWords())
		case <-time.After(pollInterval):
		}
	}
}

// answers asks the server on addr whether it is process pid. It looks for the
// port first, because a client that cannot dial logs, and then rests a second.
func answers(ctx context.Context, addr string, pid int) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	_ = conn.Close()
	rdb := redis.NewClient(adminOptions(addr))
	defer func() { _ = rdb.Close() }()
	info, err := rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	if other := info["Server"]["process_id"]; other != strconv.Itoa(pid) {
		return fmt.Errorf("%w: process %s answers, not %d", errPortTaken, other, pid)
	}
	return nil
}

// IgnoreServers makes goleak overlook the one goroutine that tends each running
// redis-server. It is needed only for checks made before Main returned.
func IgnoreServers() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redlatch/redlatch/internal/redistest.tend")
}

// Ports come from below the range that systems hand out to outgoing
// connections. A port of that range can be taken while its server is down, or,
// worse, a client that dials the dead server can be connected to itself.
const (
	firstPort = 20000
	lastPort  = 32000
)

// listen opens a listener on a free port.
func listen() (net.Listener, error) {
	for range 100 {
		l, err := net.Listen("tcp", loopback(firstPort+rand.IntN(lastPort-firstPort)))
		if err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("redistest: found no free port from %d to %d", firstPort, lastPort)
}

// freePorts returns n different ports that were free a moment ago.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // all at the end, or one could come twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

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
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	startTimeout  = 10 * time.Second // for a server to answer its first command
	startAttempts = 10               // tries with different ports
	pollInterval  = 2 * time.Millisecond
)

var (
	errStopped   = errors.New("redistest: server not running")
	errPortTaken = errors.New("redistest: port taken")
	errSilent    = errors.New("redistest: no answer")
)

// process is a redis-server process. On Linux it dies with the test binary.
type process struct {
	binary string
	args   []string // including the port
	dir    string   // working directory; contains the log file

	mu     sync.Mutex
	pid    int
	kill   func() error  // nil if not running
	exited chan struct{} // closed when the process has exited and was reaped
}

// start runs the binary. It does not wait for the server to listen.
func (p *process) start() error {
	// Hold mu for the whole start, so that a concurrent stop waits and then kills the process.
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill != nil {
		return errors.New("redistest: server already running")
	}
	out, err := os.OpenFile(p.logfile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(p.binary, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, out, out
	cmd.SysProcAttr = killWithParent()

	started, exited := make(chan error), make(chan struct{})
	go runProcess(cmd, started, exited)
	if err := <-started; err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	p.pid, p.kill, p.exited = cmd.Process.Pid, cmd.Process.Kill, exited
	return nil
}

// runProcess starts cmd and reaps it. It must keep its thread while cmd runs:
// Linux sends the parent-death signal when the thread that started the child
// ends. WaitsForServer refers to this function by name.
func runProcess(cmd *exec.Cmd, started chan<- error, exited chan<- struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		_ = cmd.Wait() // an error is normal: stop kills the process
	}
	close(exited)
}

// stop kills the process and waits until it has exited. Further calls do nothing.
func (p *process) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill == nil {
		return nil
	}
	if err := p.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redistest: %w", err)
	}
	<-p.exited
	p.kill, p.pid = nil, 0
	return nil
}

// running returns the pid, and a channel that is closed when the process exits.
func (p *process) running() (int, <-chan struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill == nil {
		return 0, nil, errStopped
	}
	return p.pid, p.exited, nil
}

func (p *process) logfile() string { return filepath.Join(p.dir, "log") }

// exitError returns the error for a server that exited without being stopped.
func (p *process) exitError() error {
	output := p.lastOutput()
	err := fmt.Errorf("redistest: %s exited: %s", filepath.Base(p.binary), output)
	if strings.Contains(output, "already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// lastOutput returns the last lines of the output, for an error message.
func (p *process) lastOutput() string {
	out, _ := os.ReadFile(p.logfile())
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// waitReady waits until this process answers on addr. It ignores the answer of
// another process, which may have taken the port.
func (p *process) waitReady(addr string) error {
	pid, exited, err := p.running()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := checkPID(ctx, addr, pid)
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			_ = p.stop()
			return p.exitError()
		case <-ctx.Done():
			return fmt.Errorf("%w of %s on %s: %w: %s: %s",
				errSilent, filepath.Base(p.binary), addr, err, stateOf(pid), p.lastOutput())
		case <-time.After(pollInterval):
		}
	}
}

// checkPID checks that the server on addr is process pid. It dials without a
// client first: a go-redis client that cannot dial logs it and pauses a second.
func checkPID(ctx context.Context, addr string, pid int) error {
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

// WaitsForServer is the name of the function in which a goroutine waits for each running
// redis-server. Checks for leaked goroutines that run before Main returns must ignore it. redlatch
// torture uses this package, so the package does not import goleak itself.
const WaitsForServer = "github.com/redlatch/redlatch/internal/test/redistest.runProcess"

// The port range is below the range of ephemeral ports. The kernel may give an
// ephemeral port to an outgoing connection while its server is down. Worse, a
// client that dials such a port may connect to itself.
const (
	firstPort  = 20000
	lastPort   = 32000
	blockPorts = 1000
)

// block is the ports that a process uses. Only it takes ports there: a server that is
// killed and restarted must not find its port taken by a server of another test
// binary, whose answers its clients would believe.
type block struct {
	first, size int
	guard       net.Listener // nil: all ports, as no block was free
	next        atomic.Int64 // port to try next, less first
}

// reserve takes the first free block in that order. Its guard listens on the first port
// of the block until the process ends, so other processes pass the block over.
func reserve(order []int) *block {
	for _, i := range order {
		first := firstPort + i*blockPorts
		if guard, err := net.Listen("tcp", loopback(first)); err == nil {
			return newBlock(first+1, blockPorts-1, guard)
		}
	}
	return newBlock(firstPort, lastPort-firstPort, nil)
}

// newBlock returns a block that begins at a random port. Its ports are tried in order: a
// server of this process that is down for a moment, or a proxy that refuses connections,
// finds its port free again.
func newBlock(first, size int, guard net.Listener) *block {
	b := &block{first: first, size: size, guard: guard}
	b.next.Store(rand.Int64N(int64(size)))
	return b
}

// ownBlock is the block of this process. Finding it binds a port, so not before a test needs one.
var ownBlock = sync.OnceValue(func() *block { return reserve(rand.Perm((lastPort - firstPort) / blockPorts)) })

// listen opens a listener on a free port of the block.
func (b *block) listen() (net.Listener, error) {
	for range b.size {
		port := b.first + int(b.next.Add(1)%int64(b.size))
		if l, err := net.Listen("tcp", loopback(port)); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("redistest: no free port from %d to %d", b.first, b.first+b.size-1)
}

// listen opens a listener on a free port.
func listen() (net.Listener, error) { return ownBlock().listen() }

// freePorts returns n different ports that were free during the call.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // keeps the port taken until all are chosen
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

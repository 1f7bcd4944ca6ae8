//go:build linux

package watch

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// pty is the other end of a terminal in which the view runs.
type pty struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd
	before unix.Termios

	mu  sync.Mutex
	out strings.Builder
}

func startPty(t *testing.T, addr string, columns, rows uint16) *pty {
	t.Helper()
	return startOnPty(t, exec.Command(os.Args[0]), addr, columns, rows)
}

// startOnPty is startPty with the command that runs the view.
func startOnPty(t *testing.T, program *exec.Cmd, addr string, columns, rows uint16) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	fd := int(master.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	p := &pty{t: t, master: master, slave: slave}
	p.resize(columns, rows)
	before, err := unix.IoctlGetTermios(int(slave.Fd()), getTermios)
	require.NoError(t, err)
	p.before = *before
	p.cmd = program
	p.cmd.Env = append(os.Environ(), childEnv+"="+addr, "TERM=xterm")
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, p.cmd.Start())
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			p.mu.Lock()
			p.out.Write(buf[:n])
			p.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_, _ = slave.Close(), master.Close()
	})
	return p
}

func (p *pty) resize(columns, rows uint16) {
	p.t.Helper()
	require.NoError(p.t, unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

func (p *pty) press(keys string) {
	p.t.Helper()
	_, err := p.master.WriteString(keys)
	require.NoError(p.t, err)
}

// take returns what was written since the last call.
func (p *pty) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.out.String()
	p.out.Reset()
	return s
}

// await waits until all texts were written, and returns everything.
func (p *pty) await(texts ...string) string {
	p.t.Helper()
	all := ""
	redistest.WaitFor(p.t, 10*time.Second, func() bool {
		all += p.take()
		for _, text := range texts {
			if !strings.Contains(all, text) {
				return false
			}
		}
		return true
	}, strings.Join(texts, " and ")+" on the screen")
	return all
}

// ends waits for the end of the process. The terminal must be as before, and its usual screen
// shown.
func (p *pty) ends() error {
	p.t.Helper()
	err := p.cmd.Wait()
	p.await("\x1b[?25h", "\x1b[?1049l")
	after, failed := unix.IoctlGetTermios(int(p.slave.Fd()), getTermios)
	require.NoError(p.t, failed)
	require.Equal(p.t, p.before, *after)
	return err
}

func TestViewInATerminal(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	c := client(t, server.Client(t))
	p := startPty(t, server.Addr(), 80, 24)
	p.await("\x1b[?1049h", "No lock is held.")
	acquire(t, c.Lock("orders:42"))
	acquire(t, c.FencedLock("jobs"))
	p.await("orders:42", "jobs", "held 2")

	p.press("/ord\r")
	p.await("filter: ord", "1-1 of 1")
	p.press("\r")
	p.await("kind lock", "arrows scroll")
	p.press("\x1b")
	p.await("s sort: name")
	p.press("\x1b") // clears the filter
	p.await("1-2 of 2")
	p.press("s")
	p.await("s sort: ttl")

	p.resize(160, 50)
	wide := p.await("ID   ", "\x1b[50;1H")
	require.Contains(t, wide, c.ID())

	require.NoError(t, server.Kill())
	p.await("No answer from Redis")
	require.NoError(t, server.Restart())
	p.await("No lock is held.")
	p.press("q")
	require.NoError(t, p.ends())
}

// However the view ends, the terminal is as before.
func TestTerminalIsRestored(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	for name, tt := range map[string]struct {
		end    func(p *pty)
		signal syscall.Signal // that ended the process; 0: exit code 0
	}{
		"ctrl-c":  {func(p *pty) { p.press("\x03") }, 0},
		"SIGTERM": {func(p *pty) { _ = p.cmd.Process.Signal(syscall.SIGTERM) }, syscall.SIGTERM},
		"SIGHUP":  {func(p *pty) { _ = p.cmd.Process.Signal(syscall.SIGHUP) }, syscall.SIGHUP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPty(t, server.Addr(), 80, 24)
			p.await("No lock is held.")
			tt.end(p)
			err := p.ends()
			if tt.signal == 0 {
				require.NoError(t, err)
				return
			}
			require.Equal(t, tt.signal, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), "%v", err)
		})
	}
}

// A signal that the view was started to ignore does not end it.
func TestViewIgnoresWhatItWasStartedToIgnore(t *testing.T) {
	t.Parallel()
	server := redistest.Fresh(t)
	p := startOnPty(t, redistest.IgnoringSignals(t, os.Args[0]), server.Addr(), 80, 24)
	p.await("No lock is held.")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	acquire(t, client(t, server.Client(t)).Lock("orders:42"))
	p.await("orders:42")
	p.press("q")
	require.NoError(t, p.ends())
}

// The tests of signals pass under nohup, too.
func TestSignalsOfTestsThatIgnoreThem(t *testing.T) {
	t.Parallel()
	redistest.PassIgnoringSignals(t, "^TestTerminalIsRestored$")
}

// A panic in another goroutine restores the terminal before it ends the process.
func TestPanicRestoresTheTerminal(t *testing.T) {
	t.Parallel()
	p := startPty(t, panics, 80, 24)
	require.Error(t, p.cmd.Wait())
	all := p.await("\x1b[?25h", "\x1b[?1049l", "invalid memory address")
	restored, printed := strings.Index(all, "\x1b[?1049l"), strings.Index(all, "invalid memory address")
	require.Less(t, restored, printed, "the panic is printed on the usual screen")
	after, err := unix.IoctlGetTermios(int(p.slave.Fd()), getTermios)
	require.NoError(t, err)
	require.Equal(t, p.before, *after)
}

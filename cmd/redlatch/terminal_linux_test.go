package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// terminal is a pseudo-terminal with a program on it.
type terminal struct {
	t     *testing.T
	ptmx  *os.File
	cmd   *exec.Cmd
	lines chan string
}

// onTerminal starts redlatch as the leader of a session whose controlling terminal is a new one.
func onTerminal(t *testing.T, url string, args ...string) *terminal {
	return onTerminalIn(t, environment(url), 0, args...)
}

// onTerminalIn is onTerminal with an environment, and a width of the terminal; 0: unknown.
func onTerminalIn(t *testing.T, environment []string, columns uint16, args ...string) *terminal {
	cmd := exec.CommandContext(t.Context(), self(t), args...)
	cmd.Env = environment
	return leadSession(t, cmd, columns)
}

// leadSession starts a program as the leader of a session on a new terminal.
func leadSession(t *testing.T, cmd *exec.Cmd, columns uint16) *terminal {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ptmx.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(ptmx.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pts, pts, pts
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, pts.Close())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	term := &terminal{t, ptmx, cmd, make(chan string, 1000)}
	go func() {
		scan := bufio.NewScanner(ptmx)
		scan.Split(splitPrompts)
		for scan.Scan() {
			term.lines <- scan.Text()
		}
		close(term.lines)
	}()
	return term
}

// splitPrompts is bufio.ScanLines, and a question is a line, too.
func splitPrompts(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if question := bytes.Index(data, []byte("[y/N] ")); question >= 0 && !bytes.Contains(data[:question], []byte("\n")) {
		end := question + len("[y/N] ")
		return end, data[:end], nil
	}
	return bufio.ScanLines(data, atEOF)
}

// await reads lines until one contains text, and returns all of them.
func (term *terminal) await(text string) (read []string) {
	term.t.Helper()
	limit := time.After(soon)
	for {
		select {
		case line, ok := <-term.lines:
			require.True(term.t, ok, "the output ended without %q: %q", text, read)
			if read = append(read, line); strings.Contains(line, text) {
				return read
			}
		case <-limit:
			require.FailNow(term.t, "no output", "%q not in %q", text, read)
		}
	}
}

func (term *terminal) write(keys string) {
	_, err := term.ptmx.WriteString(keys)
	require.NoError(term.t, err)
}

func (term *terminal) wait() int {
	done := make(chan int, 1)
	go func() {
		_ = term.cmd.Wait()
		done <- term.cmd.ProcessState.ExitCode()
	}()
	select {
	case code := <-done:
		return code
	case <-time.After(soon):
		require.FailNow(term.t, "redlatch does not exit")
	}
	return 0
}

// On a terminal the command's group is in the foreground, so Ctrl-C reaches the command.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	term := onTerminal(t, "redis://"+s.Addr(), append([]string{"run", name}, childArgs(t, "terminal")...)...)
	term.await("foreground true")
	term.write("\x1a") // Ctrl-Z: no shell would continue redlatch, so the command goes on
	term.write("\x03")
	require.Equal(t, 128+int(syscall.SIGINT), term.wait())
	require.Empty(t, redistest.Keys(t, s, "*"+name+"*"))
}

// The group is in the foreground before a command that reads the terminal at once has been stopped
// for good.
func TestRunReadsFromTheTerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	term := onTerminal(t, "redis://"+s.Addr(), "run", redistest.Name(t), "--", "head", "-n", "1")
	term.write("typed\n")
	term.await("typed") // the echo
	term.await("typed")
	require.Zero(t, term.wait())
}

// startShell starts an interactive shell on a terminal of its own. Its redlatch uses s.
func startShell(t *testing.T, s *redistest.Server) *terminal {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash, for job control")
	}
	cmd := exec.CommandContext(t.Context(), bash, "--norc", "--noediting", "-i")
	cmd.Env = environment("redis://" + s.Addr())
	return leadSession(t, cmd, 0)
}

// Under a shell, Ctrl-Z stops the command and redlatch, and fg continues both. A command whose lock
// was lost meanwhile ends before it goes on.
func TestRunStopsWithItsCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	term := startShell(t, s)
	term.write(self(t) + " run --lease 3s " + name + " -- cat\n")
	term.await("-- cat")
	term.write("one\n")
	term.await("one") // the echo of the terminal
	term.await("one")
	term.write("\x1a")
	term.await("Stopped")
	term.write("fg\n")
	term.await("fg")
	term.write("two\n")
	term.await("two")
	term.await("two")
	term.write("\x1a")
	term.await("Stopped")
	redistest.WaitFor(t, soon, func() bool {
		return s.Client(t).Exists(t.Context(), name).Val() == 0
	}, "the lock is lost")
	term.write("fg\n")
	term.await("lost: limit")
	term.write("echo code=$?\n")
	term.await("code=" + strconv.Itoa(exitLost))
	term.write("exit\n")
	term.wait()
}

// In the background, redlatch leaves the terminal to the shell, which would end without it.
func TestRunInTheBackgroundOfAShell(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	term := startShell(t, s)
	term.write(self(t) + " run " + name + " -- sleep 1 &\n")
	for _, held := range []int64{1, 0} {
		redistest.WaitFor(t, soon, func() bool {
			return s.Client(t).Exists(t.Context(), name).Val() == held
		}, "the lock is acquired, then released")
	}
	for _, sum := range []string{"42", "52"} { // the first may have been read before
		term.write("echo $((" + sum + " + 100))\n")
		term.await("1" + sum)
	}
	term.write("exit\n")
	term.wait()
}

func TestForceReleaseAsksOnATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	hold := fixture.Acquire(t, t.Context(), client(t, s).Lock(name))
	for _, tt := range []struct {
		answer string
		code   int
		lost   bool
	}{{"\n", exitFailed, false}, {"n\n", exitFailed, false}, {"y\n", 0, true}, {"", exitFailed, true}} {
		term := onTerminal(t, "redis://"+s.Addr(), "force-release", name)
		if tt.answer != "" {
			require.Contains(t, strings.Join(term.await("[y/N] "), "\n"), hold.ID())
			term.write(tt.answer)
		}
		require.Equal(t, tt.code, term.wait())
		if err := hold.Check(t.Context()); tt.lost {
			require.ErrorIs(t, err, primitives.ErrLost)
		} else {
			require.NoError(t, err)
		}
	}
	// Ctrl-C ends the question.
	hold = fixture.Acquire(t, t.Context(), client(t, s).Lock(name))
	term := onTerminal(t, "redis://"+s.Addr(), "force-release", name)
	term.await("[y/N] ")
	term.write("\x03")
	require.Equal(t, 128+int(syscall.SIGINT), term.wait())
	require.NoError(t, hold.Check(t.Context()))
}

// The verb delete asks, too.
func TestDeleteAsksOnATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	c := client(t, s)
	for kind, init := range map[string]func(name string) (bool, error){
		kindSemaphore: func(name string) (bool, error) { return c.Semaphore(name).Init(t.Context(), 3) },
		kindPermits:   func(name string) (bool, error) { return c.PermitExpirableSemaphore(name).Init(t.Context(), 3) },
		kindLatch:     func(name string) (bool, error) { return c.CountDownLatch(name).Init(t.Context(), 3) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := redistest.Name(t)
			require.NoError(t, fixture.ErrOf(init(name)))
			for _, tt := range []struct {
				answer string
				code   int
				left   int64
			}{{"n\n", exitFailed, 1}, {"y\n", 0, 0}, {"", exitFailed, 0}} {
				term := onTerminal(t, "redis://"+s.Addr(), kind, "delete", name)
				if tt.answer != "" {
					require.Contains(t, strings.Join(term.await("[y/N] "), "\n"), "3")
					term.write(tt.answer)
				}
				require.Equal(t, tt.code, term.wait())
				require.Equal(t, tt.left, s.Client(t).Exists(t.Context(), name).Val())
			}
		})
	}
}

// The progress of torture is one line, which its result replaces.
func TestProgressOfTortureOnATerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	term := onTerminalIn(t, environment("", "TERM=xterm", "NO_COLOR="), 0,
		"torture", "--duration", "3s", "--seed", "3", "--redis", "redis://"+s.Addr(),
		"--primitives", "lock", "--timelines", t.TempDir())
	read := strings.Join(term.await("seeds"), "\n")
	require.Regexp(t, `^(\r\x1b\[K\d+s: round \d+, [^\r\n]*)+\r\x1b\[Ktopology +given`, read)
	require.Zero(t, term.wait(), "%s", read)
}

// On a narrow terminal, ls breaks no line, and shows ids as they are.
func TestLsOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	c := client(t, s, primitives.WithClientName("shop-7d4b9c6f5d-x2x9z:1"))
	hold := fixture.Acquire(t, t.Context(), c.Lock("orders:42"))
	fixture.InitPool(t, client(t, s).Semaphore("workers"), 3)
	redistest.WaitFor(t, soon, func() bool {
		_, stdout, _ := on(t, s, "ls")
		return strings.Contains(stdout, "x2x9z")
	}, "the holder's name is known")
	lines := onTerminalIn(t, environment("redis://"+s.Addr(), "NO_COLOR=1"), 80, "ls", "--all").await("workers")
	require.Len(t, lines, 5)
	for i, want := range []string{
		`^NAME +KIND +COUNT +TTL +HELD +WAITING$`, `^  CLIENT +HOLDER$`,
		`^orders:42  lock +1 +\d+s +\S+s +-$`, `^  shop-7d4b9c6f5d-x2x9z:1  ` + hold.ID() + `$`,
		`^workers +integer  3 +none +- +-$`,
	} {
		require.Regexp(t, want, strings.TrimRight(lines[i], "\r"), "%q", lines)
	}
}

// Headings are bold on a terminal, unless NO_COLOR says otherwise.
func TestColours(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	fixture.Acquire(t, t.Context(), client(t, s).Lock(name))
	for _, noColour := range []string{"", "1"} {
		env := environment("redis://"+s.Addr(), "TERM=xterm", "NO_COLOR="+noColour)
		heading := onTerminalIn(t, env, 0, "ls", name).await("HOLDER")
		require.Equal(t, noColour == "", strings.Contains(heading[0], "\x1b["), "%q", heading)
	}
}

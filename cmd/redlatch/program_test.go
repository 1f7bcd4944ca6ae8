//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/redlatch/redlatch/internal/test/fixture"
)

// Real processes: the test binary runs as redlatch, and as the command that redlatch runs.

const childArgument = "test-child"

func init() {
	asProgram = func() {
		switch {
		case len(os.Args) > 1 && os.Args[1] == childArgument:
			os.Exit(childMain(os.Args[2:]))
		case os.Getenv(redlatchVariable) != "":
			main()
		}
	}
}

// self is the path of the test binary.
func self(t testing.TB) string {
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

// program is a running redlatch.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	lines  chan string // of standard output
	done   chan int    // the exit code
	errs   *fixture.LogBuffer
	waited sync.Once
	code   int
}

// start runs redlatch with these arguments. Its children can be the test binary: see childArgs.
func start(t testing.TB, url string, args ...string) *program {
	return startIn(t, environment(url), args...)
}

// startIn is start with an environment.
func startIn(t testing.TB, environment []string, args ...string) *program {
	return startCommand(t, exec.CommandContext(t.Context(), self(t), args...), environment)
}

// startCommand starts a command that runs redlatch.
func startCommand(t testing.TB, cmd *exec.Cmd, environment []string) *program {
	cmd.Env = slices.Concat(environment, []string{"REDLATCH_TOKEN=of an outer run"})
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p := &program{t: t, cmd: cmd, lines: make(chan string, 100_000), done: make(chan int, 1), errs: &fixture.LogBuffer{}}
	cmd.Stderr = p.errs
	require.NoError(t, cmd.Start())
	go func() {
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			p.lines <- scan.Text()
		}
		close(p.lines)
		_ = cmd.Wait()
		p.done <- cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return p
}

// childArgs returns the arguments of run that make it run the test binary in one of the modes of
// childMain.
func childArgs(t testing.TB, args ...string) []string {
	return append([]string{"--", self(t), childArgument}, args...)
}

// line returns the next line of standard output.
func (p *program) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		require.True(p.t, ok, "the output has ended: %s", p.errs)
		return line
	case <-time.After(soon):
		require.FailNow(p.t, "no output", p.errs)
	}
	return ""
}

func (p *program) signal(sig syscall.Signal) { require.NoError(p.t, p.cmd.Process.Signal(sig)) }

// wait returns the exit code.
func (p *program) wait() int {
	p.t.Helper()
	p.waited.Do(func() {
		select {
		case p.code = <-p.done:
		case <-time.After(soon):
			require.FailNow(p.t, "redlatch does not exit", p.errs)
		}
	})
	return p.code
}

// rest returns the lines of standard output that are left, after the exit.
func (p *program) rest() (lines []string) {
	for line := range p.lines {
		lines = append(lines, line)
	}
	return lines
}

// childMain is the command that redlatch runs in tests.
func childMain(args []string) int {
	switch mode := args[0]; mode {
	case "exit":
		code, _ := strconv.Atoi(args[1])
		return code
	case "die": // by a signal
		sig, _ := strconv.Atoi(args[1])
		_ = unix.Kill(os.Getpid(), unix.Signal(sig))
		time.Sleep(soon)
	case "env":
		env := map[string]string{}
		for _, v := range os.Environ() {
			if name, value, _ := strings.Cut(v, "="); strings.HasPrefix(name, "REDLATCH_") && name != redlatchVariable {
				env[name] = value
			}
		}
		_ = json.NewEncoder(os.Stdout).Encode(env)
	case "listen": // prints the signals that arrive, and exits with 9 after as many as it was told
		n, _ := strconv.Atoi(args[1])
		received := make(chan os.Signal, 10)
		signal.Notify(received)
		fmt.Println("ready")
		for range n {
			sig := <-received
			for sig == syscall.SIGURG || sig == syscall.SIGCONT { // SIGURG is the Go runtime's
				sig = <-received
			}
			fmt.Println(sig)
		}
		return 9
	case "ignored": // says whether it ignores the signals with these numbers, then listens to one
		for _, number := range args[1:] {
			n, _ := strconv.Atoi(number)
			fmt.Println(syscall.Signal(n), signal.Ignored(syscall.Signal(n)))
		}
		return childMain([]string{"listen", "1"})
	case "term": // exits with 0 on SIGTERM
		received := make(chan os.Signal, 1)
		signal.Notify(received, syscall.SIGTERM)
		fmt.Println("ready")
		<-received
		fmt.Println(time.Now().UnixNano())
	case "stubborn": // ignores SIGTERM, and prints the time for as long as it lives
		signal.Ignore(syscall.SIGTERM)
		beat()
	case "parent": // starts a stubborn process in its group, and exits with 0 on SIGTERM
		signal.Ignore(syscall.SIGTERM)
		grandchild := exec.Command(os.Args[0], childArgument, "stubborn")
		grandchild.Stdout = os.Stdout
		if grandchild.Start() != nil {
			return 1
		}
		received := make(chan os.Signal, 1)
		signal.Notify(received, syscall.SIGTERM)
		<-received
	case "terminal": // says whether its group is in the foreground of its terminal, then waits for a signal
		tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
		fmt.Println("foreground", group == unix.Getpgrp() && group == os.Getpid(), err)
		time.Sleep(soon)
	}
	return 0
}

func beat() {
	for {
		if _, err := fmt.Println(time.Now().UnixNano()); err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// lastBeat is the time in the last line.
func lastBeat(t testing.TB, lines []string) time.Time {
	t.Helper()
	require.NotEmpty(t, lines)
	ns, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
	require.NoError(t, err)
	return time.Unix(0, ns)
}

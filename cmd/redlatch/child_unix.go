//go:build unix

package main

import (
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// userSignals are passed on to the child where they exist.
var userSignals = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}

// child is a process that leads a process group of its own.
type child struct {
	exited <-chan int // its exit code, once

	pid int
	tty *os.File // the controlling terminal; nil if there is none
	// inFront is whether redlatch has put the child in the foreground.
	inFront bool
	// mayGoOn reports whether a child that was stopped at the terminal may be continued.
	mayGoOn func() bool
}

// startChild starts a child. mayGoOn is asked before a stopped child is continued.
func startChild(path string, argv, env []string, mayGoOn func() bool) (*child, error) {
	p := &child{mayGoOn: mayGoOn}
	started, exited := make(chan error, 1), make(chan int, 1)
	p.exited = exited
	go func() {
		// Where the child is to die with redlatch, the kernel means the thread that has started it.
		runtime.LockOSThread()
		handle, err := os.StartProcess(path, argv, &os.ProcAttr{
			Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: groupOfItsOwn(),
		})
		if err != nil {
			started <- err
			return
		}
		p.pid = handle.Pid
		p.takeTerminal()
		started <- nil
		exited <- p.wait()
		_ = handle.Release()
	}()
	return p, <-started
}

// close gives the terminal back to redlatch's own group.
func (p *child) close() {
	if p.tty != nil {
		p.background()
		_ = p.tty.Close()
	}
}

// wait returns the exit code of the child: its own, or 128+n if signal n has ended it.
func (p *child) wait() int {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(p.pid, &status, unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return exitFailed // somebody else has waited for it, which cannot be
		case status.Exited():
			return status.ExitStatus()
		case status.Signaled():
			return exitSignal + int(status.Signal())
		case status.Stopped():
			p.stopped(status.StopSignal())
		}
	}
}

func (p *child) signal(sig syscall.Signal) { _ = unix.Kill(-p.pid, sig) }

// signalLeader sends a signal to the child alone. A process group may contain programs that the
// signal would end.
func (p *child) signalLeader(sig syscall.Signal) { _ = unix.Kill(p.pid, sig) }

// signalNamed returns the signal of that name, such as USR1 or SIGUSR1.
func signalNamed(name string) (syscall.Signal, error) {
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if sig == 0 {
		return 0, badUsage("no signal %q, such as USR1 or SIGUSR1", name)
	}
	return sig, nil
}

// terminate asks the group to end. A stopped process would not hear of it.
func (p *child) terminate() {
	p.signal(unix.SIGTERM)
	p.signal(unix.SIGCONT)
}

func (p *child) kill() { p.signal(unix.SIGKILL) }

// groupExists reports whether a process of the group is left. A dead one counts until its parent
// has waited for it. As process 1 of a container, redlatch is the parent of all orphans.
func (p *child) groupExists() bool {
	for pid := 1; pid > 0; {
		pid, _ = unix.Wait4(-p.pid, nil, unix.WNOHANG, nil)
	}
	return unix.Kill(-p.pid, 0) != unix.ESRCH
}

// Job control. The shell knows redlatch's group only, so redlatch puts the child's group in the
// foreground, and stops itself when the child is stopped at the terminal.

// takeTerminal puts the child in the foreground if redlatch is there. If redlatch is part of a
// pipeline, it waits until the child uses the terminal: another part, such as a pager, may need it.
func (p *child) takeTerminal() {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return
	}
	p.tty = tty
	signal.Ignore(unix.SIGTTOU) // only now, as a child inherits it: allows to take the terminal back
	if info, err := os.Stdout.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		p.foreground()
		p.signal(unix.SIGCONT) // it may have used the terminal too early, and have been stopped
	}
}

// foreground puts the child in the foreground if redlatch is there, and reports whether it did.
func (p *child) foreground() bool {
	if group, err := unix.IoctlGetInt(int(p.tty.Fd()), unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		return false
	}
	p.setForeground(p.pid)
	p.inFront = true
	return true
}

// background undoes foreground. A terminal that redlatch has not taken belongs to the shell, which
// ends without it.
func (p *child) background() {
	if p.inFront {
		p.setForeground(unix.Getpgrp())
		p.inFront = false
	}
}

func (p *child) setForeground(group int) {
	_ = unix.IoctlSetPointerInt(int(p.tty.Fd()), unix.TIOCSPGRP, group)
}

// stopped is called when a signal has stopped the child. Without a terminal it leaves that to
// whoever sent the signal.
func (p *child) stopped(by unix.Signal) {
	if p.tty == nil || by == unix.SIGSTOP {
		return
	}
	wantsTerminal := by == unix.SIGTTIN || by == unix.SIGTTOU
	if !wantsTerminal || !p.foreground() {
		p.stopJob()
	}
	if p.mayGoOn() { // else it gets SIGTERM first
		p.signal(unix.SIGCONT)
	}
}

// stopJob stops redlatch and the rest of its job, as the terminal would, until the shell continues
// them. If there is no shell that could, it does nothing.
func (p *child) stopJob() {
	if session, err := unix.Getsid(unix.Getppid()); err != nil || session != ownSession() {
		return
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, unix.SIGCONT)
	p.background()
	_ = unix.Kill(0, unix.SIGSTOP)
	<-continued // this thread may still run for a moment after the signal was sent
	signal.Stop(continued)
	p.foreground()
}

func ownSession() int {
	session, _ := unix.Getsid(0)
	return session
}

//go:build unix

package main

import (
	"os"
	"os/signal"
	"runtime"
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
		p.setForeground(unix.Getpgrp())
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

// terminate asks the group to end. A stopped process would not hear of it.
func (p *child) terminate() {
	p.signal(unix.SIGTERM)
	p.signal(unix.SIGCONT)
}

func (p *child) kill() { p.signal(unix.SIGKILL) }

// groupExists reports whether a process of the group is left.
func (p *child) groupExists() bool { return unix.Kill(-p.pid, 0) != unix.ESRCH }

// Job control. The shell knows redlatch's group only. So redlatch puts the child's group in the foreground,
// and stops itself when the child is stopped at the terminal.

// takeTerminal puts the child in the foreground if redlatch is there. If redlatch is part of a pipeline, it
// waits until the child uses the terminal: another part, such as a pager, may need it.
func (p *child) takeTerminal() {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return
	}
	p.tty = tty
	signal.Ignore(unix.SIGTTOU) // only now, as a child inherits it: allows to take the terminal back
	if info, err := os.Stdout.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		p.foreground()
	}
}

// foreground puts the child in the foreground if redlatch is there, and reports whether it did. The child
// may have been stopped meanwhile, because it used the terminal too early.
func (p *child) foreground() bool {
	if group, err := unix.IoctlGetInt(int(p.tty.Fd()), unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		return false
	}
	p.setForeground(p.pid)
	p.signal(unix.SIGCONT)
	return true
}

func (p *child) setForeground(group int) {
	_ = unix.IoctlSetPointerInt(int(p.tty.Fd()), unix.TIOCSPGRP, group)
}

// stopped is called when a signal has stopped the child. Without a terminal nobody would continue redlatch,
// so it goes on alone.
func (p *child) stopped(by unix.Signal) {
	if p.tty == nil || by == unix.SIGSTOP {
		return
	}
	if (by == unix.SIGTTIN || by == unix.SIGTTOU) && p.foreground() {
		return
	}
	if session, err := unix.Getsid(unix.Getppid()); err == nil && session == ownSession() {
		p.setForeground(unix.Getpgrp())
		_ = unix.Kill(0, unix.SIGSTOP) // the whole job, as the terminal would
		// The shell has continued the job.
		p.foreground()
	} // else there is no shell that would continue redlatch
	if p.mayGoOn() {
		p.signal(unix.SIGCONT)
	}
}

func ownSession() int {
	session, _ := unix.Getsid(0)
	return session
}

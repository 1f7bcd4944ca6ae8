//go:build !unix

package main

import (
	"os"
	"syscall"
)

var userSignals []os.Signal

// child is a process. Without process groups and signals, it can only be killed.
type child struct {
	exited <-chan int // its exit code, once

	handle *os.Process
}

// startChild starts a child. Nothing stops it at a terminal here.
func startChild(path string, argv, env []string, _ func() bool) (*child, error) {
	handle, err := os.StartProcess(path, argv, &os.ProcAttr{
		Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return nil, err
	}
	exited := make(chan int, 1)
	go func() {
		state, err := handle.Wait()
		if err != nil {
			exited <- exitFailed
			return
		}
		exited <- state.ExitCode()
	}()
	return &child{exited, handle}, nil
}

func (p *child) close() {}

// signal does nothing: the console has sent Ctrl-C to the child, too.
func (p *child) signal(syscall.Signal) {}

func (p *child) signalLeader(syscall.Signal) {}

func signalNamed(string) (syscall.Signal, error) {
	return 0, badUsage("--on-wanted: there are no signals on this system")
}

func (p *child) terminate() {}

func (p *child) kill() { _ = p.handle.Kill() }

func (p *child) groupExists() bool { return false }

package delay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/redlatch/redlatch/bench/internal/child"
	"github.com/redlatch/redlatch/bench/internal/contend"
)

// Command is the command line argument of a child process. A program that calls Start must call
// Serve when it is started with this argument.
const Command = "delay"

// config is the only message to a child process.
type config struct {
	Path      string         `json:"path"` // of the proxy's socket
	Target    contend.Target `json:"target"`
	RoundTrip time.Duration  `json:"roundTrip"`
}

// Process is a proxy in a child process. There it takes no processor time from the clients in this
// process, and its work does not count as theirs.
type Process struct {
	Target contend.Target // of the proxy

	dir   string
	child *child.Process
}

// Start starts a proxy with the given round trip and waits until it listens. The process ends when
// ctx is done.
func Start(ctx context.Context, target contend.Target, roundTrip time.Duration) (*Process, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, fmt.Errorf("delay: %w", err)
	}
	p := &Process{Target: contend.Target{Network: "unix", Addr: filepath.Join(dir, "s")}, dir: dir}
	if err := p.start(ctx, config{p.Target.Addr, target, roundTrip}); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("delay: %w", err)
	}
	return p, nil
}

func (p *Process) start(ctx context.Context, c config) (err error) {
	if p.child, err = child.Start(ctx, Command, c); err != nil {
		return err
	}
	var failure string
	if err = p.child.Receive(&failure); err == nil && failure != "" {
		err = errors.New(failure)
	}
	if err != nil {
		err = errors.Join(err, p.child.Close())
	}
	return err
}

// Close ends the process and removes its socket.
func (p *Process) Close() error {
	err := p.child.Close()
	_ = os.RemoveAll(p.dir)
	if err != nil {
		return fmt.Errorf("delay: %w", err)
	}
	return nil
}

// Serve is the main function of a child process. It runs the proxy that the message in in
// describes, until the end of in. It writes "" to out when the proxy listens, or else the error.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	var c config
	if err := decoder.Decode(&c); err != nil {
		return fmt.Errorf("delay: %w", err)
	}
	// Two threads sleep in a system call most of the time. They must not keep other goroutines
	// waiting for a processor.
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	p, err := Listen(ctx, c.Path, c.Target, c.RoundTrip)
	if err != nil {
		return errors.Join(err, encoder.Encode(err.Error()))
	}
	defer p.Close()
	if err := encoder.Encode(""); err != nil {
		return fmt.Errorf("delay: %w", err)
	}
	if err := decoder.Decode(&c); !errors.Is(err, io.EOF) {
		return fmt.Errorf("delay: second message: %w", err)
	}
	return nil
}

// Package child runs this executable again as a child process, and exchanges JSON messages with it.
package child

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Process is a child process. Its errors do not name the caller's package.
type Process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	encoder *json.Encoder
	decoder *json.Decoder
}

// Start starts a process with the given command line argument, and sends it the first message. The
// process ends when ctx is done.
func Start(ctx context.Context, argument string, first any) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.CommandContext(ctx, self, argument)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.encoder, p.decoder = json.NewEncoder(p.in), json.NewDecoder(bufio.NewReader(out))
	if err := p.Send(first); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Send sends a message.
func (p *Process) Send(message any) error {
	if err := p.encoder.Encode(message); err != nil {
		return fmt.Errorf("send to child: %w", err)
	}
	return nil
}

// Receive waits for the next message, and stores it in the value that message points to.
func (p *Process) Receive(message any) error {
	if err := p.decoder.Decode(message); err != nil {
		return fmt.Errorf("receive from child: %w", err)
	}
	return nil
}

// Close closes the input of the process, which should end it, and waits for that.
func (p *Process) Close() error {
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("child: %w", err)
	}
	return nil
}

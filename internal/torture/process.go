package torture

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"
)

// process is a client process, as the harness sees it.
type process struct {
	id      int
	slot    *slot
	stays   func(moment string, names []string) // is called at moments of long holds
	child   child
	cmd     *exec.Cmd // nil if it is simulated
	in      io.WriteCloser
	errors  bytes.Buffer // standard error; to be read once it has exited
	exited  chan struct{}
	ready   chan struct{} // closed when it has started
	drained chan struct{} // closed when all of its sessions have ended

	speaks    int    // its protocol; set before ready is closed
	library   string // what it uses in place of redlatch; set before ready is closed
	mu        sync.Mutex
	err       error    // of Wait; set before exited is closed
	lines     [][]byte // records; parsed at the end of the round
	recorded  []record // of a simulated process, in place of lines
	stoppedAt int64    // not 0 while it is stopped
	died      int64    // when it was killed; never if it was not
}

// child is what is below a process: a process of the machine, or a simulated one.
type child interface {
	// send passes an order on. It fails if the process has exited.
	send(order any) error
	kill()
	// stop stops it (true), or lets it go on.
	stop(on bool)
}

// machineProcess is a process of the machine.
type machineProcess struct{ p *process }

func (m machineProcess) send(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = m.p.in.Write(append(line, '\n'))
	return err
}

func (m machineProcess) kill() { _ = killGroup(m.p.cmd.Process) }

func (m machineProcess) stop(on bool) {
	if on {
		_ = pauseGroup(m.p.cmd.Process)
	} else {
		_ = resumeGroup(m.p.cmd.Process)
	}
}

// startProcess starts a client process, with a process group of its own: it may be a script that
// starts the client. It ends with this one.
func startProcess(cmd *exec.Cmd, sl *slot, s setup, stays func(moment string, names []string)) (*process, error) {
	p := &process{
		id: s.Process, slot: sl, cmd: cmd, died: never, stays: stays,
		exited: make(chan struct{}), ready: make(chan struct{}), drained: make(chan struct{}),
	}
	p.child = machineProcess{p}
	cmd.Stderr = &p.errors
	cmd.SysProcAttr = asGroup()
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	go p.run(out, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("torture: client process: %w", err)
	}
	if err := p.tell(s); err != nil {
		return nil, err
	}
	return p, nil
}

// readyTimeout bounds how long a client process may take to start. Some are Java, several at a time
// on a busy machine.
const readyTimeout = 90 * time.Second

// started waits until the process is ready, and checks that it speaks the protocol.
func (p *process) started() error {
	select {
	case <-p.ready:
	case <-p.exited:
		return p.failure(errEnded)
	case <-time.After(readyTimeout):
		return fmt.Errorf("process %d has not started within %v", p.id, readyTimeout)
	}
	if p.speaks > protocol || p.speaks < protocol-1 { // 0 is 1, before it had a number
		return fmt.Errorf("process %d speaks the protocol %d, and not %d", p.id, p.speaks, protocol)
	}
	return nil
}

// run starts the process and reads what it writes. It keeps its thread: Linux kills a child when
// the thread that started it ends.
func (p *process) run(out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.exited)
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.read(out)
	err = p.cmd.Wait()
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
}

func (p *process) read(out io.Reader) {
	lines := bufio.NewReaderSize(out, 1<<20)
	done := false
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return // the last line may be incomplete: the process was killed while it wrote
		}
		switch {
		case isKind(line, kindReady):
			var r record
			_ = json.Unmarshal(line, &r)
			p.speaks, p.library = r.Protocol, r.Library
			close(p.ready)
			continue
		case isKind(line, kindDone) && !done:
			done = true
			close(p.drained)
			continue
		case isKind(line, kindStay):
			var r record
			if json.Unmarshal(line, &r) == nil {
				p.stays(r.Do, r.Names)
			}
			continue
		}
		p.mu.Lock()
		p.lines = append(p.lines, line)
		p.mu.Unlock()
	}
}

// isKind reports whether a line is a record of a kind, which is its first field. Most lines are not
// parsed while the round lasts: the process waits if nobody reads what it writes.
func isKind(line []byte, kind string) bool { return bytes.HasPrefix(line, []byte(`{"k":"`+kind+`"`)) }

// records returns what the process has written: the records of a kind, or all of them if it is "".
func (p *process) records(kind string) (out []record) {
	p.mu.Lock()
	lines, recorded := p.lines, p.recorded
	p.mu.Unlock()
	for _, r := range recorded {
		if kind == "" || r.Kind == kind {
			out = append(out, r)
		}
	}
	for _, line := range lines {
		var r record
		if (kind == "" || isKind(line, kind)) && json.Unmarshal(line, &r) == nil {
			out = append(out, r)
		}
	}
	return out
}

// send passes an order to the process. It fails if the process has exited.
func (p *process) send(v any) error { return p.child.send(v) }

// tell is send to a process that is expected to live. If it has exited, the error is what it wrote
// about that, and not that a pipe is broken.
func (p *process) tell(v any) error {
	err := p.send(v)
	if err == nil {
		return nil
	}
	select {
	case <-p.exited:
		return p.failure(errEnded)
	case <-time.After(exitTimeout):
		return fmt.Errorf("process %d: %w", p.id, err)
	}
}

// exitTimeout is how long a process that closed its standard input may take to exit.
const exitTimeout = 10 * time.Second

// kill kills the process for good. What it held, it held until now, or until it was stopped.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.died != never {
		return
	}
	p.died = monotonic()
	if p.stoppedAt != 0 {
		p.died = p.stoppedAt
	}
	p.child.kill()
}

func (p *process) alive() bool { return p.diedAt() == never }

func (p *process) diedAt() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.died
}

func (p *process) stop(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.stoppedAt = monotonic()
		p.child.stop(true)
		return
	}
	p.child.stop(false)
	p.stoppedAt = 0
}

// close ends a process whose sessions have ended. It returns an error if the process failed, or
// left goroutines behind.
func (p *process) close(limit time.Duration) error {
	if err := p.tell(order{Do: "close"}); err != nil {
		return err
	}
	select {
	case <-p.exited:
	case <-time.After(limit):
		p.kill()
		return fmt.Errorf("process %d did not end within %v", p.id, limit)
	}
	if p.err != nil {
		return p.failure(p.err)
	}
	for _, r := range p.records(kindDone) {
		if r.Count > 0 {
			return fmt.Errorf("process %d left %d goroutines of the library behind", p.id, r.Count)
		}
		if r.Err != "" {
			return fmt.Errorf("process %d: Close: %s", p.id, r.Err)
		}
	}
	return nil
}

var errEnded = errors.New("it ended by itself")

// failure returns the error of a process that has exited, with the beginning of what it wrote about
// it.
func (p *process) failure(err error) error {
	text := strings.TrimSpace(p.errors.String())
	lines := strings.SplitN(text, "\n", 12)
	return fmt.Errorf("process %d: %w: %s", p.id, err, strings.Join(lines[:min(len(lines), 11)], " | "))
}

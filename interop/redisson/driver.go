package redisson

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// ErrEnded means that the Java process has ended without answering a command.
var ErrEnded = errors.New("redisson: driver ended")

// closeTimeout is the time after which Close kills the process.
const closeTimeout = 5 * time.Second

// Options are the options of a driver. The zero value selects the defaults.
type Options struct {
	Version Version   // of Redisson; default Redisson4
	JVM     []string  // JVM flags; default: small memory and a quick start
	Stderr  io.Writer // receives the Java log; by default only its end is kept, for error messages
}

func defaultJVM() []string {
	return []string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}
}

// Driver is a Java process that runs Redisson. It is safe for concurrent use. The process ends with
// Close or Kill, or when the process that started it ends.
type Driver struct {
	process *exec.Cmd
	stderr  *tail
	done    chan struct{} // closed when the process has ended and all futures are resolved
	hello   hello

	writing sync.Mutex
	stdin   io.WriteCloser // guarded by writing

	// mu is not held during writes. A write may block until the process reads, and read, which
	// keeps the process going, needs mu.
	mu      sync.Mutex
	pending map[int64]*Future
	lastID  int64
	clients int   // number of clients opened so far
	ended   error // the reason why the process ended; nil while it runs
}

type hello struct {
	Redisson, Java string
	PID            int
}

// Start starts a driver for t only, builds it first if necessary, and closes it when t ends.
// Without Java the test ends as described at redistest.Missing.
func Start(t testing.TB, options Options) *Driver {
	t.Helper()
	needed(t)
	d, err := Open(t.Context(), options)
	requireBuilt(t, err)
	t.Cleanup(func() { _ = d.Close() }) // does nothing if the test has killed the driver
	return d
}

// Open is like Start for a caller without a testing.TB. The caller closes the driver. ctx bounds
// the start only; the driver outlives it. The error wraps ErrMissing if Java is missing, or Maven
// if a build is necessary.
func Open(ctx context.Context, options Options) (*Driver, error) {
	java, err := lookPath("java")
	if err != nil {
		return nil, err
	}
	lib, err := build(ctx, options.Version)
	if err != nil {
		return nil, err
	}
	flags := options.JVM
	if flags == nil {
		flags = defaultJVM()
	}
	args := slices.Concat(flags, []string{"-cp", filepath.Join(lib, "*"), "redlatch.interop.Main"})
	d := &Driver{
		process: exec.Command(java, args...),
		stderr:  &tail{also: options.Stderr},
		done:    make(chan struct{}),
		pending: make(map[int64]*Future),
	}
	if err := d.run(); err != nil {
		return nil, fmt.Errorf("redisson: %w", err)
	}
	d.hello, err = result[hello](d.Call(ctx, Command{Op: "hello"}))
	if err != nil {
		_ = d.Kill()
		return nil, err
	}
	return d, nil
}

// run starts the process and the goroutine that reads its answers, which ends with the process.
func (d *Driver) run() error {
	stdin, err := d.process.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := d.process.StdoutPipe()
	if err != nil {
		return err
	}
	d.stdin, d.process.Stderr = stdin, d.stderr
	if err := d.process.Start(); err != nil {
		return err
	}
	go d.read(stdout)
	return nil
}

// Redisson returns the version of Redisson.
func (d *Driver) Redisson() string { return d.hello.Redisson }

// Java returns the version of Java.
func (d *Driver) Java() string { return d.hello.Java }

// read resolves futures with the answers of the process until its output ends. It then reaps the
// process and resolves the remaining futures with ErrEnded.
func (d *Driver) read(stdout io.Reader) {
	defer close(d.done)
	var readErr error
	for lines := json.NewDecoder(stdout); readErr == nil; {
		var r reply
		if readErr = lines.Decode(&r); readErr == nil {
			d.resolve(r)
		}
	}
	if readErr != io.EOF {
		_ = d.process.Process.Kill() // invalid output: the protocol cannot continue
	}
	_, _ = io.Copy(io.Discard, stdout) // Wait closes stdout, so it must come after the last read
	waitErr := d.process.Wait()

	// Set ended and fail the pending futures under one lock. Go adds a future under the same lock
	// only if ended is nil, so no future remains unresolved.
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = fmt.Errorf("%w: %w, %w; last output: %s", ErrEnded, readErr, waitErr, d.stderr)
	for f := range maps.Values(d.pending) {
		f.resolve(Answer{}, d.ended)
	}
	clear(d.pending)
}

// resolve resolves the future of an answer. The removal from pending makes sure that a future is
// resolved only once.
func (d *Driver) resolve(r reply) {
	d.mu.Lock()
	f := d.pending[r.ID]
	delete(d.pending, r.ID)
	d.mu.Unlock()
	if f != nil {
		f.resolve(r.answer())
	}
}

// Go sends a command and returns at once.
func (d *Driver) Go(command Command) *Future {
	f := &Future{done: make(chan struct{})}
	d.mu.Lock()
	if d.ended != nil {
		defer d.mu.Unlock()
		f.resolve(Answer{}, d.ended)
		return f
	}
	d.lastID++
	id := d.lastID
	d.pending[id] = f // before the write, because the answer may arrive before it returns
	d.mu.Unlock()
	if err := d.write(id, command); err != nil {
		d.fail(id, err)
	}
	return f
}

// write sends one line. The lock keeps concurrent lines from mixing.
func (d *Driver) write(id int64, command Command) error {
	line, err := json.Marshal(struct {
		ID int64 `json:"id"`
		Command
	}{id, command})
	if err != nil {
		return fmt.Errorf("redisson: %w", err)
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	if _, err := d.stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return nil
}

// fail resolves the future of id with err, unless read has resolved it already.
func (d *Driver) fail(id int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.pending[id]; f != nil {
		delete(d.pending, id)
		f.resolve(Answer{}, err)
	}
}

// Call sends a command and waits for its answer. The error is an [*Exception] if Java threw one. If
// ctx ends first, the command continues in Java.
func (d *Driver) Call(ctx context.Context, command Command) (Answer, error) {
	return d.Go(command).Wait(ctx)
}

// Kill kills the process and waits until it has exited. Locks stay in Redis until they expire.
// Killing a dead driver does nothing.
func (d *Driver) Kill() error {
	if err := d.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redisson: %w", err)
	}
	<-d.done
	return nil
}

// Close ends the process and waits until it has exited. Locks stay in Redis until they expire.
// Further calls do nothing.
func (d *Driver) Close() error {
	d.writing.Lock()
	_ = d.stdin.Close() // the process exits at the end of its input
	d.writing.Unlock()
	select {
	case <-d.done:
		return nil
	case <-time.After(closeTimeout):
		return d.Kill()
	}
}

// Done returns a channel that is closed when the process has ended.
func (d *Driver) Done() <-chan struct{} { return d.done }

// Future is the pending answer of one command.
type Future struct {
	done   chan struct{}
	answer Answer // written before done is closed, not written afterwards
	err    error  // likewise
}

// resolve must be called once.
func (f *Future) resolve(a Answer, err error) {
	f.answer, f.err = a, err
	close(f.done)
}

// Done returns a channel that is closed when the answer has arrived.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait waits for the answer; see Driver.Call for errors.
func (f *Future) Wait(ctx context.Context) (Answer, error) {
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("redisson: no answer yet: %w", context.Cause(ctx))
	}
}

// tail is a writer that keeps the last bytes written to it.
type tail struct {
	also io.Writer // receives all writes; may be nil

	mu   sync.Mutex
	text []byte // at most tailSize bytes
}

const tailSize = 4 << 10

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-tailSize):]
	if w.also != nil {
		_, _ = w.also.Write(p) // an error of the log must not stop the driver
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

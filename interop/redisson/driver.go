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

// ErrEnded means that the Java process has ended, so that there was no answer or will be none.
var ErrEnded = errors.New("redisson: the driver has ended")

// closeLimit is how long Close lets the process end by itself.
const closeLimit = 5 * time.Second

// Options are those of a driver. The zero value is fine.
type Options struct {
	Version Version   // of Redisson; default Redisson4
	JVM     []string  // flags of the Java machine; default small memory and a quick start
	Stderr  io.Writer // where the log of the Java side goes; default: only its end is kept, for error messages
}

func defaultJVM() []string {
	return []string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}
}

// Driver is a Java process that runs Redisson. It is safe for concurrent use. The process ends by Close or Kill, and with the
// process that started it.
type Driver struct {
	process *exec.Cmd
	stderr  *tail
	done    chan struct{} // closed when the process is gone and every future has its answer
	hello   hello

	writing sync.Mutex
	stdin   io.WriteCloser // guarded by writing

	mu      sync.Mutex // never held while writing
	pending map[int64]*Future
	lastID  int64
	clients int   // how many were ever opened
	ended   error // why no more answers come; nil while they do
}

type hello struct {
	Redisson, Java string
	PID            int
}

// Start starts a driver for t alone, building it first if need be, and closes it when t ends. Without Java the test ends as in
// redistest.Missing.
func Start(t testing.TB, options Options) *Driver {
	t.Helper()
	d, err := Open(t.Context(), options)
	requireBuilt(t, err)
	t.Cleanup(func() { _ = d.Close() }) // the test may have killed it
	return d
}

// Open is Start for a caller that is no test, and that closes the driver itself. The driver outlives ctx, which only bounds the way to
// its first answer. The error wraps ErrMissing where there is no Java, or no Maven to build with.
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

// Redisson is the version of Redisson that runs, Java that of the Java machine.
func (d *Driver) Redisson() string { return d.hello.Redisson }

// Java is the version of the Java machine.
func (d *Driver) Java() string { return d.hello.Java }

// read hands out the answers until there are no more, and then the process's end.
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
		_ = d.process.Process.Kill() // it talks nonsense
	}
	_, _ = io.Copy(io.Discard, stdout) // Wait must come after the last read
	waitErr := d.process.Wait()

	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = fmt.Errorf("%w: %w, %w; its last words: %s", ErrEnded, readErr, waitErr, d.stderr)
	for f := range maps.Values(d.pending) {
		f.resolve(Answer{}, d.ended)
	}
	clear(d.pending)
}

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
	d.pending[id] = f
	d.mu.Unlock()
	if err := d.write(id, command); err != nil {
		d.forget(id, err)
	}
	return f
}

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

// forget resolves the future of id with err, unless the end of the process has done so before.
func (d *Driver) forget(id int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.pending[id]; f != nil {
		delete(d.pending, id)
		f.resolve(Answer{}, err)
	}
}

// Call sends a command and waits for its answer. An error is an [*Exception] if Java threw one. When ctx ends first, the command
// goes on in Java.
func (d *Driver) Call(ctx context.Context, command Command) (Answer, error) {
	return d.Go(command).Wait(ctx)
}

// Kill ends the process at once, as a crash does, and waits until it is gone. Nothing is released. Killing a dead driver does nothing.
func (d *Driver) Kill() error {
	if err := d.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("redisson: %w", err)
	}
	<-d.done
	return nil
}

// Close has the process end, without releasing what its clients hold, and waits until it is gone. It may be called again.
func (d *Driver) Close() error {
	d.writing.Lock()
	_ = d.stdin.Close() // the end of its input is its order to end
	d.writing.Unlock()
	select {
	case <-d.done:
		return nil
	case <-time.After(closeLimit):
		return d.Kill()
	}
}

// Done is closed when the process has ended.
func (d *Driver) Done() <-chan struct{} { return d.done }

// Future is the answer to come of one command.
type Future struct {
	done   chan struct{}
	answer Answer // written before done is closed, never after
	err    error  // likewise
}

func (f *Future) resolve(a Answer, err error) {
	f.answer, f.err = a, err
	close(f.done)
}

// Done is closed when the answer is there.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait waits for the answer, as Driver.Call does.
func (f *Future) Wait(ctx context.Context) (Answer, error) {
	select {
	case <-f.done:
		return f.answer, f.err
	case <-ctx.Done():
		return Answer{}, fmt.Errorf("redisson: no answer yet: %w", context.Cause(ctx))
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	also io.Writer // gets everything; may be nil

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
		_, _ = w.also.Write(p) // a failing log must not stop the driver
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

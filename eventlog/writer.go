package eventlog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/primitives"
)

// Defaults.
const (
	defaultSize  = 16 << 20
	defaultFiles = 4
	queueLength  = 4096
	minSize      = 4 << 10
)

// Option configures a [Writer]. The zero value does nothing.
type Option struct{ apply func(*Writer) }

// WithProcess sets the name of the process in the file. It should be unique among the processes of
// a timeline. Default: the name of the program, the host and the process id, as in
// "shop@host-1:4711".
func WithProcess(name string) Option { return Option{func(w *Writer) { w.process = name }} }

// WithMaxSize sets how many bytes the file may have before it is rotated. Default: 16 MiB, for
// about 60,000 acquisitions. Minimum: 4 KiB.
func WithMaxSize(bytes int64) Option { return Option{func(w *Writer) { w.size = bytes }} }

// WithFiles sets how many files are kept, including the current one. The older ones are named
// path.1, path.2 and so on. Default: 4.
func WithFiles(n int) Option { return Option{func(w *Writer) { w.files = n }} }

// Writer writes events to a file. It is safe for concurrent use, and several clients may share it.
type Writer struct {
	path, process string
	size          int64
	files         int

	queue   chan noted
	dropped atomic.Int64
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed when the goroutine has ended
	once    sync.Once

	// The rest belongs to the goroutine, and after its end to Close.
	file    *os.File // nil if it could not be opened again after a rotation
	written int64    // bytes in file
	torn    bool     // the file's last line is incomplete
	told    int64    // how many dropped events the file has reported
	err     error    // the latest failure
}

// Open opens the file for the events, or creates it. Only its owner may read a new file, because
// names may be confidential. Open keeps the events that are in the file.
func Open(path string, opts ...Option) (*Writer, error) {
	w := &Writer{
		path: path, process: processName(), size: defaultSize, files: defaultFiles,
		queue: make(chan noted, queueLength), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	for _, o := range opts {
		if o.apply != nil {
			o.apply(w)
		}
	}
	switch {
	case w.process == "":
		return nil, errors.New("eventlog: the name of the process is empty")
	case w.size < minSize:
		return nil, fmt.Errorf("eventlog: a size of %d bytes is less than %d", w.size, minSize)
	case w.files < 1:
		return nil, fmt.Errorf("eventlog: the number of files is %d", w.files)
	}
	err := w.open()
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	go w.run()
	return w, nil
}

// processName names this process.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return filepath.Base(os.Args[0]) + "@" + host + ":" + strconv.Itoa(os.Getpid())
}

// Observe queues an event to be written, for [primitives.WithObserver]. It never blocks: if the
// queue is full, it drops the event.
func (w *Writer) Observe(e primitives.Event) {
	if e.Kind == primitives.EventRenewed {
		return
	}
	n := noted{time.Now(), e, e.Outcome()}
	n.event.Ctx = nil // it may keep much alive
	select {
	case <-w.stop:
		w.dropped.Add(1)
		return
	default:
	}
	select {
	case w.queue <- n:
	default:
		w.dropped.Add(1)
	}
}

// Dropped returns how many events are not in the file, because it was behind, could not be written,
// or was closed.
func (w *Writer) Dropped() int64 { return w.dropped.Load() }

// Close writes the queued events, and closes the file. Call it after the clients' Close. It returns
// the latest error if events could not be written.
func (w *Writer) Close() error {
	w.once.Do(func() { close(w.stop) })
	<-w.stopped
	if w.err != nil {
		return fmt.Errorf("eventlog: %d events were dropped: %w", w.dropped.Load(), w.err)
	}
	return nil
}

// run writes events until the writer is closed.
func (w *Writer) run() {
	defer close(w.stopped)
	for {
		select {
		case n := <-w.queue:
			w.take(n)
		case <-w.stop:
			w.finish()
			return
		}
	}
}

// finish writes the events that were queued before Close, and closes the file.
func (w *Writer) finish() {
	for {
		select {
		case n := <-w.queue:
			w.take(n)
			continue
		default:
		}
		break
	}
	w.tellDropped()
	if w.file != nil {
		w.err = errors.Join(w.err, w.file.Close())
		w.file = nil
	}
}

// take writes an event.
func (w *Writer) take(n noted) {
	w.tellDropped()
	if !w.write(n.record(w.process).line()) {
		w.dropped.Add(1)
	}
}

// tellDropped writes how many events were dropped since it last did so.
func (w *Writer) tellDropped() {
	missing := w.dropped.Load() - w.told
	if missing == 0 {
		return
	}
	r := record{At: time.Now().UTC(), Process: w.process, Event: eventDropped, Count: missing}
	if w.write(r.line()) {
		w.told += missing
	}
}

// write writes a line. If it does not fit, it goes to a new file.
func (w *Writer) write(line []byte) bool {
	isFull := w.file != nil && w.written+int64(len(line)) > w.size
	if isFull {
		w.rotate()
	}
	if w.file == nil {
		err := w.open()
		if err != nil {
			w.err = err
			return false
		}
	}
	return w.put(line)
}

// put adds a line to the file as it is. If a write fails halfway, the next put ends that line
// first.
func (w *Writer) put(line []byte) bool {
	if w.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := w.file.Write(line)
	w.written += int64(n)
	if err != nil {
		w.err = err
		w.torn = w.torn || n > 0
		return false
	}
	w.torn = false
	return true
}

// open opens the file, or a new one if it is full, and writes that the process has opened it.
func (w *Writer) open() error {
	err := w.openFile()
	if err != nil {
		return err
	}
	const room = minSize / 2 // for that line and the next one
	if w.written+room > w.size {
		w.rotate()
		err = w.openFile()
		if err != nil {
			return err
		}
	}
	w.put(record{At: time.Now().UTC(), Process: w.process, Event: eventOpened}.line())
	return nil
}

func (w *Writer) openFile() error {
	file, err := os.OpenFile(w.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	w.file, w.written = file, info.Size()
	w.torn = endsTorn(file, info.Size())
	return nil
}

// endsTorn reports whether the last line of a file is incomplete, as after a crash.
func endsTorn(file *os.File, size int64) bool {
	last := make([]byte, 1)
	n, err := file.ReadAt(last, size-1)
	return err == nil && n == 1 && last[0] != '\n'
}

// rotate renames the files. The oldest one is removed. A file that cannot be renamed is emptied, so
// that the space stays bounded.
func (w *Writer) rotate() {
	w.err = errors.Join(w.err, w.file.Close())
	w.file = nil
	name := func(i int) string {
		if i == 0 {
			return w.path
		}
		return w.path + "." + strconv.Itoa(i)
	}
	for i := w.files - 2; i >= 0; i-- {
		err := os.Rename(name(i), name(i+1))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.err = err
		}
	}
	err := os.Truncate(w.path, 0) // it exists if only one file is kept, or if it could not be renamed
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.err = err
	}
}

package redistest

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// chunk is something to be written, not before due nor before its gates are closed.
type chunk struct {
	data   []byte
	due    time.Time         // zero: at once
	gates  []<-chan struct{} // all must be closed
	passed func()            // called, if not nil, when the chunk is about to be written
}

// outbox writes chunks to a connection in the order of their coming. Putting
// one in never blocks, however slow the reader at the other end is.
type outbox struct {
	conn net.Conn
	wake chan struct{} // capacity 1: one nudge is enough
	quit chan struct{} // closed by abort
	done chan struct{} // closed when run has returned

	mu     sync.Mutex
	queue  []chunk
	sealed bool // nothing more will come
	failed error
	abort  sync.Once
}

// newOutbox starts an outbox. Its goroutine ends after stop, seal or a failed write.
func newOutbox(conn net.Conn) *outbox {
	o := &outbox{conn: conn, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go o.run()
	return o
}

// put queues c, or returns why nothing can be written any more.
func (o *outbox) put(c chunk) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.failed != nil:
		return o.failed
	case o.sealed:
		return net.ErrClosed
	}
	o.queue = append(o.queue, c)
	o.nudge()
	return nil
}

// seal lets the outbox end once it has written what it holds.
func (o *outbox) seal() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealed = true
	o.nudge()
}

// stop ends the outbox at once. A write under way ends when conn is closed.
func (o *outbox) stop() { o.abort.Do(func() { close(o.quit) }) }

func (o *outbox) nudge() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) run() {
	defer close(o.done)
	for {
		batch, sealed := o.take()
		for _, c := range batch {
			if !o.write(c) {
				return
			}
		}
		if sealed && len(batch) == 0 {
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-o.wake:
		case <-o.quit:
			return
		}
	}
}

func (o *outbox) take() ([]chunk, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.queue
	o.queue = nil
	return batch, o.sealed
}

// write writes c when its time has come, and tells whether to go on.
func (o *outbox) write(c chunk) bool {
	if wait := time.Until(c.due); !c.due.IsZero() && wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-o.quit:
			return false
		}
	}
	for _, gate := range c.gates {
		select {
		case <-gate:
		case <-o.quit:
			return false
		}
	}
	if c.passed != nil {
		c.passed()
	}
	if _, err := o.conn.Write(c.data); err != nil {
		o.mu.Lock()
		o.failed = err
		o.mu.Unlock()
		return false
	}
	return true
}

// buffered is a net.Pipe end made more like a socket: it has room for what was
// written but not yet read, and its errors are those of a socket. Without room a long pipeline deadlocks: the client writes on
// and does not read, the server wants its first answer read and does not read on.
type buffered struct {
	net.Conn
	out *outbox
}

func newBuffered(conn net.Conn) *buffered { return &buffered{conn, newOutbox(conn)} }

// Write takes all of p and never blocks; an error comes with a later call.
func (b *buffered) Write(p []byte) (int, error) {
	err := b.out.put(chunk{data: slices.Clone(p)})
	if errors.Is(err, io.ErrClosedPipe) {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetReadDeadline sets the time at which reads fail. If the other end is closed,
// a pipe would say so here; a socket leaves that to Read.
func (b *buffered) SetReadDeadline(t time.Time) error {
	_ = b.Conn.SetReadDeadline(t)
	return nil
}

// SetDeadline sets the read deadline: a write never waits.
func (b *buffered) SetDeadline(t time.Time) error { return b.SetReadDeadline(t) }

// SetWriteDeadline does nothing: a write never waits.
func (b *buffered) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection and waits for the writer.
func (b *buffered) Close() error {
	b.out.stop()
	err := b.Conn.Close()
	<-b.out.done
	return err
}

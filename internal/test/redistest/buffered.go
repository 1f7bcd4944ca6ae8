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

// chunk is data to be written, not before due and not before all holds are closed.
type chunk struct {
	data      []byte
	due       time.Time // zero: no delay
	holds     []<-chan struct{}
	onRelease func() // if not nil, called before the chunk is written
}

// outbox writes chunks to a connection in order. Its queue is unbounded, so put
// never blocks, even if the peer does not read.
type outbox struct {
	conn net.Conn
	wake chan struct{} // capacity 1: signals coalesce, and the sender never blocks
	quit chan struct{} // closed by stop
	done chan struct{} // closed when run has returned

	mu          sync.Mutex
	queue       []chunk
	inputClosed bool
	failed      error // of the failed write that ended run
	stopOnce    sync.Once
}

// newOutbox starts an outbox. Its goroutine ends after stop, closeInput or a
// failed write.
func newOutbox(conn net.Conn) *outbox {
	o := &outbox{conn: conn, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go o.run()
	return o
}

// put queues c. It returns an error if the outbox can no longer write.
func (o *outbox) put(c chunk) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.failed != nil:
		return o.failed
	case o.inputClosed:
		return net.ErrClosed
	}
	o.queue = append(o.queue, c)
	o.wakeUp()
	return nil
}

// closeInput ends the outbox after it has written all queued chunks.
func (o *outbox) closeInput() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inputClosed = true
	o.wakeUp()
}

// stop ends the outbox and discards its queue. It does not interrupt a write in
// progress; closing conn does.
func (o *outbox) stop() { o.stopOnce.Do(func() { close(o.quit) }) }

// wakeUp signals run. If a signal is already pending, run will see the new state with it.
func (o *outbox) wakeUp() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run writes queued chunks until the outbox is stopped, fails, or has written all chunks after
// closeInput.
func (o *outbox) run() {
	defer close(o.done)
	for {
		batch, inputClosed := o.take()
		for _, c := range batch {
			if !o.write(c) {
				return
			}
		}
		if inputClosed && len(batch) == 0 {
			return
		}
		if len(batch) > 0 {
			continue // more chunks may have arrived during the writes
		}
		select {
		case <-o.wake:
		case <-o.quit:
			return
		}
	}
}

// take removes all chunks from the queue.
func (o *outbox) take() ([]chunk, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	batch := o.queue
	o.queue = nil
	return batch, o.inputClosed
}

// write waits until c may be written, and writes it. It reports whether the
// outbox continues.
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
	for _, hold := range c.holds {
		select {
		case <-hold:
		case <-o.quit:
			return false
		}
	}
	if c.onRelease != nil {
		c.onRelease()
	}
	if _, err := o.conn.Write(c.data); err != nil {
		o.mu.Lock()
		o.failed = err
		o.mu.Unlock()
		return false
	}
	return true
}

// buffered makes an end of a net.Pipe behave like a socket: it buffers written
// data and returns the errors of a socket. Without a buffer a long pipeline
// deadlocks: the client writes without reading, and the server stops reading
// until the client has read its first reply.
type buffered struct {
	net.Conn
	out *outbox
}

func newBuffered(conn net.Conn) *buffered { return &buffered{conn, newOutbox(conn)} }

// Write buffers all of p and never blocks. A later call returns the error.
func (b *buffered) Write(p []byte) (int, error) {
	err := b.out.put(chunk{data: slices.Clone(p)}) // the caller may reuse p
	if errors.Is(err, io.ErrClosedPipe) {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetReadDeadline sets the deadline of reads. If the other end is closed, a pipe
// returns an error here. A socket does not, so this method does not either.
func (b *buffered) SetReadDeadline(t time.Time) error {
	_ = b.Conn.SetReadDeadline(t)
	return nil
}

// SetDeadline sets the read deadline. Writes need none, because they never wait.
func (b *buffered) SetDeadline(t time.Time) error { return b.SetReadDeadline(t) }

// SetWriteDeadline does nothing, because writes never wait.
func (b *buffered) SetWriteDeadline(time.Time) error { return nil }

// Close closes the connection and waits for the outbox to end.
func (b *buffered) Close() error {
	b.out.stop()
	err := b.Conn.Close() // before the wait, because it interrupts a pending write
	<-b.out.done
	return err
}

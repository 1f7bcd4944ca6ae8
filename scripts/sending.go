package scripts

import (
	"context"
	"sync/atomic"
	"time"
)

// mark is an argument of a command: it stands for the digest of the script. It notes when go-redis
// writes the command. If an attempt fails before that, in the dial or in the handshake of a new
// connection, the command was not executed.
//
// A caller that gives up drops its command. go-redis may still write a dropped command, once its
// connection is made. The command then names no script, so that nothing is executed. Therefore a
// command that is sent after its call has returned is not executed.
type mark struct {
	script *Script
	ctx    context.Context //nolint:containedctx // the context of the attempt: the command must not be sent after its end
	state  atomic.Int32
}

// textMark is a mark that stands for the text of the script.
type textMark struct{ *mark }

// The states of a mark.
const (
	notWritten int32 = iota
	isWritten        // the command was written to a connection, or to its buffer
	isDropped        // its caller dropped it before it was written
)

// begin makes m the mark of a new attempt. No other attempt uses m.
func (m *mark) begin(ctx context.Context, s *Script) {
	m.script = s
	m.ctx = ctx
	m.state.Store(notWritten)
}

// again prepares m for a command that is sent again, because the server has answered that it did
// not execute it.
func (m *mark) again() { m.state.CompareAndSwap(isWritten, notWritten) }

// wasWritten reports whether the command may have reached the server.
func (m *mark) wasWritten() bool { return m.state.Load() == isWritten }

// drop drops the command unless it was written. It reports whether the command will never be
// executed.
func (m *mark) drop() bool {
	return m.state.CompareAndSwap(notWritten, isDropped) || m.state.Load() == isDropped
}

var (
	noDigest = []byte("0000000000000000000000000000000000000000") // no script has this digest
	noText   = []byte("return nil")
)

// write notes that go-redis writes the command now. It returns false if the command must no longer
// be executed.
func (m *mark) write() bool {
	if m.ctx.Err() != nil {
		return false
	}
	m.state.CompareAndSwap(notWritten, isWritten)
	return m.wasWritten()
}

// MarshalBinary is called by go-redis when it writes the command. An error would fail all commands
// of a pipeline, so there is none.
func (m *mark) MarshalBinary() ([]byte, error) {
	if !m.write() {
		return noDigest, nil
	}
	return m.script.wire, nil
}

// MarshalBinary is like mark's, with the text in place of the digest.
func (m textMark) MarshalBinary() ([]byte, error) {
	if !m.write() {
		return noText, nil
	}
	return []byte(m.script.text), nil
}

// String is what hooks see.
func (m *mark) String() string { return m.script.sha }

// String is what hooks see.
func (m textMark) String() string { return m.script.text }

// joinedContext ends with one context and has the values of another one. Its deadline is the
// call's, which may be later than its end. go-redis reads a reply until the deadline, because a
// connection that is closed at the end of a caller's short context would have to be dialed again.
type joinedContext struct {
	context.Context
	values  context.Context
	until   time.Time
	limits  *limits // nil if until is the only limit
	mark    *mark   // the mark of the command, or of the first one of a batch; nil if limits is nil
	patient bool    // the answer may take longer than a command may
}

func (c *joinedContext) Value(key any) any { return c.values.Value(key) }

// Deadline implements [context.Context]. go-redis calls it before each write and each read on a
// connection, also during the handshake of a new one.
func (c *joinedContext) Deadline() (time.Time, bool) {
	switch {
	case c.limits == nil:
		return c.until, true
	case !c.mark.wasWritten():
		return c.limits.handshake(c.until), true
	case c.patient:
		return c.limits.mark(c.until, &c.limits.patient), true
	}
	return c.until, true
}

// limits bounds what go-redis does on a connection for the commands of a runner.
//
// The handshake of a new connection takes several answers. If the server is slow, that may be
// longer than a call may take. Therefore each of these answers has a command timeout of its own.
// The call may fail, but go-redis keeps the connection, and a later call finds it.
//
// Some deadlines have a location of their own, by which [redisutil.Conns.Interrupt] finds their
// connections.
type limits struct {
	timeout time.Duration
	ends    *deadlines

	making, patient time.Location // for connections that are being made, and for those that wait for a patient command
}

// handshake returns the deadline for the next answer of a handshake, for a call that ends at until.
func (l *limits) handshake(until time.Time) time.Time {
	end := time.Now().Add(l.timeout)
	if final := l.ends.final.Load(); final != nil && final.until.Before(end) {
		end = final.until
	}
	if end.Before(until) {
		end = until
	}
	return l.mark(end, &l.making)
}

// mark returns t with a location. The location removes the monotonic clock reading from t, so the
// result is computed from the current wall clock.
func (*limits) mark(t time.Time, location *time.Location) time.Time {
	now := time.Now()
	return now.Add(t.Sub(now)).In(location)
}

// Package logqueue keeps a log handler from delaying anything. A handler is user code, and may be
// slow, or block for ever. All packages of a client log to one [Queue], which stores the records.
// One goroutine passes them on to the handler, in order. The goroutine runs while there are
// records, and [Queue.Close] waits for it. If the handler never returns, the goroutine leaks.
//
// Queue.mu is innermost. It is never held while the handler runs.
package logqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Limit is how many records may wait for the handler. Further ones are dropped, and counted in the
// log.
const Limit = 200_000

// Queue contains the records that the handler has not received yet. Make it with [New]. It is safe
// for concurrent use.
type Queue struct {
	handler slog.Handler // the user's
	logger  *slog.Logger

	mu      sync.Mutex // guards the rest; never held while the handler runs
	records []entry
	dropped int           // records since the last one that reported dropped records
	writing chan struct{} // closed when the goroutine ends; nil if it is not running
	last    bool          // the goroutine writes only how many records were dropped, and ends
	closed  bool          // no record is accepted, and the goroutine ends after the current record
}

// entry is a record, and the handler with the attributes of its logger.
type entry struct {
	to     slog.Handler
	record slog.Record
}

// New returns an empty queue for the handler of l. It starts no goroutine.
func New(l *slog.Logger) *Queue {
	q := &Queue{handler: l.Handler()}
	q.logger = slog.New(&handler{q, q.handler})
	return q
}

// Logger returns the logger that writes to the queue. Its methods do not block.
func (q *Queue) Logger() *slog.Logger { return q.logger }

// Close waits until the handler has received all records, for limit at most. After a quarter of
// limit it drops the rest, and the handler only gets the number of dropped records. After half of
// limit the handler gets nothing more, and Close only waits for the record that is being handled.
// It returns the number of records that the handler has not received.
func (q *Queue) Close(limit time.Duration) (dropped int) {
	q.await(limit / 4)
	q.mu.Lock()
	q.last = true
	q.drop()
	q.mu.Unlock()
	q.await(limit / 4)
	q.mu.Lock()
	q.closed = true
	q.drop()
	dropped = q.dropped
	q.mu.Unlock()
	q.await(limit / 2)
	return dropped
}

// drop drops all records. mu is held.
func (q *Queue) drop() {
	q.dropped += len(q.records)
	q.records = nil
}

// await waits until the goroutine has ended, for d at most.
func (q *Queue) await(d time.Duration) {
	q.mu.Lock()
	writing := q.writing
	q.mu.Unlock()
	if writing == nil {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-writing:
	case <-timer.C:
	}
}

// add queues a record, and starts the goroutine if it is not running.
func (q *Queue) add(e entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.last || len(q.records) >= Limit {
		q.dropped++
		return
	}
	q.records = append(q.records, e)
	if q.writing == nil {
		q.writing = make(chan struct{})
		go q.write(q.writing)
	}
}

// write is the goroutine. It ends when no record is left.
func (q *Queue) write(done chan struct{}) {
	defer close(done)
	for {
		q.mu.Lock()
		e, ok := q.next()
		if !ok {
			q.writing = nil
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		if e.to.Enabled(context.Background(), e.record.Level) {
			_ = e.to.Handle(context.Background(), e.record)
		}
	}
}

// next removes the next record for the handler. If records were dropped, their number comes next,
// before the records that were accepted after them. mu is held.
func (q *Queue) next() (e entry, ok bool) {
	switch {
	case q.closed:
		return entry{}, false
	case q.dropped > 0:
		record := slog.NewRecord(time.Now(), slog.LevelWarn, "log records dropped", 0)
		record.AddAttrs(slog.Int("records", q.dropped))
		q.dropped = 0
		return entry{q.handler, record}, true
	case len(q.records) == 0:
		return entry{}, false
	}
	e = q.records[0]
	q.records[0] = entry{}
	q.records = q.records[1:]
	return e, true
}

// handler is the [slog.Handler] that queues records.
type handler struct {
	q  *Queue
	to slog.Handler
}

// Enabled implements [slog.Handler]. Only the goroutine asks the user's handler, whose Enabled may
// block too.
func (h *handler) Enabled(context.Context, slog.Level) bool { return h.to != slog.DiscardHandler }

// Handle implements [slog.Handler].
func (h *handler) Handle(_ context.Context, record slog.Record) error {
	h.q.add(entry{h.to, record.Clone()})
	return nil
}

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.q, h.to.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.q, h.to.WithGroup(name)} }

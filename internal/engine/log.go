package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// The log of losses and of renewals. A log handler may block. So what the background finds is logged in
// a goroutine of its own: a slow handler delays no renewal and no report of a loss.

// maxLogged bounds the records that wait for the handler. Further ones are dropped, and counted in the
// log.
const maxLogged = 200_000

// logQueue has the records that the goroutine of logLater has not written yet.
type logQueue struct {
	mu      sync.Mutex // guards the rest; Core.mu may be taken while it is held
	writing bool       // the goroutine runs
	records []slog.Record
	dropped int

	last atomic.Pointer[time.Time] // no record is written after it, because Close ends; nil: no limit
}

// logLater writes a record in another goroutine, in order. It does not block.
func (c *Core) logLater(record slog.Record) {
	if !c.Logger.Enabled(context.Background(), record.Level) {
		return
	}
	q := &c.log
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.records) >= maxLogged {
		q.dropped++
		return
	}
	q.records = append(q.records, record)
	if !q.writing {
		q.writing = true
		c.Spawn(c.writeLog)
	}
}

// writeLog is the goroutine of logLater. It ends when no record is left. A slow handler delays Close by a record.
func (c *Core) writeLog() {
	q := &c.log
	for {
		q.mu.Lock()
		records, dropped := q.records, q.dropped
		q.records, q.dropped = nil, 0
		q.writing = len(records) > 0
		q.mu.Unlock()
		if len(records) == 0 {
			return
		}
		if dropped > 0 {
			record := slog.NewRecord(time.Now(), slog.LevelWarn, "log records dropped", 0)
			record.AddAttrs(slog.Int("records", dropped))
			records = append(records, record)
		}
		for _, record := range records {
			if last := q.last.Load(); last != nil && time.Now().After(*last) {
				break
			}
			_ = c.Logger.Handler().Handle(context.Background(), record)
		}
	}
}

// newRecord returns a record about a resource.
func newRecord(level slog.Level, message string, r *Resource, more ...slog.Attr) slog.Record {
	record := slog.NewRecord(time.Now(), level, message, 0)
	record.AddAttrs(slog.String("kind", r.Kind), slog.String("name", r.Name))
	record.AddAttrs(more...)
	return record
}

// lossRecord is the record of a loss.
func (h *Hold) lossRecord(loss Loss, err error) slog.Record {
	return newRecord(slog.LevelWarn, "hold lost", h.r, slog.String("id", h.ID()),
		slog.String("reason", string(loss.Reason)), slog.Duration("held", h.heldFor()), slog.Any("error", err))
}

// failureRecord is the record of a failed renewal.
func (o *Ownership) failureRecord(err error) slog.Record {
	reason := "refused"
	if failure := o.r.Core.Classify(err); errors.Is(err, watchdog.ErrNoAnswer) ||
		!failure.NotNow && (failure.InDoubt || failure.Retry) {
		reason = "no answer"
	}
	return newRecord(slog.LevelWarn, "renewal failed", o.r, slog.String("id", o.ID), slog.String("reason", reason),
		slog.Any("error", err))
}

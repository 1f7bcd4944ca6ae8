package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// The log of losses, of renewals, and of failures that no caller can see. [Config].Logger does not block, so records
// are written where they arise: a slow handler delays no renewal and no report of a loss.

// log writes a record. It does not block.
func (c *Core) log(record slog.Record) {
	if c.Logger.Enabled(context.Background(), record.Level) {
		_ = c.Logger.Handler().Handle(context.Background(), record)
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

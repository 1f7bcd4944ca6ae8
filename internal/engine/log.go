package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/watchdog"
)

// The log of losses, of renewals, and of failures that no caller can see. [Config].Logger does not
// block, so records are written where they arise: a slow handler delays no renewal and no report of
// a loss.

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

// lossRecord returns the record of a loss.
func (h *Hold) lossRecord(loss Loss, err error) slog.Record {
	return newRecord(slog.LevelWarn, "hold lost", h.r, slog.String("id", h.ID()),
		slog.String("reason", string(loss.Reason)), slog.Duration("held", h.heldFor()), slog.Any("error", err))
}

// logAgain is how often the failing renewals of a lease are logged while the reason stays.
const logAgain = time.Minute

// renewFailures is a series of failed renewals of an ownership. Ownership.mu guards it.
type renewFailures struct {
	since   time.Time
	logged  time.Time // the latest warning; zero if there was none
	refusal error     // the latest answer, if the server has refused the latest renewal; else nil
}

// note notes a failure, and reports whether it is worth a warning: the first one, a change of the
// reason, and then one a minute.
func (f *renewFailures) note(err error, refused bool) (warns bool) {
	now := time.Now()
	changed := refused != (f.refusal != nil)
	warns = f.logged.IsZero() || changed || now.Sub(f.logged) >= logAgain
	if warns {
		f.logged = now
	}
	f.refusal = nil
	if refused {
		f.refusal = err
	}
	return warns
}

// isRefused reports whether a renewal failed because the server has answered that it does not renew
// now.
func (c *Core) isRefused(err error) bool {
	f := failure.Of(err)
	silent := errors.Is(err, watchdog.ErrNoAnswer) || f.InDoubt() || f.Retry()
	return f.NotNow || !silent
}

// failureRecord returns the record of a failed renewal.
func (o *Ownership) failureRecord(level slog.Level, err error, refused bool) slog.Record {
	reason := "no answer"
	if refused {
		reason = "refused"
	}
	return newRecord(level, "renewal failed", o.r, slog.String("id", o.ID), slog.String("reason", reason),
		slog.Any("error", err))
}

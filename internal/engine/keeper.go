package engine

import (
	"log/slog"
	"time"

	"github.com/redlatch/redlatch/watchdog"
)

// The watchdog calls the next three methods in goroutines of its own, with no mutex held. They must
// not block: other keepers of the same batch come after them.

// LeaseRenewed implements [watchdog.Keeper]: the server has extended the lease.
func (o *Ownership) LeaseRenewed(l *watchdog.Lease) {
	late := l.Late()
	o.mu.Lock()
	recovered := o.failing
	o.failing = nil
	if o.shortLease > 0 && o.holds != nil {
		// The first lease was shorter than the holds asked for. Renew for their TTLs from now on.
		o.shortLease = 0
		o.setSchedule(nil)
	}
	o.mu.Unlock()
	if recovered != nil {
		o.r.Core.log(newRecord(slog.LevelInfo, "renewal works again", o.r, slog.String("id", o.ID),
			slog.Duration("after", time.Since(recovered.since))))
	}
	o.report(Event{Kind: EventRenewed, Late: late})
}

// LeaseUnknown implements [watchdog.Keeper]: a renewal was not answered. That alone is no loss: the
// watchdog repeats it until validity ends.
func (o *Ownership) LeaseUnknown(_ *watchdog.Lease, err error) {
	refused := o.r.Core.isRefused(err)
	o.mu.Lock()
	o.lateTTL = max(o.lateTTL, o.TTL, o.renewed().ttl)
	if o.failing == nil {
		o.failing = &renewFailures{since: time.Now()}
	}
	level := slog.LevelDebug
	if o.failing.note(err, refused) {
		level = slog.LevelWarn
	}
	o.mu.Unlock()
	o.r.Core.log(o.failureRecord(level, err, refused))
	o.report(Event{Kind: EventRenewFailed, Err: err})
}

// LeaseLost implements [watchdog.Keeper]: a renewal was refused, for example because an operator
// has deleted the key, or validity has ended without an answer.
func (o *Ownership) LeaseLost(_ *watchdog.Lease, refused bool) {
	if refused {
		o.loseInBackground(o.unknownLoss())
		return
	}
	loss := o.expiredLoss()
	o.loseEach(o.endRenewed(), loss)
}

// report emits e for each hold, from other goroutines. Nobody may hold mu.
func (o *Ownership) report(e Event) {
	if o.r.Core.Observe == nil {
		return
	}
	o.mu.Lock()
	holds := o.list()
	o.mu.Unlock()
	for _, h := range holds {
		user, isAnother := h.user()
		switch {
		case isAnother && user == nil:
			continue
		case isAnother:
			h = user
		}
		of := h.event(e.Kind, e.Err)
		of.Late = e.Late
		o.r.Core.emitLater(of)
	}
}

package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// C7 in fake time: which of ErrNotAcquired and ErrUnavailable an acquisition returns, depending on what
// the server has answered to it and to the waiters before it.
func TestAcquireTellsABusyLockFromASilentServer(t *testing.T) {
	const ms = time.Millisecond
	lost, down := fault{lost: true}, fault{delay: 50 * ms, err: errDown}
	for _, tt := range []struct {
		name    string
		held    bool
		faults  []fault // of the attempts, in order
		polling bool    // waits 20 ms between attempts, instead of for messages
		limit   time.Duration
		cancel  time.Duration // 0: the context does not end
		busy    bool
		silent  bool
		reason  error // that the error matches, too
		text    string
	}{
		{name: "busy", held: true, limit: noWait, busy: true, text: "not acquired: held by b:1 for another 30s"},
		{name: "busy until the limit", held: true, limit: 300 * ms, busy: true,
			text: "not acquired: held by b:1 for another 29.7s"},
		{name: "busy until the context ends", held: true, limit: forever, cancel: 300 * ms, busy: true, reason: errCause,
			text: "not acquired: the caller stopped: held by b:1 for another 29.7s"},
		{name: "no answer within 100 ms of a wait", faults: []fault{lost}, limit: 90 * ms, busy: true},
		{name: "no answer within 100 ms of a context", faults: []fault{lost}, limit: forever, cancel: 90 * ms,
			busy: true, reason: errCause},
		{name: "no answer for a wait", faults: []fault{lost}, limit: 110 * ms, silent: true},
		{name: "no answer until the context ends", faults: []fault{lost}, limit: forever, cancel: 110 * ms, silent: true,
			reason: errCause},
		{name: "no answer to a single try", faults: []fault{lost}, limit: noWait, cancel: 110 * ms, silent: true,
			reason: errCause},
		{name: "refused for the moment until the limit", faults: []fault{{err: errBusy}, {err: errBusy}, {err: errBusy}},
			limit: 50 * ms, silent: true, reason: errBusy},
		{name: "busy, then down", held: true, polling: true, faults: []fault{{}, down, down, down, down, down},
			limit: 150 * ms, busy: true, silent: true, reason: errDown},
		{
			name: "busy, then silent", held: true, polling: true, faults: []fault{{}, lost},
			limit: 300 * ms, busy: true, silent: true,
		},
		{name: "busy, then silent for a moment only", held: true, polling: true, faults: []fault{{}, {delay: 90 * ms}},
			limit: 100 * ms, busy: true},
		{name: "busy, down, then busy", held: true, polling: true, faults: []fault{{}, down}, limit: 300 * ms, busy: true},
		{name: "busy, down, and cut short while it tries again", held: true, polling: true, faults: []fault{{}, down, lost},
			limit: forever, cancel: 160 * ms, busy: true, silent: true, reason: errDown},
		{name: "busy, down, then silent", held: true, polling: true, faults: []fault{{}, down, lost},
			limit: forever, cancel: 300 * ms, busy: true, silent: true, reason: errDown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				var held *Hold
				if tt.held {
					held = acquire(t, t.Context(), s.client(t, "b").lock("x"), ttl(30*time.Second))
				}
				options := []func(*Terms){}
				if tt.polling {
					options = append(options, polling(20*ms, 20*ms))
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if tt.cancel > 0 {
					time.AfterFunc(tt.cancel, func() { cancel(errCause) })
				}
				s.script("acquire", tt.faults...)
				_, err := s.client(t, "a").lock("x").Acquire(ctx, terms(options...), tt.limit)
				require.Error(t, err)
				assert.Equal(t, tt.busy, errors.Is(err, ErrNotAcquired), "%v", err)
				assert.Equal(t, tt.silent, errors.Is(err, ErrUnavailable), "%v", err)
				if tt.reason != nil {
					require.ErrorIs(t, err, tt.reason)
				}
				if tt.text != "" {
					assert.Equal(t, tt.text, err.Error())
				}
				if held != nil {
					release(t, held)
				}
				sleep(time.Minute)
			})
		})
	}
}

// A waiter behind another one of its client makes no attempt of its own: the other's answers count.
func TestAcquireKnowsWhatTheWaitersBeforeItHaveHeard(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []fault // of the head's attempts after the first
		silent bool
	}{
		{"refused", nil, false},
		{"refused, then no answer", []fault{{err: errDown}, {err: errDown}, {err: errDown}, {err: errDown}}, true},
		{"refused, then silence", []fault{{lost: true}}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *server) {
				s.keepLeases()
				held := acquire(t, t.Context(), s.client(t, "b").lock("x"))
				r := s.client(t, "a").lock("x")
				ctx, cancel := context.WithCancel(t.Context())
				head := startAcquire(t, ctx, r)
				sleep(500 * time.Millisecond) // its subscription is confirmed
				s.script("acquire", tt.faults...)
				_, err := r.Acquire(t.Context(), terms(), 700*time.Millisecond)
				require.ErrorIs(t, err, ErrNotAcquired)
				assert.Equal(t, tt.silent, errors.Is(err, ErrUnavailable), "%v", err)
				assert.Contains(t, err.Error(), "held by "+held.ID())
				cancel()
				require.ErrorIs(t, head.fail(), ErrNotAcquired)
				release(t, held)
				sleep(time.Minute)
			})
		})
	}
}

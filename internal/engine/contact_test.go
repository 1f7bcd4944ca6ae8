package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// C7 in fake time: which of ErrNotAcquired and ErrUnavailable an acquisition returns, depending on
// what the server has answered to it and to the waiters before it.
func TestBusyLockAndSilentServerAreTwoErrors(t *testing.T) {
	lost, down := Fault{Lost: true}, Fault{Delay: 50 * ms, Err: ErrDown}
	for _, tt := range []struct {
		name    string
		held    bool
		faults  []Fault // of the attempts, in order
		polling bool    // waits 20 ms between attempts, instead of for messages
		limit   time.Duration
		cancel  time.Duration // 0 if the context does not end
		busy    bool
		silent  bool
		reason  error // another error that it matches
		text    string
	}{
		{name: "busy", held: true, limit: engine.NoWait, busy: true, text: "not acquired: held by b:1 for another 30s"},
		{name: "busy until the limit", held: true, limit: 300 * ms, busy: true,
			text: "not acquired: held by b:1 for another 29.7s; gave up after 300ms"},
		{name: "busy until the context ends", held: true, limit: engine.Forever, cancel: 300 * ms, busy: true,
			reason: errCause,
			text:   "not acquired: the caller stopped: held by b:1 for another 29.7s; gave up after 300ms"},
		{name: "no answer within 100 ms of a wait", faults: []Fault{lost}, limit: 90 * ms, busy: true},
		{name: "no answer within 100 ms of a context", faults: []Fault{lost}, limit: engine.Forever, cancel: 90 * ms,
			busy: true, reason: errCause},
		{name: "no answer for a wait", faults: []Fault{lost}, limit: 110 * ms, silent: true},
		{name: "no answer until the context ends", faults: []Fault{lost}, limit: engine.Forever, cancel: 110 * ms,
			silent: true,
			reason: errCause},
		{name: "no answer to a single try", faults: []Fault{lost}, limit: engine.NoWait, cancel: 110 * ms, silent: true,
			reason: errCause},
		{name: "refused for the moment until the limit", faults: []Fault{{Err: ErrBusy}, {Err: ErrBusy}, {Err: ErrBusy}},
			limit: 50 * ms, silent: true, reason: ErrBusy},
		{name: "refused for the moment until the context ends", faults: slices.Repeat([]Fault{{Err: ErrBusy}}, 10),
			limit: 10 * time.Second, cancel: 220 * ms, silent: true, reason: errCause,
			text: "Redis unavailable for 200ms: the caller stopped: busy; gave up after 220ms"},
		{name: "busy, then down", held: true, polling: true, faults: []Fault{{}, down, down, down, down, down},
			limit: 150 * ms, busy: true, silent: true, reason: ErrDown},
		{
			name: "busy, then silent", held: true, polling: true, faults: []Fault{{}, lost},
			limit: 300 * ms, busy: true, silent: true,
		},
		{name: "busy, then silent for a moment only", held: true, polling: true, faults: []Fault{{}, {Delay: 90 * ms}},
			limit: 100 * ms, busy: true},
		{name: "busy, down, then busy", held: true, polling: true, faults: []Fault{{}, down}, limit: 300 * ms, busy: true},
		{name: "busy, down, and cut short while it tries again", held: true, polling: true, faults: []Fault{{}, down, lost},
			limit: engine.Forever, cancel: 160 * ms, busy: true, silent: true, reason: ErrDown},
		{name: "busy, down, then silent", held: true, polling: true, faults: []Fault{{}, down, lost},
			limit: engine.Forever, cancel: 300 * ms, busy: true, silent: true, reason: ErrDown},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			var held *engine.Hold
			if tt.held {
				held = Acquire(t, t.Context(), s.Client(t, "b").Lock("x"), TTL(30*time.Second))
			}
			options := []func(*engine.Terms){}
			if tt.polling {
				options = append(options, Polling(20*ms, 20*ms))
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tt.cancel > 0 {
				time.AfterFunc(tt.cancel, func() { cancel(errCause) })
			}
			s.Script("acquire", tt.faults...)
			_, err := s.Client(t, "a").Lock("x").Acquire(ctx, NewTerms(options...), tt.limit)
			require.Error(t, err)
			assert.Equal(t, tt.busy, errors.Is(err, engine.ErrNotAcquired), "%v", err)
			assert.Equal(t, tt.silent, errors.Is(err, engine.ErrUnavailable), "%v", err)
			if tt.reason != nil {
				require.ErrorIs(t, err, tt.reason)
			}
			if tt.text != "" {
				assert.Equal(t, tt.text, err.Error())
			}
			if held != nil {
				Release(t, held)
			}
			Sleep(time.Minute)
		})
	}
}

// A waiter behind another one of its client makes no attempt of its own: the other's answers count.
func TestAcquireKnowsWhatTheWaitersBeforeItHaveHeard(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults []Fault // of the head's attempts after the first
		silent bool
	}{
		{"refused", nil, false},
		{"refused, then no answer", []Fault{{Err: ErrDown}, {Err: ErrDown}, {Err: ErrDown}, {Err: ErrDown}}, true},
		{"refused, then silence", []Fault{{Lost: true}}, true},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.KeepLeases()
			held := Acquire(t, t.Context(), s.Client(t, "b").Lock("x"))
			r := s.Client(t, "a").Lock("x")
			ctx, cancel := context.WithCancel(t.Context())
			head := StartAcquire(t, ctx, r)
			Sleep(500 * time.Millisecond) // its subscription is confirmed
			s.Script("acquire", tt.faults...)
			_, err := r.Acquire(t.Context(), NewTerms(), 700*time.Millisecond)
			require.ErrorIs(t, err, engine.ErrNotAcquired)
			assert.Equal(t, tt.silent, errors.Is(err, engine.ErrUnavailable), "%v", err)
			assert.Contains(t, err.Error(), "held by "+held.ID())
			cancel()
			require.ErrorIs(t, head.AwaitErr(), engine.ErrNotAcquired)
			Release(t, held)
			Sleep(time.Minute)
		})
	}
}

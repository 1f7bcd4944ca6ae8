package logqueue_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/logqueue"
)

// slow is a log handler that takes its time.
type slow struct {
	takes    time.Duration // for each record
	stuck    chan struct{} // if it is not nil, Handle waits until it is closed
	disabled bool

	mu   sync.Mutex
	text strings.Builder
	got  int
}

func (s *slow) Enabled(context.Context, slog.Level) bool {
	if s.stuck != nil {
		<-s.stuck
	}
	return !s.disabled
}

func (s *slow) Handle(ctx context.Context, r slog.Record) error {
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got++
	return slog.NewTextHandler(&s.text, nil).Handle(ctx, r)
}

func (s *slow) WithAttrs([]slog.Attr) slog.Handler { return s }
func (s *slow) WithGroup(string) slog.Handler      { return s }

func (s *slow) records() (int, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got, s.text.String()
}

func TestRecordsArriveInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slow{takes: time.Millisecond}
		q := logqueue.New(slog.New(h))
		began := time.Now()
		for i := range 100 {
			q.Logger().LogAttrs(t.Context(), slog.LevelWarn, "record", slog.Int("n", i))
		}
		assert.Zero(t, time.Since(began), "logging does not wait for the handler")
		assert.Zero(t, q.Close(time.Second))
		assert.Equal(t, 100*time.Millisecond, time.Since(began))
		_, text := h.records()
		last := -1
		for i := range 100 {
			at := strings.Index(text, "n="+strconv.Itoa(i)+"\n")
			require.Greater(t, at, last)
			last = at
		}
		q.Logger().Warn("too late")
		time.Sleep(time.Minute)
		got, _ := h.records()
		assert.Equal(t, 100, got)
	})
}

// Close waits for a handler as long as it may, and then reports what it has dropped.
func TestCloseOfASlowHandler(t *testing.T) {
	for _, tt := range []struct {
		name    string
		takes   time.Duration
		stuck   bool
		waits   time.Duration
		written int
		dropped int
		says    string
	}{
		{name: "quick enough", takes: 8 * time.Millisecond, waits: 800 * time.Millisecond, written: 100},
		{
			name: "too slow", takes: 70 * time.Millisecond, waits: 1120 * time.Millisecond, written: 16,
			says: "msg=\"log records dropped\" records=85",
		},
		{name: "longer than the limit for one record", takes: time.Minute, waits: 4 * time.Second, dropped: 99},
		{name: "stuck", stuck: true, waits: 4 * time.Second, dropped: 99},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &slow{takes: tt.takes}
				if tt.stuck {
					h.stuck = make(chan struct{})
				}
				q := logqueue.New(slog.New(h))
				for range 100 {
					q.Logger().Warn("record")
				}
				synctest.Wait()
				began := time.Now()
				assert.Equal(t, tt.dropped, q.Close(4*time.Second))
				assert.Equal(t, tt.waits, time.Since(began))
				got, text := h.records()
				assert.Equal(t, tt.written, got)
				assert.Contains(t, text, tt.says)
				if tt.stuck {
					close(h.stuck)
				}
				time.Sleep(time.Hour)
				got, _ = h.records()
				assert.LessOrEqual(t, got, tt.written+1, "only the record that the handler had")
			})
		})
	}
}

func TestRecordsBeyondTheLimitAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slow{stuck: make(chan struct{})}
		q := logqueue.New(slog.New(h))
		for range logqueue.Limit + 10 {
			q.Logger().Warn("record")
		}
		close(h.stuck)
		assert.Zero(t, q.Close(time.Second))
		_, text := h.records()
		assert.Contains(t, text, "log records dropped")
		assert.Equal(t, 1, strings.Count(text, "records="))
	})
}

func TestHandlersThatAreOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &slow{disabled: true}
		q := logqueue.New(slog.New(h))
		q.Logger().Warn("record")
		assert.Zero(t, q.Close(time.Second))
		got, _ := h.records()
		assert.Zero(t, got)
		q = logqueue.New(slog.New(slog.DiscardHandler))
		assert.False(t, q.Logger().Enabled(t.Context(), slog.LevelError))
	})
}

package engine_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// An Extend has made the lease longer. The release gets no answer until the first lease would be
// over, and is repeated beyond that.
func TestReleaseAfterExtendIsRepeatedForTheNewLease(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		const first, extended, silent = 10 * time.Second, time.Minute, 30 * time.Second
		c := s.Client(t, "a")
		hold := Acquire(t, t.Context(), c.Lock("x"), FixedLease(first))
		require.NoError(t, hold.Extend(t.Context(), extended, nil))
		s.OnEach(func(cmd Command) Fault {
			return Fault{Lost: cmd.Op == "release" && s.Now() < silent}
		})
		require.Error(t, hold.Release(t.Context()))
		Sleep(silent)
		sent := s.Sent("release", "x")
		assert.Greater(t, sent[len(sent)-1], silent-2*time.Second)
		Sleep(10 * time.Second)
		assert.Empty(t, s.IDs("x"), "it is free long before the new lease ends")
	})
}

// A process wakes up after a standstill, and asks about a hold that is over, before anything else
// has noticed that. It sends nothing: an Extend would keep the lock for long, and for nobody.
func TestNothingIsSentForAHoldThatIsOver(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, h *engine.Hold) error{
		"check":  func(t *testing.T, h *engine.Hold) error { return h.Check(t.Context()) },
		"extend": func(t *testing.T, h *engine.Hold) error { return h.Extend(t.Context(), time.Hour, nil) },
	} {
		RunBubble(t, name, func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			hold := Acquire(t, t.Context(), c.Lock("x"), FixedLease(10*time.Second))
			hold.PassLimit()
			require.ErrorIs(t, ask(t, hold), engine.ErrLost)
			require.Empty(t, s.Sent(name, "x"))
			require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
			Sleep(time.Second)
		})
	}
}

// shortening records the commands that shorten a lease.
type shortening struct {
	ttls   []time.Duration
	counts []int
	takes  time.Duration // how long each takes
	err    error         // its result
}

func (s *shortening) send(_ context.Context, ttl time.Duration, counts int) error {
	s.ttls, s.counts = append(s.ttls, ttl), append(s.counts, counts)
	time.Sleep(s.takes)
	return s.err
}

// A renewal has found that the lease lasts for a day, because the server's clock was set back. The
// lease is shortened to what was promised, or to the TTL of the renewals, and by a command with all
// counts of the client.
func TestShortenLeavesWhatWasPromised(t *testing.T) {
	const ttl, long = 30 * time.Second, 5 * time.Minute
	for _, tt := range []struct {
		name   string
		terms  func(*engine.Terms)
		act    func(t *testing.T, c *Client, h *engine.Hold)
		fault  Fault         // of an extension
		ttl    time.Duration // of the renewal; 0: ttl
		left   time.Duration // 0: a day
		least  time.Duration // of the new lease; 0: none is sent
		most   time.Duration
		counts int
	}{
		{name: "a renewed hold", least: ttl, most: ttl, counts: 1},
		{name: "no longer than promised", left: ttl + 400*time.Millisecond},
		{name: "a little longer", left: ttl + 600*time.Millisecond, least: ttl, most: ttl, counts: 1},
		{name: "extended", act: func(t *testing.T, _ *Client, h *engine.Hold) {
			require.NoError(t, h.Extend(t.Context(), long, nil))
		}, least: long - time.Second, most: long, counts: 1},
		{name: "extended, and no longer than that", act: func(t *testing.T, _ *Client, h *engine.Hold) {
			require.NoError(t, h.Extend(t.Context(), long, nil))
		}, left: long},
		{name: "extended, without an answer", fault: Fault{Lost: true}, act: func(t *testing.T, _ *Client, h *engine.Hold) {
			require.Error(t, h.Extend(t.Context(), long, nil))
		}, least: long - 10*time.Second, most: long, counts: 1},
		{name: "nested, with a longer lease", act: func(t *testing.T, c *Client, h *engine.Hold) {
			Acquire(t, Carry(h), c.Lock("x"), FixedLease(long))
		}, least: long - time.Second, most: long, counts: 2},
		{
			name: "a minimum hold", terms: func(terms *engine.Terms) { terms.MinHold = long },
			least: long - time.Second, most: long, counts: 1,
		},
		{name: "the longest hold was detached", act: func(t *testing.T, c *Client, h *engine.Hold) {
			Sleep(time.Minute) // its first lease would be over
			Acquire(t, Carry(h), c.Lock("x"), TTL(5*time.Second))
			require.True(t, h.Detach())
		}, left: ttl - time.Second, ttl: 5 * time.Second},
		{name: "released", act: func(t *testing.T, _ *Client, h *engine.Hold) { Release(t, h) }},
		{name: "lost", act: func(_ *testing.T, _ *Client, h *engine.Hold) {
			h.Ownership().EndAll(engine.Loss{Reason: engine.LossGone})
		}},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			c := s.Client(t, "a")
			terms := NewTerms(TTL(ttl))
			if tt.terms != nil {
				tt.terms(terms)
			}
			hold, err := c.Lock("x").Acquire(t.Context(), terms, engine.Forever)
			require.NoError(t, err)
			s.OnEach(func(cmd Command) (f Fault) {
				if cmd.Op == "extend" {
					f = tt.fault
				}
				return f
			})
			if tt.act != nil {
				tt.act(t, c, hold)
			}
			left := tt.left
			if left == 0 {
				left = 24 * time.Hour
			}
			var got shortening
			hold.Ownership().Shorten(cmp.Or(tt.ttl, ttl), left, got.send)
			Sleep(100 * time.Millisecond)
			if tt.least == 0 {
				assert.Empty(t, got.ttls)
				return
			}
			require.Len(t, got.ttls, 1)
			assert.GreaterOrEqual(t, got.ttls[0], tt.least)
			assert.LessOrEqual(t, got.ttls[0], tt.most+1) // instants are rounded
			assert.Equal(t, tt.counts, got.counts[0])
		})
	}
}

// Commands that extend a lease, and the one that shortens it, never are under way at the same time.
// Otherwise a late copy of the latter could undo what the former has promised.
func TestShortenAndExtendExcludeEachOther(t *testing.T) {
	const (
		ttl = 30 * time.Second
		day = 24 * time.Hour
		ms  = time.Millisecond
	)
	for _, tt := range []struct {
		name string
		err  error
		end  time.Duration // when the extension is sent
	}{
		{"answered", nil, 300 * ms},
		{"refused", ErrFatal, 300 * ms},
		{"in doubt", ErrNoAnswer, 1200 * ms}, // the server executes it no later
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			hold := Acquire(t, t.Context(), s.Client(t, "a").Lock("x"), TTL(ttl))
			o := hold.Ownership()
			got := shortening{takes: 300 * ms, err: tt.err}
			o.Shorten(ttl, day, got.send)
			o.Shorten(ttl, day, got.send)
			began := s.Now()
			require.NoError(t, hold.Extend(t.Context(), time.Minute, nil))
			sent := s.Sent("extend", "x")
			assert.Equal(t, tt.end, sent[len(sent)-1]-began)
			require.Len(t, got.ttls, 1, "one at a time")

			s.Script("extend", Fault{Reply: time.Second})
			extending := make(chan error)
			go func() { extending <- hold.Extend(t.Context(), time.Minute, nil) }()
			Sleep(100 * ms)
			o.Shorten(ttl, day, got.send)
			Sleep(100 * ms)
			require.Len(t, got.ttls, 1, "not while the lease is being extended")
			require.NoError(t, <-extending)
			o.Shorten(ttl, day, got.send)
			Sleep(2 * time.Second)
			require.Len(t, got.ttls, 2)
			Release(t, hold)
		})
	}
}

// The last release of an ownership begins while Extend waits to repeat a change of the count whose
// outcome is unknown. The release frees the lock, and hears that it did.
func TestExtendBesideTheLastReleaseFreesNothing(t *testing.T) {
	for i := range 100 { // whoever comes first
		RunBubble(t, fmt.Sprint(i), func(t *testing.T, s *Server) {
			r := s.Client(t, "a").Reader("x")
			outer := Acquire(t, t.Context(), r)
			inner := Acquire(t, Carry(outer), r)
			s.Script("count", Fault{Mute: true}, Fault{Delay: time.Second})
			require.Error(t, inner.Release(t.Context())) // it is repeated, and holds the wire lock for a second
			Sleep(100 * ms)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = outer.Extend(t.Context(), time.Minute, nil) // it may come too late
			}()
			Sleep(100 * ms)
			require.NoError(t, outer.Release(t.Context()))
			<-ended
		})
	}
}

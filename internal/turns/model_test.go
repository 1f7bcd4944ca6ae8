package turns_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// use is one acquisition of a user, and what comes before it.
type use struct {
	Pause, Patience, Section time.Duration
}

// news is something that a client hears after a pause, or that it can no longer hear.
type news struct {
	Pause time.Duration
	What  string
}

// allNews are the kinds of news. An ask that comes again may be for a hold of long ago, or for
// none.
var allNews = []string{
	"asks are lost", "asks arrive", "an ask for the present hold", "an ask for an old hold", "a reconnection",
}

// shared is what all users of a lock see, and what they must never see.
type shared struct {
	t *rapid.T

	mu     sync.Mutex
	inside int
	token  int64
	ids    []string // of all holds so far
}

// run makes the acquisitions of one user, and returns the longest one that succeeded or gave up.
func (o *shared) run(r *engine.Resource, uses []use, options ...func(*engine.Terms)) (longest time.Duration) {
	for _, u := range uses {
		time.Sleep(u.Pause)
		began := time.Now()
		hold, err := r.Acquire(context.Background(), NewTerms(options...), u.Patience)
		longest = max(longest, time.Since(began))
		if err != nil {
			assert.ErrorIs(o.t, err, engine.ErrNotAcquired)
			continue
		}
		o.mu.Lock()
		o.inside++
		assert.Equal(o.t, 1, o.inside, "users are inside at once")
		assert.Greater(o.t, hold.Token(), o.token, "tokens rise")
		o.token = hold.Token()
		o.ids = append(o.ids, hold.ID())
		o.mu.Unlock()
		time.Sleep(u.Section)
		o.mu.Lock()
		o.inside--
		o.mu.Unlock()
		assert.NoError(o.t, hold.Release(context.Background()))
	}
	return longest
}

// Users of one client take turns, and others want the lock too. Asks come early, late, again or not
// at all. At no time are two users inside, tokens rise, nobody waits for ever, and nothing stays
// behind.
func TestUsersTakeTurnsWithAnyAsks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		duration := func(of ...time.Duration) *rapid.Generator[time.Duration] { return rapid.SampledFrom(of) }
		uses := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) use {
			return use{
				Pause:    duration(0, 0, 10*time.Microsecond, ms, 7*ms, 150*ms).Draw(t, "pause"),
				Patience: duration(engine.Forever, engine.Forever, engine.NoWait, ms, 20*ms).Draw(t, "patience"),
				Section:  duration(0, 10*time.Microsecond, ms, 4*ms).Draw(t, "section"),
			}
		}), 1, 12)
		own := rapid.SliceOfN(uses, 1, 4).Draw(rt, "users who take turns")
		others := rapid.SliceOfN(uses, 0, 2).Draw(rt, "users of another client")
		local := rapid.SliceOfN(uses, 0, 1).Draw(rt, "users of the same client with other terms")
		heard := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) news {
			return news{duration(0, ms, 10*ms, 100*ms).Draw(t, "pause"), rapid.SampledFrom(allNews).Draw(t, "what")}
		}), 0, 10).Draw(rt, "news")
		cohort := duration(0, 5*ms, 50*ms).Draw(rt, "cohort")
		linger := duration(0, 5*ms, time.Hour).Draw(rt, "linger")
		away := duration(0, 2*ms, 12*ms, 40*ms).Draw(rt, "away")
		rapid.SyncTest(rt, func(rt *rapid.T) {
			s := NewServer()
			a, b := s.NewClient("a"), s.NewClient("b")
			s.SetAway(b, away)
			o := &shared{t: rt}
			var wg sync.WaitGroup
			var mu sync.Mutex
			var longest time.Duration
			start := func(r *engine.Resource, uses []use, options ...func(*engine.Terms)) {
				wg.Go(func() {
					took := o.run(r, uses, options...)
					mu.Lock()
					defer mu.Unlock()
					longest = max(longest, took)
				})
			}
			for _, uses := range own {
				start(a.Lock("x"), uses, InCohort(cohort), Lingering(linger))
			}
			for _, uses := range local {
				start(a.Lock("x"), uses)
			}
			for _, uses := range others {
				start(b.Lock("x"), uses)
			}
			wg.Go(func() {
				for _, n := range heard {
					time.Sleep(n.Pause)
					o.hear(s, a, n.What)
				}
				o.hear(s, a, "asks arrive")
			})
			wg.Wait()
			assert.Less(rt, longest, 20*time.Second, "somebody has waited for ever")
			a.GiveUpAllLingering()
			time.Sleep(time.Second)
			synctest.Wait()
			for _, name := range s.Names() {
				assert.Empty(rt, s.IDs(name), "it is still held")
			}
			for _, c := range []*Client{a, b} {
				require.NoError(rt, c.Shut(context.Background()))
				assert.Empty(rt, c.Leftovers())
			}
		})
	})
}

// hear makes a client hear some news.
func (o *shared) hear(s *Server, c *Client, what string) {
	o.mu.Lock()
	id := "a:01"
	if len(o.ids) > 0 {
		id = o.ids[0]
	}
	if len(o.ids) > 0 && what == "an ask for the present hold" {
		id = o.ids[len(o.ids)-1]
	}
	o.mu.Unlock()
	switch what {
	case "asks are lost", "asks arrive":
		s.Mu.Lock()
		s.Deaf = nil
		if what == "asks are lost" {
			s.Deaf = c
		}
		s.Mu.Unlock()
	case "a reconnection":
		c.GiveUpAllLingering()
	default:
		c.HandleAsk("x", id)
	}
}

// Another client wants a lock that the users of one client use without a pause. The other client
// gets the lock at the end of a turn, or when the cohort is over, however often the first client
// hears that the lock is wanted.
func TestAskEndsATenureHoweverOftenItComes(t *testing.T) {
	const away, section = ms, ms
	for _, tt := range []struct {
		name   string
		terms  func(*engine.Terms)
		asks   int // in addition to the other client's
		within time.Duration
	}{
		{"linger", Lingering(time.Hour), 0, 10 * ms},
		{"linger, asked again and again", Lingering(time.Hour), 5, 10 * ms},
		{"cohort", InCohort(30 * ms), 0, 45 * ms},
		{"both", func(t *engine.Terms) { t.Cohort, t.Linger = 30*ms, time.Hour }, 0, 45 * ms},
		{"both, asked again and again", func(t *engine.Terms) { t.Cohort, t.Linger = 30*ms, time.Hour }, 5, 45 * ms},
	} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.MayStayHeld()
			a, b := s.Client(t, "a"), s.Client(t, "b")
			s.SetAway(b, away)
			ctx, stop := context.WithCancel(t.Context())
			var users sync.WaitGroup
			for range 3 {
				users.Go(func() {
					for ctx.Err() == nil {
						hold, err := a.Lock("x").Acquire(context.Background(), NewTerms(tt.terms), engine.Forever)
						require.NoError(t, err)
						time.Sleep(section)
						for range tt.asks {
							a.HandleAsk("x", hold.ID())
						}
						assert.NoError(t, hold.Release(context.Background()))
					}
				})
			}
			time.Sleep(time.Second)
			for i := range 5 {
				began := time.Now()
				hold := Acquire(t, t.Context(), b.Lock("x"))
				assert.Less(t, time.Since(began), tt.within, fmt.Sprint("acquisition ", i))
				Release(t, hold)
				time.Sleep(7 * ms)
			}
			stop()
			users.Wait()
		})
	}
}

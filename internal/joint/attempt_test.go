package joint_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/joint"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// The error of a redlock names first what decided the acquisition: refusals, silence or errors of
// its members.
func TestRedReportsWhatItsMembersAnswer(t *testing.T) {
	const budget = 2 * time.Second
	short := strings.NewReplacer(
		`lock "x": `, "", "not acquired: held by other for another 1h0m0s", "held",
		"Redis unavailable: no answer for 1s: the wait is over", "silent for 1s",
		"Redis unavailable: no answer for 2s: no answer within the budget of a member", "silent for 2s",
		"no answer for 2s: no answer within the budget of a member", "silent for 2s",
		"Redis unavailable: connection refused", "down", "Redis unavailable: busy", "busy",
	)
	faults := map[rune]Fault{'d': {Err: ErrDown}, 'f': {Err: ErrFatal}, 'b': {Err: ErrBusy}, 'm': {Mute: true}}
	for _, tt := range []struct {
		name    string
		servers string // g: grants, h: held by another, d: down, f: a lasting error, b: a temporary refusal, m: mute
		limit   time.Duration
		at      time.Duration
		want    string // in short
	}{
		{
			name: "lasting errors alone prevent a majority", servers: "ggfff", limit: engine.Forever,
			want: "wrong type; wrong type; wrong type",
		},
		{
			name: "lasting errors among others", servers: "dfdff", limit: engine.Forever,
			want: "wrong type; wrong type; wrong type; down; down",
		},
		{
			name: "too few lasting errors", servers: "fdfdd", limit: engine.Forever,
			want: "down; down; down; wrong type; wrong type",
		},
		{
			name: "lasting errors, the others refuse", servers: "hfffh", limit: engine.NoWait,
			want: "wrong type; wrong type; wrong type",
		},
		{
			name: "refusals prevent a majority", servers: "hhhff", limit: engine.NoWait,
			want: "not acquired (held; wrong type; wrong type)",
		},
		{
			name: "refusals and failures together", servers: "hhffg", limit: engine.NoWait,
			want: "not acquired (held; wrong type; wrong type)",
		},
		{
			name: "a refusal decides", servers: "hffgg", limit: 10 * ms, at: 10 * ms,
			want: "not acquired (held; wrong type; wrong type)",
		},
		{
			name: "a majority of four is impossible", servers: "hhff", limit: engine.NoWait,
			want: "not acquired (held; wrong type; wrong type)",
		},
		{
			name: "refusals and one down", servers: "hhhdg", limit: engine.NoWait,
			want: "not acquired (held; connection refused)",
		},
		{
			name: "silence, beside a refusal", servers: "hmmmg", limit: engine.NoWait, at: budget,
			want: "silent for 2s; silent for 2s; silent for 2s",
		},
		{
			name: "refusals together with silence", servers: "hhmmg", limit: engine.NoWait, at: budget,
			want: "not acquired (held; silent for 2s; silent for 2s)",
		},
		{name: "silence for a moment", servers: "mmmgg", limit: 50 * ms, at: 50 * ms, want: "not acquired"},
		{
			name: "silence for a moment, and an error", servers: "mfmmg", limit: 50 * ms, at: 50 * ms,
			want: "wrong type; the wait is over; the wait is over; the wait is over",
		},
		{
			name: "silence for a moment, and one down", servers: "mdmmg", limit: 50 * ms, at: 50 * ms,
			want: "down; the wait is over; the wait is over; the wait is over",
		},
		{
			name: "silence until the limit", servers: "mmmgg", limit: time.Second, at: time.Second,
			want: "silent for 1s; silent for 1s; silent for 1s",
		},
		{
			name: "silence until the limit, and an error", servers: "mfmmg", limit: time.Second, at: time.Second,
			want: "silent for 1s; silent for 1s; silent for 1s; wrong type",
		},
		{
			name: "silence until the limit, and one down", servers: "mdmmg", limit: time.Second, at: time.Second,
			want: "down; silent for 1s; silent for 1s; silent for 1s",
		},
		{
			name: "silence, and an error", servers: "mfmmg", limit: engine.Forever, at: budget,
			want: "silent for 2s; silent for 2s; silent for 2s; wrong type",
		},
		{
			name: "temporary refusals", servers: "bbbgg", limit: time.Second, at: time.Second,
			want: "Redis unavailable for 1s: busy; busy; busy; gave up after 1s",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, len(tt.servers))
				for i, c := range tt.servers {
					switch s := k.servers[i]; c {
					case 'g':
					case 'h':
						s.Seize("x", "other", time.Hour)
					default:
						s.OnEach(func(cmd Command) Fault {
							if cmd.Op == "acquire" {
								return faults[c]
							}
							return Fault{}
						})
					}
				}
				began := time.Now()
				_, err := redOf(k.clients).Acquire(t.Context(), NewTerms(), tt.limit)
				assert.Equal(t, tt.want, short.Replace(err.Error()))
				assert.Equal(t, strings.HasPrefix(tt.want, "not acquired"), errors.Is(err, engine.ErrNotAcquired))
				assert.False(t, failure.Of(err).InDoubt(), "the attempt on the silent member is rolled back")
				assert.Equal(t, tt.at, time.Since(began))
				k.each(len(tt.servers), func(s *Server) { s.ResetFaults(); s.Free("x") })
				Sleep(time.Minute)
				k.requireFree(t)
			})
		})
	}
}

// A multilock holds its first member for a random time, and then lets it go. The time doubles on
// average with each round, up to a limit. It is at most half of a lease that is not renewed.
func TestHowLongAMultiWaitsForAMember(t *testing.T) {
	const longest = 2 * time.Second
	for _, tt := range []struct {
		name    string
		options []func(*engine.Terms)
		most    time.Duration
	}{{"renewed", nil, longest}, {"not renewed", []func(*engine.Terms){FixedLease(1600 * ms)}, 800 * ms}} {
		RunBubble(t, tt.name, func(t *testing.T, s *Server) {
			s.Seize("y", "other", 0)
			s.OnEach(func(cmd Command) Fault {
				switch {
				case cmd.Op == "acquire" && cmd.Name == "x": // it is free: the next round begins
					go s.Seize("y", "other", 0)
					return Fault{Delay: ms}
				case cmd.Op == "release" && cmd.Name == "x":
					time.AfterFunc(ms, func() { s.Free("y") })
				}
				return Fault{}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := s.Client(t, "a").MultiOf("x", "y").Acquire(ctx, NewTerms(tt.options...), engine.Forever)
			require.ErrorIs(t, err, engine.ErrNotAcquired)
			acquired, released := s.Sent("acquire", "x"), s.Sent("release", "x")
			require.Greater(t, len(released), 25)
			memberWait := joint.FirstMemberWait
			for i, at := range released[:len(released)-1] {
				held := at - acquired[i] - ms
				assert.GreaterOrEqual(t, held, memberWait/2, "round %d", i)
				assert.Less(t, held, memberWait/2+memberWait, "round %d", i)
				memberWait = min(2*memberWait, tt.most)
			}
			s.ResetFaults()
			s.Free("y")
			Sleep(time.Minute)
		})
	}
}

// If members are lost before the others have answered, an acquisition that waits tries again.
func TestJointAcquiresAgainAfterALoss(t *testing.T) {
	const ttl = 40 * ms // shorter than the wait of a multilock for a member, and than the budget of a member of a redlock
	for _, tt := range []struct {
		name         string
		kind         func(*joint.Lock)
		held         string // by another; "": none
		lateAttempts int    // whose last answer is late
		limit        time.Duration
		acquires     bool
		reportsLoss  bool // in its error; the last attempt of a multilock is cut short instead
	}{
		{name: "multi", kind: joint.NewMulti, lateAttempts: 1, limit: engine.Forever, acquires: true},
		{name: "multi", kind: joint.NewMulti, lateAttempts: 100, limit: time.Second},
		{name: "red", kind: joint.NewRed, held: "x", lateAttempts: 1, limit: engine.Forever, acquires: true},
		{name: "red", kind: joint.NewRed, held: "x", lateAttempts: 100, limit: time.Second, reportsLoss: true},
	} {
		RunBubble(t, fmt.Sprint(tt.name, " ", tt.held, " ", tt.limit), func(t *testing.T, s *Server) {
			c := s.Client(t, "a")
			attempts := 0
			s.OnEach(func(cmd Command) (f Fault) {
				if cmd.Op == "acquire" && cmd.Name == "z" {
					attempts++
					if attempts <= tt.lateAttempts {
						f.Reply = ttl
					}
				}
				f.Lost = cmd.Op == "renew"
				return f
			})
			if tt.held != "" {
				s.Seize(tt.held, "other", 0)
			}
			terms, last := NewTerms(TTL(ttl)), NewTerms(TTL(time.Second))
			terms.ForMember = func(i int) *engine.Terms {
				if i == 2 {
					return last
				}
				return terms
			}
			r := c.Joint(tt.name, tt.kind, c.Lock("x"), c.Lock("y"), c.Lock("z"))
			hold, err := r.Acquire(t.Context(), terms, tt.limit)
			if tt.acquires {
				require.NoError(t, err)
				assert.Equal(t, 2, attempts)
				Release(t, hold)
			} else {
				require.ErrorIs(t, err, engine.ErrNotAcquired)
				if tt.reportsLoss {
					require.ErrorContains(t, err, "lost meanwhile")
				}
				assert.Greater(t, attempts, 1)
			}
			s.Free("x")
			Sleep(time.Minute)
		})
	}
}

// The caller stops while a redlock waits for its majority.
func TestRedWhoseCallerStopsKeepsNothing(t *testing.T) {
	onCluster(t, 5, func(t *testing.T, k *cluster) {
		k.each(5, (*Server).KeepLeases)
		k.each(3, func(s *Server) { s.OnEach(silent) })
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errStopped) })
		require.ErrorIs(t, ErrOf(redOf(k.clients).Acquire(ctx, NewTerms(), engine.Forever)), errStopped)
		for _, s := range k.servers[3:] {
			s.RequireFree(t)
		}
		k.each(3, (*Server).ResetFaults)
		Sleep(time.Minute)
	})
}

// A request under a hold of a member does not wait behind one that waits for that hold.
func TestRedUnderAHoldOfAMemberIsNotInTheQueue(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		k.servers[1].Seize("x", "other", 0)
		member := Acquire(t, t.Context(), k.clients[0].Lock("x"))
		r := redOf(k.clients)
		waiting := StartAcquire(t, t.Context(), r)
		Sleep(time.Second)
		require.False(t, waiting.Returned())
		hold, err := r.Acquire(Carry(member), NewTerms(), time.Second)
		require.NoError(t, err)
		Release(t, hold, member)
		Release(t, waiting.AwaitHold())
		k.servers[1].Forget("x")
		Sleep(time.Second)
	})
}

// A multilock of another client's members waits in that client's queues. Its own client closes.
func TestMultiOfAnotherClientEndsWithItsOwn(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c, other := s.Client(t, "a"), s.Client(t, "b")
		s.Seize("y", "other", 0)
		call := StartAcquire(t, t.Context(), c.Joint("multi", joint.NewMulti, other.Lock("x"), other.Lock("y")))
		Sleep(time.Minute)
		require.NoError(t, c.Shut(t.Context()))
		require.ErrorIs(t, call.AwaitErr(), engine.ErrClosed)
		assert.Equal(t, time.Minute, s.Now())
		s.Free("y")
		Sleep(time.Minute)
	})
}

// If several requests have a few members each, none of them has a majority. Then a redlock pauses
// for a random time, which depends on how long its attempt took.
func TestPauseOfARedAfterASplit(t *testing.T) {
	for _, tt := range []struct{ answer, most time.Duration }{
		{time.Microsecond, 5 * ms}, {2 * ms, 32 * ms}, {100 * ms, 250 * ms},
	} {
		runCluster(t, tt.answer.String(), 3, func(t *testing.T, k *cluster) {
			for i, s := range k.servers {
				if i > 0 {
					s.Seize("x", "other", 0)
				}
				s.OnEach(func(cmd Command) (f Fault) {
					if cmd.Op == "acquire" {
						f.Delay = tt.answer
					}
					return f
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			call := StartAcquire(t, ctx, redOf(k.clients))
			var pause func() time.Duration // before an attempt that messages cause
			pause = func() time.Duration {
				Sleep(time.Second)
				woken := k.servers[0].Now()
				k.servers[1].Message("x")
				k.servers[2].Message("x")
				Sleep(time.Second)
				for _, at := range k.servers[2].Sent("acquire") {
					if at >= woken {
						return at - woken
					}
					if at+tt.answer >= woken { // the waiter looked by itself
						break
					}
				}
				return pause()
			}
			longest := time.Duration(0)
			for range 60 {
				longest = max(longest, pause())
			}
			assert.Less(t, longest, tt.most)
			assert.Greater(t, longest, tt.most*3/4)
			k.servers[0].Seize("x", "other", 0)
			pause()
			assert.Zero(t, pause(), "nobody has some of them only")
			cancel()
			require.Error(t, call.AwaitErr())
			k.each(3, func(s *Server) { s.ResetFaults(); s.Free("x") })
			Sleep(time.Minute)
		})
	}
}

// Each attempt needs messages of a majority since the one before. A subscription that may have
// missed some counts as all of them.
func TestRedCountsMessagesAnew(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		k.each(3, func(s *Server) { s.Seize("x", "other", 0) })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		call := StartAcquire(t, ctx, redOf(k.clients))
		Sleep(500 * ms)
		attempts := func() int { return len(k.servers[2].Sent("acquire")) }
		before := attempts()
		for round := range 2 {
			k.servers[0].Message("x")
			Settle()
			k.servers[0].Message("x")
			Settle()
			require.Equal(t, before+round, attempts(), "one server is no majority")
			k.servers[1].Message("x")
			Settle()
			require.Equal(t, before+round+1, attempts())
		}
		k.servers[0].Reconnected()
		Settle()
		require.Equal(t, before+3, attempts())
		cancel()
		require.Error(t, call.AwaitErr())
	})
}

package primitives_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// lossTest is a hold in a bubble, of a client whose events and log are recorded.
type lossTest struct {
	*fixture.BubbleTest
	c     *primitives.Client
	heard *fixture.Recorder
	log   *fixture.LogBuffer
	hold  *primitives.Hold
}

// Each case is a hold that is lost, and the reason that is reported everywhere: by the cause of its
// context, its methods, the event and the log.
func TestC27LossReportsItsReason(t *testing.T) {
	t.Parallel()
	named := func(c *primitives.Client) *primitives.Lock { return c.Lock("orders:42") }
	multi := func(c *primitives.Client) *primitives.Lock {
		return primitives.NewMultiLock([]*primitives.Lock{c.Lock("a"), c.Lock("orders:42")})
	}
	forget := func(t *testing.T, x *lossTest) {
		require.NoError(t, x.S.Client(t).Del(t.Context(), "orders:42").Err())
	}
	for _, tt := range []struct {
		name   string
		lock   func(c *primitives.Client) *primitives.Lock
		opts   []primitives.Option
		lose   func(t *testing.T, x *lossTest) // after two seconds
		within time.Duration
		reason primitives.LossReason
		text   string
	}{
		{
			name: "deleted", lose: forget, within: 10 * time.Second, reason: primitives.LossGone,
			text: `lost: gone: Redis does not have this hold any longer`,
		},
		{
			name: "deleted, and Check finds it", lose: func(t *testing.T, x *lossTest) {
				forget(t, x)
				require.ErrorIs(t, x.hold.Check(t.Context()), primitives.ErrLost)
			},
			reason: primitives.LossGone, text: `lost: gone: Redis does not have this hold any longer`,
		},
		{
			name: "released by force", lose: func(t *testing.T, x *lossTest) {
				held := fixture.ForceRelease(t, named(fixture.NewClient(t, x.S.Client(t))))
				require.True(t, held)
			},
			within: 200 * time.Millisecond, reason: primitives.LossForced,
			text: `lost: forced: released or taken over by id or by force`,
		},
		{
			name: "a fixed lease, released by id", opts: []primitives.Option{primitives.WithLease(time.Hour)},
			lose: func(t *testing.T, x *lossTest) {
				require.NoError(t, named(fixture.NewClient(t, x.S.Client(t))).ReleaseID(t.Context(), x.hold.ID()))
			},
			within: 200 * time.Millisecond, reason: primitives.LossForced,
			text: `lost: forced: released or taken over by id or by force`,
		},
		{
			name: "adopted", lock: func(c *primitives.Client) *primitives.Lock { return c.FencedLock("orders:42") },
			lose: func(t *testing.T, x *lossTest) {
				hold, err := fixture.NewClient(t, x.S.Client(t)).FencedLock("orders:42").Adopt(t.Context(), x.hold.ID())
				t.Cleanup(func() { runtime.KeepAlive(hold) })
				require.NoError(t, err)
			},
			within: 200 * time.Millisecond, reason: primitives.LossForced,
			text: `lost: forced: released or taken over by id or by force`,
		},
		{
			name: "no answer", lose: func(_ *testing.T, x *lossTest) { x.P.BlackHole(true) },
			within: 30 * time.Second, reason: primitives.LossExpired, text: `lost: expired: no answer from Redis for 29.7s`,
		},
		{
			name: "no answer after an extension", lose: func(t *testing.T, x *lossTest) {
				require.NoError(t, x.hold.Extend(t.Context(), time.Minute))
				x.P.BlackHole(true)
			},
			within: time.Minute, reason: primitives.LossExpired, text: `lost: expired: no answer from Redis for 1m1`,
		},
		{
			name: "the lease is over", opts: []primitives.Option{primitives.WithLease(5 * time.Second)},
			lose: func(*testing.T, *lossTest) {}, within: 3 * time.Second, reason: primitives.LossLimit,
			text: `lost: limit: its lease or maximum hold time is over`,
		},
		{
			name: "the maximum hold time is over", opts: []primitives.Option{primitives.WithMaxHold(5 * time.Second)},
			lose: func(*testing.T, *lossTest) {}, within: 3 * time.Second, reason: primitives.LossLimit,
			text: `lost: limit: its lease or maximum hold time is over`,
		},
		{
			name: "a renewed hold at its maximum hold time",
			opts: []primitives.Option{primitives.WithWatchdog(time.Second), primitives.WithMaxHold(5 * time.Second)},
			lose: func(*testing.T, *lossTest) {}, within: 3 * time.Second, reason: primitives.LossLimit,
			text: `lost: limit: its lease or maximum hold time is over`,
		},
		{
			name: "a member", lock: multi, lose: forget, within: 10 * time.Second, reason: primitives.LossMembers,
			text: `lost: members: too few are left: redlatch: lock "orders:42" lost: gone: Redis does not`,
		},
	} {
		fixture.RunBubble(t, tt.name, func(t *testing.T, b *fixture.BubbleTest) {
			x := &lossTest{BubbleTest: b, heard: &fixture.Recorder{}, log: &fixture.LogBuffer{}}
			x.c = fixture.NewClient(t, b.P.Client(t), x.heard.Option(), x.log.Logger())
			if tt.lock == nil {
				tt.lock = named
			}
			l := tt.lock(x.c)
			x.hold = fixture.Acquire(t, t.Context(), l, tt.opts...)
			ctx := x.hold.Context()
			time.Sleep(2 * time.Second)
			require.NoError(t, x.hold.Check(t.Context()))
			began := time.Now()
			tt.lose(t, x)
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute + time.Second):
			}
			assert.LessOrEqual(t, time.Since(began), tt.within)
			synctest.Wait()

			loss, ok := errors.AsType[*primitives.LossError](context.Cause(ctx))
			require.True(t, ok, "%v", context.Cause(ctx))
			kind := x.heard.All(primitives.EventAcquired)[0].Lock
			assert.Equal(t, []any{tt.reason, kind, l.Name(), x.hold.ID()}, []any{loss.Reason, loss.Kind, loss.Name, loss.ID})
			assert.Equal(t, tt.reason == primitives.LossExpired, loss.Silent > 0)
			require.ErrorIs(t, loss, primitives.ErrLost)
			require.ErrorContains(t, loss, "redlatch: "+kind+` "`+l.Name()+`" `+tt.text)

			require.Len(t, x.heard.All(primitives.EventLost), 1)
			require.ErrorIs(t, x.heard.All(primitives.EventLost)[0].Err, loss)
			var mine []map[string]any
			for _, record := range x.log.Records(t, "hold lost") {
				if record["kind"] == kind {
					mine = append(mine, record)
				}
			}
			require.Len(t, mine, 1)
			for key, want := range map[string]any{
				"level": "WARN", "name": l.Name(), "id": x.hold.ID(), "reason": string(tt.reason), "error": loss.Error(),
			} {
				assert.Equal(t, want, mine[0][key], key)
			}

			x.P.Heal()
			for operation, err := range map[string]error{
				"check": x.hold.Check(t.Context()), "extend": x.hold.Extend(t.Context(), time.Minute),
				"release": x.hold.Release(t.Context()),
			} {
				require.ErrorIs(t, err, loss, operation)
				require.ErrorContains(t, err, "redlatch: "+operation+" "+kind+` "`+l.Name()+`": `+tt.text)
			}
			time.Sleep(time.Minute) // go-redis ends its dials
		})
	}
}

func TestC27DoReturnsTheReason(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		err := b.L.Do(t.Context(), func(ctx context.Context) error {
			require.NoError(t, b.S.Client(t).Del(t.Context(), "l").Err())
			<-ctx.Done()
			return context.Cause(ctx)
		})
		loss, ok := errors.AsType[*primitives.LossError](err)
		require.True(t, ok)
		require.Equal(t, primitives.LossGone, loss.Reason)
		require.EqualError(t, err, `redlatch: lock "l" lost: gone: Redis does not have this hold any longer`)
	})
}

// TestC27FailedRenewalsAreLogged checks that the first of several failed renewals is a warning,
// that each one is logged at the level of debugging, and that the first one that works again is
// logged once.
func TestC27FailedRenewalsAreLogged(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		log, details, heard := &fixture.LogBuffer{}, &fixture.LogBuffer{}, &fixture.Recorder{}
		logger := slog.New(slog.NewMultiHandler(
			slog.NewJSONHandler(log, nil), slog.NewJSONHandler(details, &slog.HandlerOptions{Level: slog.LevelDebug}),
		))
		c := fixture.NewClient(t, b.P.Client(t, fixture.ShortTimeouts), primitives.WithLogger(logger), heard.Option())
		holds := []*primitives.Hold{fixture.Acquire(t, t.Context(), c.Lock("x")),
			fixture.Acquire(t, t.Context(), c.Lock("y"))}
		time.Sleep(9 * time.Second)
		b.P.Cut()
		time.Sleep(10 * time.Second)
		b.P.Heal()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		failed, again := log.Records(t, "renewal failed"), log.Records(t, "renewal works again")
		require.Len(t, failed, len(holds))
		require.Len(t, details.Records(t, "renewal failed"), len(heard.All(primitives.EventRenewFailed)))
		require.Greater(t, len(heard.All(primitives.EventRenewFailed)), 4)
		require.Len(t, again, len(holds))
		for i, hold := range holds {
			require.NoError(t, hold.Check(t.Context()))
			require.Equal(t, []any{"WARN", "lock", hold.Name(), hold.ID(), "no answer"},
				[]any{failed[i]["level"], failed[i]["kind"], failed[i]["name"], failed[i]["id"], failed[i]["reason"]})
			require.NotEmpty(t, failed[i]["error"])
			require.Equal(t, "INFO", again[i]["level"])
		}
		require.Empty(t, log.Records(t, "hold lost"))
	})
}

// TestC10HoldIsLostDuringACall loses a hold while a call waits for its answer.
func TestC10HoldIsLostDuringACall(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(ctx context.Context, hold *primitives.Hold) error{
		"Check":  func(ctx context.Context, hold *primitives.Hold) error { return hold.Check(ctx) },
		"Extend": func(ctx context.Context, hold *primitives.Hold) error { return hold.Extend(ctx, time.Minute) },
	} {
		fixture.RunBubble(t, name, func(t *testing.T, b *fixture.BubbleTest) {
			log := &fixture.LogBuffer{}
			c := fixture.NewClient(t, b.P.Client(t, func(o *redis.Options) { o.ReadTimeout = 20 * time.Second }),
				primitives.WithCommandTimeout(20*time.Second), log.Logger())
			hold := fixture.Acquire(t, t.Context(), c.Lock("l"), primitives.WithLease(5*time.Second))
			require.NoError(t, hold.Check(t.Context())) // loads the script
			_ = hold.Extend(t.Context(), time.Second)
			b.P.Delay(6 * time.Second)
			err := call(t.Context(), hold)
			require.ErrorIs(t, err, primitives.ErrLost)
			require.ErrorIs(t, err, context.Cause(hold.Context()))
			synctest.Wait()
			require.Len(t, log.Records(t, "hold lost"), 1)
			b.P.Heal()
			time.Sleep(time.Minute)
		})
	}
}

// TestC10LossIsFoundAsSoonAfterAnExtension empties Redis. Whatever was promised beyond the TTL, the
// next renewal finds the loss.
func TestC10LossIsFoundAsSoonAfterAnExtension(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t), primitives.WithDefaults(primitives.WithWatchdog(3*time.Second)))
	nest := func(l *primitives.Lock, opts ...primitives.Option) *primitives.Hold {
		outer := fixture.Acquire(t, t.Context(), l)
		_ = fixture.Acquire(t, outer.Context(), l, opts...)
		return outer
	}
	extended := func(l fixture.Handle, opts ...primitives.Option) *primitives.Hold {
		hold := fixture.Acquire(t, t.Context(), l, opts...)
		require.NoError(t, hold.Extend(t.Context(), 20*time.Second))
		return hold
	}
	pool := c.PermitExpirableSemaphore("permits")
	require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), 1)))
	holds := map[string]*primitives.Hold{
		"lock":    extended(c.Lock("lock")),
		"fair":    extended(c.FairLock("fair")),
		"reader":  extended(c.RWLock("rw").Reader()),
		"permits": extended(pool),
		"multi": extended(
			primitives.NewMultiLock([]*primitives.Lock{c.Lock("m1"), c.Lock("m2")}),
		),
		"beyond its maximum hold time":         extended(c.Lock("limited"), primitives.WithMaxHold(10*time.Second)),
		"beside a nested hold with a lease":    nest(c.Lock("lease"), primitives.WithLease(20*time.Second)),
		"beside a nested hold with a long TTL": nest(c.Lock("long"), primitives.WithWatchdog(time.Minute)),
		"beside an extended nested hold":       nest(c.Lock("nested")),
		"with a maximum hold time below a TTL": fixture.Acquire(t, t.Context(), c.Lock("max"),
			primitives.WithMaxHold(2900*time.Millisecond)),
	}
	time.Sleep(1500 * time.Millisecond)
	for _, hold := range holds {
		fixture.RequireLive(t, hold.Context())
	}
	require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
	began := time.Now()
	for name, hold := range holds {
		fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		assert.Less(t, time.Since(began), 4*time.Second, "the TTL is 3 s: %s", name)
		loss, _ := errors.AsType[*primitives.LossError](context.Cause(hold.Context()))
		t.Log(name, time.Since(began).Round(time.Millisecond), loss.Reason)
	}
}

// TestC10RestartWithoutDataIsToldAtOnce restarts a server that keeps nothing. Holds of each age,
// renewed or with a fixed lease, are asked about at once. Renewals would come every 10 s.
func TestC10RestartWithoutDataIsToldAtOnce(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(t *testing.T, s *redistest.Server){
		"a quick restart": func(t *testing.T, s *redistest.Server) { require.NoError(t, s.Restart()) },
		"down for a while": func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Kill())
			time.Sleep(1500 * time.Millisecond)
			require.NoError(t, s.Restart())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Fresh(t)
			lease := primitives.WithLease(time.Minute)
			old, young := fixture.NewClient(t, s.Client(t)), fixture.NewClient(t, s.Client(t))
			holds := map[string]*primitives.Hold{
				"old, renewed":     fixture.Acquire(t, t.Context(), old.Lock("a")),
				"old, fixed lease": fixture.Acquire(t, t.Context(), old.RWLock("b").Reader(), lease),
			}
			extended := fixture.Acquire(t, t.Context(), old.Lock("e"))
			require.NoError(t, extended.Extend(t.Context(), time.Hour))
			holds["old, extended"] = extended
			fixture.AwaitWaiter(t, s, "redlatch_holder:")
			for key, c := range map[string]*primitives.Client{"young": young, "young, of a client that listens": old} {
				holds[key+", renewed"] = fixture.Acquire(t, t.Context(), c.FairLock(key))
				holds[key+", fixed lease"] = fixture.Acquire(t, t.Context(), c.FencedLock(key+"f"), lease)
			}
			stop(t, s)
			began := time.Now()
			for key, hold := range holds {
				fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
				assert.Less(t, time.Since(began), 3*time.Second, key)
				t.Log(key, time.Since(began).Round(time.Millisecond))
			}
		})
	}
}

// When Redis comes back, a client asks about its holds with WithOwner by another command than about
// the others. This client has both, and only the holds whose keys were deleted meanwhile are lost.
func TestC10QuestionsAboutHoldsOfCallersIDs(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p, name := s.Proxy(t), redistest.Name(t)
		c := fixture.NewClient(t, p.Client(t))
		var kept, lost []*primitives.Hold
		take := func(l *primitives.Lock, opts ...primitives.Option) {
			hold := fixture.Acquire(t, t.Context(), l, append(opts, primitives.WithLease(time.Hour))...)
			if strings.HasSuffix(l.Name(), "lost") {
				lost = append(lost, hold)
			} else {
				kept = append(kept, hold)
			}
		}
		owner := primitives.WithOwner("me")
		for _, suffix := range []string{"1", "2", "lost"} {
			take(c.Lock(name + suffix))
			take(c.Lock(name+"me"+suffix), owner)
			take(c.RWLock(name + "rw" + suffix).Reader())
			take(c.RWLock(name+"rw"+suffix).Reader(), owner)
		}
		fixture.AwaitWaiter(t, s, "redlatch_holder:{"+strings.ReplaceAll(c.ID(), "-", "")[:16])
		for _, hold := range lost {
			require.NoError(t, s.Client(t).Del(t.Context(), hold.Name()).Err())
		}
		require.NotZero(t, p.CutPubSub())
		for _, hold := range lost {
			fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		}
		for _, hold := range kept {
			require.NoError(t, hold.Check(t.Context()), "%s %s", hold.Name(), hold.ID())
			fixture.RequireLive(t, hold.Context())
		}
	})
}

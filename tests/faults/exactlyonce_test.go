package faults

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C16: a command that was sent again, because its reply was lost, has the effect and the answer of
// the first execution. This holds for every method of a lock.
func TestC16RepeatedCommandsActOnce(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		p := x.S.Proxy(t)
		l := fixture.NewClient(t, p.Client(t, fixture.FastRetries)).Lock(x.Name)
		for _, lost := range []int{1, 2} {
			repeat := func() { p.Heal(); p.DropReplies(lost, fixture.Script) }
			ctx, name := t.Context(), strconv.Itoa(lost)+" lost replies"
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
				repeat()
				hold := fixture.Acquire(t, ctx, l, opts...)
				require.Equal(t, "1", x.Count(t, hold.ID()), name)
				repeat()
				in := fixture.Acquire(t, hold.Context(), l)
				require.Equal(t, "2", x.Count(t, hold.ID()), name)
				repeat()
				require.NoError(t, in.Extend(ctx, time.Minute))
				repeat()
				require.NoError(t, in.Check(ctx))
				repeat()
				require.NoError(t, l.ReleaseID(ctx, hold.ID()))
				require.Equal(t, "1", x.Count(t, hold.ID()), name)
				repeat()
				adopted, err := l.Adopt(ctx, hold.ID())
				require.NoError(t, err, name)
				require.Equal(t, map[string]string{adopted.ID(): "1"}, fixture.Fields(t, x.S, x.Name))
				repeat()
				fixture.Release(t, adopted)
				require.Empty(t, fixture.Fields(t, x.S, x.Name))
				fixture.Acquire(t, ctx, l, opts...)
				repeat()
				held := fixture.ForceRelease(t, l)
				require.True(t, held, name)
				repeat()
				require.ErrorIs(t, l.ReleaseID(ctx, "nobody"), primitives.ErrNotHeld)
			}
		}
	})
}

// C16: an id of WithOwner may come back after it was adopted. A late copy of the adoption does not
// take it.
func TestC16LateCopyOfAnAdoptionTakesNothing(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		p := x.S.Proxy(t)
		l := fixture.NewClient(t, p.Client(t)).Lock(x.Name)
		hold := fixture.Acquire(t, t.Context(), l, primitives.WithOwner("o"))
		p.DropReplies(1, fixture.Script)
		p.Record()
		adopted := fixture.Adopt(t, l, hold.ID())
		adoption := p.Commands()[0]
		p.Heal()
		fixture.Release(t, adopted)
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		later := fixture.Acquire(t, t.Context(), l, primitives.WithOwner("o"))
		require.Equal(t, int64(0), fixture.Resend(x.Rdb, adoption).Val())
		require.Equal(t, map[string]string{"o": "1"}, fixture.Fields(t, x.S, x.Name))
		fixture.Release(t, later)
	})
}

// C16: the first attempt of an adoption gets no answer, and a later one finds that the id holds
// nothing. If Redis executes the first one when the id of WithOwner holds again, it takes nothing.
func TestC16LateCopyOfARefusedAdoptionTakesNothing(t *testing.T) {
	t.Parallel()
	fixture.EachKind(t, kinds.Locks(), func(t *testing.T, s *redistest.Server, k kinds.Kind) {
		p, name := s.Proxy(t), redistest.Name(t)
		l := k.Lock(fixture.NewClient(t, p.Client(t, fixture.FastRetries)), name)
		p.DropCommands(1, fixture.Script)
		p.Record()
		require.ErrorIs(t, fixture.ErrOf(l.Adopt(t.Context(), "o")), primitives.ErrNotHeld)
		copies := fixture.ScriptsOf(p)
		hold := fixture.Acquire(t, t.Context(), l, primitives.WithOwner("o"))
		fixture.Replay(t, s.Client(t), copies)
		require.NoError(t, hold.Check(t.Context()))
		fixture.Release(t, hold)
		fixture.RequireClean(t, s, name, k.Stays(name)...)
	})
}

// C16: a late copy of an acquisition does not shorten the TTL that Extend has set since.
func TestC16LateCopyDoesNotShortenTheTTL(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		p := x.S.Proxy(t)
		l := fixture.NewClient(t, p.Client(t)).Lock(x.Name)
		againAll := func() {
			for _, c := range fixture.ScriptsOf(p) {
				_ = fixture.Resend(x.Rdb, c).Err()
				require.Greater(t, x.Rdb.PTTL(t.Context(), x.Name).Val(), 50*time.Minute)
			}
		}
		p.Record()
		hold := fixture.Acquire(t, t.Context(), l)
		require.NoError(t, hold.Extend(t.Context(), time.Hour))
		againAll()
		adopted := fixture.Adopt(t, l, hold.ID())
		require.NoError(t, adopted.Extend(t.Context(), time.Hour))
		againAll()
		fixture.Release(t, adopted)
	})
}

// C16: the same for the leases of permits, and for a copy of the release that has handed them off.
func TestC16LateCopyDoesNotShortenTheLeaseOfPermits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		p := s.Proxy(t)
		c := fixture.NewClient(t, p.Client(t))
		sem := c.PermitExpirableSemaphore(redistest.Name(t))
		fixture.InitPool(t, sem, 1)
		p.Record()
		extendAndRepeatAll := func(hold *primitives.Hold) {
			require.NoError(t, hold.Extend(t.Context(), time.Hour))
			for _, command := range fixture.ScriptsOf(p) {
				_ = fixture.Resend(s.Client(t), command).Err()
				require.Greater(t, fixture.InfoOf(t, sem).TTL, 50*time.Minute, "%q", command.Args)
			}
		}
		first := fixture.Acquire(t, t.Context(), sem)
		extendAndRepeatAll(first)
		waiter := fixture.StartAcquire(t.Context(), sem)
		fixture.AwaitWaiters(t, c, 1)
		fixture.Release(t, first)
		second := fixture.AwaitHold(t, waiter)
		extendAndRepeatAll(second)
		adopted := fixture.Adopt(t, sem, second.ID())
		extendAndRepeatAll(adopted)
		fixture.Release(t, adopted)
	})
}

// C16: an acquisition that gets no answer is rolled back, before the call returns or in the
// background.
func TestC16AcquisitionOfUnknownOutcomeIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
		fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
			p := x.S.Proxy(t)
			l := fixture.NewClient(t, p.Client(t, fixture.FastRetries, fixture.NoRetries)).Lock(x.Name)
			fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
			p.DropReplies(1, fixture.Script)
			_, err := l.Acquire(t.Context(), opts...)
			require.Error(t, err)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Empty(t, fixture.Fields(t, x.S, x.Name))
			p.DropReplies(2, fixture.Script) // of the acquisition and of the first rollback
			require.Error(t, fixture.ErrOf(l.Acquire(t.Context(), opts...)))
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return len(fixture.Fields(t, x.S, x.Name)) == 0
			}, "rolled back in the background")

			// The rollback above may still be repeated, and would use up the dropped reply, so the
			// nested acquisition needs a client and a proxy of its own.
			p = x.S.Proxy(t)
			l = fixture.NewClient(t, p.Client(t, fixture.FastRetries, fixture.NoRetries)).Lock(x.Name)
			outer := fixture.Acquire(t, t.Context(), l, opts...)
			p.DropReplies(1, fixture.Script)
			require.Error(t, fixture.ErrOf(l.Acquire(outer.Context())))
			require.Equal(t, "1", x.Count(t, outer.ID()), "the nested count is rolled back")
			fixture.Release(t, outer)
		})
	}
}

// C16: the server is stopped while locks are acquired and released. When it goes on, it executes
// the commands in its socket buffers, whose calls have long returned. All locks must be free
// afterwards.
func TestC16HungServerLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := fixture.NewClient(t, s.Client(t, fixture.ShortTimeouts))
	name := redistest.Name(t)
	lock := func(i int) *primitives.Lock { return c.Lock(name + strconv.Itoa(i)) }
	const n = 30
	holds := make([]*primitives.Hold, n)
	for i := range holds {
		holds[i] = fixture.Acquire(t, t.Context(), lock(i))
	}
	require.NoError(t, s.Pause())
	failed := make(chan error, 2*n)
	for i := range n {
		go func() { failed <- holds[i].Release(t.Context()) }()
		go func() { _, err := lock(n + i).Acquire(t.Context()); failed <- err }()
	}
	for range 2 * n {
		require.Error(t, <-failed)
	}
	require.NoError(t, s.Resume())
	// After two commands, the server has read all its sockets, and so executed all late copies.
	for range 2 {
		require.NoError(t, s.Client(t).Ping(t.Context()).Err())
	}
	fixture.RequireClean(t, s, name)
	for i := range 2 * n {
		fixture.Release(t, fixture.TryAcquire(t, t.Context(), lock(i)))
	}
}

// C16: CLIENT PAUSE delays a release and a waiter, and nothing is executed twice.
func TestC16PausedServerExecutesOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	x := fixture.OnLock(t, s)
	hold := fixture.Acquire(t, t.Context(), x.L)
	other := fixture.NewClient(t, s.Client(t, fixture.ShortTimeouts)).Lock(x.Name)
	waiting := fixture.StartAcquire(t.Context(), other)
	fixture.AwaitWaiter(t, s, x.Name)
	require.NoError(t, x.Rdb.Do(t.Context(), "client", "pause", "1000", "all").Err())
	fixture.Release(t, hold)
	acquired := fixture.AwaitHold(t, waiting)
	require.Equal(t, map[string]string{acquired.ID(): "1"}, fixture.Fields(t, s, x.Name))
	fixture.Release(t, acquired)
	fixture.RequireClean(t, s, x.Name)
}

// C16: a client whose MaxRetries is off sends each command once.
func TestC16NoRetries(t *testing.T) {
	t.Parallel()
	fixture.EachLock(t, func(t *testing.T, x *fixture.LockTest) {
		p := x.S.Proxy(t)
		l := fixture.NewClient(t, p.Client(t, fixture.NoRetries)).Lock(x.Name)
		p.Record()
		fixture.Release(t, fixture.Acquire(t, t.Context(), l))
		p.DropReplies(1, fixture.Script)
		require.Error(t, fixture.ErrOf(l.Acquire(t.Context())), "the library repeats no command that the client would not")
		fixture.Release(t, fixture.Acquire(t, t.Context(), l))
	})
}

// Callers do not notice SCRIPT FLUSH: a script that Redis does not know is loaded again.
func TestScriptFlushIsInvisible(t *testing.T) {
	t.Parallel()
	for _, s := range []*redistest.Server{redistest.Miniredis(t), redistest.Fresh(t)} {
		t.Run(s.Name(), func(t *testing.T) {
			x := fixture.OnLock(t, s)
			flush := func() { require.NoError(t, x.Rdb.ScriptFlush(t.Context()).Err()) }
			for range redistest.Scaled(s, 400) {
				flush()
				hold := fixture.Acquire(t, t.Context(), x.L)
				flush()
				in := fixture.Acquire(t, hold.Context(), x.L)
				flush()
				require.NoError(t, in.Check(t.Context()))
				flush()
				require.NoError(t, in.Extend(t.Context(), time.Minute))
				flush()
				fixture.Release(t, in)
				flush()
				fixture.Release(t, hold)
			}
			// The same with concurrent flushes.
			done := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			flusher := s.Client(t)
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					flusher.ScriptFlush(ctx)
				}
			}()
			for range redistest.Scaled(s, 200) {
				fixture.Release(t, fixture.Acquire(t, t.Context(), x.L))
			}
			cancel()
			<-done
			fixture.RequireClean(t, s, x.Name)
		})
	}
}

// Redis forgets its scripts before each command of each primitive.
func TestScriptFlushBeforeEachCommand(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	var flushes atomic.Int64
	open := func() *redis.Client {
		rdb := s.Client(t)
		rdb.AddHook(before(func(ctx context.Context) {
			flushes.Add(1)
			if err := admin.ScriptFlush(ctx).Err(); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}))
		return rdb
	}
	name := redistest.Name(t)
	require.NoError(t, methodsOf(t.Context(), fixture.NewClient(t, open()), newFarClient(t, open()), name))
	require.Greater(t, flushes.Load(), int64(100))
}

// before is a hook that is called before each command and each pipeline.
type before func(context.Context)

func (before) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f(ctx)
		return next(ctx, cmd)
	}
}

func (f before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		f(ctx)
		return next(ctx, cmds)
	}
}

// C11: what extends a lease is not answered, and its copy arrives in the last moment of the lease,
// after the release, which has not arrived. The release is repeated until that copy's lease is over
// too: without it the lock would stay taken for that long.
func TestC11ReleaseFollowsALateCopyThatExtends(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	for name, extend := range map[string]func(*testing.T, *primitives.Lock, *primitives.Hold){
		"a nested acquisition": func(t *testing.T, l *primitives.Lock, h *primitives.Hold) {
			ctx, cancel := context.WithTimeout(h.Context(), 200*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, fixture.ErrOf(l.Acquire(ctx)), primitives.ErrOutcomeUnknown)
		},
		"Extend": func(t *testing.T, _ *primitives.Lock, h *primitives.Hold) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, h.Extend(ctx, ttl), primitives.ErrOutcomeUnknown)
		},
		"a renewal": func(*testing.T, *primitives.Lock, *primitives.Hold) { time.Sleep(ttl/3 + time.Second) },
	} {
		fixture.RunEmbedded(t, name, func(t *testing.T, s *redistest.Server) {
			p, rdb, key := s.Proxy(t), s.Client(t), redistest.Name(t)
			c := fixture.NewClient(t, p.Client(t))
			before := fixture.Acquire(t, t.Context(), c.Lock(key+"before")) // from now on Redis knows all scripts
			fixture.Release(t, fixture.Acquire(t, before.Context(), c.Lock(key+"before")))
			require.NoError(t, before.Extend(t.Context(), ttl))
			time.Sleep(ttl / 2)
			fixture.Release(t, before)

			l := c.Lock(key)
			hold := fixture.Acquire(t, t.Context(), l)
			began := time.Now()
			p.DropCommands(math.MaxInt, fixture.Script)
			p.Record()
			extend(t, l, hold)
			copies := fixture.ScriptsOf(p)
			require.NotEmpty(t, copies)
			require.Error(t, hold.Release(t.Context()))
			time.Sleep(time.Until(began.Add(ttl - 10*time.Millisecond)))
			require.NoError(t, fixture.Resend(rdb, copies[0]).Err())
			require.Greater(t, rdb.PTTL(t.Context(), key).Val(), ttl/2, "the copy extends the lease")
			time.Sleep(time.Second)
			p.Recover()
			time.Sleep(2 * time.Second)
			require.Zero(t, rdb.Exists(t.Context(), key).Val(), "nobody holds it")
		})
	}
}

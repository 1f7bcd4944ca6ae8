package primitives_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// C16: replies are dropped at random while go-redis repeats as it does by default. After each step the count is what was asked for.
func TestC16LostReplies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		opts []primitives.Option
	}{
		{"ids of our own", nil},
		{"ids that others may share", []primitives.Option{primitives.WithOwner("owner")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachLock(t, func(t *testing.T, x *lockTest) {
				p := x.s.Proxy(t)
				l := newClient(t, p.Client(t, quick)).Lock(x.name)
				step := func(f func() error, count string) {
					t.Helper()
					p.DropReplies(rand.IntN(3), script) // up to two of the four attempts
					require.NoError(t, f())
					p.Heal()
					for id, n := range fields(t, x.s, x.name) {
						require.Equal(t, count, n, id)
					}
					if count == "" {
						require.Empty(t, fields(t, x.s, x.name))
					}
				}
				for range scaled(x.s, 350) / 2 { // one cut a step on average, 1 000 for each kind of id
					var outer, inner *primitives.Hold
					step(func() (err error) { outer, err = l.Acquire(t.Context(), tt.opts...); return err }, "1")
					step(func() (err error) { inner, err = l.Acquire(outer.Context()); return err }, "2")
					first, second := inner, outer
					if rand.IntN(2) == 0 {
						first, second = outer, inner
					}
					step(func() error { return first.Release(t.Context()) }, "1")
					step(func() error { return second.Release(t.Context()) }, "")
					step(func() (err error) { outer, err = l.Acquire(t.Context(), tt.opts...); return err }, "1")
					step(func() error { return outer.Release(t.Context()) }, "")
				}
			})
		})
	}
}

// quick has repetitions follow each other at once.
func quick(o *redis.Options) {
	o.MinRetryBackoff, o.MaxRetryBackoff = time.Microsecond, time.Millisecond
}

// Each call of the lock has the effect of once, and the first answer, when the network repeats its command.
func TestC16Duplicates(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		p := x.s.Proxy(t)
		l := newClient(t, p.Client(t, quick)).Lock(x.name)
		for name, repeat := range map[string]func(){
			"duplicated": func() { p.Heal(); p.Duplicate(script) },
			"cut":        func() { p.Heal(); p.DropReplies(2, script) },
		} {
			ctx := t.Context()
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
				repeat()
				hold := acquire(t, ctx, l, opts...)
				require.Equal(t, "1", x.count(t, hold.ID()), name)
				repeat()
				in := acquire(t, hold.Context(), l)
				require.Equal(t, "2", x.count(t, hold.ID()), name)
				repeat()
				require.NoError(t, in.Extend(ctx, time.Minute))
				repeat()
				require.NoError(t, in.Check(ctx))
				repeat()
				require.NoError(t, l.ReleaseID(ctx, hold.ID()))
				require.Equal(t, "1", x.count(t, hold.ID()), name)
				repeat()
				adopted, err := l.Adopt(ctx, hold.ID())
				require.NoError(t, err, name)
				require.Equal(t, map[string]string{adopted.ID(): "1"}, fields(t, x.s, x.name))
				repeat()
				require.NoError(t, adopted.Release(ctx))
				require.Empty(t, fields(t, x.s, x.name))
				acquire(t, ctx, l, opts...)
				repeat()
				held, err := l.ForceRelease(ctx)
				require.NoError(t, err)
				require.True(t, held, name)
				repeat()
				require.ErrorIs(t, l.ReleaseID(ctx, "nobody"), primitives.ErrNotHeld)
			}
		}
	})
}

// A copy of any command may be executed later still. Whatever is sent again after all has been given back, in whatever order, takes
// nothing.
func TestC16LateCopies(t *testing.T) {
	t.Parallel()
	eachLock(t, func(t *testing.T, x *lockTest) {
		p := x.s.Proxy(t)
		l := newClient(t, p.Client(t)).Lock(x.name)
		p.Record()
		for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
			hold := acquire(t, t.Context(), l, opts...)
			in := acquire(t, hold.Context(), l)
			require.NoError(t, in.Extend(t.Context(), time.Minute))
			_, err := newClient(t, x.s.Client(t)).Lock(x.name).TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			release(t, hold)
			adopted, err := l.Adopt(t.Context(), hold.ID())
			require.NoError(t, err)
			release(t, adopted)
			require.ErrorIs(t, in.Release(t.Context()), primitives.ErrLost)
		}
		var sent [][]any
		for _, c := range p.Commands() {
			if strings.HasPrefix(c.Args[0], "eval") {
				var args []any
				for _, a := range c.Args {
					args = append(args, a)
				}
				sent = append(sent, args)
			}
		}
		require.Greater(t, len(sent), 8)
		for range scaled(x.s, 60) {
			for _, i := range rand.Perm(len(sent)) {
				_ = x.rdb.Do(t.Context(), sent[i]...).Err()
				require.Empty(t, fields(t, x.s, x.name), "%v", sent[i])
			}
		}
	})
}

// A late copy of the acquisition does not take back what was granted since.
func TestC16LateCopyShortensNothing(t *testing.T) {
	eachLock(t, func(t *testing.T, x *lockTest) {
		p := x.s.Proxy(t)
		l := newClient(t, p.Client(t)).Lock(x.name)
		again := func() {
			for _, c := range p.Commands() {
				if strings.HasPrefix(c.Args[0], "eval") {
					args := make([]any, len(c.Args))
					for i, a := range c.Args {
						args[i] = a
					}
					_ = x.rdb.Do(t.Context(), args...).Err()
					require.Greater(t, x.rdb.PTTL(t.Context(), x.name).Val(), 50*time.Minute)
				}
			}
		}
		p.Record()
		hold := acquire(t, t.Context(), l)
		require.NoError(t, hold.Extend(t.Context(), time.Hour))
		again()
		adopted, err := l.Adopt(t.Context(), hold.ID())
		require.NoError(t, err)
		require.NoError(t, adopted.Extend(t.Context(), time.Hour))
		again()
		release(t, adopted)
	})
}

// An acquisition of which nothing is known is undone, and so is a copy of it that is executed later.
func TestC16UnknownIsUndone(t *testing.T) {
	t.Parallel()
	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
		eachLock(t, func(t *testing.T, x *lockTest) {
			p := x.s.Proxy(t)
			l := newClient(t, p.Client(t, quick, noRetries)).Lock(x.name)
			release(t, acquire(t, t.Context(), l)) // scripts are known
			p.DropReplies(1, script)
			_, err := l.Acquire(t.Context(), opts...)
			require.Error(t, err)
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
			require.Empty(t, fields(t, x.s, x.name))
			p.DropReplies(2, script) // the undoing's first try too
			_, err = l.Acquire(t.Context(), opts...)
			require.Error(t, err)
			redistest.WaitFor(t, soon, func() bool { return len(fields(t, x.s, x.name)) == 0 }, "undone in the background")

			outer := acquire(t, t.Context(), l, opts...)
			p.DropReplies(1, script)
			_, err = l.Acquire(outer.Context())
			require.Error(t, err)
			require.Equal(t, "1", x.count(t, outer.ID()), "a nested one too")
			release(t, outer)
		})
	}
}

// The server hangs while locks are acquired and released. When it goes on it works off what its sockets hold: nothing may come of that.
func TestC16HungServer(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	c := newClient(t, s.Client(t, hasty))
	name := redistest.Name(t)
	lock := func(i int) *primitives.Lock { return c.Lock(name + strconv.Itoa(i)) }
	const n = 30
	holds := make([]*primitives.Hold, n)
	for i := range holds {
		holds[i] = acquire(t, t.Context(), lock(i))
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
	redistest.WaitFor(t, soon, func() bool { return len(leftovers(t, s, name)) == 0 }, "all given back")
	time.Sleep(100 * time.Millisecond)
	require.Empty(t, leftovers(t, s, name), "and it stays so")
	for i := range 2 * n {
		hold, err := lock(i).TryAcquire(t.Context())
		require.NoError(t, err)
		release(t, hold)
	}
}

// CLIENT PAUSE: waiters wait, and nothing is executed twice.
func TestC16PausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	x := onLock(t, s)
	hold := acquire(t, t.Context(), x.l)
	other := newClient(t, s.Client(t, hasty)).Lock(x.name)
	waiting := start(func() (*primitives.Hold, error) { return other.Acquire(t.Context()) })
	awaitWaiter(t, s, x.name)
	require.NoError(t, x.rdb.Do(t.Context(), "client", "pause", "1000", "all").Err())
	require.NoError(t, hold.Release(t.Context()))
	r := await(t, waiting)
	require.NoError(t, r.err)
	require.Equal(t, map[string]string{r.hold.ID(): "1"}, fields(t, s, x.name))
	release(t, r.hold)
	requireClean(t, s, x.name)
}

func TestC16NoRetries(t *testing.T) {
	eachLock(t, func(t *testing.T, x *lockTest) {
		p := x.s.Proxy(t)
		l := newClient(t, p.Client(t, noRetries)).Lock(x.name)
		p.Record()
		release(t, acquire(t, t.Context(), l))
		p.DropReplies(1, script)
		_, err := l.Acquire(t.Context())
		require.Error(t, err, "nothing is repeated that the client would not repeat")
		release(t, acquire(t, t.Context(), l))
	})
}

// NOSCRIPT: no SCRIPT FLUSH ever shows.
func TestCornerScriptFlush(t *testing.T) {
	t.Parallel()
	for _, s := range []*redistest.Server{redistest.Miniredis(t), redistest.Fresh(t)} {
		t.Run(s.Name(), func(t *testing.T) {
			x := onLock(t, s)
			flush := func() { require.NoError(t, x.rdb.ScriptFlush(t.Context()).Err()) }
			for range scaled(s, 400) {
				flush()
				hold := acquire(t, t.Context(), x.l)
				flush()
				in := acquire(t, hold.Context(), x.l)
				flush()
				require.NoError(t, in.Check(t.Context()))
				flush()
				require.NoError(t, in.Extend(t.Context(), time.Minute))
				flush()
				release(t, in)
				flush()
				release(t, hold)
			}
			// And while others flush as fast as they can.
			done := make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			flusher := s.Client(t)
			go func() {
				defer close(done)
				for ctx.Err() == nil {
					flusher.ScriptFlush(ctx)
				}
			}()
			for range scaled(s, 200) {
				release(t, acquire(t, t.Context(), x.l))
			}
			cancel()
			<-done
			requireClean(t, s, x.name)
		})
	}
}

// A full server refuses new locks at once, and lets go of what is held.
func TestCornerFullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	x := onLock(t, s)
	rdb := x.rdb
	shared := x.c.Lock(x.name + "-shared")
	outer := acquire(t, t.Context(), x.l, primitives.WithWatchdog(time.Second))
	inner := acquire(t, outer.Context(), x.l, primitives.WithWatchdog(time.Second))
	one := acquire(t, t.Context(), shared, primitives.WithOwner("o"))
	two := acquire(t, t.Context(), shared, primitives.WithOwner("o"))
	byID := acquire(t, t.Context(), x.c.Lock(x.name+"-id"))
	acquire(t, t.Context(), x.c.Lock(x.name+"-force"))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())

	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("p")}} {
		_, err := x.c.Lock(x.name+"-new").Acquire(t.Context(), opts...)
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	}
	_, err := x.l.Acquire(inner.Context())
	require.ErrorContains(t, err, "OOM")
	_, err = x.c.Lock(x.name + "-none").ForceRelease(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, x.c.Lock(x.name+"-none").ReleaseID(t.Context(), "x"), primitives.ErrNotHeld)
	require.NoError(t, outer.Extend(t.Context(), 2*time.Second))
	before := outer.ValidUntil()
	redistest.WaitFor(t, soon, func() bool { return outer.ValidUntil().After(before) }, "renewed")
	release(t, inner)
	require.Equal(t, "1", rdb.HGet(t.Context(), x.name, outer.ID()).Val())
	release(t, outer)
	release(t, one)
	release(t, two)
	require.NoError(t, x.c.Lock(x.name+"-id").ReleaseID(t.Context(), byID.ID()))
	held, err := x.c.Lock(x.name + "-force").ForceRelease(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	requireClean(t, s, x.name)
}

// What the release will need is found out before an acquisition succeeds; who may not listen polls.
func TestCornerACL(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	name := redistest.Name(t)
	as := func(rules string) *primitives.Lock {
		user := redistest.Name(t)
		args := []any{"acl", "setuser", user, "on", ">pw", "+@all", "resetchannels", "resetkeys"}
		for rule := range strings.FieldsSeq(rules) {
			args = append(args, rule)
		}
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		return newClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = user, "pw" })).Lock(name)
	}
	for _, tt := range []struct{ name, rules string }{
		{"no channel", "~*"},
		{"another channel", "~* &other"},
		{"no memory key", "~" + name + " &*"},
		{"no publish", "~* &* -publish"},
		{"no lock key", "~redisson* &*"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := as(tt.rules)
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
				_, err := l.Acquire(t.Context(), opts...)
				require.Error(t, err)
				require.True(t, strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "No permissions"), err)
				require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				require.Empty(t, fields(t, s, name))
			}
		})
	}
	t.Run("enough", func(t *testing.T) {
		// Scripts are given the channel among their keys, as Redisson's are.
		release(t, acquire(t, t.Context(), as("~"+name+" ~redisson_unlock_latch:{"+name+"}:* ~redisson_lock__channel:{"+name+"} &redisson_lock__channel:{"+name+"}")))
	})
	t.Run("may not subscribe", func(t *testing.T) {
		l := as("~* &* -subscribe")
		hold := acquire(t, t.Context(), newClient(t, s.Client(t)).Lock(name))
		waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		time.Sleep(50 * time.Millisecond)
		release(t, hold)
		r := await(t, waiting)
		require.NoError(t, r.err)
		release(t, r.hold)
	})
	requireClean(t, s, name)
}

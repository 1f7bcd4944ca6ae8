package faults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// Each fault here meets each kind. What a kind does beyond the others is in the files of that name.

// use is a kind, and the options with which it is used.
type use struct {
	kinds.Kind
	how    string // what its name does not say
	owned  bool   // with WithOwner
	cohort bool   // with WithCohort
}

// uses returns all kinds, and all kinds of locks with an owner too.
func uses() (list []use) {
	for _, k := range kinds.All() {
		list = append(list, use{Kind: k})
		if !k.Pool {
			list = append(list, use{Kind: k, how: " of an owner", owned: true})
		}
	}
	return list
}

func (u use) String() string { return u.Name + u.how }

// opts are the options for each acquisition.
func (u use) opts() (list []primitives.Option) {
	if u.owned {
		list = append(list, primitives.WithOwner("o"))
	}
	return list
}

// eachUse runs f for each use on each server, all at a time.
func eachUse(t *testing.T, of []use, f func(t *testing.T, s *redistest.Server, u use)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, u := range of {
			t.Run(u.String(), func(t *testing.T) {
				t.Parallel()
				f(t, s, u)
			})
		}
	})
}

// handles returns the locks of one name each that l consists of, on c: the members of a joint lock,
// or l itself.
func (u use) handles(c *primitives.Client, name string) (list []*primitives.Lock) {
	if !u.Joint() {
		return []*primitives.Lock{u.Lock(c, name)}
	}
	for _, member := range u.MemberNames(name) {
		list = append(list, c.Lock(member))
	}
	return list
}

// requireCount requires that id holds the lock n times, in Redis, and nobody else does.
func (u use) requireCount(t *testing.T, s *redistest.Server, name, id string, n int) {
	t.Helper()
	want := map[string]string{}
	if n > 0 {
		want[id] = strconv.Itoa(n)
	}
	names := []string{name}
	if u.Joint() {
		names = u.MemberNames(name)
	}
	counts := func(name string) map[string]string {
		got := fixture.Fields(t, s, name)
		delete(got, "mode")
		if count, ok := got[id+":write"]; ok {
			delete(got, id+":write")
			got[id] = count
		}
		return got
	}
	for _, name := range names {
		if u.Joint() { // a member of a redlock may join later
			redistest.WaitFor(t, fixture.Soon, func() bool { return maps.Equal(want, counts(name)) }, "the count of "+name)
		}
		require.Equal(t, want, counts(name), name)
	}
}

// C16: the proxy drops replies at random and go-redis retries as it does by default. After each
// step Redis has the count that one execution gives.
func TestC16LostReplies(t *testing.T) {
	t.Parallel()
	eachUse(t, uses(), func(t *testing.T, s *redistest.Server, u use) {
		measured, cuts := redistest.Bar(t, s, 1), 0
		name, p := redistest.Name(t), s.Proxy(t)
		l := u.Some(t, fixture.NewClient(t, p.Client(t, fixture.FastRetries)), name, 10)
		step := func(f func() error) {
			t.Helper()
			lost := rand.IntN(3) // up to two of the four attempts
			cuts += lost
			p.DropReplies(lost, fixture.Script)
			require.NoError(t, f())
			p.Heal()
		}
		take := func(hold **primitives.Hold, ctx context.Context, l fixture.Handle, opts ...primitives.Option) {
			t.Helper()
			step(func() (err error) { *hold, err = l.Acquire(ctx, opts...); return err })
		}
		end := func(hold *primitives.Hold) { t.Helper(); step(func() error { return hold.Release(t.Context()) }) }
		// At full size 10,000 replies of each call are lost.
		n := redistest.Sized(s, redistest.Scaled(s, 64), fixture.FullCuts)
		for i := range n {
			var outer, inner *primitives.Hold
			if pool, ok := l.(kinds.Pool); ok {
				rdb := s.Client(t)
				permits := 1 + i%3
				take(&outer, t.Context(), l, primitives.WithPermits(permits))
				require.Equal(t, 10-permits, fixture.Available(t, rdb, name))
				end(outer)
				step(func() error { return pool.Add(t.Context(), 1) })
				require.Equal(t, 11, fixture.Available(t, rdb, name))
				step(func() error { return pool.Add(t.Context(), -1) })
				require.Equal(t, 10, fixture.Available(t, rdb, name))
				require.NoError(t, rdb.Close())
				continue
			}
			take(&outer, t.Context(), l, u.opts()...)
			u.requireCount(t, s, name, outer.ID(), 1)
			take(&inner, outer.Context(), l)
			u.requireCount(t, s, name, outer.ID(), 2)
			first, second := inner, outer
			if rand.IntN(2) == 0 {
				first, second = outer, inner
			}
			end(first)
			u.requireCount(t, s, name, outer.ID(), 1)
			end(second)
			u.requireCount(t, s, name, "", 0)
		}
		measured("%d replies lost in %d times acquire and release, and both nested", cuts, n)
		fixture.RequireClean(t, s, name, u.Stays(name)...)
	})
}

// C16: the same for a writer that reads too, which leaves a reader behind.
func TestC16LostRepliesOfADowngrade(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		measured := redistest.Bar(t, s, 1)
		name, p := redistest.Name(t), s.Proxy(t)
		rw := fixture.NewClient(t, p.Client(t, fixture.FastRetries)).RWLock(name)
		n := redistest.Sized(s, redistest.Scaled(s, 100), fixture.FullCuts)
		for range n {
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("o")}} {
				lose := func() { p.Heal(); p.DropReplies(rand.IntN(3), fixture.Script) }
				lose()
				w := fixture.Acquire(t, t.Context(), rw.Writer(), opts...)
				lose()
				r := fixture.Acquire(t, context.WithoutCancel(w.Context()), rw.Reader())
				require.Equal(t, map[string]string{"mode": "write", w.ID(): "1", w.ID() + ":write": "1"},
					fixture.Fields(t, s, name))
				lose()
				fixture.Release(t, w)
				require.Equal(t, map[string]string{"mode": "read", w.ID(): "1"}, fixture.Fields(t, s, name))
				lose()
				fixture.Release(t, r)
				require.Empty(t, fixture.Fields(t, s, name))
			}
		}
		p.Heal()
		measured("%d times four calls, with one lost reply each on average", 2*n)
		fixture.RequireClean(t, s, name)
	})
}

// C16: where an attempt was not answered, Redis may execute copies of the command after everything
// is released, and in any order. None of them takes the lock.
func TestC16LateCopies(t *testing.T) {
	t.Parallel()
	locks := slices.DeleteFunc(uses(), func(u use) bool { return u.Pool || u.Joint() })
	eachUse(t, locks, func(t *testing.T, s *redistest.Server, u use) {
		name, p, rdb := redistest.Name(t), s.Proxy(t), s.Client(t)
		c := fixture.NewClient(t, p.Client(t, fixture.FastRetries))
		l, other := u.Lock(c, name), u.Lock(fixture.NewClient(t, s.Client(t)), name)
		loseReply := func() { p.DropReplies(1, fixture.Script) }
		p.Record()
		loseReply()
		hold := fixture.Acquire(t, t.Context(), l, u.opts()...)
		loseReply()
		in := fixture.Acquire(t, hold.Context(), l)
		loseReply()
		require.NoError(t, in.Extend(t.Context(), time.Minute))
		require.ErrorIs(t, fixture.ErrOf(u.Rival(fixture.NewClient(t, s.Client(t)), name).TryAcquire(t.Context())),
			primitives.ErrNotAcquired)
		var reading *primitives.Hold
		if u.Name == "writer" {
			reading = fixture.Acquire(t, in.Context(), c.RWLock(name).Reader())
		}
		loseReply()
		fixture.Release(t, hold)
		if reading != nil {
			fixture.Release(t, reading)
		}
		loseReply()
		adopted := fixture.Adopt(t, l, hold.ID())
		loseReply()
		fixture.Release(t, adopted)
		require.ErrorIs(t, in.Release(t.Context()), primitives.ErrLost)
		switch u.Name {
		case "fair": // a waiter gives up, and another one is served
			hold = fixture.Acquire(t, t.Context(), other)
			ctx, cancel := context.WithCancel(t.Context())
			leaving := fixture.StartAcquire(ctx, l, u.opts()...)
			fixture.AwaitFair(t, l, 1)
			served := fixture.StartAcquire(t.Context(), l, primitives.WithOwner("p"))
			fixture.AwaitFair(t, l, 2)
			cancel()
			require.ErrorIs(t, fixture.Await(t, leaving).Err, context.Canceled)
			fixture.Release(t, hold)
			fixture.Release(t, fixture.AwaitHold(t, served))
		case "reader", "writer": // a writer claims its turn, and gives up
			reader := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).RWLock(name).Reader())
			_, err := c.RWLock(name).Writer().Acquire(t.Context(), primitives.WithWait(20*time.Millisecond))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			fixture.Release(t, reader)
		}
		p.Heal()
		fixture.RequireClean(t, s, name, u.Stays(name)...)
		sent := fixture.ScriptsOf(p)
		require.Greater(t, len(sent), 8)
		stop := time.Now().Add(5 * time.Second) // Redis remembers the requests for longer
		for range redistest.Scaled(s, 30) {
			for _, i := range rand.Perm(len(sent)) {
				if time.Now().After(stop) {
					break
				}
				_ = fixture.Resend(rdb, sent[i]).Err()
				left := slices.DeleteFunc(fixture.Leftovers(t, s, name), func(key string) bool {
					return slices.Contains(u.Stays(name), key)
				})
				require.Empty(t, left, "%v", sent[i].Args)
			}
		}
		fixture.Release(t, fixture.Acquire(t, t.Context(), other))
	})
}

// C5: acquisitions that are cancelled at any moment, from before the first command to long after
// the acquisition, leave no key, no place in a queue, no subscription and no goroutine, whether the
// lock is free at times or held all the time.
func TestC5CancelledAcquireLeavesNothing(t *testing.T) {
	if redistest.Alone(t) {
		fixture.CheckLeaks(t)
	}
	all := uses()
	for _, k := range kinds.Cohorts() {
		all = append(all, use{Kind: k, how: " in cohorts", cohort: true})
	}
	t.Run("all", func(t *testing.T) {
		eachUse(t, all, func(t *testing.T, s *redistest.Server, u use) {
			measured := redistest.Bar(t, s, 4)
			name := redistest.Name(t)
			c := fixture.NewClient(t, s.Client(t), primitives.WithCommandTimeout(fixture.Soon))
			callers := 20
			if s.Mini() != nil { // it runs the scripts of all kinds one at a time
				callers = 2
			}
			each := redistest.Sized(s, redistest.Scaled(s, 1500)/20+1, 100_000/callers)
			patience := 5 * time.Millisecond
			if s.Mini() != nil || u.Joint() {
				patience *= 4
			}
			var got, inside atomic.Int64
			cancelled := func(free bool) {
				var wg sync.WaitGroup
				for i := range callers {
					l := u.Some(t, c, name, 3)
					wg.Go(func() {
						for range each {
							ctx, cancel := context.WithCancelCause(t.Context())
							timer := time.AfterFunc(time.Duration(rand.ExpFloat64()*float64(patience)), func() { cancel(fixture.ErrTest) })
							hold, err := l.Acquire(ctx, u.cancelledOptions(i)...)
							switch {
							case err == nil && !free:
								t.Error("acquired what somebody else holds")
							case err == nil:
								got.Add(1)
								if n := inside.Add(1); n > 1 && !u.Shared && !u.Pool {
									t.Errorf("%d hold it", n)
								}
								inside.Add(-1)
								assert.NoError(t, hold.Release(context.WithoutCancel(ctx)))
							default:
								assert.ErrorIs(t, err, fixture.ErrTest)
								assert.True(t, errors.Is(err, primitives.ErrNotAcquired) || errors.Is(err, primitives.ErrUnavailable), err)
							}
							timer.Stop()
							cancel(nil)
						}
					})
				}
				wg.Wait()
			}
			cancelled(true)
			stays := u.Stays(name)
			clean := fixture.RequireClean(t, s, name, stays...) // a lock that is left would expire after 30 s
			holder := u.Rival(fixture.NewClient(t, s.Client(t)), name)
			var opts []primitives.Option
			if u.Pool {
				// What was under way is undone in the background, and a semaphore's memory stays.
				complete := func() bool { return fixture.Available(t, s.Client(t), name) == 3 }
				redistest.WaitFor(t, 10*time.Second, complete, "all permits are back")
				opts = append(opts, primitives.WithPermits(3))
			}
			hold := fixture.Acquire(t, t.Context(), holder, opts...)
			cancelled(false)
			if u.Name == "fair" {
				redistest.WaitFor(t, fixture.CleanUpLimit(s),
					func() bool { return len(fixture.FairWaiters(t, u.Lock(c, name))) == 0 }, "no queue")
			}
			fixture.Release(t, hold)
			fixture.RequireClean(t, s, name, stays...)
			require.NoError(t, c.Close(t.Context())) // it waits for holds, so none is left
			measured("%d acquisitions, %d of them cancelled in time; nothing left after %v",
				callers*each, callers*each-int(got.Load()), clean)
		})
	})
}

// cancelledOptions returns the options of a caller: each owner has an id of its own, or they would
// hold together.
func (u use) cancelledOptions(caller int) []primitives.Option {
	switch {
	case u.Pool:
		return []primitives.Option{primitives.WithPermits(1 + caller%3)}
	case u.cohort:
		return []primitives.Option{primitives.WithCohort(10 * time.Millisecond)}
	case u.owned:
		return []primitives.Option{primitives.WithOwner(fmt.Sprint("o", caller, "-", rand.Uint64()))}
	}
	return nil
}

// fullMemory is what a client holds of one kind when Redis runs out of memory.
type fullMemory struct {
	use
	c    *primitives.Client
	name string

	holds   []*primitives.Hold // of the name, in the order of their releases
	toRenew []*primitives.Hold // the holds that are renewed
	outer   *primitives.Hold
	byID    *primitives.Hold // of the name with "-id"; there is one with "-force", too
	resting *primitives.Hold // with a minimum, of the name with "-rest"
}

func newFullMemory(t *testing.T, c *primitives.Client, u use) *fullMemory {
	x := &fullMemory{use: u, c: c, name: redistest.Name(t) + "."} // no name begins another one
	ctx := t.Context()
	l := u.Some(t, c, x.name, 3)
	if u.Pool {
		x.outer = fixture.Acquire(t, ctx, l)
		x.holds = []*primitives.Hold{x.outer}
		return x
	}
	renewed := primitives.WithWatchdog(fixture.RenewedTTL)
	x.outer = fixture.Acquire(t, ctx, l, append(u.opts(), renewed)...)
	inner := fixture.Acquire(t, x.outer.Context(), l, renewed)
	x.holds = []*primitives.Hold{inner, x.outer}
	x.toRenew = slices.Clone(x.holds)
	if u.owned {
		x.holds = append(x.holds, fixture.Acquire(t, ctx, l, u.opts()...))
	}
	if u.Name == "writer" { // a downgrade
		r := fixture.Acquire(t, context.WithoutCancel(x.outer.Context()), c.RWLock(x.name).Reader(), renewed)
		x.holds, x.toRenew = append(x.holds, r), append(x.toRenew, r)
	}
	x.byID = fixture.Acquire(t, ctx, u.Open(c, x.name+"-id"))
	if !u.Joint() {
		fixture.Acquire(t, ctx, u.Open(c, x.name+"-force"))
	}
	x.resting = fixture.Acquire(t, ctx, u.Open(c, x.name+"-rest", primitives.WithMinHold(20*time.Second)), u.opts()...)
	return x
}

// requireRefusals requires that acquisitions are refused, and that nothing else is.
func (x *fullMemory) requireRefusals(t *testing.T) {
	ctx := t.Context()
	refused := func(err error) {
		t.Helper()
		require.ErrorContains(t, err, "OOM")
		require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	}
	if x.Pool {
		refused(fixture.ErrOf(x.Open(x.c, x.name).Acquire(ctx)))
		if x.Leased {
			require.NoError(t, x.outer.Extend(ctx, time.Hour))
			require.Greater(t, time.Until(x.outer.ValidUntil()), 50*time.Minute)
		}
		return
	}
	refused(fixture.ErrOf(x.Open(x.c, x.name+"-new").Acquire(ctx, x.opts()...)))
	refused(fixture.ErrOf(x.Open(x.c, x.name).Acquire(x.holds[0].Context()))) // nested
	require.NoError(t, x.outer.Extend(ctx, fixture.RenewedTTL+time.Second))
	require.ErrorIs(t, x.Takeable(x.c, x.name+"-none").ReleaseID(ctx, "x"), primitives.ErrNotHeld)
	if !x.Joint() {
		require.NoError(t, fixture.ErrOf(x.Lock(x.c, x.name+"-none").ForceRelease(ctx)))
	}
}

// requireReleases requires that all holds can be released, in each way.
func (x *fullMemory) requireReleases(t *testing.T, s *redistest.Server) {
	ctx := t.Context()
	for _, hold := range x.holds {
		if x.Leased {
			require.NoError(t, hold.Check(ctx))
		}
	}
	fixture.Release(t, x.holds...)
	if x.Pool {
		require.Equal(t, 3, fixture.InfoOf(t, x.OpenPool(x.c, x.name)).Available)
		return
	}
	for _, l := range x.handles(x.c, x.name) {
		require.Empty(t, fixture.Fields(t, s, l.Name()))
	}
	require.NoError(t, x.Takeable(x.c, x.name+"-id").ReleaseID(ctx, x.byID.ID()))
	if !x.Joint() {
		forced := fixture.ForceRelease(t, x.Lock(x.c, x.name+"-force"))
		require.True(t, forced)
	}
	fixture.Release(t, x.resting) // only shortens the TTL
	for _, l := range x.handles(x.c, x.name+"-rest") {
		info := fixture.InfoOf(t, l)
		require.Len(t, info.Holders, 1)
		require.LessOrEqual(t, info.Holders[0].TTL, 20*time.Second)
		require.NoError(t, fixture.ErrOf(l.ForceRelease(ctx)))
	}
}

// stays returns the keys that stay when nothing is held.
func (x *fullMemory) stays() (list []string) {
	for _, end := range []string{"", "-id", "-force", "-rest"} {
		list = append(list, x.Stays(x.name+end)...)
	}
	return list
}

// A Redis that is out of memory refuses new acquisitions at once. Renewing, extending and releasing
// still work.
func TestFullMemoryRefusesOnlyAcquisitions(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t, "--maxmemory-policy", "noeviction")
	c, rdb := fixture.NewClient(t, s.Client(t)), s.Client(t)
	var all []*fullMemory
	var toRenew []*primitives.Hold
	each := func(step string, f func(t *testing.T, x *fullMemory)) {
		for _, x := range all {
			t.Run(x.String()+", "+step, func(t *testing.T) { f(t, x) })
		}
	}
	for _, u := range uses() {
		x := newFullMemory(t, c, u)
		all, toRenew = append(all, x), append(toRenew, x.toRenew...)
	}
	latch := c.CountDownLatch(redistest.Name(t))
	require.NoError(t, fixture.ErrOf(latch.Init(t.Context(), 2)))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	each("refused", func(t *testing.T, x *fullMemory) { x.requireRefusals(t) })
	fixture.AwaitRenewal(t, 2, toRenew...)
	each("released", func(t *testing.T, x *fullMemory) { x.requireReleases(t, s) })
	require.NoError(t, latch.CountDown(t.Context()))
	require.NoError(t, latch.CountDown(t.Context()))
	require.NoError(t, latch.Wait(t.Context()))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	each("nothing is left", func(t *testing.T, x *fullMemory) { fixture.RequireClean(t, s, x.name, x.stays()...) })
}

// An ACL that forbids what the release needs makes the acquisition fail, before anything is
// written. A client that may not subscribe polls. TestUserWithoutOneKeyOrChannel takes away one key
// or channel after another.
func TestACLIsCheckedByTheAcquisition(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	admin := s.Client(t)
	for lack, rules := range map[string]func(name string) []any{
		"no channel":      func(string) []any { return []any{"~*"} },
		"another channel": func(string) []any { return []any{"~*", "&other"} },
		"no publish":      func(string) []any { return []any{"~*", "&*", "-publish"} },
		"no memory key":   func(name string) []any { return []any{"~" + name + "*", "&*"} },
		"no lock key":     func(string) []any { return []any{"~redisson*", "&*"} },
		"no subscription": func(string) []any { return []any{"~*", "&*", "-subscribe", "-ssubscribe"} },
	} {
		for _, u := range uses() {
			t.Run(lack+", "+u.String(), func(t *testing.T) {
				t.Parallel()
				name := redistest.Name(t)
				args := append([]any{"acl", "setuser", name, "on", ">pw", "+@all", "resetchannels", "resetkeys"}, rules(name)...)
				require.NoError(t, admin.Do(t.Context(), args...).Err())
				rightful := u.One(t, fixture.NewClient(t, admin), name)
				c := fixture.NewClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = name, "pw" }))
				l := u.Open(c, name)
				if lack == "no subscription" {
					hold := fixture.Acquire(t, t.Context(), u.Rival(fixture.NewClient(t, admin), name))
					require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
					waiting := fixture.StartAcquire(t.Context(), l, u.opts()...)
					fixture.AwaitWaiters(t, c, 1)
					fixture.Release(t, hold)
					fixture.Release(t, fixture.AwaitHold(t, waiting))
					return
				}
				refused := func() {
					t.Helper()
					err := fixture.ErrOf(l.Acquire(t.Context(), append(u.opts(), primitives.WithWait(fixture.SlowPoll))...))
					require.Error(t, err)
					require.Regexp(t, "NOPERM|No permissions", err)
					require.NotErrorIs(t, err, primitives.ErrNotAcquired)
				}
				refused()
				require.Equal(t, u.Pool, len(fixture.Leftovers(t, s, name)) > 0, "nothing but a pool is left")
				if u.Name == "fair" {
					hold := fixture.Acquire(t, t.Context(), rightful)
					refused() // it does not queue
					fixture.Release(t, hold)
				}
				fixture.RequireClean(t, s, name, u.Stays(name)...)
			})
		}
	}
}

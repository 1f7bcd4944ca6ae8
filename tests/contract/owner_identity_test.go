package contract

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// ownerCase is one kind of lock, whose holds have the id "o".
type ownerCase struct {
	s    *redistest.Server
	name string
	open func(c *primitives.Client, name string, opts ...primitives.Option) *primitives.Lock
	p    *redistest.Proxy
	l    *primitives.Lock // on a client that is connected by p
}

// eachOwnerKind runs f for each kind of lock, on both servers.
func eachOwnerKind(t *testing.T, f func(t *testing.T, x *ownerCase)) {
	t.Parallel()
	redistest.Together(t, func(run redistest.Run) {
		for _, kind := range kinds.Locks() {
			run(kind.Name, func(t *testing.T) {
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					x := &ownerCase{s: s, name: redistest.Name(t), open: kind.Lock, p: s.Proxy(t)}
					x.l = x.open(fixture.NewClient(t, x.p.Client(t, fixture.FastRetries)), x.name)
					f(t, x)
				})
			})
		}
	})
}

// other returns the lock on another client.
func (x *ownerCase) other(t testing.TB) *primitives.Lock {
	return x.open(fixture.NewClient(t, x.s.Client(t)), x.name)
}

// acquire acquires for the id "o".
func (x *ownerCase) acquire(t testing.TB, l *primitives.Lock, opts ...primitives.Option) *primitives.Hold {
	t.Helper()
	return fixture.Acquire(t, context.Background(), l, append(opts, primitives.WithOwner("o"))...)
}

// forget deletes all that Redis remembers of requests.
func (x *ownerCase) forget(t testing.TB) {
	t.Helper()
	for _, key := range redistest.Keys(t, x.s, "redisson_unlock_latch:{"+x.name+"}:*") {
		if key != fixture.SharedCountsKey(x.name) {
			require.NoError(t, x.s.Client(t).Del(t.Context(), key).Err())
		}
	}
}

// count returns how often the id o holds the lock, "" if it does not.
func (x *ownerCase) count(t testing.TB, id string) string {
	t.Helper()
	all := fixture.Fields(t, x.s, x.name)
	return all[id] + all[id+":write"]
}

// requireOnly requires that hold is all that holds the lock, and releases it. No rival acquires
// before.
func (x *ownerCase) requireOnly(t *testing.T, hold *primitives.Hold) {
	t.Helper()
	require.NoError(t, hold.Check(t.Context()))
	require.Equal(t, "1", x.count(t, hold.ID()))
	rival := fixture.NewClient(t, x.s.Client(t)).RWLock(x.name).Writer() // every other holder keeps a writer out
	require.ErrorIs(t, fixture.ErrOf(rival.TryAcquire(t.Context())), primitives.ErrNotAcquired)
	fixture.Release(t, hold)
	require.Empty(t, fixture.Fields(t, x.s, x.name))
	fixture.RequireClean(t, x.s, x.name, "redisson_lock_token:{"+x.name+"}")
	require.Empty(t, fixture.SharedCounts(t, x.s, x.name))
}

// C15: a hold whose lock was taken gives nothing back of a later hold with the same id, however
// late copies of its commands are.
func TestLostHoldOfAnOwnerTakesNoLaterCount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		opts []primitives.Option // of the old hold
		lose func(t *testing.T, x *ownerCase, old *primitives.Hold)
	}{
		{"forced", nil, func(t *testing.T, x *ownerCase, _ *primitives.Hold) {
			held := fixture.ForceRelease(t, x.other(t))
			require.True(t, held)
		}},
		{"expired", nil, func(t *testing.T, x *ownerCase, old *primitives.Hold) {
			// As if the lease had ended while the client was asleep.
			rdb := x.s.Client(t)
			keys := []string{x.name, fixture.SharedCountsKey(x.name), "{" + x.name + "}:o:rwlock_timeout:1"}
			for _, key := range keys {
				require.NoError(t, rdb.PExpire(t.Context(), key, time.Millisecond).Err())
			}
			redistest.WaitFor(t, fixture.Soon, func() bool { return rdb.Exists(t.Context(), keys...).Val() == 0 }, "expired")
		}},
		{"expired, its fixed lease", []primitives.Option{primitives.WithLease(fixture.ShortLease)}, func(
			t *testing.T, x *ownerCase, old *primitives.Hold,
		) {
			fixture.RequireEnds(t, old.Context(), primitives.ErrLost)
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return x.s.Client(t).Exists(t.Context(), x.name, fixture.SharedCountsKey(x.name)).Val() == 0
			}, "expired")
		}},
		{"deleted", nil, func(t *testing.T, x *ownerCase, _ *primitives.Hold) {
			keys := []string{x.name, "{" + x.name + "}:o:rwlock_timeout:1"}
			require.NoError(t, x.s.Client(t).Del(t.Context(), keys...).Err())
		}},
		{"adopted", nil, func(t *testing.T, x *ownerCase, old *primitives.Hold) {
			fixture.Release(t, fixture.Adopt(t, x.other(t), old.ID()))
		}},
		{"released by id", nil, func(t *testing.T, x *ownerCase, old *primitives.Hold) {
			require.NoError(t, x.other(t).ReleaseID(t.Context(), old.ID()))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
				if x.s.Mini() != nil && strings.HasPrefix(tt.name, "expired") {
					t.Skip("its clock stands still")
				}
				x.p.Record()
				old := x.acquire(t, x.l, tt.opts...)
				tt.lose(t, x, old)
				hold := x.acquire(t, x.other(t))
				require.ErrorIs(t, old.Check(t.Context()), primitives.ErrLost)
				require.ErrorIs(t, old.Release(t.Context()), primitives.ErrLost)
				for _, c := range fixture.Recorded(x.p, isRelease) {
					x.forget(t)
					_ = fixture.Resend(x.s.Client(t), c).Err()
				}
				x.requireOnly(t, hold)
			})
		})
	}
}

// isRelease matches the releases of a hold of the owner "o".
func isRelease(args []string) bool {
	// The owner is the first argument of all scripts, and a release passes the publish command
	// next.
	at := slices.Index(args, "o")
	return fixture.Script(args) && at > 0 && at+1 < len(args) && strings.Contains(args[at+1], "ublish")
}

// C16: copies of the acquisition and of the release of one hold, minutes late, change nothing of a
// hold with the same id, which came before the release or after it.
func TestLateCopiesOfAnOwnersReleaseTakeNothing(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		x.p.Record()
		first := x.acquire(t, x.l)
		joined := x.acquire(t, x.other(t))
		require.Equal(t, "2", x.count(t, "o"))
		fixture.Release(t, first)
		sent := fixture.Recorded(x.p, isRelease)
		require.NotEmpty(t, sent)
		copies := func(hold *primitives.Hold) {
			for range 2 {
				for _, c := range sent {
					x.forget(t)
					require.Equal(t, int64(0), fixture.Resend(x.s.Client(t), c).Val())
					require.Equal(t, "1", x.count(t, "o"))
				}
			}
		}
		copies(joined)
		fixture.Release(t, joined)
		later := x.acquire(t, x.other(t))
		copies(later)
		x.requireOnly(t, later)
	})
}

// C16: a release without an answer is repeated in the background, for as long as the lease may
// last. However often, it takes one count.
func TestRepeatedReleaseOfAnOwnerTakesItsCountOnly(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		mine, theirs := x.acquire(t, x.l), x.acquire(t, x.other(t))
		x.p.DropReplies(1000, fixture.Script)
		require.ErrorIs(t, mine.Release(t.Context()), primitives.ErrOutcomeUnknown)
		x.p.Record()
		for range 3 {
			x.forget(t)
			before := len(fixture.Recorded(x.p, fixture.Script))
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.Recorded(x.p, fixture.Script)) > before },
				"repeated")
		}
		x.p.Heal()
		redistest.WaitFor(t, fixture.Soon, func() bool { return x.count(t, "o") == "1" }, "released")
		x.requireOnly(t, theirs)
	})
}

// The first reply to the release of a private hold is lost, and somebody else has a count of its
// id. The second reply does not say that the hold was lost.
func TestRepeatedReleaseBesideACountOfAnOwner(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.Locks() {
		fixture.RunBubble(t, k.Name, func(t *testing.T, b *fixture.BubbleTest) {
			l, other := k.Lock(b.C, "x"), k.Lock(fixture.NewClient(t, b.S.Client(t)), "x")
			fixture.Release(t, fixture.Acquire(t, t.Context(), l)) // loads the scripts
			b.P.DropReplies(1, fixture.Script)
			hold := fixture.Acquire(t, t.Context(), l)
			shared := fixture.Acquire(t, t.Context(), other, primitives.WithOwner(hold.ID()))
			b.P.DropReplies(1, fixture.Script)
			fixture.Release(t, hold)
			require.NoError(t, shared.Check(t.Context()))
			fixture.Release(t, shared)
		})
	}
}

// C16: a copy of an acquisition with WithOwner adds no second count while the first one lasts,
// without a memory.
func TestLateCopyOfAnOwnersAcquisitionAddsNothing(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		x.p.Record()
		hold := x.acquire(t, x.l)
		sent := fixture.ScriptsOf(x.p)
		for range 2 {
			x.forget(t)
			fixture.Replay(t, x.s.Client(t), sent)
			require.Equal(t, "1", x.count(t, "o"))
		}
		x.requireOnly(t, hold)
	})
}

// C16: the acquisition was in doubt, so a copy of it may come after the release. Redis remembers
// the release for longer than a copy may take.
func TestLateCopyOfAnOwnersAcquisitionTakesNothing(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		x.p.Record()
		x.p.DropReplies(1, fixture.Script)
		hold := x.acquire(t, x.l)
		sent := fixture.ScriptsOf(x.p)
		fixture.Release(t, hold)
		longest := time.Duration(0)
		for _, key := range redistest.Keys(t, x.s, "redisson_unlock_latch:{"+x.name+"}:*") {
			longest = max(longest, x.s.Client(t).PTTL(t.Context(), key).Val())
		}
		require.Greater(t, longest, 3*time.Minute-fixture.Soon)
		fixture.Replay(t, x.s.Client(t), sent)
		require.Empty(t, fixture.Fields(t, x.s, x.name))
		later := x.acquire(t, x.other(t))
		fixture.Replay(t, x.s.Client(t), sent)
		x.requireOnly(t, later)
	})
}

// C16: a private hold was joined with WithOwner and released. Late copies of its nested acquisition
// and of the nested release must not raise the count: the lock would stay taken until its lease
// ends.
func TestLateNestedCopyAfterAPrivateReleaseAddsNothing(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		private := fixture.Acquire(t, t.Context(), x.l)
		joined := fixture.Acquire(t, t.Context(), x.other(t), primitives.WithOwner(private.ID()))
		x.p.Record()
		nested := fixture.Acquire(t, private.Context(), x.l)
		deeper := fixture.Acquire(t, nested.Context(), x.l)
		require.Equal(t, "4", x.count(t, private.ID()))
		fixture.Release(t, deeper, nested)
		sent := fixture.ScriptsOf(x.p)
		require.GreaterOrEqual(t, len(sent), 4)
		fixture.Release(t, private)
		for range 2 {
			x.forget(t)
			fixture.Replay(t, x.s.Client(t), sent)
			require.Equal(t, "1", x.count(t, private.ID()))
		}
		x.requireOnly(t, joined)
	})
}

// C15: ReleaseID takes the oldest count of WithOwner. That hold learns that it was lost; the others
// stay.
func TestReleaseIDTakesTheOldestCountOfAnOwner(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		old, hold := x.acquire(t, x.l), x.acquire(t, x.other(t))
		require.NoError(t, x.other(t).ReleaseID(t.Context(), "o"))
		require.Equal(t, "1", x.count(t, "o"))
		require.ErrorIs(t, old.Check(t.Context()), primitives.ErrLost)
		require.ErrorIs(t, old.Release(t.Context()), primitives.ErrLost)
		x.requireOnly(t, hold)
	})
}

// C15: the counts of WithOwner belong to holds whose renewals keep them. A renewal of a hold that
// was taken is refused, even while another hold has the same id.
func TestRenewalOfATakenOwnersHoldIsRefused(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		old := x.acquire(t, x.l, primitives.WithWatchdog(fixture.RenewedTTL))
		kept := x.acquire(t, x.other(t), primitives.WithWatchdog(fixture.RenewedTTL))
		require.NoError(t, x.s.Client(t).HDel(t.Context(), fixture.SharedCountsKey(x.name), "o", "o:write").Err())
		hold := x.acquire(t, x.other(t))
		fixture.RequireEnds(t, old.Context(), primitives.ErrLost)
		fixture.RequireEnds(t, kept.Context(), primitives.ErrLost)
		require.ErrorIs(t, old.Extend(t.Context(), time.Minute), primitives.ErrLost)
		fixture.RequireLive(t, hold.Context())
		require.NoError(t, hold.Extend(t.Context(), time.Minute))
		require.Greater(t, x.s.Client(t).PTTL(t.Context(), fixture.SharedCountsKey(x.name)).Val(), 50*time.Second)
	})
}

// The release of a hold whose own lease has ended gives its count back, if others with the same id
// keep the lock.
func TestReleaseAfterTheLeaseOfAnOwnerGivesItsCountBack(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		short, hold := x.acquire(t, x.l, primitives.WithLease(fixture.ShortLease)), x.acquire(t, x.other(t))
		fixture.RequireEnds(t, short.Context(), primitives.ErrLost)
		require.ErrorIs(t, short.Release(t.Context()), primitives.ErrLost)
		redistest.WaitFor(t, fixture.Soon, func() bool { return x.count(t, "o") == "1" }, "given back in the background")
		x.requireOnly(t, hold)
	})
}

// The same for a private hold whose id was given to others.
func TestLateReleaseOfAPrivateHoldGivesItsCountBack(t *testing.T) {
	eachOwnerKind(t, func(t *testing.T, x *ownerCase) {
		short := fixture.Acquire(t, t.Context(), x.l, primitives.WithLease(fixture.ShortLease))
		hold := fixture.Acquire(t, t.Context(), x.other(t), primitives.WithOwner(short.ID()))
		fixture.RequireEnds(t, short.Context(), primitives.ErrLost)
		time.Sleep(100 * time.Millisecond) // the lease ends a little later than the hold
		require.ErrorIs(t, short.Release(t.Context()), primitives.ErrLost)
		redistest.WaitFor(t, fixture.Soon, func() bool { return x.count(t, short.ID()) == "1" },
			"given back in the background")
		x.requireOnly(t, hold)
	})
}

// Thousands of counts of one id are one list in Redis. Each release finds its own.
func TestManyCountsOfOneOwner(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		l := fixture.NewClient(t, s.Client(t)).Lock(name, primitives.WithOwner("o"))
		n := redistest.Sized(s, 2*redistest.Scaled(s, 200), 5000)
		holds := make([]*primitives.Hold, n)
		began := time.Now()
		for i := range holds {
			holds[i] = fixture.Acquire(t, t.Context(), l)
		}
		require.Equal(t, map[string]int{"o": n}, fixture.SharedCounts(t, s, name))
		for i := range holds { // the oldest, the newest, and so on
			if i%2 == 1 {
				i = n - i
			}
			fixture.Release(t, holds[i])
		}
		t.Logf("%d counts: %v for each acquisition and release", n, time.Since(began)/time.Duration(n))
		fixture.RequireClean(t, s, name)
		require.Zero(t, s.Client(t).Exists(t.Context(), fixture.SharedCountsKey(name)).Val())
	})
}

package primitives_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// shortTTL renews a hold every 800 ms, and retries lost members as often. A member has 240 ms to
// answer.
var shortTTL = primitives.WithWatchdog(2400 * time.Millisecond)

// longTTL outlasts the tests: a member that is free by then was released.
var longTTL = primitives.WithWatchdog(time.Minute)

// has reports whether id holds the name on that server, with that count.
func (q *quorum) has(t *testing.T, server int, id, count string) bool {
	m := fields(t, q.servers[server], q.name)
	return len(m) == 1 && m[id] == count
}

// flush deletes all data of the given servers.
func (q *quorum) flush(t *testing.T, servers ...int) {
	for _, i := range servers {
		require.NoError(t, q.servers[i].Client(t).FlushAll(context.Background()).Err())
	}
}

// acquires matches scripts that acquire for that id.
func acquires(args []string, id string) bool {
	return script(args) && slices.Contains(args, id) && slices.Contains(args, "publish") && !releases(args)
}

// attempts counts the commands since Record that acquire a member for id.
func (q *quorum) attempts(server int, id string) (n int) {
	for _, c := range q.proxies[server].Commands() {
		if acquires(c.Args, id) {
			n++
		}
	}
	return n
}

// awaitQuiet returns when p has recorded no command that matches for half a second: the background
// task that sends such commands has ended. p must record.
func awaitQuiet(t *testing.T, p *redistest.Proxy, match func(args []string) bool) {
	t.Helper()
	sent, last := 0, time.Now()
	redistest.WaitFor(t, soon, func() bool {
		if n := len(recorded(p, match)); n != sent {
			sent, last = n, time.Now()
		}
		return time.Since(last) > 500*time.Millisecond
	}, "no further command is sent")
}

// awaitNextRetry outlasts the interval at which a redlock with shortTTL retries lost members. Tests
// that nothing is retried have no event to await.
func awaitNextRetry() { time.Sleep(time.Second) }

// requireClosed closes clients, which waits for their background work.
func requireClosed(t *testing.T, clients []*primitives.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	for _, c := range clients {
		require.NoError(t, c.Close(ctx))
	}
}

// TestRedHoldSurvivesARollingRestart lets all servers lose their data, one after another. The
// redlock acquires each of them again. A rival that keeps trying never acquires.
func TestRedHoldSurvivesARollingRestart(t *testing.T) {
	for _, tt := range []struct {
		name    string
		restart func(t *testing.T, q *quorum, i int)
	}{
		{"flushed", func(t *testing.T, q *quorum, i int) { q.flush(t, i) }},
		{"restarted", func(t *testing.T, q *quorum, i int) { require.NoError(t, q.servers[i].Restart()) }},
		{"down for longer than the TTL", func(t *testing.T, q *quorum, i int) {
			require.NoError(t, q.servers[i].Kill())
			time.Sleep(2500 * time.Millisecond)
			require.NoError(t, q.servers[i].Restart())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "down for longer than the TTL" {
				redistest.NeedFull(t, "the TTL of each of five servers")
			}
			q := newQuorum(t, 5)
			events := &recorder{}
			clients := q.clients(t, events.option())
			l, rival := q.lock(clients, shortTTL), q.on(t)
			outer := acquire(t, t.Context(), l)
			inner := acquire(t, outer.Context(), l)
			stop, stopped := make(chan struct{}), make(chan struct{})
			var tries, acquired atomic.Int32
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond):
					}
					tries.Add(1)
					if hold, err := rival.TryAcquire(context.Background()); err == nil {
						acquired.Add(1)
						_ = hold.Release(context.Background())
					}
				}
			}()
			for i := range q.servers {
				tt.restart(t, q, i)
				redistest.WaitFor(t, soon, func() bool {
					return q.has(t, i, outer.ID(), "2")
				}, "acquired again, for both holds")
				requireLive(t, inner.Context())
			}
			close(stop)
			<-stopped
			for i := range q.servers {
				redistest.WaitFor(t, soon, func() bool {
					return q.has(t, i, outer.ID(), "2")
				}, "all servers have the id")
			}
			t.Logf("a rival tried %d times", tries.Load())
			require.Positive(t, tries.Load())
			require.Zero(t, acquired.Load())
			require.NoError(t, inner.Check(t.Context()))
			require.NoError(t, outer.Check(t.Context()))
			release(t, inner)
			for i := range q.servers { // a release that a member answers too late goes on in the background
				redistest.WaitFor(t, soon, func() bool { return q.has(t, i, outer.ID(), "1") }, "one hold is left")
			}
			release(t, outer)
			requireClosed(t, clients)
			q.requireFree(t, all(5)...)
			require.Empty(t, events.all(primitives.EventLost))
		})
	}
}

// TestRedLostMajorityIsNotAcquiredAgain flushes three of five servers at once. The hold is lost,
// although nobody else holds them.
func TestRedLostMajorityIsNotAcquiredAgain(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 5)
	hold := acquire(t, t.Context(), q.on(t, shortTTL))
	for _, p := range q.proxies {
		p.Record()
	}
	q.flush(t, 1, 2, 4)
	requireEnds(t, hold.Context(), primitives.ErrLost)
	awaitNextRetry()
	for i := range q.servers {
		require.Zero(t, q.attempts(i, hold.ID()), "server %d", i)
	}
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	q.requireFree(t, all(5)...)
}

// TestRedMemberIsAcquiredAgainAfterItsNewOwner has another owner acquire a lost member. The redlock
// retries, and acquires it once that owner has released it.
func TestRedMemberIsAcquiredAgainAfterItsNewOwner(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 5)
	hold := acquire(t, t.Context(), q.on(t, shortTTL))
	rdb := q.servers[3].Client(t)
	const other = "8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:42"
	q.proxies[3].Record()
	_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), q.name)
		p.HSet(t.Context(), q.name, other, 1)
		p.PExpire(t.Context(), q.name, 30*time.Second)
		return nil
	})
	require.NoError(t, err)
	redistest.WaitFor(t, soon, func() bool { return q.attempts(3, hold.ID()) > 1 }, "the redlock retries")
	require.True(t, q.has(t, 3, other, "1"))
	requireLive(t, hold.Context())
	redissonUnlock(t, q.servers[3], q.name)
	redistest.WaitFor(t, soon, func() bool {
		requireLive(t, hold.Context())
		return q.has(t, 3, hold.ID(), "1")
	}, "acquired again")
	release(t, hold)
	q.requireFree(t, all(5)...)
}

// TestRedHoldWithALeaseOrAnOwnerIsNotAcquiredAgain: acquiring again would prolong a fixed lease,
// and could count a shared owner twice.
func TestRedHoldWithALeaseOrAnOwnerIsNotAcquiredAgain(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]primitives.Option{
		"lease": {primitives.WithLease(time.Minute)},
		"owner": {longTTL, primitives.WithOwner("me")},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQuorum(t, 3)
			hold := acquire(t, t.Context(), q.on(t, opts...))
			q.proxies[0].Record()
			q.flush(t, 0)
			require.NoError(t, hold.Check(t.Context())) // finds the loss: a redlock that retries does so at once
			awaitNextRetry()
			require.Zero(t, q.attempts(0, hold.ID()))
			requireLive(t, hold.Context())
			release(t, hold)
			q.requireFree(t, all(3)...)
		})
	}
}

// TestRedAttemptAfterTheEndOfItsHoldIsRolledBack delays or drops the reply to an attempt to acquire
// a member again until the hold has ended.
func TestRedAttemptAfterTheEndOfItsHoldIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		answered, lost bool
	}{
		{"released, late reply", true, false},
		{"released, no reply", false, false},
		{"lost, late reply", true, true},
		{"lost, no reply", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := newQuorum(t, 3)
			clients := q.clients(t)
			hold := acquire(t, t.Context(), q.lock(clients, longTTL))
			q.flush(t, 0)
			attempt := func(args []string) bool { return acquires(args, hold.ID()) }
			deliver := func() {}
			q.proxies[0].Record()
			if tt.answered {
				deliver = q.proxies[0].HoldReplies(attempt)
			} else {
				q.proxies[0].DropReplies(1000, attempt)
			}
			require.NoError(t, hold.Check(t.Context()))
			redistest.WaitFor(t, soon, func() bool { return q.has(t, 0, hold.ID(), "1") }, "the attempt is executed")
			if !tt.answered {
				awaitQuiet(t, q.proxies[0], attempt) // the attempt has failed
			}
			if tt.lost {
				q.flush(t, 1)
				require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			} else {
				release(t, hold)
			}
			deliver()
			q.requireFree(t, all(3)...)
			requireClosed(t, clients)
			q.requireFree(t, all(3)...)
		})
	}
}

// TestRedAttemptOfUnknownOutcomeIsRetried drops the reply to an attempt to acquire a member again.
// The next attempt finds that the member is held.
func TestRedAttemptOfUnknownOutcomeIsRetried(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	clients := q.clients(t)
	hold := acquire(t, t.Context(), q.lock(clients, shortTTL))
	q.proxies[0].DropReplies(3, func(args []string) bool { return acquires(args, hold.ID()) })
	q.flush(t, 0)
	redistest.WaitFor(t, soon, func() bool { return q.has(t, 0, hold.ID(), "1") }, "the attempt is executed")
	redistest.WaitFor(t, soon, func() bool {
		part := clients[0].Lock(q.name).HoldFrom(hold.Context())
		return part != nil && part.Check(t.Context()) == nil
	}, "the redlock knows that it holds the first member")
	q.flush(t, 1)
	redistest.WaitFor(t, soon, func() bool {
		return q.has(t, 1, hold.ID(), "1")
	}, "acquired with the first member's vote")
	require.NoError(t, hold.Check(t.Context()))
	release(t, hold)
	q.requireFree(t, all(3)...)
}

// TestRedMemberThatANestedHoldHasIsCounted lets a nested hold acquire a lost member before the redlock does, with
// the same id. Its release leaves the member to the redlock.
func TestRedMemberThatANestedHoldHasIsCounted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onJoint(t, s, "red")
		hold := acquire(t, t.Context(), x.l)
		name := x.names[0]
		set := func(keys ...string) { // each a hash with one field, and its value
			_, err := x.rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
				p.Del(t.Context(), name)
				for i := 0; i < len(keys); i += 3 {
					p.HSet(t.Context(), keys[i], keys[i+1], keys[i+2])
					p.PExpire(t.Context(), keys[i], time.Minute)
				}
				return nil
			})
			require.NoError(t, err)
		}
		set(name, "a rival", "1") // so that the nested hold is first
		require.NoError(t, hold.Check(t.Context()))
		require.Nil(t, x.c.Lock(name).HoldFrom(hold.Context()), "the member is lost")
		set(name, hold.ID(), "1", "redisson_unlock_latch:{"+name+"}:owners", hold.ID(), "0123456789abcdef ")
		redistest.WaitFor(t, soon, func() bool {
			return x.c.Lock(name).HoldFrom(hold.Context()) != nil
		}, "acquired again")
		require.Equal(t, map[string]string{hold.ID(): "2"}, fields(t, s, name))
		require.NoError(t, x.c.Lock(name).ReleaseID(t.Context(), hold.ID())) // by the nested hold
		require.NoError(t, x.c.Lock(name).HoldFrom(hold.Context()).Check(t.Context()))
		release(t, hold)
		requireClean(t, s, name)
	})
}

// TestRedReleaseOfALostPartDoesNotFreeItsReplacement releases the lost hold of a member after the
// redlock has acquired the member again.
func TestRedReleaseOfALostPartDoesNotFreeItsReplacement(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	clients := q.clients(t)
	hold := acquire(t, t.Context(), q.lock(clients, longTTL))
	part := clients[0].Lock(q.name).HoldFrom(hold.Context())
	q.flush(t, 0)
	require.NoError(t, hold.Check(t.Context()))
	redistest.WaitFor(t, soon, func() bool {
		again := clients[0].Lock(q.name).HoldFrom(hold.Context())
		return again != nil && again.Check(t.Context()) == nil
	}, "acquired again")
	q.proxies[0].Record()
	require.ErrorIs(t, part.Release(t.Context()), primitives.ErrLost)
	time.Sleep(100 * time.Millisecond) // a release in the background begins after 20 ms
	require.False(t, slices.ContainsFunc(q.proxies[0].Commands(), func(c redistest.Command) bool {
		return releases(c.Args)
	}))
	require.True(t, q.has(t, 0, hold.ID(), "1"))
	release(t, hold)
	q.requireFree(t, all(3)...)
}

// TestRedCloseWhileAMemberIsLost checks that Close ends the hold with ErrClosed, and stops the
// retries.
func TestRedCloseWhileAMemberIsLost(t *testing.T) {
	checkLeaks(t)
	q := newQuorum(t, 3)
	clients := q.clients(t)
	hold := acquire(t, t.Context(), q.lock(clients, shortTTL))
	q.proxies[0].Refuse(true)
	q.proxies[0].Reset()
	redistest.WaitFor(t, soon, func() bool {
		return clients[0].Lock(q.name).HoldFrom(hold.Context()) == nil
	}, "one member is lost")
	requireLive(t, hold.Context())
	shut(clients[0])
	requireEnds(t, hold.Context(), primitives.ErrClosed)
	shut(clients[1])
	shut(clients[2])
}

// TestRedCloseAfterMembersWereAcquiredAgain: Close meets the replaced parts last, and must not take
// their end for a loss of the redlock.
func TestRedCloseAfterMembersWereAcquiredAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onJoint(t, s, "red")
		hold := acquire(t, t.Context(), x.l)
		for _, name := range x.names[:2] {
			require.NoError(t, x.rdb.Del(t.Context(), name).Err())
			require.NoError(t, hold.Check(t.Context()))
			redistest.WaitFor(t, soon, func() bool {
				part := x.c.Lock(name).HoldFrom(hold.Context())
				return part != nil && part.Check(t.Context()) == nil
			}, "acquired again")
		}
		shut(x.c)
		requireEnds(t, hold.Context(), primitives.ErrClosed)
		require.Empty(t, x.events.all(primitives.EventLost))
		x.rdb.Del(t.Context(), x.names...)
	})
}

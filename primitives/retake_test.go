package primitives_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// shortTTL has a hold renewed every 800 ms. A member has 240 ms to answer.
var shortTTL = primitives.WithWatchdog(2400 * time.Millisecond)

// longTTL is longer than tests wait: what is free by then was given back.
var longTTL = primitives.WithWatchdog(20 * time.Second)

// has tells whether id holds the name on that server, with that count.
func (q *quorum) has(t *testing.T, server int, id, count string) bool {
	m := fields(t, q.servers[server], q.name)
	return len(m) == 1 && m[id] == count
}

func (q *quorum) flush(t *testing.T, servers ...int) {
	for _, i := range servers {
		require.NoError(t, q.servers[i].Client(t).FlushAll(context.Background()).Err())
	}
}

// takes matches scripts that acquire for that id.
func takes(args []string, id string) bool {
	return script(args) && slices.Contains(args, id) && slices.Contains(args, "publish") && !givesBack(args)
}

// asked counts the tries to acquire for that id that a member has seen since Record.
func (q *quorum) asked(server int, id string) (n int) {
	for _, c := range q.proxies[server].Commands() {
		if takes(c.Args, id) {
			n++
		}
	}
	return n
}

// awaitNoRetaking returns once no red lock tries to acquire a lost member again.
func awaitNoRetaking(t *testing.T) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool {
		return !slices.ContainsFunc(running(), func(stack string) bool { return strings.Contains(stack, "retakeAll") })
	}, "nothing is taken again")
}

// All servers lose their data, one after another. The red lock takes each of them again, and nobody else gets in.
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
			q := newQuorum(t, 5)
			heard := &recorder{}
			l, rival := q.lock(q.clients(t, heard.option()), shortTTL), q.on(t)
			outer := acquire(t, t.Context(), l)
			inner := acquire(t, outer.Context(), l)
			stop, stopped := make(chan struct{}), make(chan struct{})
			var tries, inside atomic.Int32
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
						inside.Add(1)
						_ = hold.Release(context.Background())
					}
				}
			}()
			for i := range q.servers {
				tt.restart(t, q, i)
				redistest.WaitFor(t, soon, func() bool { return q.has(t, i, outer.ID(), "2") }, "taken again, for both holds")
				requireLive(t, inner.Context())
			}
			close(stop)
			<-stopped
			for i := range q.servers {
				redistest.WaitFor(t, soon, func() bool { return q.has(t, i, outer.ID(), "2") }, "all have the id")
			}
			t.Logf("a rival tried %d times", tries.Load())
			require.Positive(t, tries.Load())
			require.Zero(t, inside.Load())
			require.NoError(t, inner.Check(t.Context()))
			require.NoError(t, outer.Check(t.Context()))
			release(t, inner)
			for i := range q.servers {
				require.True(t, q.has(t, i, outer.ID(), "1"))
			}
			release(t, outer)
			awaitNoRetaking(t)
			q.requireFree(t, all(5)...)
			require.Empty(t, heard.all(primitives.EventLost))
		})
	}
}

// Three of five servers lose their data at once: the hold is lost, although none of them is held by anybody else.
func TestRedMajorityThatIsLostIsNeverTakenAgain(t *testing.T) {
	q := newQuorum(t, 5)
	hold := acquire(t, t.Context(), q.on(t, shortTTL))
	for _, p := range q.proxies {
		p.Record()
	}
	q.flush(t, 1, 2, 4)
	requireEnds(t, hold.Context(), primitives.ErrLost)
	awaitNoRetaking(t)
	for i := range q.servers {
		require.Zero(t, q.asked(i, hold.ID()), "server %d", i)
	}
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	q.requireFree(t, all(5)...)
}

// A member that somebody else has is left to them, and taken again when they have released it.
func TestRedMemberThatAnotherHoldsIsNotTakenAgain(t *testing.T) {
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
	redistest.WaitFor(t, soon, func() bool { return q.asked(3, hold.ID()) > 1 }, "asked for again and again")
	require.True(t, q.has(t, 3, other, "1"))
	requireLive(t, hold.Context())
	javaReleases(t, q.servers[3], q.name)
	redistest.WaitFor(t, soon, func() bool { requireLive(t, hold.Context()); return q.has(t, 3, hold.ID(), "1") }, "taken again")
	release(t, hold)
	q.requireFree(t, all(5)...)
}

// A fixed lease is not prolonged by taking a member again, nor is what a caller-managed owner holds counted twice.
func TestRedHoldThatIsNotRenewedOrSharedTakesNothingAgain(t *testing.T) {
	for name, opts := range map[string][]primitives.Option{
		"lease": {primitives.WithLease(20 * time.Second)},
		"owner": {longTTL, primitives.WithOwner("me")},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQuorum(t, 3)
			hold := acquire(t, t.Context(), q.on(t, opts...))
			q.proxies[0].Record()
			q.flush(t, 0)
			require.NoError(t, hold.Check(t.Context()))
			awaitNoRetaking(t)
			require.Zero(t, q.asked(0, hold.ID()))
			requireLive(t, hold.Context())
			release(t, hold)
			q.requireFree(t, all(3)...)
		})
	}
}

// The answer to a try to take a member again comes when the hold has ended, or never: the try comes to nothing.
func TestRedLateRetakeIsGivenBack(t *testing.T) {
	for _, tt := range []struct {
		name           string
		answered, lost bool
	}{
		{"released, answered late", true, false},
		{"released, never answered", false, false},
		{"lost, answered late", true, true},
		{"lost, never answered", false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := newQuorum(t, 3)
			hold := acquire(t, t.Context(), q.on(t, longTTL))
			q.flush(t, 0)
			try := func(args []string) bool { return takes(args, hold.ID()) }
			answer := func() {}
			if tt.answered {
				answer = q.proxies[0].HoldReplies(try)
			} else {
				q.proxies[0].DropReplies(1000, try)
			}
			require.NoError(t, hold.Check(t.Context()))
			redistest.WaitFor(t, soon, func() bool { return q.has(t, 0, hold.ID(), "1") }, "executed")
			if !tt.answered {
				redistest.WaitFor(t, soon, func() bool {
					return !slices.ContainsFunc(running(), func(stack string) bool { return strings.Contains(stack, ").reacquire(") })
				}, "the try has failed")
			}
			began := time.Now()
			if tt.lost {
				q.flush(t, 1)
				require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			} else {
				release(t, hold)
			}
			answer()
			awaitNoRetaking(t)
			q.requireFree(t, all(3)...)
			require.Less(t, time.Since(began), 8*time.Second, "not by the end of its lease")
		})
	}
}

// The answer to a try is lost. The next try finds out that the member is held.
func TestRedRetakeOfUnknownOutcomeIsTriedAgain(t *testing.T) {
	q := newQuorum(t, 3)
	hold := acquire(t, t.Context(), q.on(t, shortTTL))
	q.proxies[0].DropReplies(3, func(args []string) bool { return takes(args, hold.ID()) })
	q.flush(t, 0)
	redistest.WaitFor(t, soon, func() bool { return q.has(t, 0, hold.ID(), "1") }, "executed")
	awaitNoRetaking(t)
	q.flush(t, 1)
	redistest.WaitFor(t, soon, func() bool { return q.has(t, 1, hold.ID(), "1") }, "the first counts again")
	require.NoError(t, hold.Check(t.Context()))
	release(t, hold)
	q.requireFree(t, all(3)...)
}

// The user has the lost hold of a member, and releases it when the red lock has taken the member again.
func TestRedReleaseOfALostPartDoesNotFreeItsReplacement(t *testing.T) {
	q := newQuorum(t, 3)
	clients := q.clients(t)
	hold := acquire(t, t.Context(), q.lock(clients, longTTL))
	part := clients[0].Lock(q.name).HoldFrom(hold.Context())
	q.flush(t, 0)
	require.NoError(t, hold.Check(t.Context()))
	redistest.WaitFor(t, soon, func() bool {
		again := clients[0].Lock(q.name).HoldFrom(hold.Context())
		return again != nil && again.Check(t.Context()) == nil
	}, "taken again")
	q.proxies[0].Record()
	require.ErrorIs(t, part.Release(t.Context()), primitives.ErrLost)
	time.Sleep(100 * time.Millisecond) // a release in the background begins after 20 ms
	require.False(t, slices.ContainsFunc(q.proxies[0].Commands(), func(c redistest.Command) bool { return givesBack(c.Args) }))
	require.True(t, q.has(t, 0, hold.ID(), "1"))
	release(t, hold)
	q.requireFree(t, all(3)...)
}

// Close ends the task too, and its hold with ErrClosed.
func TestRedCloseWhileAMemberIsMissing(t *testing.T) {
	q := newQuorum(t, 3)
	clients := q.clients(t)
	hold := acquire(t, t.Context(), q.lock(clients, shortTTL))
	q.proxies[0].Refuse(true)
	q.proxies[0].Reset()
	redistest.WaitFor(t, soon, func() bool { return clients[0].Lock(q.name).HoldFrom(hold.Context()) == nil }, "one is lost")
	requireLive(t, hold.Context())
	shut(clients[0])
	requireEnds(t, hold.Context(), primitives.ErrClosed)
	shut(clients[1])
	shut(clients[2])
	requireIdle(t)
}

// The parts that were taken again are the youngest holds of the client. Close ends the red lock with ErrClosed all the same.
func TestRedCloseAfterMembersWereTakenAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := onJoint(t, s, "red")
		hold := acquire(t, t.Context(), x.l)
		for _, name := range x.names[:2] {
			require.NoError(t, x.rdb.Del(t.Context(), name).Err())
			require.NoError(t, hold.Check(t.Context()))
			redistest.WaitFor(t, soon, func() bool {
				part := x.c.Lock(name).HoldFrom(hold.Context())
				return part != nil && part.Check(t.Context()) == nil
			}, "taken again")
		}
		shut(x.c)
		requireEnds(t, hold.Context(), primitives.ErrClosed)
		require.Empty(t, x.heard.all(primitives.EventLost))
		x.rdb.Del(t.Context(), x.names...)
	})
}

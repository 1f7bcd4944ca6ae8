package faults

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// longTTL outlasts the tests: a member that is free by then was released.
var longTTL = primitives.WithWatchdog(time.Minute)

// awaitNextRetry outlasts the interval at which a redlock with shortTTL retries lost members. Tests
// that nothing is retried have no event to await.
func awaitNextRetry() { time.Sleep(time.Second) }

// requireClosed closes clients, which waits for their background work.
func requireClosed(t *testing.T, clients []*primitives.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixture.Soon)
	defer cancel()
	for _, c := range clients {
		require.NoError(t, c.Close(ctx))
	}
}

// TestRedHoldSurvivesARollingRestart lets all servers lose their data, one after another. The
// redlock acquires each of them again. A rival that keeps trying never acquires.
func TestRedHoldSurvivesARollingRestart(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]time.Duration{
		"flushed": 0, "down for longer than the TTL": 2500 * time.Millisecond,
	} {
		redistest.RunBubble(t, name, func(t *testing.T) {
			q := fixture.EmbeddedQuorum(t, 5)
			survivesARollingRestart(t, q, q.Clients, fixture.ShortTTL, func(i int) {
				q.Proxies[i].Refuse(down > 0)
				if down > 0 {
					q.Proxies[i].Reset()
				}
				time.Sleep(down)
				q.Flush(t, i)
				q.Proxies[i].Heal()
			}, nil)
		})
	}
	t.Run("restarted", func(t *testing.T) {
		q := fixture.NewQuorum(t, 5)
		patient := func(t *testing.T, opts ...primitives.ClientOption) []*primitives.Client {
			return q.PatientClients(t, opts...)
		}
		survivesARollingRestart(t, q, patient, longTTL, func(i int) {
			require.NoError(t, q.Servers[i].Restart())
		}, func(hold *primitives.Hold) { _ = hold.Check(t.Context()) }) // finds the loss long before the watchdog does
	})
}

// survivesARollingRestart restarts each server of q. While a member is lost, find is called, if it
// is not nil.
func survivesARollingRestart(
	t *testing.T, q *fixture.Quorum, open func(*testing.T, ...primitives.ClientOption) []*primitives.Client,
	ttl primitives.Option, restart func(i int), find func(*primitives.Hold),
) {
	events := &fixture.Recorder{}
	clients := open(t, events.Option())
	rival := q.Lock(open(t))
	outer := q.Acquire(t, t.Context(), clients, ttl)
	inner := q.Acquire(t, outer.Context(), clients, ttl)
	stop, stopped := make(chan struct{}), make(chan struct{})
	var tries, acquired atomic.Int32
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(150 * time.Millisecond):
			}
			tries.Add(1)
			if hold, err := rival.TryAcquire(context.Background()); err == nil {
				acquired.Add(1)
				_ = hold.Release(context.Background())
			}
		}
	}()
	for i := range q.Servers {
		restart(i)
		redistest.WaitFor(t, fixture.Soon, func() bool {
			if find != nil {
				find(inner)
			}
			return q.Has(t, i, outer.ID(), "2")
		}, "acquired again, for both holds")
		fixture.RequireLive(t, inner.Context())
	}
	close(stop)
	<-stopped
	for i := range q.Servers {
		redistest.WaitFor(t, fixture.Soon, func() bool { return q.Has(t, i, outer.ID(), "2") }, "all servers have the id")
	}
	t.Logf("a rival tried %d times", tries.Load())
	require.Positive(t, tries.Load())
	require.Zero(t, acquired.Load())
	require.NoError(t, inner.Check(t.Context()))
	require.NoError(t, outer.Check(t.Context()))
	fixture.Release(t, inner)
	for i := range q.Servers { // a release that a member answers too late goes on in the background
		redistest.WaitFor(t, fixture.Soon, func() bool { return q.Has(t, i, outer.ID(), "1") }, "one hold is left")
	}
	fixture.Release(t, outer)
	requireClosed(t, clients)
	q.RequireFree(t, fixture.All(5)...)
	require.Empty(t, events.All(primitives.EventLost))
}

// TestRedLostMajorityIsNotAcquiredAgain flushes three of five servers at once. The hold is lost,
// although nobody else holds them.
func TestRedLostMajorityIsNotAcquiredAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 5)
		hold := q.Acquire(t, t.Context(), q.Clients(t), fixture.ShortTTL)
		for _, p := range q.Proxies {
			p.Record()
		}
		q.Flush(t, 1, 2, 4)
		fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
		awaitNextRetry()
		for i := range q.Servers {
			require.Zero(t, q.Attempts(i, hold.ID()), "server %d", i)
		}
		require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
		q.RequireFree(t, fixture.All(5)...)
	})
}

// TestRedMemberIsAcquiredAgainAfterItsNewOwner has another owner acquire a lost member. The redlock
// retries, and acquires it once that owner has released it.
func TestRedMemberIsAcquiredAgainAfterItsNewOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := fixture.EmbeddedQuorum(t, 5)
		hold := q.Acquire(t, t.Context(), q.Clients(t), fixture.ShortTTL)
		rdb := q.Servers[3].Client(t)
		const other = "8a0a8ea4-7f4f-4b0e-8d2b-9d6c3a5f1e11:42"
		q.Proxies[3].Record()
		_, err := rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Del(t.Context(), q.Name)
			p.HSet(t.Context(), q.Name, other, 1)
			p.PExpire(t.Context(), q.Name, 30*time.Second)
			return nil
		})
		require.NoError(t, err)
		redistest.WaitFor(t, fixture.Soon, func() bool { return q.Attempts(3, hold.ID()) > 1 }, "the redlock retries")
		require.True(t, q.Has(t, 3, other, "1"))
		fixture.RequireLive(t, hold.Context())
		fixture.RedissonUnlock(t, q.Servers[3], q.Name)
		redistest.WaitFor(t, fixture.Soon, func() bool {
			fixture.RequireLive(t, hold.Context())
			return q.Has(t, 3, hold.ID(), "1")
		}, "acquired again")
		fixture.Release(t, hold)
		q.RequireFree(t, fixture.All(5)...)
	})
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
			q := fixture.NewQuorum(t, 3)
			hold := q.Acquire(t, t.Context(), q.PatientClients(t), opts...) // the others send some commands twice
			q.Proxies[0].Record()
			q.Flush(t, 0)
			require.NoError(t, hold.Check(t.Context())) // finds the loss: a redlock that retries does so at once
			awaitNextRetry()
			require.Zero(t, q.Attempts(0, hold.ID()))
			fixture.RequireLive(t, hold.Context())
			fixture.Release(t, hold)
			q.RequireFree(t, fixture.All(3)...)
		})
	}
}

// TestRedAttemptAfterTheEndOfItsHoldIsRolledBack delays or drops the reply to an attempt to acquire
// a member again until the hold has ended. This is in fake time: on a busy machine, servers would
// not answer within the short timeouts by which the attempts fail.
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
		redistest.RunBubble(t, tt.name, func(t *testing.T) {
			q := fixture.EmbeddedQuorum(t, 3)
			clients := q.Clients(t)
			hold := q.Acquire(t, t.Context(), clients, longTTL)
			q.Flush(t, 0)
			attempt := func(args []string) bool { return fixture.Acquires(args, hold.ID()) }
			deliver := func() {}
			q.Proxies[0].Record()
			if tt.answered {
				deliver = q.Proxies[0].HoldReplies(attempt)
			} else {
				q.Proxies[0].DropReplies(1000, attempt)
			}
			require.NoError(t, hold.Check(t.Context()))
			redistest.WaitFor(t, fixture.Soon, func() bool { return q.Has(t, 0, hold.ID(), "1") }, "the attempt is executed")
			if !tt.answered {
				fixture.AwaitQuiet(t, q.Proxies[0], attempt) // the attempt has failed
			}
			if tt.lost {
				q.Flush(t, 1)
				require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
			} else {
				fixture.Release(t, hold)
			}
			deliver()
			q.RequireFree(t, fixture.All(3)...)
			requireClosed(t, clients)
			q.RequireFree(t, fixture.All(3)...)
		})
	}
}

// TestRedMemberThatANestedHoldHasIsCounted lets a nested hold acquire a lost member before the
// redlock does, with the same id. Each release leaves the member to the other one, and a late copy
// of the command that counts adds nothing.
func TestRedMemberThatANestedHoldHasIsCounted(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"the redlock is released last", "the nested hold is released last"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				x, p := fixture.OnJoint(t, s, "red"), s.Proxy(t)
				x.C = fixture.NewClient(t, p.Client(t, fixture.FastRetries))
				x.L = x.On(x.C)
				hold := x.Acquire(t, t.Context())
				name := x.Names[0]
				set := func(keys ...string) { // each a hash with one field, and its value
					_, err := x.Rdb.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
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
				require.Nil(t, x.C.Lock(name).HoldFrom(hold.Context()), "the member is lost")
				counts := func(args []string) bool {
					n := len(args)
					return fixture.Script(args) && slices.Contains(args, name) && args[n-3] == hold.ID() && args[n-2] == "1"
				}
				p.DropReplies(1, counts)
				p.Record()
				set(name, hold.ID(), "1", "redisson_unlock_latch:{"+name+"}:owners", hold.ID(), "0123456789abcdef ")
				redistest.WaitFor(t, fixture.Soon, func() bool {
					return x.C.Lock(name).HoldFrom(hold.Context()) != nil
				}, "acquired again")
				require.Equal(t, map[string]string{hold.ID(): "2"}, fixture.Fields(t, s, name))
				copies := fixture.Recorded(p, counts)
				require.NotEmpty(t, copies)
				releaseNested := func() { require.NoError(t, x.C.Lock(name).ReleaseID(t.Context(), hold.ID())) }
				if last == "the redlock is released last" {
					releaseNested()
					require.NoError(t, x.C.Lock(name).HoldFrom(hold.Context()).Check(t.Context()))
					fixture.Release(t, hold)
				} else {
					fixture.Release(t, hold)
					fixture.Replay(t, x.Rdb, copies)
					require.Equal(t, map[string]string{hold.ID(): "1"}, fixture.Fields(t, s, name))
					releaseNested()
				}
				fixture.Replay(t, x.Rdb, copies)
				fixture.RequireClean(t, s, name)
			})
		})
	}
}

// TestRedCloseWhileAMemberIsLost checks that Close ends the hold with ErrClosed, and stops the
// retries.
func TestRedCloseWhileAMemberIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which ends only if no goroutine is left
		q := fixture.EmbeddedQuorum(t, 3)
		clients := q.Clients(t)
		hold := q.Acquire(t, t.Context(), clients, fixture.ShortTTL)
		q.Proxies[0].Cut()
		redistest.WaitFor(t, fixture.Soon, func() bool {
			return clients[0].Lock(q.Name).HoldFrom(hold.Context()) == nil
		}, "one member is lost")
		fixture.RequireLive(t, hold.Context())
		fixture.CloseNow(clients[0])
		fixture.RequireEnds(t, hold.Context(), primitives.ErrClosed)
		fixture.CloseNow(clients[1])
		fixture.CloseNow(clients[2])
	})
}

// TestRedCloseAfterMembersWereAcquiredAgain: Close meets the replaced parts last, and must not take
// their end for a loss of the redlock.
func TestRedCloseAfterMembersWereAcquiredAgain(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		x := fixture.OnJoint(t, s, "red")
		hold := x.Acquire(t, t.Context())
		for _, name := range x.Names[:2] {
			require.NoError(t, x.Rdb.Del(t.Context(), name).Err())
			require.NoError(t, hold.Check(t.Context()))
			redistest.WaitFor(t, fixture.Soon, func() bool {
				part := x.C.Lock(name).HoldFrom(hold.Context())
				return part != nil && part.Check(t.Context()) == nil
			}, "acquired again")
		}
		fixture.CloseNow(x.C)
		fixture.RequireEnds(t, hold.Context(), primitives.ErrClosed)
		require.Empty(t, x.Events.All(primitives.EventLost))
		x.Rdb.Del(t.Context(), x.Names...)
	})
}

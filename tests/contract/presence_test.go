package contract

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// awaitHolderOf returns when the only holder in info is of that client.
func awaitHolderOf(t testing.TB, client string, info func(context.Context) (primitives.Info, error)) {
	t.Helper()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		got, err := info(t.Context())
		require.NoError(t, err)
		require.Len(t, got.Holders, 1)
		return got.Holders[0].Client == client
	}, "the holder's client is "+client)
}

func TestC25InfoAndLocksShowTheNameOfTheHoldersClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		base := redistest.Name(t)
		holding, other := fixture.NewClient(t, s.Client(t),
			primitives.WithClientName("worker 7")), fixture.NewClient(t, s.Client(t))
		for _, kind := range kinds.Locks() {
			name, open := kind.Name, kind.Lock
			hold := fixture.Acquire(t, t.Context(), open(holding, base+name))
			awaitHolderOf(t, "worker 7", open(other, base+name).Info)
			defer fixture.Release(t, hold)
		}
		found := 0
		for info, err := range other.Locks(t.Context(), base+"*") {
			require.NoError(t, err)
			require.Equal(t, "worker 7", info.Holders[0].Client, info.Name)
			found++
		}
		require.Len(t, kinds.Locks(), found)
		pool := other.PermitExpirableSemaphore(base + "permits")
		require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), 3)))
		hold := fixture.Acquire(t, t.Context(), holding.PermitExpirableSemaphore(base+"permits"))
		awaitHolderOf(t, "worker 7", pool.Info)
		fixture.Release(t, hold)
		hold = fixture.Acquire(t, t.Context(), pool)
		host, err := os.Hostname()
		require.NoError(t, err)
		awaitHolderOf(t, fmt.Sprint(host, ":", os.Getpid()), pool.Info)
		fixture.Release(t, hold)
	})
}

func TestC25ClientWithAnEmptyNameWritesNone(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	unnamed := fixture.NewClient(t, s.Client(t), primitives.WithClientName(""))
	hold := fixture.Acquire(t, t.Context(), unnamed.Lock("l"))
	fixture.AwaitWaiter(t, s, "redlatch_holder:") // a name would be written earlier
	require.Empty(t, fixture.ClientNames(t, s))
	require.Empty(t, fixture.InfoOf(t, unnamed.Lock("l")).Holders[0].Client)
	fixture.Release(t, hold)
}

// TestC25WaitersWriteTheirClientsName waits in each way. The name is deleted after the wait.
func TestC25WaitersWriteTheirClientsName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		holder := fixture.NewClient(t, s.Client(t), primitives.WithClientName(""))
		for name, wait := range map[string]func(ctx context.Context, c *primitives.Client) error{
			"lock": func(ctx context.Context, c *primitives.Client) error {
				_, err := c.Lock("l").Acquire(ctx)
				return err
			},
			"fair": func(ctx context.Context, c *primitives.Client) error {
				_, err := c.FairLock("l").Acquire(ctx)
				return err
			},
			"multi": func(ctx context.Context, c *primitives.Client) error {
				_, err := primitives.NewMultiLock([]*primitives.Lock{c.Lock("k"), c.Lock("l")}).Acquire(ctx)
				return err
			},
			"nested": func(ctx context.Context, c *primitives.Client) error {
				outer, err := c.Lock("outer").Acquire(ctx)
				if err != nil {
					return err
				}
				inner, err := c.Lock("outer").Acquire(outer.Context())
				if err != nil {
					return err
				}
				_, err = c.Lock("outer").Acquire(outer.Context())
				_, _ = inner.Release(context.Background()), outer.Release(context.Background())
				return err
			},
			"latch": func(ctx context.Context, c *primitives.Client) error {
				_, err := c.CountDownLatch("latch").Init(ctx, 1)
				if err != nil {
					return err
				}
				return c.CountDownLatch("latch").Wait(ctx)
			},
		} {
			hold := fixture.Acquire(t, t.Context(), holder.Lock("l"))
			c := fixture.NewClient(t, s.Client(t), primitives.WithClientName(name))
			ctx, cancel := context.WithCancel(t.Context())
			done := fixture.Go(func() error { return wait(ctx, c) })
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return strings.Join(fixture.ClientNames(t, s), ",") == name
			}, "the waiter's name is written")
			cancel()
			require.Error(t, <-done)
			redistest.WaitFor(t, fixture.Soon, func() bool {
				return len(fixture.ClientNames(t, s)) == 0
			}, "the name is deleted after the wait: "+name)
			fixture.Release(t, hold)
		}
	})
}

// TestC25NameIsRefreshedWhileTheClientHolds waits until the TTL of the name has been refreshed.
func TestC25NameIsRefreshedWhileTheClientHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock("l"))
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ClientNames(t, s)) == 1 }, "the name is written")
		key := redistest.Keys(t, s, "redlatch_client:*")[0]
		rdb := s.Client(t)
		ttl := func() time.Duration { return rdb.PTTL(t.Context(), key).Val() }
		first := ttl()
		require.InDelta(t, 30, first.Seconds(), 2)
		redistest.WaitFor(t, fixture.Soon, func() bool { return ttl() < 25*time.Second }, "the TTL decreases")
		redistest.WaitFor(t, fixture.Soon, func() bool { return ttl() > 28*time.Second }, "the TTL is refreshed")
		fixture.Release(t, hold)
	})
}

// TestC25NameAndSubscriptionEndWithTheLastHold checks when the name and the holder channel of a
// client go.
func TestC25NameAndSubscriptionEndWithTheLastHold(t *testing.T) {
	t.Parallel()
	holding := func(t testing.TB, s *redistest.Server) (*primitives.Client, *primitives.Hold) {
		c := fixture.NewClient(t, s.Client(t), primitives.WithClientName("me"))
		hold := fixture.Acquire(t, t.Context(), c.Lock("l"))
		fixture.AwaitWaiter(t, s, "redlatch_holder:")
		require.Equal(t, []string{"me"}, fixture.ClientNames(t, s))
		return c, hold
	}
	fixture.RunEmbedded(t, "released", func(t *testing.T, s *redistest.Server) {
		c, hold := holding(t, s)
		young := fixture.Acquire(t, t.Context(), c.Lock("young"), primitives.WithLease(time.Minute))
		released := time.Now()
		fixture.Release(t, hold)
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "unsubscribed")
		require.Less(t, time.Since(released), 300*time.Millisecond, "a younger hold does not delay it")
		released = time.Now()
		fixture.Release(t, young)
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ClientNames(t, s)) == 0 }, "the name is deleted")
		require.Less(t, time.Since(released), 1500*time.Millisecond)
	})
	t.Run("closed", func(t *testing.T) {
		s := redistest.Fresh(t)
		c, hold := holding(t, s)
		fixture.Release(t, hold)
		require.NoError(t, c.Close(t.Context()))
		// Close waits for the deletion for a moment only. The TTL of the name is 30 s.
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ClientNames(t, s)) == 0 }, "the name is deleted")
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "unsubscribed")
	})
	t.Run("closed with holds", func(t *testing.T) {
		s := redistest.Fresh(t)
		c, _ := holding(t, s)
		fixture.CloseNow(c)
		require.Equal(t, []string{"me"}, fixture.ClientNames(t, s), "it names the holder until its TTL ends")
	})
}

// TestC25CloseDoesNotWaitForTheDeletionOfTheName closes a client while Redis is silent.
func TestC25CloseDoesNotWaitForTheDeletionOfTheName(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.L)
		redistest.WaitFor(t, fixture.Soon, func() bool { return len(fixture.ClientNames(t, b.S)) == 1 },
			"the name is written")
		fixture.Release(t, hold)
		b.P.BlackHole(true)
		began := time.Now()
		require.NoError(t, b.C.Close(t.Context()))
		require.Less(t, time.Since(began), 200*time.Millisecond, "go-redis waits for seconds")
	})
}

// In fake time, because a hold that lasts for 100 ms is not short.
func TestC25ShortHoldSendsTwoCommandsAndNoName(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		fixture.Release(t, fixture.Acquire(t, t.Context(), b.L)) // loads the scripts
		time.Sleep(time.Minute)                                  // the client is idle
		b.P.Record()
		fixture.Release(t, fixture.Acquire(t, t.Context(), b.L))
		require.NoError(t, b.C.Close(t.Context()))
		var commands []string
		for _, command := range b.P.Commands() {
			commands = append(commands, command.Args[0])
		}
		require.Equal(t, []string{"evalsha", "evalsha"}, commands)
	})
}

// TestC25ManyShortHoldsWriteNoName checks that a stream of short holds writes no name and
// subscribes to no channel.
func TestC25ManyShortHoldsWriteNoName(t *testing.T) {
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		fixture.Release(t, fixture.Acquire(t, t.Context(), b.L)) // loads the scripts
		before := redistest.Commands(t, b.S)
		for range 200 {
			hold := fixture.Acquire(t, t.Context(), b.L)
			time.Sleep(90 * time.Millisecond)
			fixture.Release(t, hold)
		}
		calls := redistest.Commands(t, b.S).Since(before)
		require.Equal(t, int64(400), calls["evalsha"])
		require.Zero(t, calls["subscribe"])
		require.Zero(t, calls["psetex"])
	})
}

// TestC25RefusedNameAndChannelAreOnlyLogged uses an ACL that allows neither the name's key nor the
// holder channel. Locks work without them.
func TestC25RefusedNameAndChannelAreOnlyLogged(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	require.NoError(t,
		s.Client(t).Do(t.Context(), "acl", "setuser", "locks", "on", ">secret", "resetkeys", "resetchannels",
			"~l", "~redisson_*", "~redlatch_shared_counts*", "&redisson_*", "+@all").Err())
	log := &fixture.LogBuffer{}
	events := &fixture.Recorder{}
	c := fixture.NewClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }),
		primitives.WithLogger(slog.New(slog.NewTextHandler(log, nil))), events.Option())
	hold := fixture.Acquire(t, t.Context(), c.Lock("l"))
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return strings.Contains(log.String(), "redlatch_holder:")
	}, "the refused channel is logged")
	require.Equal(t, 1, strings.Count(log.String(), "redlatch_client:"), log.String())
	require.Empty(t, fixture.InfoOf(t, c.Lock("l")).Holders[0].Client)
	held := fixture.ForceRelease(t, c.Lock("l"))
	require.True(t, held)
	require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	require.Empty(t, events.All(primitives.EventRenewFailed))
}

// nameReads counts the reads of names that came through a proxy since Record.
func nameReads(p *redistest.Proxy) (n int) {
	for _, c := range p.Commands() {
		if strings.EqualFold(c.Args[0], "get") && strings.HasPrefix(c.Args[1], "redlatch_client:") {
			n++
		}
	}
	return n
}

// C25, C7: the error of an acquisition that gives up has the name of the client that holds the
// lock. However many wait, the name is read once.
func TestC25ErrorsNameTheHoldersClient(t *testing.T) {
	t.Parallel()
	for _, k := range kinds.Select(func(k kinds.Kind) bool { return !k.Pool }) { // a pool has many holders
		fixture.RunEmbedded(t, k.Name, func(t *testing.T, s *redistest.Server) {
			p := s.Proxy(t)
			holding := fixture.NewClient(t, s.Client(t), primitives.WithClientName("worker 7"))
			waiting := fixture.NewClient(t, p.Client(t), primitives.WithClientName("worker 8"))
			hold := fixture.Acquire(t, t.Context(), k.Rival(holding, "x"))
			handle := k.Open(waiting, "x")
			_, err := handle.TryAcquire(t.Context())
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.NotContains(t, err.Error(), "worker 7", "it is unknown at first")
			require.Contains(t, err.Error(), hold.ID())
			time.Sleep(time.Second)

			p.Record()
			fixture.Concurrently(20, func(int) {
				_, err := handle.Acquire(t.Context(), primitives.WithWait(5*time.Second))
				assert.ErrorIs(t, err, primitives.ErrNotAcquired)
				assert.ErrorContains(t, err, hold.ID())
				assert.ErrorContains(t, err, "worker 7")
				assert.NotContains(t, err.Error(), "worker 8")
			})
			assert.Equal(t, 1, nameReads(p), "once for all waiters")
			_ = hold.Release(t.Context())
		})
	}
}

// What is not named: the own client, a client that shows no name, and a holder that a wait of less
// than 100 ms has met.
func TestC25ErrorsWithoutAName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		holder, waiter  string
		wait            time.Duration
		own             bool
		most            int // reads
		says, saysNever string
	}{
		{name: "the own client", waiter: "w", own: true, wait: time.Second, says: "held by this client", saysNever: " of w"},
		{name: "no name", waiter: "w", wait: 20 * time.Second, most: 2, saysNever: " of "},
		{name: "an unnamed waiter", holder: "h", wait: 5 * time.Second, saysNever: " of h"},
		{name: "a short wait", holder: "h", waiter: "w", wait: 80 * time.Millisecond, saysNever: " of h"},
	} {
		fixture.RunEmbedded(t, tt.name, func(t *testing.T, s *redistest.Server) {
			p := s.Proxy(t)
			waiting := fixture.NewClient(t, p.Client(t), primitives.WithClientName(tt.waiter))
			holding := waiting
			if !tt.own {
				holding = fixture.NewClient(t, s.Client(t), primitives.WithClientName(tt.holder))
			}
			hold := fixture.Acquire(t, t.Context(), holding.Lock("x"))
			time.Sleep(time.Second)
			p.Record()
			_, err := waiting.Lock("x").Acquire(t.Context(), primitives.WithWait(tt.wait))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			assert.ErrorContains(t, err, tt.says)
			assert.NotContains(t, err.Error(), tt.saysNever)
			assert.LessOrEqual(t, nameReads(p), tt.most)
			fixture.Release(t, hold)
		})
	}
}

package primitives_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// clientNames returns the names that clients keep in s.
func clientNames(t testing.TB, s *redistest.Server) (names []string) {
	for _, key := range redistest.Keys(t, s, "redlatch_client:*") {
		name, _ := s.Client(t).Get(context.Background(), key).Result()
		names = append(names, name)
	}
	return names
}

// awaitHolderOf returns when the only holder in info is of that client.
func awaitHolderOf(t testing.TB, client string, info func(context.Context) (primitives.Info, error)) {
	t.Helper()
	redistest.WaitFor(t, soon, func() bool {
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
		holding, other := newClient(t, s.Client(t), primitives.WithClientName("worker 7")), newClient(t, s.Client(t))
		for name, open := range map[string]func(c *primitives.Client, name string) *primitives.Lock{
			"lock":   func(c *primitives.Client, name string) *primitives.Lock { return c.Lock(name) },
			"fair":   func(c *primitives.Client, name string) *primitives.Lock { return c.FairLock(name) },
			"fenced": func(c *primitives.Client, name string) *primitives.Lock { return c.FencedLock(name) },
			"reader": func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Reader() },
			"writer": func(c *primitives.Client, name string) *primitives.Lock { return c.RWLock(name).Writer() },
		} {
			hold := acquire(t, t.Context(), open(holding, base+name))
			awaitHolderOf(t, "worker 7", open(other, base+name).Info)
			defer release(t, hold)
		}
		found := 0
		for info, err := range other.Locks(t.Context(), base+"*") {
			require.NoError(t, err)
			require.Equal(t, "worker 7", info.Holders[0].Client, info.Name)
			found++
		}
		require.Equal(t, 5, found)
		pool := other.PermitExpirableSemaphore(base + "permits")
		_, err := pool.Init(t.Context(), 3)
		require.NoError(t, err)
		hold, err := holding.PermitExpirableSemaphore(base + "permits").Acquire(t.Context())
		require.NoError(t, err)
		awaitHolderOf(t, "worker 7", pool.Info)
		release(t, hold)
		hold, err = pool.Acquire(t.Context())
		require.NoError(t, err)
		host, err := os.Hostname()
		require.NoError(t, err)
		awaitHolderOf(t, fmt.Sprint(host, ":", os.Getpid()), pool.Info)
		release(t, hold)
	})
}

func TestC25ClientWithAnEmptyNameWritesNone(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	unnamed := newClient(t, s.Client(t), primitives.WithClientName(""))
	hold := acquire(t, t.Context(), unnamed.Lock("l"))
	awaitWaiter(t, s, "redlatch_holder:") // a name would be written earlier
	require.Empty(t, clientNames(t, s))
	info, err := unnamed.Lock("l").Info(t.Context())
	require.NoError(t, err)
	require.Empty(t, info.Holders[0].Client)
	release(t, hold)
}

// TestC25WaitersWriteTheirClientsName waits in each way. The name is deleted after the wait.
func TestC25WaitersWriteTheirClientsName(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	holder := newClient(t, s.Client(t), primitives.WithClientName(""))
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
		hold := acquire(t, t.Context(), holder.Lock("l"))
		c := newClient(t, s.Client(t), primitives.WithClientName(name))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- wait(ctx, c) }()
		redistest.WaitFor(t, soon, func() bool {
			return strings.Join(clientNames(t, s), ",") == name
		}, "the waiter's name is written")
		cancel()
		require.Error(t, <-done)
		redistest.WaitFor(t, soon, func() bool {
			return len(clientNames(t, s)) == 0
		}, "the name is deleted after the wait: "+name)
		release(t, hold)
	}
}

// TestC25NameIsRefreshedWhileTheClientHolds waits until the TTL of the name has been refreshed.
func TestC25NameIsRefreshedWhileTheClientHolds(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	hold := acquire(t, t.Context(), newClient(t, s.Client(t)).Lock("l"))
	redistest.WaitFor(t, soon, func() bool { return len(clientNames(t, s)) == 1 }, "the name is written")
	key := redistest.Keys(t, s, "redlatch_client:*")[0]
	ttl := func() time.Duration { return s.Client(t).PTTL(t.Context(), key).Val() }
	first := ttl()
	require.InDelta(t, 30, first.Seconds(), 2)
	redistest.WaitFor(t, soon, func() bool { return ttl() < 25*time.Second }, "the TTL decreases")
	redistest.WaitFor(t, soon, func() bool { return ttl() > 28*time.Second }, "the TTL is refreshed")
	release(t, hold)
}

// TestC25NameAndSubscriptionEndWithTheLastHold checks when the name and the holder channel of a
// client go.
func TestC25NameAndSubscriptionEndWithTheLastHold(t *testing.T) {
	t.Parallel()
	holding := func(t testing.TB, s *redistest.Server) (*primitives.Client, *primitives.Hold) {
		c := newClient(t, s.Client(t), primitives.WithClientName("me"))
		hold := acquire(t, t.Context(), c.Lock("l"))
		awaitWaiter(t, s, "redlatch_holder:")
		require.Equal(t, []string{"me"}, clientNames(t, s))
		return c, hold
	}
	t.Run("released", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := redistest.Embedded(t)
			c, hold := holding(t, s)
			young := acquire(t, t.Context(), c.Lock("young"), primitives.WithLease(time.Minute))
			released := time.Now()
			release(t, hold)
			redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "unsubscribed")
			require.Less(t, time.Since(released), 300*time.Millisecond, "a younger hold does not delay it")
			released = time.Now()
			release(t, young)
			redistest.WaitFor(t, soon, func() bool { return len(clientNames(t, s)) == 0 }, "the name is deleted")
			require.Less(t, time.Since(released), 1500*time.Millisecond)
		})
	})
	t.Run("closed", func(t *testing.T) {
		s := redistest.Fresh(t)
		c, hold := holding(t, s)
		release(t, hold)
		require.NoError(t, c.Close(t.Context()))
		// Close waits for the deletion for a moment only. The TTL of the name is 30 s.
		redistest.WaitFor(t, soon, func() bool { return len(clientNames(t, s)) == 0 }, "the name is deleted")
		redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "unsubscribed")
	})
	t.Run("closed with holds", func(t *testing.T) {
		s := redistest.Fresh(t)
		c, _ := holding(t, s)
		shut(c)
		require.Equal(t, []string{"me"}, clientNames(t, s), "it names the holder until its TTL ends")
	})
}

// TestC25CloseDoesNotWaitForTheDeletionOfTheName closes a client while Redis is silent.
func TestC25CloseDoesNotWaitForTheDeletionOfTheName(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		hold := acquire(t, t.Context(), b.l)
		redistest.WaitFor(t, soon, func() bool { return len(clientNames(t, b.s)) == 1 }, "the name is written")
		release(t, hold)
		b.p.BlackHole(true)
		began := time.Now()
		require.NoError(t, b.c.Close(t.Context()))
		require.Less(t, time.Since(began), 200*time.Millisecond, "go-redis waits for seconds")
	})
}

// In fake time, because a hold that lasts for 100 ms is not short.
func TestC25ShortHoldSendsTwoCommandsAndNoName(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, b *bubbled) {
		release(t, acquire(t, t.Context(), b.l)) // loads the scripts
		time.Sleep(time.Minute)                  // the client is idle
		b.p.Record()
		release(t, acquire(t, t.Context(), b.l))
		require.NoError(t, b.c.Close(t.Context()))
		var commands []string
		for _, command := range b.p.Commands() {
			commands = append(commands, command.Args[0])
		}
		require.Equal(t, []string{"evalsha", "evalsha"}, commands)
	})
}

// TestC25ManyShortHoldsWriteNoName checks that a stream of short holds writes no name and
// subscribes to no channel.
func TestC25ManyShortHoldsWriteNoName(t *testing.T) {
	bubble(t, func(t *testing.T, b *bubbled) {
		release(t, acquire(t, t.Context(), b.l)) // loads the scripts
		before := redistest.Commands(t, b.s)
		for range 200 {
			hold := acquire(t, t.Context(), b.l)
			time.Sleep(90 * time.Millisecond)
			release(t, hold)
		}
		calls := redistest.Commands(t, b.s).Since(before)
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
	log := &logBuffer{}
	events := &recorder{}
	c := newClient(t, s.Client(t, func(o *redis.Options) { o.Username, o.Password = "locks", "secret" }),
		primitives.WithLogger(slog.New(slog.NewTextHandler(log, nil))), events.option())
	hold := acquire(t, t.Context(), c.Lock("l"))
	redistest.WaitFor(t, soon, func() bool {
		return strings.Contains(log.String(), "redlatch_holder:")
	}, "the refused channel is logged")
	require.Equal(t, 1, strings.Count(log.String(), "redlatch_client:"), log.String())
	info, err := c.Lock("l").Info(t.Context())
	require.NoError(t, err)
	require.Empty(t, info.Holders[0].Client)
	held, err := c.Lock("l").ForceRelease(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	require.Empty(t, events.all(primitives.EventRenewFailed))
}

// logBuffer is a writer for concurrent use whose content tests read.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

package contract

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

// takeables returns all kinds whose holds can be taken over.
func takeables() []kinds.Kind { return append(kinds.Leased(), kinds.Joints()...) }

// openOver makes a handle for a participant, who has one client per server.
func openOver(t testing.TB, k kinds.Kind, key string, clients []*primitives.Client) kinds.Takeable {
	if k.Pool {
		k.One(t, clients[0], key)
	}
	return k.Over(clients, key).(kinds.Takeable)
}

// canForce reports whether ForceRelease is supported.
func canForce(k kinds.Kind) bool { return !k.Pool && !k.Joint() }

// takeovers are the calls that take a hold over.
var takeovers = []struct {
	name string
	take func(ctx context.Context, from kinds.Takeable, id string) error
}{
	{"ForceRelease", func(ctx context.Context, from kinds.Takeable, _ string) error {
		held, err := from.(*primitives.Lock).ForceRelease(ctx)
		if err == nil && !held {
			err = errors.New("nobody held it")
		}
		return err
	}},
	{"ReleaseID", func(ctx context.Context, from kinds.Takeable, id string) error { return from.ReleaseID(ctx, id) }},
	{"Adopt", func(ctx context.Context, from kinds.Takeable, id string) error {
		hold, err := from.Adopt(ctx, id)
		if err == nil {
			err = hold.Release(ctx)
		}
		return err
	}},
}

// longHolds are options with which, for the time of a test, only a notice can report a loss.
var longHolds = map[string]primitives.Option{
	"renewed": primitives.WithWatchdog(60 * time.Second),
	"fixed":   primitives.WithLease(60 * time.Second),
}

// promptNotice bounds the delay of a notice on a very busy machine. C15 promises 200 ms. Without a
// notice, the loss is found by the next renewal, after 20 s, or when the lease ends, after 60 s.
const promptNotice = 10 * time.Second

// holderChannel returns the channel on which c is notified of takeovers.
func holderChannel(c *primitives.Client) string {
	return "redlatch_holder:{" + strings.ReplaceAll(c.ID(), "-", "")[:16] + "}"
}

// awaitSubscribedHolder returns when a hold that began then is older than 1 s, and its client is
// subscribed to its channel.
func awaitSubscribedHolder(t testing.TB, began time.Time, c *primitives.Client, servers ...*redistest.Server) {
	time.Sleep(time.Until(began.Add(1050 * time.Millisecond))) // holds older than 1 s are notified
	for _, s := range servers {
		fixture.AwaitWaiter(t, s, holderChannel(c))
	}
}

// TestC15FormerHolderLearnsOfATakeoverAtOnce takes over holds of each kind by each call.
func TestC15FormerHolderLearnsOfATakeoverAtOnce(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Fresh(t), redistest.Fresh(t), redistest.Fresh(t)}
	participant := func(t testing.TB, n int, opts ...primitives.ClientOption) (clients []*primitives.Client) {
		for _, s := range servers[:n] {
			clients = append(clients, fixture.NewClient(t, s.Client(t), opts...))
		}
		return clients
	}
	for _, row := range takeables() {
		needed := 1
		if row.Joint() {
			needed = 3
		}
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			// All holds are acquired first, so that they grow older than 1 s together.
			var cases []func()
			var clients []*primitives.Client
			for _, takeover := range takeovers {
				if takeover.name == "ForceRelease" && !canForce(row) {
					continue
				}
				for kind, opt := range longHolds {
					events := &fixture.Recorder{}
					key := redistest.Name(t) + takeover.name + kind
					holders := participant(t, needed, events.Option())
					hold := fixture.Acquire(t, t.Context(), openOver(t, row, key, holders), opt)
					clients = append(clients, holders[0])
					cases = append(cases, func() {
						t.Run(takeover.name+"/"+kind, func(t *testing.T) {
							fixture.RequireLive(t, hold.Context())
							other := openOver(t, row, key, participant(t, needed))
							began := time.Now()
							require.NoError(t, takeover.take(t.Context(), other, hold.ID()))
							fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
							took := time.Since(began)
							t.Logf("notified after %v", took)
							require.Less(t, took, promptNotice)
							require.Equal(t, hold.ID(), events.Await(t, primitives.EventLost).ID)
							require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
							require.Len(t, events.All(primitives.EventLost), 1)
						})
					})
				}
			}
			began := time.Now()
			for _, c := range clients {
				awaitSubscribedHolder(t, began, c, servers[:needed]...)
			}
			for _, takeOver := range cases {
				takeOver()
			}
		})
	}
}

// The reply to a ForceRelease is lost. Its repetition gets the same ids, so the holder is notified.
func TestC15ForceReleaseWithALostReplyNotifiesTheHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	for _, row := range kinds.Locks() {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			key, p := redistest.Name(t), s.Proxy(t)
			other := []*primitives.Client{fixture.NewClient(t, p.Client(t))}
			force := func(key string) bool {
				held := fixture.ForceRelease(t, openOver(t, row, key, other).(*primitives.Lock))
				return held
			}
			require.False(t, force(key+"other")) // loads the script
			holder := fixture.NewClient(t, s.Client(t))
			began := time.Now()
			mine := openOver(t, row, key, []*primitives.Client{holder})
			hold := fixture.Acquire(t, t.Context(), mine, primitives.WithLease(time.Minute))
			awaitSubscribedHolder(t, began, holder, s)
			p.DropReplies(1, fixture.Script)
			began = time.Now()
			require.True(t, force(key))
			fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
			require.Less(t, time.Since(began), promptNotice)
		})
	}
}

// TestC15HolderWithACallersIDLearnsOfATakeoverAtOnce: such a holder is notified on the channel of
// its id.
func TestC15HolderWithACallersIDLearnsOfATakeoverAtOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	key := redistest.Name(t)
	hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).Lock(key), primitives.WithOwner("job 7"),
		primitives.WithLease(time.Minute))
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(redistest.Channels(t, s)) == 1 }, "the holder subscribes")
	require.NoError(t, fixture.ErrOf(fixture.NewClient(t, s.Client(t)).Lock(key).ForceRelease(t.Context())))
	began := time.Now()
	fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
	require.Less(t, time.Since(began), promptNotice)
	redistest.WaitFor(t, fixture.Soon, func() bool { return len(redistest.Channels(t, s)) == 0 },
		"the holder unsubscribes")
}

func TestC15TakeoverIsReportedAtOnceInACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	for _, sharded := range []bool{true, false} {
		t.Run(fmt.Sprint("sharded ", sharded), func(t *testing.T) {
			opts := []primitives.ClientOption{primitives.WithShardedPubSub(sharded),
				primitives.WithClientName("holder")}
			one, two := fixture.NewClient(t, servers.ClusterClient(t), opts...), fixture.NewClient(t,
				servers.ClusterClient(t), opts...)
			subscribed := func() (channels []string) {
				for _, s := range servers.Nodes() {
					for _, channel := range append(redistest.Channels(t, s), redistest.ShardChannels(t, s)...) {
						if strings.HasPrefix(channel, "redlatch_holder:") {
							channels = append(channels, channel)
						}
					}
				}
				return channels
			}
			var wg sync.WaitGroup
			for i := range 6 { // so that each shard has some
				wg.Go(func() {
					key := fmt.Sprint(redistest.Name(t), i)
					hold, err := one.Lock(key).Acquire(t.Context(), primitives.WithLease(time.Minute))
					if !assert.NoError(t, err) {
						return
					}
					time.Sleep(1050 * time.Millisecond) // holds older than 1 s are notified
					redistest.WaitFor(t, fixture.Soon, func() bool { return len(subscribed()) == 1 }, "the client subscribes")
					info, err := two.Lock(key).Info(t.Context())
					if err != nil || info.Holders[0].Client != "holder" {
						t.Errorf("%+v, %v", info, err)
					}
					began := time.Now()
					if _, err := two.Lock(key).ForceRelease(t.Context()); err != nil {
						t.Error(err)
					}
					fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
					took := time.Since(began)
					t.Logf("notified after %v", took)
					if took >= promptNotice {
						t.Errorf("notified after %v", took)
					}
				})
			}
			wg.Wait()
			redistest.WaitFor(t, fixture.Soon, func() bool { return len(subscribed()) == 0 }, "the holder unsubscribes")
			redistest.WaitFor(t, fixture.Soon, func() bool {
				for _, s := range servers.Nodes() {
					if len(redistest.Keys(t, s, "redlatch_client:*")) > 0 {
						return false
					}
				}
				return true
			}, "its name is deleted")
		})
	}
}

// TestForgedNoticeIsChecked floods a holder with notices of takeovers that did not happen. The
// client checks its hold, one check at a time, and keeps it.
func TestForgedNoticeIsChecked(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	p := s.Proxy(t)
	patient := func(o *redis.Options) { o.ReadTimeout = 2 * fixture.Soon } // a check is not sent again during the flood
	c := fixture.NewClient(t, p.Client(t, patient), primitives.WithClientName(""),
		primitives.WithCommandTimeout(2*fixture.Soon))
	hold := fixture.Acquire(t, t.Context(), c.Lock("l"), primitives.WithLease(time.Minute))
	fixture.AwaitWaiter(t, s, holderChannel(c))
	p.Record()
	deliver := p.HoldReplies(fixture.Script)
	defer deliver()
	for range 300 {
		require.NoError(t, rdb.Publish(t.Context(), holderChannel(c), "lock\nl\n"+hold.ID()).Err())
		require.NoError(t, rdb.Publish(t.Context(), holderChannel(c), "lock\n\n\n").Err())
		require.NoError(t, rdb.Publish(t.Context(), holderChannel(c), "").Err())
	}
	checks := func() (n int) {
		for _, command := range p.Commands() {
			if fixture.Script(command.Args) {
				n++
			}
		}
		return n
	}
	redistest.WaitFor(t, fixture.Soon, func() bool { return checks() > 0 }, "the hold is checked")
	require.Equal(t, 1, checks(), "one check at a time")
	deliver()
	redistest.WaitFor(t, fixture.Soon, func() bool {
		return checks() > 1
	}, "another check, for the notices during the first one")
	require.NoError(t, hold.Check(t.Context()))
	fixture.RequireLive(t, hold.Context())
	require.Less(t, checks(), 100, "one check for each notice would be 300")
	fixture.Release(t, hold)
}

// TestTakeoverIsFoundWhenTheFirstCheckFails drops the first checks after a notice.
func TestTakeoverIsFoundWhenTheFirstCheckFails(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	key := redistest.Name(t)
	hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, p.Client(t, fixture.NoRetries)).Lock(key),
		primitives.WithLease(time.Minute))
	fixture.AwaitWaiter(t, s, "redlatch_holder:")
	p.DropCommands(2, fixture.Script)
	require.NoError(t, fixture.ErrOf(fixture.NewClient(t, s.Client(t)).Lock(key).ForceRelease(t.Context())))
	fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
}

// A client whose locks may linger listens from its first release on, so it learns of a takeover at
// once, however young its hold is, and does not mistake the lost lock for one that still lingers.
func TestC15LingeringLockIsTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds.Cohorts() {
		for _, takeover := range takeovers {
			fixture.RunEmbedded(t, kind.Name+"/"+takeover.name, func(t *testing.T, s *redistest.Server) {
				l, other := kind.Lock(fixture.NewClient(t, s.Client(t)), "l",
					long), kind.Lock(fixture.NewClient(t, s.Client(t)), "l")
				id := lingers(t, s, l)
				hold := fixture.Acquire(t, t.Context(), l)
				require.Equal(t, id, hold.ID())
				require.NoError(t, takeover.take(t.Context(), other, id))
				time.Sleep(100 * time.Millisecond)
				require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
				require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)

				require.NoError(t, takeover.take(t.Context(), other, lingers(t, s, l))) // nobody uses it
				time.Sleep(100 * time.Millisecond)
				theirs := fixture.Acquire(t, t.Context(), other)
				require.ErrorIs(t, fixture.ErrOf(l.TryAcquire(t.Context())), primitives.ErrNotAcquired)
				fixture.Release(t, theirs)
			})
		}
	}
}

// TestTakeoverDoesNotWaitForItsNotice holds the reply to the notice back.
func TestTakeoverDoesNotWaitForItsNotice(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.Other, primitives.WithLease(time.Minute))
		deliver := b.P.HoldReplies(redistest.Named("publish"))
		defer deliver()
		began := time.Now()
		require.NoError(t, b.L.ReleaseID(t.Context(), hold.ID()))
		require.LessOrEqual(t, time.Since(began), 100*time.Millisecond)
	})
}

// TestTakeoverIsFoundAfterReconnecting drops a notice, and then cuts the connection for messages.
// The client checks its holds when it is connected again.
func TestTakeoverIsFoundAfterReconnecting(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	key := redistest.Name(t)
	hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, p.Client(t)).Lock(key), primitives.WithLease(time.Minute))
	fixture.AwaitWaiter(t, s, "redlatch_holder:")
	p.DropMessages(true)
	require.NoError(t, fixture.ErrOf(fixture.NewClient(t, s.Client(t)).Lock(key).ForceRelease(t.Context())))
	p.DropMessages(false)
	require.Positive(t, p.CutPubSub())
	fixture.RequireEnds(t, hold.Context(), primitives.ErrLost)
}

// C23: an adoption that fails emits an event, whatever the kind: here the client closes.
func TestC23AdoptionByAClosingClientEmitsAnEvent(t *testing.T) {
	t.Parallel()
	for _, k := range takeables() {
		fixture.RunEmbedded(t, k.Name, func(t *testing.T, s *redistest.Server) {
			heard := &fixture.Recorder{}
			c := fixture.NewClient(t, s.Client(t), heard.Option())
			h := k.One(t, fixture.NewClient(t, s.Client(t)), "l")
			former := fixture.Acquire(t, t.Context(), h)
			last := fixture.Acquire(t, t.Context(), c.Lock("another"))
			closed := fixture.Go(func() error { return c.Close(t.Context()) })
			synctest.Wait()
			require.ErrorIs(t, fixture.ErrOf(k.Open(c, "l").(kinds.Takeable).Adopt(t.Context(), former.ID())),
				primitives.ErrClosed)
			events := heard.All(primitives.EventNotAcquired)
			require.Len(t, events, 1)
			require.ErrorIs(t, events[0].Err, primitives.ErrClosed)
			fixture.Release(t, last)
			require.NoError(t, <-closed)
			fixture.Release(t, former)
		})
	}
}

// C23: so does an adoption that fails before it sends anything.
func TestC23AdoptionThatSendsNothingEmitsAnEvent(t *testing.T) {
	t.Parallel()
	for _, k := range takeables() {
		for _, row := range []struct {
			name  string
			adopt func(*testing.T, kinds.Takeable) error
			err   error
		}{
			{"bad option", func(t *testing.T, h kinds.Takeable) error {
				return fixture.ErrOf(h.Adopt(t.Context(), "id", primitives.WithLease(0)))
			}, primitives.ErrInvalid},
			{"bad id", func(t *testing.T, h kinds.Takeable) error {
				return fixture.ErrOf(h.Adopt(t.Context(), ""))
			}, primitives.ErrInvalid},
			{"ended context", func(t *testing.T, h kinds.Takeable) error {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				return fixture.ErrOf(h.Adopt(ctx, "id"))
			}, context.Canceled},
		} {
			redistest.RunBubble(t, k.Name+"/"+row.name, func(t *testing.T) {
				heard := &fixture.Recorder{}
				c := fixture.NewClient(t, redistest.Embedded(t).Client(t), heard.Option())
				require.ErrorIs(t, row.adopt(t, k.Open(c, "l").(kinds.Takeable)), row.err)
				events := heard.All(primitives.EventNotAcquired)
				require.Len(t, events, 1)
				require.ErrorIs(t, events[0].Err, row.err)
			})
		}
	}
}

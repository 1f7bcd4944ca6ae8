package primitives_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// takeable is what can be taken from a holder by another client.
type takeable interface {
	Acquire(ctx context.Context, opts ...primitives.Option) (*primitives.Hold, error)
	Adopt(ctx context.Context, id string, opts ...primitives.Option) (*primitives.Hold, error)
	ReleaseID(ctx context.Context, id string) error
}

// takeableRow is one kind. open makes a handle for a participant that has a client per server.
type takeableRow struct {
	name    string
	forced  bool // ForceRelease is supported
	servers int
	open    func(t testing.TB, key string, clients []*primitives.Client) takeable
}

func takeableRows() []takeableRow {
	lock := func(f func(c *primitives.Client, key string) *primitives.Lock) func(testing.TB, string, []*primitives.Client) takeable {
		return func(_ testing.TB, key string, c []*primitives.Client) takeable { return f(c[0], key) }
	}
	joint := func(join func([]*primitives.Lock, ...primitives.Option) *primitives.Lock) func(testing.TB, string, []*primitives.Client) takeable {
		return func(_ testing.TB, key string, clients []*primitives.Client) takeable {
			var members []*primitives.Lock
			for i, c := range clients {
				members = append(members, c.Lock(fmt.Sprint(key, "-", i)))
			}
			return join(members)
		}
	}
	return []takeableRow{
		{"lock", true, 1, lock(func(c *primitives.Client, key string) *primitives.Lock { return c.Lock(key) })},
		{"fair", true, 1, lock(func(c *primitives.Client, key string) *primitives.Lock { return c.FairLock(key) })},
		{"fenced", true, 1, lock(func(c *primitives.Client, key string) *primitives.Lock { return c.FencedLock(key) })},
		{"reader", true, 1, lock(func(c *primitives.Client, key string) *primitives.Lock { return c.RWLock(key).Reader() })},
		{"writer", true, 1, lock(func(c *primitives.Client, key string) *primitives.Lock { return c.RWLock(key).Writer() })},
		{"multi", false, 3, joint(primitives.NewMultiLock)},
		{"red", false, 3, joint(primitives.NewRedLock)},
		{"permits", false, 1, func(t testing.TB, key string, c []*primitives.Client) takeable {
			pool := c[0].PermitExpirableSemaphore(key)
			_, err := pool.Init(context.Background(), 5)
			require.NoError(t, err)
			return pool
		}},
	}
}

// takeovers are the ways to take a hold away.
var takeovers = []struct {
	name string
	take func(ctx context.Context, from takeable, id string) error
}{
	{"ForceRelease", func(ctx context.Context, from takeable, _ string) error {
		held, err := from.(*primitives.Lock).ForceRelease(ctx)
		if err == nil && !held {
			err = errors.New("nobody held it")
		}
		return err
	}},
	{"ReleaseID", func(ctx context.Context, from takeable, id string) error { return from.ReleaseID(ctx, id) }},
	{"Adopt", func(ctx context.Context, from takeable, id string) error {
		hold, err := from.Adopt(ctx, id)
		if err == nil {
			err = hold.Release(ctx)
		}
		return err
	}},
}

// noOtherWay makes a hold that nothing but a notice tells of its loss while a test lasts.
var noOtherWay = map[string]primitives.Option{
	"renewed": primitives.WithWatchdog(60 * time.Second),
	"fixed":   primitives.WithLease(60 * time.Second),
}

// promptNotice bounds how long a notice takes on a very busy machine, where C15 says 200 ms. Nothing else
// tells of the loss for 60 s.
const promptNotice = 3 * time.Second

// holderChannel is where c hears of takeovers.
func holderChannel(c *primitives.Client) string {
	return "redlatch_holder:{" + strings.ReplaceAll(c.ID(), "-", "")[:16] + "}"
}

// pastOneSecond returns when a hold that began then is older than 1 s and its client listens.
func pastOneSecond(t testing.TB, began time.Time, c *primitives.Client, servers ...*redistest.Server) {
	time.Sleep(time.Until(began.Add(1050 * time.Millisecond))) // the age is what is tested
	for _, s := range servers {
		awaitWaiter(t, s, holderChannel(c))
	}
}

func TestC15FormerHolderLearnsOfATakeoverAtOnce(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Fresh(t), redistest.Fresh(t), redistest.Fresh(t)}
	participant := func(t testing.TB, n int, opts ...primitives.ClientOption) (clients []*primitives.Client) {
		for _, s := range servers[:n] {
			clients = append(clients, newClient(t, s.Client(t), opts...))
		}
		return clients
	}
	for _, row := range takeableRows() {
		for _, way := range takeovers {
			if way.name == "ForceRelease" && !row.forced {
				continue
			}
			for kind, terms := range noOtherWay {
				t.Run(row.name+"/"+way.name+"/"+kind, func(t *testing.T) {
					t.Parallel()
					heard := &recorder{}
					key := redistest.Name(t)
					holders := participant(t, row.servers, heard.option())
					began := time.Now()
					hold, err := row.open(t, key, holders).Acquire(t.Context(), terms)
					require.NoError(t, err)
					pastOneSecond(t, began, holders[0], servers[:row.servers]...)
					requireLive(t, hold.Context())
					other := row.open(t, key, participant(t, row.servers))
					began = time.Now()
					require.NoError(t, way.take(t.Context(), other, hold.ID()))
					requireEnds(t, hold.Context(), primitives.ErrLost)
					took := time.Since(began)
					t.Logf("told after %v", took)
					require.Less(t, took, promptNotice)
					require.Equal(t, hold.ID(), heard.await(t, primitives.EventLost).ID)
					require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
					require.Len(t, heard.all(primitives.EventLost), 1)
				})
			}
		}
	}
}

// A hold with another id than its client's is reached on the channel of that id.
func TestC15HolderWithAnOwnersIDLearnsOfATakeoverAtOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	key := redistest.Name(t)
	hold := acquire(t, t.Context(), newClient(t, s.Client(t)).Lock(key), primitives.WithOwner("job 7"), primitives.WithLease(time.Minute))
	redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 1 }, "it listens")
	_, err := newClient(t, s.Client(t)).Lock(key).ForceRelease(t.Context())
	require.NoError(t, err)
	began := time.Now()
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.Less(t, time.Since(began), promptNotice)
	redistest.WaitFor(t, soon, func() bool { return len(redistest.Channels(t, s)) == 0 }, "it listens no more")
}

func TestC15FormerHolderLearnsOfATakeoverAtOnceInACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	for _, sharded := range []bool{true, false} {
		t.Run(fmt.Sprint("sharded ", sharded), func(t *testing.T) {
			opts := []primitives.ClientOption{primitives.WithShardedPubSub(sharded), primitives.WithClientName("holder")}
			one, two := newClient(t, servers.ClusterClient(t), opts...), newClient(t, servers.ClusterClient(t), opts...)
			listening := func() (channels []string) {
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
			for i := range 6 { // every shard has some
				wg.Go(func() {
					key := fmt.Sprint(redistest.Name(t), i)
					hold, err := one.Lock(key).Acquire(t.Context(), primitives.WithLease(time.Minute))
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(1050 * time.Millisecond) // the age is what is tested
					redistest.WaitFor(t, soon, func() bool { return len(listening()) == 1 }, "the client listens")
					info, err := two.Lock(key).Info(t.Context())
					if err != nil || info.Holders[0].Client != "holder" {
						t.Errorf("%+v, %v", info, err)
					}
					began := time.Now()
					if _, err := two.Lock(key).ForceRelease(t.Context()); err != nil {
						t.Error(err)
					}
					requireEnds(t, hold.Context(), primitives.ErrLost)
					took := time.Since(began)
					t.Logf("told after %v", took)
					if took >= promptNotice {
						t.Errorf("told after %v", took)
					}
				})
			}
			wg.Wait()
			redistest.WaitFor(t, soon, func() bool { return len(listening()) == 0 }, "it listens no more")
			redistest.WaitFor(t, soon, func() bool {
				for _, s := range servers.Nodes() {
					if len(redistest.Keys(t, s, "redlatch_client:*")) > 0 {
						return false
					}
				}
				return true
			}, "its name is gone")
		})
	}
}

// A notice proves nothing: a hold that Redis still has stays, and a flood of notices costs one check at a time.
func TestAForgedNoticeCostsACheckAndNoHold(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	rdb := s.Client(t)
	p := s.Proxy(t)
	c := newClient(t, p.Client(t), primitives.WithClientName(""))
	hold := acquire(t, t.Context(), c.Lock("l"), primitives.WithLease(time.Minute))
	awaitWaiter(t, s, holderChannel(c))
	p.Record()
	letGo := p.HoldReplies(script)
	defer letGo()
	for range 300 {
		require.NoError(t, rdb.Publish(t.Context(), holderChannel(c), "lock\nl\n"+hold.ID()).Err())
		require.NoError(t, rdb.Publish(t.Context(), holderChannel(c), "lock\n\n\n").Err())
		require.NoError(t, rdb.Publish(t.Context(), holderChannel(c), "").Err())
	}
	checks := func() (n int) {
		for _, command := range p.Commands() {
			if script(command.Args) {
				n++
			}
		}
		return n
	}
	redistest.WaitFor(t, soon, func() bool { return checks() > 0 }, "it is checked")
	require.Equal(t, 1, checks(), "one at a time")
	letGo()
	redistest.WaitFor(t, soon, func() bool { return checks() > 1 }, "and once more, for the notices that came meanwhile")
	require.NoError(t, hold.Check(t.Context()))
	requireLive(t, hold.Context())
	require.LessOrEqual(t, checks(), 10)
	release(t, hold)
}

// A notice that finds Redis silent for a moment is not lost.
func TestATakeoverIsFoundThoughTheFirstCheckIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	key := redistest.Name(t)
	hold := acquire(t, t.Context(), newClient(t, p.Client(t, noRetries)).Lock(key), primitives.WithLease(time.Minute))
	awaitWaiter(t, s, "redlatch_holder:")
	p.DropCommands(2, script)
	_, err := newClient(t, s.Client(t)).Lock(key).ForceRelease(t.Context())
	require.NoError(t, err)
	requireEnds(t, hold.Context(), primitives.ErrLost)
}

// The one that takes a hold away is not delayed by notices that cannot be sent.
func TestATakeoverDoesNotWaitForItsNotice(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	key := redistest.Name(t)
	hold := acquire(t, t.Context(), newClient(t, s.Client(t)).Lock(key), primitives.WithLease(time.Minute))
	l := newClient(t, p.Client(t)).Lock(key)
	_, err := l.Info(t.Context())
	require.NoError(t, err)
	letGo := p.HoldReplies(redistest.Named("publish"))
	defer letGo()
	began := time.Now()
	require.NoError(t, l.ReleaseID(t.Context(), hold.ID()))
	require.Less(t, time.Since(began), time.Second)
}

// While the link for messages is down a notice is lost. A fixed lease is checked when the link is back.
func TestATakeoverIsFoundWhenTheLinkForNoticesIsBack(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	p := s.Proxy(t)
	key := redistest.Name(t)
	hold := acquire(t, t.Context(), newClient(t, p.Client(t)).Lock(key), primitives.WithLease(time.Minute))
	awaitWaiter(t, s, "redlatch_holder:")
	p.DropMessages(true)
	_, err := newClient(t, s.Client(t)).Lock(key).ForceRelease(t.Context())
	require.NoError(t, err)
	p.DropMessages(false)
	require.Positive(t, p.CutPubSub())
	requireEnds(t, hold.Context(), primitives.ErrLost)
}

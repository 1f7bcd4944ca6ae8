package topology

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	. "github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// TestRedLockOverFiveMasters takes masters down in each way that they fail. With two down, a redlock is
// acquired, renewed, handed off and released within its budget. With three down it is refused in time,
// and leaves nothing on the others.
func TestRedLockOverFiveMasters(t *testing.T) {
	t.Parallel()
	const (
		budget = 600 * time.Millisecond // a tenth of the TTL
		slack  = 8 * time.Second        // without a budget, the calls below take 20 s or more
	)
	ttl := primitives.WithWatchdog(10 * budget)
	q := NewQuorum(t, 5)
	clients := q.PatientClients(t)
	mine, theirs := q.Lock(clients, ttl), q.Lock(q.PatientClients(t), ttl)
	within := func(t *testing.T, limit time.Duration, what string, f func()) {
		t.Helper()
		began := time.Now()
		f()
		took := time.Since(began)
		t.Logf("%s: %v", what, took.Round(time.Millisecond))
		require.Less(t, took, limit+slack, what)
	}
	for _, tt := range []struct {
		name       string
		down       []int // the first two, and then all three
		fail, heal func(i int) error
	}{
		{
			"dead", []int{0, 3, 4},
			func(i int) error { return q.Servers[i].Kill() },
			func(i int) error { return q.Servers[i].Restart() },
		},
		{
			"hung", []int{1, 2, 3},
			func(i int) error { return q.Servers[i].Pause() },
			func(i int) error { return q.Servers[i].Resume() },
		},
		{
			"slow", []int{4, 1, 0},
			func(i int) error { q.Proxies[i].Delay(20 * time.Second); return nil },
			func(i int) error { q.Proxies[i].Delay(0); return nil },
		},
	} {
		ok := t.Run(tt.name, func(t *testing.T) {
			hold := q.Acquire(t, t.Context(), clients, ttl)
			up := All(5)
			fail := func(i int) {
				require.NoError(t, tt.fail(i))
				up = without(up, i)
			}
			fail(tt.down[0])
			fail(tt.down[1])
			waiting := StartAcquire(t.Context(), theirs)
			for _, i := range up {
				AwaitWaiter(t, q.Servers[i], q.Name)
			}
			before := hold.ValidUntil()
			redistest.WaitFor(t, Soon, func() bool { return hold.ValidUntil().After(before) }, "renewed")
			RequireLive(t, hold.Context())
			var next *primitives.Hold
			within(t, 2*budget, "hand off", func() {
				within(t, budget, "release", func() { Release(t, hold) })
				next = AwaitHold(t, waiting)
			})
			within(t, budget, "release", func() { Release(t, next) })
			within(t, budget, "acquire", func() { hold = Acquire(t, t.Context(), mine) })
			before = hold.ValidUntil()
			redistest.WaitFor(t, Soon, func() bool { return hold.ValidUntil().After(before) }, "renewed")
			within(t, budget, "release", func() { Release(t, hold) })

			fail(tt.down[2])
			within(t, budget, "refusal", func() {
				_, err := mine.TryAcquire(t.Context())
				require.ErrorAs(t, err, new(*failure.Error), "the error of a master that is down")
			})
			for _, i := range up { // given back before the call returned
				require.Empty(t, redistest.Keys(t, q.Servers[i], q.Name))
			}
			for _, i := range tt.down {
				require.NoError(t, tt.heal(i))
				q.Proxies[i].Reset() // or the clients would wait for replies on silent connections
			}
			q.RequireFree(t, All(5)...)
		})
		require.True(t, ok, "masters may still be down")
	}
}

// without returns the elements of list except i.
func without(list []int, i int) (rest []int) {
	for _, other := range list {
		if other != i {
			rest = append(rest, other)
		}
	}
	return rest
}

// TestRestartedServerDoesNotShrinkTheQuorum has a holder with three of five servers, one of which restarts
// empty. A second client finds that one and the other two free. With MinUptime it does not count the
// restarted server before the holder's lease is over.
func TestRestartedServerDoesNotShrinkTheQuorum(t *testing.T) {
	t.Parallel()
	const uptime = 2 * time.Second
	q := NewQuorum(t, 5)
	on := func(tweaks ...func(*redis.Options)) []*primitives.Client {
		var clients []*primitives.Client
		for _, p := range q.Proxies {
			clients = append(clients, NewClient(t, p.Client(t, append(tweaks, ShortTimeouts, DialsOnce)...)))
		}
		return clients
	}
	minUptime := func(d time.Duration) func(*redis.Options) {
		return func(o *redis.Options) { o.OnConnect = primitives.MinUptime(d) }
	}
	_, err := q.Lock(on(minUptime(time.Hour))).TryAcquire(t.Context())
	refused, ok := errors.AsType[*net.OpError](err)
	require.True(t, ok, "%v", err)
	require.Regexp(t, `the server was started too recently: \d+s, at least 1h0m0s needed`, refused.Error())
	require.NotErrorIs(t, err, primitives.ErrOutcomeUnknown, "nothing was sent")

	holders, careless, careful := on(), q.Lock(on()), q.Lock(on(minUptime(uptime)))
	redistest.WaitFor(t, Soon, func() bool {
		hold, err := careful.TryAcquire(t.Context())
		return err == nil && hold.Release(t.Context()) == nil
	}, "all servers are old enough")
	for _, tt := range []struct {
		name       string
		lease      time.Duration
		rival      *primitives.Lock
		twoHolders bool
	}{
		{"without MinUptime", time.Minute, careless, true},
		{"with MinUptime", uptime, careful, false},
	} {
		others := q.Hold(t, 3, 4) // so that the hold has the first three only
		hold := Acquire(t, t.Context(), q.Lock(holders, primitives.WithLease(tt.lease)))
		Release(t, others...)
		require.NoError(t, q.Servers[2].Restart())
		var next *primitives.Hold
		redistest.WaitFor(t, Soon, func() bool {
			var err error
			next, err = tt.rival.TryAcquire(t.Context())
			return err == nil
		}, tt.name)
		require.Equal(t, tt.twoHolders, hold.Context().Err() == nil, "two holders %s", tt.name)
		Release(t, next)
		_ = hold.Release(t.Context()) // lost, or over
	}
}

package primitives_test

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// TestRedLockOverFiveMasters takes masters down in each way that they fail. With two down, a redlock is
// acquired, renewed, handed over and released within its budget. With three down it is refused in time,
// and leaves nothing on the others.
func TestRedLockOverFiveMasters(t *testing.T) {
	t.Parallel()
	const (
		budget = 240 * time.Millisecond // of shortTTL
		slack  = time.Second            // without a budget, the calls below take 5 s or more
	)
	q := newQuorum(t, 5)
	mine, theirs := q.lock(q.patientClients(t), shortTTL), q.lock(q.patientClients(t), shortTTL)
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
			func(i int) error { return q.servers[i].Kill() },
			func(i int) error { return q.servers[i].Restart() },
		},
		{
			"hung", []int{1, 2, 3},
			func(i int) error { return q.servers[i].Pause() },
			func(i int) error { return q.servers[i].Resume() },
		},
		{
			"slow", []int{4, 1, 0},
			func(i int) error { q.proxies[i].Delay(time.Second); return nil },
			func(i int) error { q.proxies[i].Delay(0); return nil },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			hold := acquire(t, t.Context(), mine)
			up := all(5)
			fail := func(i int) {
				require.NoError(t, tt.fail(i))
				up = without(up, i)
			}
			fail(tt.down[0])
			fail(tt.down[1])
			waiting := start(func() (*primitives.Hold, error) { return theirs.Acquire(t.Context()) })
			for _, i := range up {
				awaitWaiter(t, q.servers[i], q.name)
			}
			before := hold.ValidUntil()
			redistest.WaitFor(t, soon, func() bool { return hold.ValidUntil().After(before) }, "renewed")
			requireLive(t, hold.Context())
			var next *primitives.Hold
			within(t, 2*budget, "hand over", func() {
				within(t, budget, "release", func() { release(t, hold) })
				next = awaitHold(t, waiting)
			})
			within(t, budget, "release", func() { release(t, next) })
			within(t, budget, "acquire", func() { hold = acquire(t, t.Context(), mine) })
			before = hold.ValidUntil()
			redistest.WaitFor(t, soon, func() bool { return hold.ValidUntil().After(before) }, "renewed")
			within(t, budget, "release", func() { release(t, hold) })

			fail(tt.down[2])
			within(t, budget, "refusal", func() {
				_, err := mine.TryAcquire(t.Context())
				require.ErrorAs(t, err, new(*scripts.Error), "the error of a master that is down")
			})
			for _, i := range up { // given back before the call returned
				require.Empty(t, redistest.Keys(t, q.servers[i], q.name))
			}
			for _, i := range tt.down {
				require.NoError(t, tt.heal(i))
				q.proxies[i].Reset() // or the clients would wait for replies on silent connections
			}
			q.requireFree(t, all(5)...)
		})
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
	q := newQuorum(t, 5)
	on := func(tweaks ...func(*redis.Options)) []*primitives.Client {
		var clients []*primitives.Client
		for _, p := range q.proxies {
			clients = append(clients, newClient(t, p.Client(t, append(tweaks, hasty, dialsOnce)...)))
		}
		return clients
	}
	minUptime := func(d time.Duration) func(*redis.Options) {
		return func(o *redis.Options) { o.OnConnect = primitives.MinUptime(d) }
	}
	_, err := q.lock(on(minUptime(time.Hour))).TryAcquire(t.Context())
	refused, ok := errors.AsType[*net.OpError](err)
	require.True(t, ok, "%v", err)
	require.Regexp(t, `the server was started too recently: \d+s, at least 1h0m0s needed`, refused.Error())
	require.NotErrorIs(t, err, primitives.ErrOutcomeUnknown, "nothing was sent")

	holders, careless, careful := on(), q.lock(on()), q.lock(on(minUptime(uptime)))
	redistest.WaitFor(t, soon, func() bool {
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
		for _, i := range []int{3, 4} {
			q.proxies[i].Refuse(true)
			q.proxies[i].Reset()
		}
		hold := acquire(t, t.Context(), q.lock(holders, primitives.WithLease(tt.lease)))
		for _, i := range []int{3, 4} {
			q.proxies[i].Refuse(false)
		}
		require.NoError(t, q.servers[2].Restart())
		var next *primitives.Hold
		redistest.WaitFor(t, soon, func() bool {
			var err error
			next, err = tt.rival.TryAcquire(t.Context())
			return err == nil
		}, tt.name)
		require.Equal(t, tt.twoHolders, hold.Context().Err() == nil, "two holders %s", tt.name)
		release(t, next)
		_ = hold.Release(t.Context()) // lost, or over
	}
}

package primitives_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
	"github.com/redlatch/redlatch/scripts"
)

// quorum is a number of independent servers, a proxy for each, and a lock name.
type quorum struct {
	servers []*redistest.Server
	proxies []*redistest.Proxy
	name    string
}

func newQuorum(t *testing.T, n int) *quorum {
	var servers []*redistest.Server
	for range n {
		servers = append(servers, redistest.Fresh(t))
	}
	return quorumOf(t, servers...)
}

func quorumOf(t *testing.T, servers ...*redistest.Server) *quorum {
	q := &quorum{servers: servers, name: redistest.Name(t)}
	for _, s := range servers {
		q.proxies = append(q.proxies, s.Proxy(t))
	}
	return q
}

// clients returns a client for each server, through its proxy.
func (q *quorum) clients(t *testing.T, opts ...primitives.ClientOption) (list []*primitives.Client) {
	for _, p := range q.proxies {
		list = append(list, newClient(t, p.Client(t, hasty, dialsOnce), opts...))
	}
	return list
}

// patientClients is like clients, but they wait for a reply for longer than a test lasts.
func (q *quorum) patientClients(t *testing.T) (list []*primitives.Client) {
	patience := func(o *redis.Options) {
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.PoolTimeout = 2*soon, 2*soon, 2*soon, 2*soon
	}
	for _, p := range q.proxies {
		list = append(list, newClient(t, p.Client(t, patience, dialsOnce), primitives.WithCommandTimeout(2*soon)))
	}
	return list
}

// dialsOnce makes a refused connection fail at once.
func dialsOnce(o *redis.Options) {
	o.DialerRetries, o.DialerRetryTimeout, o.MaxRetries = 1, time.Millisecond, 1
}

// lock returns the redlock of the clients' locks.
func (q *quorum) lock(clients []*primitives.Client, opts ...primitives.Option) *primitives.Lock {
	var locks []*primitives.Lock
	for _, c := range clients {
		locks = append(locks, c.Lock(q.name))
	}
	return primitives.NewRedLock(locks, opts...)
}

// on returns the redlock on new clients.
func (q *quorum) on(t *testing.T, opts ...primitives.Option) *primitives.Lock {
	return q.lock(q.clients(t), opts...)
}

// hold acquires the name on some servers, as another owner each.
func (q *quorum) hold(t *testing.T, servers ...int) (holds []*primitives.Hold) {
	for _, i := range servers {
		holds = append(holds, acquire(t, t.Context(), newClient(t, q.servers[i].Client(t)).Lock(q.name)))
	}
	return holds
}

// requireFree waits until nothing is left on the given servers.
func (q *quorum) requireFree(t *testing.T, servers ...int) {
	t.Helper()
	for _, i := range servers {
		requireClean(t, q.servers[i], q.name)
	}
}

// all returns the servers 0 to n-1.
func all(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// budgetTTL gives each member a budget of 500 ms per request: a tenth of the TTL.
var budgetTTL = primitives.WithWatchdog(5 * time.Second)

const budget = 500 * time.Millisecond

// TestRedLockAttemptOutcomes makes one attempt on five servers, some of them held or down.
func TestRedLockAttemptOutcomes(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 5)
	for _, tt := range []struct {
		name       string
		held, down []int
		acquired   bool
		refused    bool // the error is ErrNotAcquired
		transport  bool // the error wraps a transport error
	}{
		{"all free", nil, nil, true, false, false},
		{"a minority held", []int{0, 1}, nil, true, false, false},
		{"a minority down", nil, []int{3, 4}, true, false, false},
		{"one held, one down", []int{0}, []int{4}, true, false, false},
		{"a majority held", []int{0, 1, 2}, nil, false, true, false},
		{"a majority held, others down", []int{0, 1, 2}, []int{3, 4}, false, true, true},
		{"no majority free, a minority down", []int{0, 1}, []int{3}, false, true, true},
		{"a majority down", nil, []int{2, 3, 4}, false, false, true},
		{"a majority down, others held", []int{0, 1}, []int{2, 3, 4}, false, false, true},
		{"all down", nil, []int{0, 1, 2, 3, 4}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := q.lock(q.patientClients(t))
			others := q.hold(t, tt.held...)
			for _, i := range tt.down {
				q.proxies[i].Refuse(true)
			}
			hold, err := l.TryAcquire(t.Context())
			if tt.acquired {
				require.NoError(t, err)
				release(t, hold)
			} else {
				require.Error(t, err)
				require.Equal(t, tt.refused, errors.Is(err, primitives.ErrNotAcquired), "%v", err)
				_, transport := errors.AsType[*scripts.Error](err)
				require.Equal(t, tt.transport, transport, "%v", err)
			}
			for i, s := range q.servers { // all members are released by the time the call returns
				if len(others) > i || tt.down != nil {
					continue
				}
				require.Empty(t, redistest.Keys(t, s, q.name))
			}
			for _, i := range tt.down {
				q.proxies[i].Refuse(false)
			}
			for _, other := range others {
				require.NoError(t, other.Check(t.Context()))
				release(t, other)
			}
			q.requireFree(t, all(5)...)
		})
	}
}

// TestRedLockRivalsExcludeEachOther runs rivals that acquire different servers first. All of them
// finish, also while one server is down.
func TestRedLockRivalsExcludeEachOther(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 5} {
		q := newQuorum(t, n)
		q.proxies[n-1].Refuse(n == 5)
		const rivals = 5
		count, each := 0, redistest.Scaled(q.servers[0], 20)
		var wg sync.WaitGroup
		began := time.Now()
		for range rivals {
			l := q.on(t)
			wg.Go(func() { increment(t, acts(l), &count, each) })
		}
		wg.Wait()
		t.Logf("%d servers, %d rivals: %v per acquisition", n, rivals, time.Since(began)/time.Duration(rivals*each))
		require.Equal(t, rivals*each, count)
		q.proxies[n-1].Refuse(false)
		q.requireFree(t, all(n)...)
	}
}

// TestRedLockWaitersDoNotWakeEachOther has waiters behind a holder of two of three members. Their
// attempts acquire and release the third, which must not wake up the others.
func TestRedLockWaitersDoNotWakeEachOther(t *testing.T) {
	q := newQuorum(t, 3)
	holds := q.hold(t, 0, 1)
	const waiters = 4
	var waiting []<-chan result
	for range waiters {
		l := q.on(t)
		waiting = append(waiting, start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) }))
	}
	for _, s := range q.servers {
		redistest.WaitFor(t, soon, func() bool {
			return redistest.Connections(t, s) >= waiters*2
		}, "all waiters are subscribed")
	}
	time.Sleep(500 * time.Millisecond) // most have made their second attempt
	before, began := redistest.Commands(t, q.servers[2]), time.Now()
	const span = 2 * time.Second
	time.Sleep(span)
	spent := redistest.Commands(t, q.servers[2]).Since(before)["evalsha"]
	t.Logf("%d waiters: %d scripts in %v on the free server", waiters, spent, span)
	// An attempt and its rollback each second, and a margin of the same size.
	require.LessOrEqual(t, float64(spent), waiters*2*2*max(time.Since(began), span).Seconds())

	release(t, holds[0]) // two members are free now: a majority
	for range waiting {
		r := awaitAny(t, waiting)
		require.NoError(t, r.err)
		release(t, r.hold)
	}
	release(t, holds[1])
	q.requireFree(t, 0, 1, 2)
}

// awaitAny returns the first result.
func awaitAny(t *testing.T, from []<-chan result) result {
	t.Helper()
	for limit := time.Now().Add(soon); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		for _, c := range from {
			select {
			case r := <-c:
				return r
			default:
			}
		}
	}
	require.FailNow(t, "no result")
	return result{}
}

// TestRedLockReleaseWakesWaiters releases different members. The waiter acquires. The engine's tests
// check in fake time that messages wake it.
func TestRedLockReleaseWakesWaiters(t *testing.T) {
	t.Parallel()
	q := newQuorum(t, 3)
	l := q.on(t)
	for _, held := range [][]int{{0, 1, 2}, {0, 1}, {1, 2}, {0, 2}} {
		holds := q.hold(t, held...)
		waiting := start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) })
		for _, s := range q.servers {
			awaitWaiter(t, s, q.name)
		}
		for _, hold := range holds {
			release(t, hold)
		}
		released := time.Now()
		r := await(t, waiting)
		require.NoError(t, r.err)
		require.Less(t, r.at.Sub(released), slowPoll)
		release(t, r.hold)
	}
	q.requireFree(t, 0, 1, 2)
}

func redMinorityLost(t *testing.T, x *jointTest) {
	hold := acquire(t, t.Context(), x.l)
	require.NoError(t, errOf(x.c.Lock(x.names[0]).ForceRelease(t.Context())))
	redissonLock(t, x.s, x.names[0])
	require.NoError(t, hold.Check(t.Context()))
	require.NoError(t, hold.Extend(t.Context(), time.Minute))
	requireLive(t, hold.Context())
	require.Greater(t, time.Until(hold.ValidUntil()), 55*time.Second)
	inner := acquire(t, hold.Context(), x.l)
	require.Equal(t, hold.ID(), inner.ID())
	release(t, inner)
	require.ErrorIs(t, errOf(x.on(x.other(t)).TryAcquire(t.Context())), primitives.ErrNotAcquired)
	require.NoError(t, errOf(x.c.Lock(x.names[1]).ForceRelease(t.Context())))
	require.ErrorIs(t, hold.Check(t.Context()), primitives.ErrLost)
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	redistest.WaitFor(t, soon, func() bool {
		return len(x.events.all(primitives.EventLost)) == 1
	}, "the loss is reported")
	redissonUnlock(t, x.s, x.names[0])
}

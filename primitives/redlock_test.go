package primitives_test

import (
	"context"
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

// quorum is some independent servers, and one name on all of them.
type quorum struct {
	servers []*redistest.Server
	proxies []*redistest.Proxy
	name    string
}

func newQuorum(t *testing.T, n int) *quorum {
	q := &quorum{name: redistest.Name(t)}
	for range n {
		s := redistest.Fresh(t)
		q.servers = append(q.servers, s)
		q.proxies = append(q.proxies, s.Proxy(t))
	}
	return q
}

// clients are one for each server, through its proxy.
func (q *quorum) clients(t *testing.T, opts ...primitives.ClientOption) (list []*primitives.Client) {
	for _, p := range q.proxies {
		list = append(list, newClient(t, p.Client(t, hasty, dialsOnce), opts...))
	}
	return list
}

// dialsOnce has a refused connection fail at once.
func dialsOnce(o *redis.Options) {
	o.DialerRetries, o.DialerRetryTimeout, o.MaxRetries = 1, time.Millisecond, 1
}

func (q *quorum) lock(clients []*primitives.Client, opts ...primitives.Option) *primitives.Lock {
	var locks []*primitives.Lock
	for _, c := range clients {
		locks = append(locks, c.Lock(q.name))
	}
	return primitives.NewRedLock(locks, opts...)
}

func (q *quorum) on(t *testing.T, opts ...primitives.Option) *primitives.Lock {
	return q.lock(q.clients(t), opts...)
}

// hold takes the name on some servers, as somebody else.
func (q *quorum) hold(t *testing.T, servers ...int) (holds []*primitives.Hold) {
	for _, i := range servers {
		holds = append(holds, acquire(t, t.Context(), newClient(t, q.servers[i].Client(t)).Lock(q.name)))
	}
	return holds
}

// requireFree awaits that nothing is left on those servers.
func (q *quorum) requireFree(t *testing.T, servers ...int) {
	t.Helper()
	for _, i := range servers {
		requireClean(t, q.servers[i], q.name)
	}
}

func all(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// ttl makes the budget of a member 500 ms.
var ttl = primitives.WithWatchdog(5 * time.Second)

const budget = 500 * time.Millisecond

// However a minority of the servers is out, the others suffice, and it costs no more than a budget.
func TestRedMinorityOut(t *testing.T) {
	for _, n := range []int{3, 5} {
		q := newQuorum(t, n)
		out := all(n)[n/2+1:]
		for _, tt := range []struct {
			name    string
			off, on func(i int)
		}{
			{"refusing", func(i int) { q.proxies[i].Refuse(true) }, func(i int) { q.proxies[i].Refuse(false) }},
			{"black-holed", func(i int) { q.proxies[i].BlackHole(true) }, func(i int) { q.proxies[i].Heal() }},
			{"answers black-holed", func(i int) { q.proxies[i].BlackHoleReplies(true) }, func(i int) { q.proxies[i].Heal() }},
			{"stopped", func(i int) { _ = q.servers[i].Pause() }, func(i int) { _ = q.servers[i].Resume() }},
		} {
			if n == 5 && tt.name != "black-holed" {
				continue
			}
			t.Run(tt.name+"/"+string(rune('0'+n)), func(t *testing.T) {
				l := q.on(t, ttl)
				release(t, acquire(t, t.Context(), l)) // the scripts are known
				for _, i := range out {
					tt.off(i)
				}
				at := func(what string, f func()) {
					t.Helper()
					began := time.Now()
					f()
					require.Less(t, time.Since(began), budget+300*time.Millisecond, what)
				}
				var hold, inner *primitives.Hold
				at("acquire", func() { hold = acquire(t, t.Context(), l) })
				at("nested", func() { inner = acquire(t, hold.Context(), l) })
				at("check", func() { require.NoError(t, hold.Check(t.Context())) })
				at("extend", func() { require.NoError(t, hold.Extend(t.Context(), 6*time.Second)) })
				at("release", func() { release(t, inner) })
				at("release", func() { release(t, hold) })
				for _, i := range out {
					tt.on(i)
				}
				q.requireFree(t, all(n)...)
			})
		}
	}
}

// What one try comes to, by what the five servers say.
func TestRedOutcomes(t *testing.T) {
	q := newQuorum(t, 5)
	for _, tt := range []struct {
		name      string
		held, out []int
		had       bool
		refused   bool // ErrNotAcquired
		transport bool // a transport error is in it
	}{
		{"all free", nil, nil, true, false, false},
		{"a minority held", []int{0, 1}, nil, true, false, false},
		{"a minority out", nil, []int{3, 4}, true, false, false},
		{"one held, one out", []int{0}, []int{4}, true, false, false},
		{"a majority held", []int{0, 1, 2}, nil, false, true, false},
		{"a majority held, others out", []int{0, 1, 2}, []int{3, 4}, false, true, true},
		{"no majority, but those out are few", []int{0, 1}, []int{3}, false, true, true},
		{"a majority out", nil, []int{2, 3, 4}, false, false, true},
		{"a majority out, others held", []int{0, 1}, []int{2, 3, 4}, false, false, true},
		{"all out", nil, []int{0, 1, 2, 3, 4}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := q.on(t)
			others := q.hold(t, tt.held...)
			for _, i := range tt.out {
				q.proxies[i].Refuse(true)
			}
			hold, err := l.TryAcquire(t.Context())
			if tt.had {
				require.NoError(t, err)
				release(t, hold)
			} else {
				require.Error(t, err)
				require.Equal(t, tt.refused, errors.Is(err, primitives.ErrNotAcquired), "%v", err)
				_, transport := errors.AsType[*scripts.Error](err)
				require.Equal(t, tt.transport, transport, "%v", err)
			}
			for i, s := range q.servers { // at once
				if len(others) > i || tt.out != nil {
					continue
				}
				require.Empty(t, redistest.Keys(t, s, q.name))
			}
			for _, i := range tt.out {
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

// A server hangs while it is asked: when it goes on, it executes what it was asked, and what it was told to take back.
func TestRedNoOrphans(t *testing.T) {
	q := newQuorum(t, 3)
	for _, tt := range []struct {
		name string
		held []int // by others
	}{
		{"had by the others", nil},
		{"failed", []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := q.on(t, primitives.WithLease(20*time.Second)) // longer than the test waits
			others := q.hold(t, tt.held...)
			require.NoError(t, q.servers[2].Pause())
			hold, err := l.TryAcquire(t.Context(), primitives.WithLease(5*time.Second))
			if tt.held == nil {
				require.NoError(t, err)
				release(t, hold)
			} else {
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
			}
			require.NoError(t, q.servers[2].Resume())
			for _, other := range others {
				release(t, other)
			}
			began := time.Now()
			q.requireFree(t, 0, 1, 2)
			require.Less(t, time.Since(began), 3*time.Second, "not only by the end of its lease")
		})
	}
}

// Rivals that have some servers each come to an end, exactly one inside at a time; also while one server is out.
func TestRedRivals(t *testing.T) {
	for _, n := range []int{3, 5} {
		q := newQuorum(t, n)
		q.proxies[n-1].Refuse(n == 5)
		const rivals = 5
		count, each := 0, scaled(q.servers[0], 20)
		var wg sync.WaitGroup
		began := time.Now()
		for range rivals {
			l := q.on(t)
			wg.Go(func() { increment(t, acts(l), &count, each) })
		}
		wg.Wait()
		t.Logf("%d servers, %d rivals: %v an acquisition", n, rivals, time.Since(began)/time.Duration(rivals*each))
		require.Equal(t, rivals*each, count)
		q.proxies[n-1].Refuse(false)
		q.requireFree(t, all(n)...)
	}
}

// Those who wait for a holder that has a majority, but not all, do not keep each other awake by what they take and give back.
func TestRedIdleWaiters(t *testing.T) {
	q := newQuorum(t, 3)
	holds := q.hold(t, 0, 1)
	const waiters = 4
	var waiting []<-chan result
	for range waiters {
		l := q.on(t)
		waiting = append(waiting, start(func() (*primitives.Hold, error) { return l.Acquire(t.Context()) }))
	}
	for _, s := range q.servers {
		redistest.WaitFor(t, soon, func() bool { return redistest.Connections(t, s) >= waiters*2 }, "all listen")
	}
	time.Sleep(500 * time.Millisecond)
	before := redistest.Commands(t, q.servers[2])
	const span = 2 * time.Second
	time.Sleep(span)
	spent := redistest.Commands(t, q.servers[2]).Since(before)["evalsha"]
	t.Logf("%d waiters: %d scripts in %v on the free server", waiters, spent, span)
	require.LessOrEqual(t, spent, int64(waiters*2*4)) // a try, and what it gives back, each second; and as much again by chance

	release(t, holds[0]) // with the free one it is a majority
	for range waiting {
		r := awaitAny(t, waiting)
		require.NoError(t, r.err)
		release(t, r.hold)
	}
	release(t, holds[1])
	q.requireFree(t, 0, 1, 2)
}

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

// Waiting is ended by message, whichever members were held.
func TestRedWokenByMessage(t *testing.T) {
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
		require.Less(t, r.at.Sub(released), 700*time.Millisecond)
		release(t, r.hold)
	}
	q.requireFree(t, 0, 1, 2)
}

// One server that comes back without its data is no loss; two at once are.
func TestRedRestart(t *testing.T) {
	q := newQuorum(t, 3)
	heard := &recorder{}
	l := q.lock(q.clients(t, heard.option()), primitives.WithWatchdog(1500*time.Millisecond))
	hold := acquire(t, t.Context(), l)
	restart := func(i int) {
		require.NoError(t, q.servers[i].Kill())
		require.NoError(t, q.servers[i].Restart())
	}
	restart(0)
	redistest.WaitFor(t, soon, func() bool { return fields(t, q.servers[0], q.name)[hold.ID()] == "1" }, "taken again")
	require.NoError(t, hold.Check(t.Context()))
	requireLive(t, hold.Context())
	require.NoError(t, q.servers[0].Kill())
	restart(1)
	require.NoError(t, q.servers[0].Restart())
	requireEnds(t, hold.Context(), primitives.ErrLost)
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	q.requireFree(t, 0, 1, 2)
	redistest.WaitFor(t, soon, func() bool { return len(heard.all(primitives.EventLost)) > 0 }, "told")
	require.Len(t, heard.all(primitives.EventLost), 1)
}

// A holder that is cut off from a majority is told before anybody else can have it.
func TestRedPartition(t *testing.T) {
	q := newQuorum(t, 3)
	hold := acquire(t, t.Context(), q.on(t, primitives.WithWatchdog(1500*time.Millisecond)))
	told := make(chan time.Time, 1)
	context.AfterFunc(hold.Context(), func() { told <- time.Now() })
	var free []*primitives.Client
	for _, s := range q.servers {
		free = append(free, newClient(t, s.Client(t)))
	}
	for _, p := range q.proxies[:2] {
		p.BlackHole(true)
	}
	r := await(t, start(func() (*primitives.Hold, error) { return q.lock(free).Acquire(t.Context()) }))
	require.NoError(t, r.err)
	require.True(t, (<-told).Before(r.at))
	require.ErrorIs(t, context.Cause(hold.Context()), primitives.ErrLost)
	for _, p := range q.proxies {
		p.Heal()
	}
	require.ErrorIs(t, hold.Release(t.Context()), primitives.ErrLost)
	require.NoError(t, r.hold.Check(t.Context()))
	release(t, r.hold)
	q.requireFree(t, 0, 1, 2)
}

package topology

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// waysToDie are how a server may be out of action, and what its error matches.
var waysToDie = []struct {
	name       string
	fail, heal func(s *redistest.Server) error
	is         error
}{
	{"killed", (*redistest.Server).Kill, (*redistest.Server).Restart, syscall.ECONNREFUSED},
	{"stopped", (*redistest.Server).Pause, (*redistest.Server).Resume, os.ErrDeadlineExceeded},
}

// newMajority returns servers, and a redlock on them by clients with go-redis's own settings.
func newMajority(t *testing.T, n int) (q *fixture.Quorum, l *primitives.Lock) {
	q = fixture.NewQuorum(t, n)
	var clients []*primitives.Client
	for _, s := range q.Servers {
		clients = append(clients, fixture.NewClient(t, s.Client(t)))
	}
	l = q.Lock(clients)
	require.Equal(t, q.Name, l.Name(), "an equal name is said once")
	return q, l
}

// median is how long a call of f usually takes, and how long all took.
func median(n int, f func()) (usual, all time.Duration) {
	var took []time.Duration
	for range n {
		began := time.Now()
		f()
		took = append(took, time.Since(began))
		all += took[len(took)-1]
	}
	slices.Sort(took)
	return took[n/2], all
}

// A dead server costs the first acquisition a moment, and the later ones nothing. Before, each took
// 2 s. It collects no goroutines either: they are counted, so the test is not parallel to others.
func TestRedLockIsAsFastWithADeadServer(t *testing.T) {
	const n = 50
	for _, tt := range waysToDie {
		t.Run(tt.name, func(t *testing.T) {
			q, l := newMajority(t, 3)
			do := func() {
				require.NoError(t, l.Do(t.Context(), func(context.Context) error { return nil }))
			}
			do()
			healthy, _ := median(n, do)
			require.NoError(t, tt.fail(q.Servers[1]))
			before := runtime.NumGoroutine()
			dead, all := median(n, do)
			t.Logf("with three servers %v, with two %v, %v for all", healthy, dead, all)
			require.Less(t, dead, 4*healthy+5*time.Millisecond)
			require.Less(t, all, n*healthy*4+2*time.Second)
			require.Less(t, runtime.NumGoroutine(), before+n, "one attempt at a time is under way")
			require.NoError(t, tt.heal(q.Servers[1]))
			q.RequireFree(t, fixture.All(3)...)
		})
	}
}

// The end of a wait, and the deadline of a context, are for the majority.
func TestRedLockWithADeadServerMeetsShortDeadlines(t *testing.T) {
	t.Parallel()
	for _, tt := range waysToDie {
		t.Run(tt.name, func(t *testing.T) {
			for _, dead := range [][]int{{0}, {1, 3}} {
				q, l := newMajority(t, 2*len(dead)+1)
				fixture.Release(t, fixture.Acquire(t, t.Context(), l))
				for _, i := range dead {
					require.NoError(t, tt.fail(q.Servers[i]))
				}
				for _, limit := range []time.Duration{300 * time.Millisecond, 1500 * time.Millisecond} {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					hold, err := l.Acquire(ctx)
					cancel()
					require.NoError(t, err, "by ctx: %v", limit)
					fixture.Release(t, hold)
					fixture.Release(t, fixture.Acquire(t, t.Context(), l, primitives.WithWait(limit)))
				}
				for _, i := range dead {
					require.NoError(t, tt.heal(q.Servers[i]))
				}
				q.RequireFree(t, fixture.All(len(q.Servers))...)
			}
		})
	}
}

// Without a majority the error names each dead server and what it met. It says neither that
// somebody has the lock, nor that one was lost, nor that an outcome is unknown.
func TestRedLockWithoutAMajorityNamesTheServers(t *testing.T) {
	t.Parallel()
	for _, tt := range waysToDie {
		t.Run(tt.name, func(t *testing.T) {
			q, l := newMajority(t, 3)
			fixture.Release(t, fixture.Acquire(t, t.Context(), l))
			for _, s := range q.Servers[:2] {
				require.NoError(t, tt.fail(s))
			}
			for name, acquire := range map[string]func() error{
				"by ctx": func() error {
					ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
					defer cancel()
					return fixture.ErrOf(l.Acquire(ctx))
				},
				"by wait": func() error {
					return fixture.ErrOf(l.Acquire(t.Context(),
						primitives.WithWait(1500*time.Millisecond)))
				},
				"a try": func() error { return fixture.ErrOf(l.TryAcquire(t.Context())) },
			} {
				err := acquire()
				require.ErrorIs(t, err, primitives.ErrUnavailable, name)
				require.ErrorIs(t, err, tt.is, name)
				for _, s := range q.Servers[:2] {
					require.ErrorContains(t, err, s.Client(t).Options().Addr, name)
				}
				for _, wrong := range []error{
					primitives.ErrNotAcquired, primitives.ErrLost, primitives.ErrOutcomeUnknown,
				} {
					require.NotErrorIs(t, err, wrong, name)
				}
				require.Empty(t, redistest.Keys(t, q.Servers[2], q.Name), name)
			}
			for _, s := range q.Servers[:2] {
				require.NoError(t, tt.heal(s))
			}
			q.RequireFree(t, fixture.All(3)...)
		})
	}
}

// Each member has met something else. The error matches all of it.
func TestRedLockErrorHidesNoMember(t *testing.T) {
	t.Parallel()
	q := fixture.NewQuorum(t, 3)
	ctx := t.Context()
	guarded := q.Servers[0].Client(t)
	require.NoError(t, q.Servers[1].Client(t).Set(ctx, q.Name, "another program's", time.Minute).Err())
	require.NoError(t, q.Servers[2].Kill())
	var locks []*primitives.Lock
	for i, s := range q.Servers {
		rdb := s.Client(t, fixture.DialsOnce)
		if i == 0 { // a user that does not exist
			o := *guarded.Options()
			o.Username, o.Password, o.DialerRetries = "nobody", "wrong", 1
			rdb = redis.NewClient(&o)
			t.Cleanup(func() { _ = rdb.Close() })
		}
		locks = append(locks, fixture.NewClient(t, rdb).Lock(q.Name))
	}
	err := fixture.ErrOf(primitives.NewRedLock(locks).Acquire(ctx, primitives.WithWait(time.Second)))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorIs(t, err, primitives.ErrForeign)
	require.ErrorContains(t, err, "WRONGPASS")
	require.NotErrorIs(t, err, primitives.ErrNotAcquired)
	for _, s := range q.Servers {
		require.ErrorContains(t, err, s.Client(t).Options().Addr)
	}
}

// Readers come and go on each server, so that there is always one. Without a reservation a writer
// would have to meet a moment without readers on a majority.
func TestRedLockOfWritersIsNotStarvedByReaders(t *testing.T) {
	t.Parallel()
	q := fixture.NewQuorum(t, 3)
	reading, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var writers []*primitives.Lock
	for _, s := range q.Servers {
		for i := range 3 {
			reader := fixture.NewClient(t, s.Client(t)).RWLock(q.Name).Reader()
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 30 * time.Millisecond)
				for reading.Err() == nil {
					err := reader.Do(reading, func(context.Context) error { time.Sleep(90 * time.Millisecond); return nil })
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				}
			})
		}
		writers = append(writers, fixture.NewClient(t, s.Client(t)).RWLock(q.Name).Writer())
	}
	defer func() {
		stop()
		readers.Wait()
		q.RequireFree(t, fixture.All(3)...)
	}()
	time.Sleep(200 * time.Millisecond)
	red := primitives.NewRedLock(writers)
	for range 3 {
		began := time.Now()
		hold := fixture.Acquire(t, t.Context(), red, primitives.WithWait(10*time.Second))
		t.Logf("after %v", time.Since(began).Round(time.Millisecond))
		fixture.Release(t, hold)
	}
	// One that gives up leaves no reservation.
	for _, s := range q.Servers[:2] {
		hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, s.Client(t)).RWLock(q.Name).Reader())
		defer fixture.Release(t, hold)
	}
	err := fixture.ErrOf(red.Acquire(t.Context(), primitives.WithWait(200*time.Millisecond)))
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	for i, s := range q.Servers {
		claim := fmt.Sprintf("redlatch_rwlock_claim:{%s}", q.Name)
		require.Zero(t, s.Client(t).Exists(t.Context(), claim).Val(), "server %d", i)
	}
}

// TestRedLockOverFiveMasters takes masters down in each way that they fail. With two down, a
// redlock is acquired, renewed, handed off and released within its budget. With three down it is
// refused in time, and leaves nothing on the others.
func TestRedLockOverFiveMasters(t *testing.T) {
	t.Parallel()
	const (
		budget = 600 * time.Millisecond // a tenth of the TTL
		slack  = 8 * time.Second        // without a budget, the calls below take 20 s or more
	)
	ttl := primitives.WithWatchdog(10 * budget)
	q := fixture.NewQuorum(t, 5)
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
			up := fixture.All(5)
			fail := func(i int) {
				require.NoError(t, tt.fail(i))
				up = without(up, i)
			}
			fail(tt.down[0])
			fail(tt.down[1])
			waiting := fixture.StartAcquire(t.Context(), theirs)
			for _, i := range up {
				fixture.AwaitWaiter(t, q.Servers[i], q.Name)
			}
			before := hold.ValidUntil()
			redistest.WaitFor(t, fixture.Soon, func() bool { return hold.ValidUntil().After(before) }, "renewed")
			fixture.RequireLive(t, hold.Context())
			var next *primitives.Hold
			within(t, 2*budget, "hand off", func() {
				within(t, budget, "release", func() { fixture.Release(t, hold) })
				next = fixture.AwaitHold(t, waiting)
			})
			within(t, budget, "release", func() { fixture.Release(t, next) })
			within(t, budget, "acquire", func() { hold = fixture.Acquire(t, t.Context(), mine) })
			before = hold.ValidUntil()
			redistest.WaitFor(t, fixture.Soon, func() bool { return hold.ValidUntil().After(before) }, "renewed")
			within(t, budget, "release", func() { fixture.Release(t, hold) })

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
			q.RequireFree(t, fixture.All(5)...)
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

// TestRestartedServerDoesNotShrinkTheQuorum has a holder with three of five servers, one of which
// restarts empty. A second client finds that one and the other two free. With MinUptime it does not
// count the restarted server before the holder's lease is over.
func TestRestartedServerDoesNotShrinkTheQuorum(t *testing.T) {
	t.Parallel()
	const uptime = 2 * time.Second
	q := fixture.NewQuorum(t, 5)
	on := func(tweaks ...func(*redis.Options)) []*primitives.Client {
		var clients []*primitives.Client
		for _, p := range q.Proxies {
			clients = append(clients, fixture.NewClient(t,
				p.Client(t, append(tweaks, fixture.ShortTimeouts, fixture.DialsOnce)...)))
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
	redistest.WaitFor(t, fixture.Soon, func() bool {
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
		hold := fixture.Acquire(t, t.Context(), q.Lock(holders, primitives.WithLease(tt.lease)))
		fixture.Release(t, others...)
		require.NoError(t, q.Servers[2].Restart())
		var next *primitives.Hold
		redistest.WaitFor(t, fixture.Soon, func() bool {
			var err error
			next, err = tt.rival.TryAcquire(t.Context())
			return err == nil
		}, tt.name)
		require.Equal(t, tt.twoHolders, hold.Context().Err() == nil, "two holders %s", tt.name)
		fixture.Release(t, next)
		_ = hold.Release(t.Context()) // lost, or over
	}
}

package faults

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// farClient is a client whose waiters tests can await.
type farClient struct {
	*primitives.Client

	answers *scriptAnswers
}

func newFarClient(t testing.TB, rdb redis.UniversalClient) farClient {
	t.Helper()
	answers := &scriptAnswers{}
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(answers) })
	} else {
		rdb.AddHook(answers)
	}
	return farClient{fixture.NewClient(t, rdb), answers}
}

// scriptAnswers is a hook that counts the scripts that Redis has executed.
type scriptAnswers struct {
	fixture.CountingHook

	n atomic.Int64
}

func (s *scriptAnswers) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if strings.HasPrefix(cmd.Name(), "eval") && cmd.Err() == nil {
			s.n.Add(1)
		}
	}
}

func (s *scriptAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.count(cmd)
		return err
	}
}

func (s *scriptAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		s.count(cmds...)
		return err
	}
}

// methodsOf uses the methods of the primitives, each in the way that needs the most rights. It
// returns the first error. All names begin with name. one and two are clients of users with the
// same rights.
func methodsOf(ctx context.Context, one *primitives.Client, two farClient, name string) error {
	pool, far := one.PermitExpirableSemaphore(name+"p"), two.PermitExpirableSemaphore(name+"p")
	if err := first(
		func() error { return countingPermits(ctx, two, one.Semaphore(name+"s"), two.Semaphore(name+"s")) },
		func() error { return leasingPermits(ctx, pool, far) },
		func() error { return countingPermits(ctx, two, pool, far) },
		func() error { return openingLatch(ctx, one.CountDownLatch(name+"l"), two, name+"l") },
		func() error { return readersAndWriters(ctx, one.RWLock(name+"rw"), two, name+"rw") },
	); err != nil {
		return err
	}
	return methodsOfLocks(ctx, one, two, name)
}

// methodsOfLocks is methodsOf for the kinds of locks.
func methodsOfLocks(ctx context.Context, one *primitives.Client, two farClient, name string) error {
	for _, k := range kinds.Locks() {
		kind, open := k.Name, k.Lock
		l, far := open(one, name+kind), open(two.Client, name+kind)
		if err := first(
			func() error { return locking(ctx, l) },
			func() error { return takingOver(ctx, l, far) },
			func() error { return handOff(ctx, two, l, far) },
		); err != nil {
			return err
		}
	}
	return nil
}

// first calls functions until one fails.
func first(calls ...func() error) error {
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

// locking acquires and releases with all options that change the commands.
func locking(ctx context.Context, l *primitives.Lock) error {
	for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("job 7")}} {
		outer, err := l.Acquire(ctx, opts...)
		if err != nil {
			return err
		}
		inner, err := l.Acquire(outer.Context(), opts...)
		if err == nil {
			err = errors.Join(inner.Check(ctx), inner.Extend(ctx, time.Minute), fixture.ErrOf(l.Info(ctx)), inner.Release(ctx))
		}
		if err = errors.Join(err, outer.Release(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// handOff makes two requests of far, a handle of two, wait until l is released. Of a reader they
// need not wait.
func handOff(ctx context.Context, two farClient, l, far fixture.Handle) error {
	hold, err := l.Acquire(ctx, primitives.WithOwner("first"), primitives.WithLease(time.Minute))
	if err != nil {
		return err
	}
	return whileWaiting(ctx, two, func(ctx context.Context) error {
		next, err := far.Acquire(ctx)
		if err != nil {
			return err
		}
		return next.Release(ctx)
	}, func() error {
		if next, err := far.TryAcquire(ctx); err == nil {
			return errors.Join(next.Release(ctx), hold.Release(ctx))
		} else if !errors.Is(err, primitives.ErrNotAcquired) {
			return err
		}
		return hold.Release(ctx)
	})
}

// whileWaiting runs f while two calls of wait wait for it on two, or one of them has ended. If f
// fails, they are cancelled.
func whileWaiting(ctx context.Context, two farClient, wait func(ctx context.Context) error, f func() error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	const waiters = 2
	ended := make(chan error, waiters)
	startAndAwait := func(waits func() bool) {
		go func() { ended <- wait(ctx) }()
		for !waits() && len(ended) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	before := two.answers.n.Load()
	// The first one is refused, subscribes and looks again, or polls within a second if it may not
	// subscribe.
	startAndAwait(func() bool { return two.answers.n.Load() >= before+2 })
	startAndAwait(func() bool { return fixture.Waiters(two.Client) == waiters })
	failed := f()
	if failed != nil {
		cancel()
	}
	for range waiters {
		if err := <-ended; failed == nil && err != nil {
			failed = err
			cancel()
		}
	}
	return failed
}

// takingOver takes holds of l over.
func takingOver(ctx context.Context, l, far *primitives.Lock) error {
	for _, take := range []func(id string) error{
		func(id string) error {
			hold, err := far.Adopt(ctx, id)
			if err != nil {
				return err
			}
			return hold.Release(ctx)
		},
		func(id string) error { return far.ReleaseID(ctx, id) },
		func(string) error { return fixture.ErrOf(far.ForceRelease(ctx)) },
	} {
		hold, err := l.Acquire(ctx, primitives.WithLease(time.Minute))
		if err != nil {
			return err
		}
		if err := take(hold.Detach()); err != nil {
			return err
		}
	}
	return nil
}

// readersAndWriters uses both sides of a read-write lock together.
func readersAndWriters(ctx context.Context, rw *primitives.RWLock, two farClient, name string) error {
	far := two.RWLock(name)
	w, err := rw.Writer().Acquire(ctx)
	if err != nil {
		return err
	}
	r, err := rw.Reader().Acquire(context.WithoutCancel(w.Context())) // a downgrade
	if err != nil {
		return err
	}
	if err := w.Release(ctx); err != nil {
		return err
	}
	other, err := far.Reader().Acquire(ctx)
	if err != nil {
		return err
	}
	return whileWaiting(ctx, two, func(ctx context.Context) error {
		w, err := far.Writer().Acquire(ctx)
		if err != nil {
			return err
		}
		return w.Release(ctx)
	}, func() error { return errors.Join(r.Release(ctx), other.Release(ctx)) })
}

// counted is a semaphore of either kind.
type counted interface {
	fixture.Handle
	Init(ctx context.Context, n int) (bool, error)
	Add(ctx context.Context, delta int) error
	Info(ctx context.Context) (primitives.Info, error)
	Delete(ctx context.Context) (bool, error)
}

func countingPermits(ctx context.Context, two farClient, s, far counted) error {
	if err := first(
		func() error {
			return errors.Join(fixture.ErrOf(s.Init(ctx, 3)), s.Add(ctx, -2), fixture.ErrOf(s.Info(ctx)))
		},
		func() error { return handOff(ctx, two, s, far) },
	); err != nil {
		return err
	}
	if s, ok := s.(*primitives.Semaphore); ok {
		if _, err := s.Drain(ctx); err != nil {
			return err
		}
	}
	return fixture.ErrOf(s.Delete(ctx))
}

func leasingPermits(ctx context.Context, s, far *primitives.PermitExpirableSemaphore) error {
	if err := errors.Join(fixture.ErrOf(s.Init(ctx, 3)), s.Resize(ctx, 2)); err != nil {
		return err
	}
	hold, err := s.Acquire(ctx, primitives.WithPermits(2))
	if err != nil {
		return err
	}
	if err := errors.Join(hold.Check(ctx), hold.Extend(ctx, time.Minute), fixture.ErrOf(s.Info(ctx))); err != nil {
		return err
	}
	adopted, err := far.Adopt(ctx, hold.Detach())
	if err != nil {
		return err
	}
	return errors.Join(far.ReleaseID(ctx, adopted.Detach()), fixture.ErrOf(s.Delete(ctx)))
}

func openingLatch(ctx context.Context, l *primitives.CountDownLatch, two farClient, name string) error {
	if err := errors.Join(fixture.ErrOf(l.Init(ctx, 2)), l.CountDown(ctx), fixture.ErrOf(l.Count(ctx))); err != nil {
		return err
	}
	if err := whileWaiting(ctx, two, two.CountDownLatch(name).Wait, func() error { return l.CountDown(ctx) }); err != nil {
		return err
	}
	return errors.Join(fixture.ErrOf(l.Init(ctx, 1)), fixture.ErrOf(l.Delete(ctx)))
}

// dispensable are the rules of an application that the library can do without, and what it then
// lacks.
var dispensable = map[string]string{
	"+script|load": "scripts are sent as text",
	"+eval":        "only after SCRIPT FLUSH at a bad moment",
	"+subscribe":   "waiters poll",
	"+unsubscribe": "the server goes on sending messages",
	"+ping":        "broken connections are noticed later",
	// Redisson's waiters for a release.
	"+pubsub|numsub": "Hold.Wanted does not see them",
	// Without these two, what waiters leave behind stays for seconds.
	"+lrem":             "a fair lock's waiter that gives up keeps its place until it counts as dead",
	"+zremrangebyscore": "a dead client keeps its place in line until the line expires",
	"+hrandfield":       "the release of a reader may read all others",
}

// deniedError matches what Redis says if a right is missing. Redis 7.0 does not say NOPERM inside a
// script.
var deniedError = regexp.MustCompile(`NOPERM|The user executing the script can't`)

// TestEachRuleIsNeeded takes one rule at a time from the application of doc/operations.md. A method
// then fails with NOPERM, or everything works without it.
func TestEachRuleIsNeeded(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	all := redistest.DocumentedRules(t, "locks")[0]
	try := func(t *testing.T, rules []string) error {
		user := redistest.Name(t)
		s.SetUser(t, user, rules...)
		ctx, cancel := context.WithTimeout(t.Context(), fixture.Soon)
		defer cancel()
		one, two := fixture.NewClient(t, s.As(user).Client(t)), newFarClient(t, s.As(user).Client(t))
		return methodsOf(ctx, one, two, fixture.Permitted+user)
	}
	t.Run("all rules", func(t *testing.T) {
		t.Parallel()
		require.NoError(t, try(t, all))
	})
	for i, rule := range all {
		if !strings.ContainsRune("~&+", rune(rule[0])) {
			continue
		}
		t.Run("without "+rule, func(t *testing.T) {
			t.Parallel()
			err := try(t, slices.Delete(slices.Clone(all), i, i+1))
			if dispensable[rule] != "" {
				require.NoError(t, err)
				return
			}
			var typed *primitives.Error
			require.ErrorAs(t, err, &typed)
			require.Regexp(t, deniedError, err.Error())
			require.NotErrorIs(t, err, primitives.ErrNotAcquired)
		})
	}
}

// A user lacks the permission for one command, so scripts stop halfway, and a lock could stay
// without a TTL. What was acquired by then is given back, once, and others can acquire at once.
func TestDeniedAcquisitionLeavesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	free := fixture.NewClient(t, s.Client(t))
	for _, command := range []string{"pexpire", "hset", "pttl", "set", "decrby", "zadd", "persist"} {
		user := redistest.Name(t)
		s.SetUser(t, user, "on", ">"+redistest.Password, "~*", "&*", "+@all", "-"+command)
		denied := 0
		for _, kind := range slices.Concat(kinds.Locks(), kinds.Pools()) {
			for _, opts := range [][]primitives.Option{nil, {primitives.WithOwner("me")}} {
				c := fixture.NewClient(t, s.As(user).Client(t))
				name := redistest.Name(t)
				if kind.Pool {
					fixture.InitPool(t, kind.OpenPool(free, name), 1)
				}
				_, err := kind.Open(c, name).TryAcquire(t.Context(), opts...)
				if err == nil {
					continue // its release may be denied, which Release says
				}
				denied++
				require.Regexp(t, deniedError, err.Error())
				hold, err := kind.Rival(free, name).TryAcquire(t.Context())
				require.NoError(t, err, "%s without %s", kind.Name, command)
				_, err = kind.Rival(free, name).TryAcquire(t.Context())
				require.ErrorIs(t, err, primitives.ErrNotAcquired, "%s without %s", kind.Name, command)
				fixture.Release(t, hold)
			}
		}
		require.NotZero(t, denied, "without %s", command)
	}
}

// A user lacks a command that only the release needs. Release says so, and the lock is free when
// its lease ends, because nothing renews it.
func TestDeniedReleaseLeavesTheLockToItsLease(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	s := redistest.Fresh(t)
	s.SetUser(t, "keeper", "on", ">"+redistest.Password, "~*", "&*", "+@all", "-hdel")
	c, free := fixture.NewClient(t, s.As("keeper").Client(t)), fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), c.Lock("x"), primitives.WithWatchdog(ttl))
	waiting := fixture.StartAcquire(t.Context(), free.Lock("x"))
	require.Regexp(t, deniedError, hold.Release(t.Context()))
	fixture.Release(t, fixture.AwaitHold(t, waiting))
}

// The other rules of doc/operations.md for a Go application: in a cluster, for lists of locks, for
// names and notices.
func TestDocumentedRulesOfACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.FreshCluster(t, 3)
	rules := append(redistest.DocumentedRules(t, "locks")[0], strings.Fields(
		"+cluster|slots +cluster|shards +cluster|nodes +command "+
			"+pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe +scan +getrange")...)
	for _, s := range servers.Nodes() {
		s.SetUser(t, "locks", rules...)
	}
	open := func() redis.UniversalClient {
		return servers.ClusterClient(t, func(o *redis.ClusterOptions) {
			o.Username, o.Password = "locks", redistest.Password
		})
	}
	one, two := fixture.NewClient(t, open()), newFarClient(t, open())
	name := fixture.Permitted + redistest.Name(t)
	require.NoError(t, methodsOf(t.Context(), one, two, name))
	hold := fixture.Acquire(t, t.Context(), one.Lock(name))
	listed := 0
	for info, err := range two.Locks(t.Context(), name+"*") {
		require.NoError(t, err)
		require.Equal(t, name, info.Name)
		listed++
	}
	require.Equal(t, 1, listed)
	fixture.Release(t, hold)
}

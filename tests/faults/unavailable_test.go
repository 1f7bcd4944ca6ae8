package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
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

// dialer connects to something that is no working Redis.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// dialing returns a dialer whose connections are served one by one, and then closed.
func dialing(serve func(conn net.Conn)) dialer {
	return func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			serve(server)
		}()
		return client, nil
	}
}

// refused is the error of a dial to a closed port.
func refused(context.Context, string, string) (net.Conn, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

var (
	silent    = dialing(func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	hangingUp = dialing(func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1<<16)) })
	// loading answers as a Redis that reads its data, for ever.
	loading = refusing("LOADING Redis is loading the dataset in memory")
)

// refusing answers as a Redis that refuses all commands.
func refusing(refusal string) dialer {
	return dialing(func(conn net.Conn) {
		in := bufio.NewReaderSize(conn, 1<<20) // holds what a client writes at once: a pipe has no buffer
		for {
			args, err := readCommand(in)
			if err != nil || len(args) == 0 {
				return
			}
			answer := "-" + refusal + "\r\n"
			switch strings.ToLower(args[0]) {
			case "hello":
				answer = "-ERR unknown command\r\n"
			case "client":
				answer = "+OK\r\n"
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
		}
	})
}

// readCommand reads a command as clients send it: *N, and then $LENGTH and the bytes of each
// argument.
func readCommand(in *bufio.Reader) (args []string, err error) {
	number := func(sign string) (n int) {
		line, readErr := in.ReadString('\n')
		if err = readErr; err == nil {
			n, err = strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), sign))
		}
		return n
	}
	for range number("*") {
		arg := make([]byte, number("$")+len("\r\n"))
		if err == nil {
			_, err = io.ReadFull(in, arg)
		}
		if err != nil {
			return nil, err
		}
		args = append(args, strings.TrimSuffix(string(arg), "\r\n"))
	}
	return args, err
}

// acquisitions are one call of each kind that waits.
func acquisitions(c *primitives.Client, name string) map[string]func(context.Context, ...primitives.Option) error {
	calls := map[string]func(context.Context, ...primitives.Option) error{}
	add := func(kind string, l fixture.Handle) {
		calls[kind] = func(ctx context.Context, opts ...primitives.Option) error {
			return fixture.ErrOf(l.Acquire(ctx, opts...))
		}
	}
	for _, k := range kinds.All() {
		add(k.Name, k.Open(c, name))
	}
	add("polling", c.Lock(name, primitives.WithPolling(10*time.Millisecond, 20*time.Millisecond)))
	add("owner", c.Lock(name, primitives.WithOwner("me")))
	calls["latch"] = func(ctx context.Context, _ ...primitives.Option) error { return c.CountDownLatch(name).Wait(ctx) }
	return calls
}

var errGone = errors.New("the caller has gone")

// C7: with Redis dead, no acquisition says that somebody else holds the lock, however it ends.
func TestC7DeadIsNotBusy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		dial dialer
		is   error // the reason, unless the caller cancels
		text string
	}{
		{"refused", refused, syscall.ECONNREFUSED, "connection refused"},
		{"silent", silent, os.ErrDeadlineExceeded, "no answer"},
		{"hanging up", hangingUp, nil, ""}, // EOF or a closed connection
		{"loading", loading, nil, "LOADING"},
	} {
		redistest.RunBubble(t, tt.name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{
				Addr: "127.0.0.1:1", Dialer: tt.dial, ReadTimeout: time.Second, PoolSize: 1000,
			})
			t.Cleanup(func() {
				_ = rdb.Close()
				time.Sleep(time.Minute) // its goroutines that still dial notice that
			})
			requireUnavailable(t, rdb, tt.is, tt.text)
		})
	}
}

// requireUnavailable lets acquisitions of all kinds end in all ways on a Redis that does not work.
func requireUnavailable(t *testing.T, rdb *redis.Client, is error, text string) {
	const wait, timeout = 250 * time.Millisecond, 350 * time.Millisecond
	c := fixture.NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, end := range []struct {
		name string
		opts []primitives.Option
		ctx  func() (context.Context, context.CancelFunc)
	}{
		{"its wait", []primitives.Option{primitives.WithWait(wait)}, nil},
		{"a deadline", nil, func() (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(context.Background(), wait, errGone)
		}},
		{"a cancellation", nil, func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(wait, func() { cancel(errGone) })
			return ctx, func() { cancel(nil) }
		}},
		{"the command timeout", nil, nil},
		{"the command timeout of a single try", []primitives.Option{primitives.WithWait(0)}, nil},
	} {
		for kind, call := range acquisitions(c, "name") {
			if kind == "latch" && end.opts != nil {
				continue
			}
			what := kind + ", ended by " + end.name
			calls.Go(func() {
				ctx := context.Background()
				if end.ctx != nil {
					var cancel context.CancelFunc
					ctx, cancel = end.ctx()
					defer cancel()
				}
				began := time.Now()
				err := call(ctx, end.opts...)
				assert.ErrorIs(t, err, primitives.ErrUnavailable, what)
				assert.NotErrorIs(t, err, primitives.ErrNotAcquired, what)
				assert.ErrorContains(t, err, "Redis unavailable", what)
				assert.ErrorContains(t, err, text, what)
				assert.NotContains(t, err.Error(), "\n", what)
				if kind == "lock" && text != "" {
					assert.Equal(t, 1, strings.Count(err.Error(), text), "%s: %v", what, err)
				}
				if is != nil && (end.name != "a cancellation" || !errors.Is(is, os.ErrDeadlineExceeded)) {
					assert.ErrorIs(t, err, is, what)
				}
				if context.Cause(ctx) != nil {
					assert.ErrorIs(t, err, errGone, what)
				} else {
					assert.NotErrorIs(t, err, context.DeadlineExceeded, "%s: no context has ended", what)
				}
				assert.Less(t, time.Since(began), 2*timeout, what)
			})
		}
	}
}

// C7: acquisitions that may wait ride out a Redis that still reads its data.
func TestC7AcquisitionsRideOutLoading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := redistest.Embedded(t)
		o, ready := s.Options(), time.Now().Add(10*time.Second)
		loaded := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			left := time.Until(ready)
			if left <= 0 {
				return loaded(ctx, network, addr)
			}
			conn, err := loading(ctx, network, addr)
			time.AfterFunc(left, func() { _ = conn.Close() })
			return conn, err
		}
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		c, other := fixture.NewClient(t, rdb), fixture.NewClient(t, s.Client(t))
		var calls sync.WaitGroup
		for _, k := range kinds.All() {
			k.One(t, other, k.Name)
			calls.Go(func() {
				err := k.Open(c, k.Name).Do(t.Context(), func(context.Context) error {
					assert.False(t, time.Now().Before(ready), k.Name)
					return nil
				}, primitives.WithWait(time.Minute))
				assert.NoError(t, err, k.Name)
			})
		}
		calls.Wait()
		require.Less(t, time.Since(ready), 10*time.Second)
	})
}

// C7: a wait or a context that ends within 100 ms says nothing about a Redis that has not answered
// by then. In fake time, because a busy machine may notice later than that that 20 ms are over.
func TestC7ShortWaitDoesNotReportAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout, short = 300 * time.Millisecond, 20 * time.Millisecond
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: silent, ReadTimeout: timeout})
		t.Cleanup(func() {
			_ = rdb.Close()
			time.Sleep(time.Minute) // its goroutines that still dial notice that
		})
		c := fixture.NewClient(t, rdb, primitives.WithCommandTimeout(timeout))
		for kind, call := range acquisitions(c, "name") {
			if kind == "latch" { // it acquires nothing
				continue
			}
			ctx, cancel := context.WithTimeoutCause(context.Background(), short, errGone)
			defer cancel()
			for _, err := range []error{
				call(ctx), call(ctx), // the second one has ended before
				call(context.Background(), primitives.WithWait(short)),
			} {
				require.ErrorIs(t, err, primitives.ErrNotAcquired, kind)
				require.NotErrorIs(t, err, primitives.ErrUnavailable, kind)
			}
			require.ErrorIs(t, call(ctx), errGone, kind)
		}
	})
}

// C7: every call that Redis does not answer says so, not only acquisitions.
func TestC7EveryCallSaysThatRedisIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := redistest.Embedded(t).Proxy(t)
		c := fixture.NewClient(t, p.Client(t, fixture.ShortTimeouts), primitives.WithCommandTimeout(200*time.Millisecond))
		hold := fixture.Acquire(t, t.Context(), c.Lock("held"))
		l, sem, permits, latch := c.Lock("l"), c.Semaphore("s"), c.PermitExpirableSemaphore("p"), c.CountDownLatch("c")
		calls := map[string]func(context.Context) error{
			"Check":         hold.Check,
			"Extend":        func(ctx context.Context) error { return hold.Extend(ctx, time.Minute) },
			"nested":        func(context.Context) error { return fixture.ErrOf(c.Lock("held").TryAcquire(hold.Context())) },
			"Info":          func(ctx context.Context) error { return fixture.ErrOf(l.Info(ctx)) },
			"Adopt":         func(ctx context.Context) error { return fixture.ErrOf(l.Adopt(ctx, "id")) },
			"ReleaseID":     func(ctx context.Context) error { return l.ReleaseID(ctx, "id") },
			"ForceRelease":  func(ctx context.Context) error { return fixture.ErrOf(l.ForceRelease(ctx)) },
			"Init":          func(ctx context.Context) error { return fixture.ErrOf(sem.Init(ctx, 1)) },
			"Drain":         func(ctx context.Context) error { return fixture.ErrOf(sem.Drain(ctx)) },
			"Resize":        func(ctx context.Context) error { return permits.Resize(ctx, 1) },
			"permits' Info": func(ctx context.Context) error { return fixture.ErrOf(permits.Info(ctx)) },
			"Count":         func(ctx context.Context) error { return fixture.ErrOf(latch.Count(ctx)) },
			"CountDown":     latch.CountDown,
			"Inspect":       func(ctx context.Context) error { return fixture.ErrOf(c.Inspect(ctx, "l")) },
			"Locks":         func(ctx context.Context) error { return errOfList(c.Locks(ctx, "*")) },
			"Numbers":       func(ctx context.Context) error { return errOfList(c.Numbers(ctx, "*")) },
		}
		p.BlackHole(true)
		var running sync.WaitGroup
		for name, call := range calls {
			running.Go(func() {
				err := call(context.Background())
				assert.ErrorIs(t, err, primitives.ErrUnavailable, name)
				assert.NotErrorIs(t, err, primitives.ErrNotAcquired, name)
				assert.ErrorIs(t, err, os.ErrDeadlineExceeded, name)
				if name == "nested" { // its context is the hold's
					return
				}
				ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Millisecond, errGone)
				defer cancel()
				err = call(ctx)
				assert.NotErrorIs(t, err, primitives.ErrUnavailable, "%s: the caller's time was too short to tell", name)
				assert.ErrorIs(t, err, errGone, name)
			})
		}
		running.Wait()
		require.ErrorIs(t, hold.Release(context.Background()), primitives.ErrUnavailable)
		p.Heal()
	})
}

// errOfList returns the error that has ended a list.
func errOfList(list iter.Seq2[primitives.Info, error]) (err error) {
	for _, err = range list {
	}
	return err
}

// C7: first Redis says that somebody else holds it, then it falls silent. The error says both.
func TestC7BusyThenSilent(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(p *redistest.Proxy){
		"silent":  func(p *redistest.Proxy) { p.BlackHole(true) },
		"refused": func(p *redistest.Proxy) { p.Refuse(true); p.Reset() },
	} {
		t.Run(name, func(t *testing.T) {
			fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
				hold := fixture.Acquire(t, t.Context(), b.Other)
				c := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce), primitives.WithCommandTimeout(500*time.Millisecond))
				l := c.Lock("l", primitives.WithPolling(10*time.Millisecond, 20*time.Millisecond))
				waiting := fixture.StartAcquire(context.Background(), l, primitives.WithWait(600*time.Millisecond))
				fixture.AwaitWaiters(t, c, 1)
				fault(b.P)
				requireBusyThenSilent(t, fixture.Await(t, waiting).Err, hold, name)
				b.P.Heal()
				fixture.Release(t, hold)
			})
			// A waiter that has its place in the queue of a fair lock makes no attempts. The
			// client's refreshes show that Redis is silent.
			fixture.RunBubble(t, "fair", func(t *testing.T, b *fixture.BubbleTest) {
				hold := fixture.Acquire(t, t.Context(), fixture.NewClient(t, b.S.Client(t)).FairLock("f"))
				c := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce))
				waiting := fixture.StartAcquire(context.Background(), c.FairLock("f"), primitives.WithWait(5*time.Second))
				fixture.AwaitWaiters(t, c, 1)
				time.Sleep(1500 * time.Millisecond) // answered refreshes come first
				fault(b.P)
				requireBusyThenSilent(t, fixture.Await(t, waiting).Err, hold, name)

				b.P.Heal()
				err := fixture.ErrOf(c.FairLock("f").Acquire(context.Background(), primitives.WithWait(3*time.Second)))
				require.ErrorIs(t, err, primitives.ErrNotAcquired)
				require.NotErrorIs(t, err, primitives.ErrUnavailable, "Redis answers again")
				fixture.Release(t, hold)
			})
		})
	}
}

func requireBusyThenSilent(t *testing.T, err error, hold *primitives.Hold, fault string) {
	t.Helper()
	require.ErrorIs(t, err, primitives.ErrNotAcquired)
	require.ErrorIs(t, err, primitives.ErrUnavailable)
	require.ErrorContains(t, err, "held by "+hold.ID())
	if fault == "refused" {
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
}

// A redlock that enough members refuse is busy, though another member is down. The failure is
// joined. The members that refuse answer first: a redlock stops waiting as soon as too few members
// are left.
func TestC7RedLockThatIsRefusedWithAMemberDown(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		dead := b.S.Client(t, func(o *redis.Options) {
			o.MaxRetries, o.DialerRetries = -1, 1
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				time.Sleep(time.Millisecond)
				return refused(ctx, network, addr)
			}
		})
		c, down := fixture.NewClient(t, b.S.Client(t)), fixture.NewClient(t, dead)
		var held []*primitives.Hold
		for _, n := range []string{"1", "2"} {
			held = append(held, fixture.Acquire(t, t.Context(), fixture.NewClient(t, b.S.Client(t)).Lock(n)))
		}
		red := primitives.NewRedLock([]*primitives.Lock{c.Lock("1"), c.Lock("2"), down.Lock("3")})
		for _, wait := range []time.Duration{0, 150 * time.Millisecond} {
			err := fixture.ErrOf(red.Acquire(t.Context(), primitives.WithWait(wait)))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.NotErrorIs(t, err, primitives.ErrUnavailable, "enough members have answered")
		}
		fixture.Release(t, held...)
	})
}

// A dead Redis is dialled a few times a second to find out why, however many calls wait for it.
func TestC7DialsToFindOutWhyAreFew(t *testing.T) {
	t.Parallel()
	dials := make(chan struct{}, 1000)
	silent := redistest.ServeSilence(t)
	rdb := redis.NewClient(&redis.Options{
		Addr: silent, PoolSize: 1, PipelinePoolSize: -1,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials <- struct{}{}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	c := fixture.NewClient(t, rdb, primitives.WithCommandTimeout(time.Second))
	results := make(chan error)
	for i := range 50 {
		go func() {
			results <- fixture.ErrOf(c.Lock(fmt.Sprint("l", i)).Acquire(context.Background(),
				primitives.WithWait(400*time.Millisecond)))
		}()
	}
	for range 50 {
		require.ErrorIs(t, <-results, primitives.ErrUnavailable)
	}
	require.LessOrEqual(t, len(dials), 6)
}

// A wrong key is named by its type, without Redis's place in the script. Redis's own error stays in
// the chain.
func TestWrongTypeSaysWhatTheKeyHolds(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb := s.Client(t)
	c := fixture.NewClient(t, s.Client(t))
	list, hash := redistest.Name(t)+"list", redistest.Name(t)+"hash"
	require.NoError(t, rdb.RPush(t.Context(), list, "a").Err())
	require.NoError(t, rdb.HSet(t.Context(), hash, "a", "b").Err())
	ofLocks := acquisitions(c, list)
	delete(ofLocks, "red") // one member of three
	multi := primitives.NewMultiLock([]*primitives.Lock{c.Lock(list), c.Lock(list + "free")})
	ofLocks["multi"] = func(ctx context.Context, opts ...primitives.Option) error {
		return fixture.ErrOf(multi.Acquire(ctx, opts...))
	}
	delete(ofLocks, "polling")
	for kind, acquire := range ofLocks {
		requireWrong(t, acquire(t.Context(), primitives.WithWait(0)), "list", kind)
	}
	requireWrong(t, fixture.ErrOf(c.Lock(list).Info(t.Context())), "list", "Info")
	requireWrong(t, fixture.ErrOf(c.Lock(list).ForceRelease(t.Context())), "list", "ForceRelease")
	requireWrong(t, c.Lock(list).ReleaseID(t.Context(), "me"), "list", "ReleaseID")
	requireWrong(t, c.CountDownLatch(hash).Wait(t.Context()), "hash", "latch")
	requireWrong(t, fixture.ErrOf(c.CountDownLatch(hash).Count(t.Context())), "hash", "Count")
	requireWrong(t, fixture.ErrOf(c.Semaphore(hash).TryAcquire(t.Context())), "hash", "semaphore")
	require.NoError(t, rdb.Del(t.Context(), list, hash).Err())
}

func requireWrong(t *testing.T, err error, holds, call string) {
	t.Helper()
	require.Error(t, err, call)
	assert.NotErrorIs(t, err, primitives.ErrNotAcquired, call)
	assert.NotErrorIs(t, err, primitives.ErrUnavailable, call)
	text := err.Error()
	assert.Contains(t, text, "WRONGTYPE", call)
	assert.Contains(t, text, "holds a "+holds, call)
	assert.Contains(t, text, "another name", call)
	assert.NotContains(t, text, "user_script", call)
	reply, ok := errors.AsType[redis.Error](err)
	require.True(t, ok, call)
	assert.True(t, redis.HasErrorPrefix(reply, "WRONGTYPE"), call)
}

// Texts that users see.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	s := redistest.Miniredis(t)
	c := fixture.NewClient(t, s.Client(t))
	hold := fixture.Acquire(t, t.Context(), c.Lock("a"))
	fixture.Release(t, hold)
	require.EqualError(t, hold.Release(t.Context()), `redlatch: release lock "a": already released`)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { _ = ring.Close() }()
	_, err := primitives.New(ring)
	require.ErrorIs(t, err, primitives.ErrInvalid)
	require.ErrorContains(t, err, "redis.Ring")
	require.ErrorContains(t, err, "NewRedLock")

	require.EqualError(t, c.Lock("a").ReleaseID(t.Context(), "me"), `redlatch: release lock "a": not held by "me"`)
	require.EqualError(t, fixture.ErrOf(c.Lock("a").Adopt(t.Context(), "me")),
		`redlatch: adopt lock "a": not held by "me"`)

	pool := c.Semaphore("pool")
	require.NoError(t, fixture.ErrOf(pool.Init(t.Context(), 1)))
	permit := fixture.Acquire(t, t.Context(), pool)
	for op, err := range map[string]error{
		"check": permit.Check(t.Context()), "extend": permit.Extend(t.Context(), time.Second),
	} {
		require.ErrorIs(t, err, primitives.ErrUnsupported)
		require.EqualError(t, err, "redlatch: "+op+` semaphore "pool": unsupported: its permits have no holder `+
			"and no lease in Redis; use a PermitExpirableSemaphore")
	}
	fixture.Release(t, permit)

	for want, acquire := range map[string]func() (*primitives.Hold, error){
		"a fair lock":       func() (*primitives.Hold, error) { return c.FairLock("list").TryAcquire(t.Context()) },
		"a read-write lock": func() (*primitives.Hold, error) { return c.RWLock("list").Reader().TryAcquire(t.Context()) },
		"a semaphore": func() (*primitives.Hold, error) {
			return c.PermitExpirableSemaphore("list").TryAcquire(t.Context())
		},
	} {
		s.Client(t).RPush(t.Context(), "list", "x")
		err := fixture.ErrOf(acquire())
		require.ErrorContains(t, err, `key "list" holds a list, not `+want+": use another name")
		require.NotContains(t, err.Error(), "delete", "it may be a lock of another library")
	}
}

// C18: the error of Close names the holds that are left, and matches the context's error.
func TestCloseNamesTheHoldsThatAreLeft(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	for held, want := range map[int]string{
		1: `^redlatch: close client: 1 hold was not released: lock "l0" \(%s:1\): context deadline exceeded$`,
		5: `^redlatch: close client: 5 holds were not released: lock "l4" \(%s:5\), .*, and 2 more: ` +
			`context deadline exceeded$`,
	} {
		c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
		for i := range held {
			fixture.Acquire(t, t.Context(), c.Lock(fmt.Sprint("l", i)))
		}
		for range 2 {
			err := c.Close(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, context.Canceled)
			require.Regexp(t, fmt.Sprintf(want, c.ID()), err.Error())
		}
	}
	c := fixture.NewClient(t, redistest.Miniredis(t).Client(t))
	multi := primitives.NewMultiLock([]*primitives.Lock{c.Lock("a"), c.Lock("b")})
	fixture.Acquire(t, t.Context(), multi)
	require.ErrorContains(t, c.Close(ctx), `1 hold was not released: multi "a,b"`, "members are not counted")
}

func TestC7SiblingNamesTheHolder(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]primitives.Option{
		"private": nil, "cohort": {primitives.WithCohort(time.Second)},
	} {
		fixture.RunBubble(t, name, func(t *testing.T, b *fixture.BubbleTest) {
			c := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce))
			for _, l := range []*primitives.Lock{
				c.Lock("l", opts...), c.FairLock("f", opts...), c.RWLock("w", opts...).Writer(),
				primitives.NewMultiLock([]*primitives.Lock{c.Lock("m1"), c.FairLock("m2")}),
			} {
				outer := fixture.Acquire(t, t.Context(), l)
				sibling := fixture.Acquire(t, outer.Context(), l)
				for _, wait := range []time.Duration{0, time.Second} {
					err := fixture.ErrOf(l.Acquire(outer.Context(), primitives.WithWait(wait)))
					require.ErrorIs(t, err, primitives.ErrNotAcquired)
					require.NotErrorIs(t, err, primitives.ErrUnavailable)
					require.ErrorContains(t, err,
						"not acquired: held by "+outer.ID()+" (another acquisition nests in the same hold)")
				}
				fixture.Release(t, sibling, outer)
			}
		})
	}
}

// A sibling whose command Redis does not answer is no holder.
func TestC7SiblingWithoutAnAnswerIsNoHolder(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]primitives.Option{
		"private": nil, "shared": {primitives.WithOwner("me")},
	} {
		for _, wasBusy := range []bool{false, true} {
			fixture.RunBubble(t, fmt.Sprintf("%s, busy before: %t", name, wasBusy), func(t *testing.T, b *fixture.BubbleTest) {
				l := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce)).Lock("l")
				outer := fixture.Acquire(t, t.Context(), l, opts...)
				within := func(d time.Duration) func() (*primitives.Hold, error) {
					return func() (*primitives.Hold, error) {
						return l.Acquire(outer.Context(), primitives.WithWait(d))
					}
				}
				busy := fixture.Acquire(t, outer.Context(), l)
				if !wasBusy {
					fixture.Release(t, busy)
					b.P.BlackHole(true)
				}
				first := fixture.Start(within(time.Second))
				synctest.Wait()
				second := fixture.Start(within(500 * time.Millisecond))
				synctest.Wait()
				if wasBusy {
					b.P.BlackHole(true)
					require.NotEmpty(t, busy.Detach()) // sends nothing
				}
				err := fixture.Await(t, second).Err
				require.ErrorIs(t, err, primitives.ErrUnavailable)
				require.ErrorContains(t, err, "no answer")
				require.Equal(t, wasBusy, errors.Is(err, primitives.ErrNotAcquired), err)
				require.ErrorIs(t, fixture.Await(t, first).Err, primitives.ErrUnavailable)
			})
		}
	}
}

// A member of a multilock that joins a queue has asked nothing about that lock.
func TestC7MultiLockBehindAWaiterNamesTheHolder(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.Other)
		c := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce))
		waiting, stop := context.WithCancel(t.Context())
		defer stop()
		first := fixture.StartAcquire(waiting, c.Lock("l"))
		fixture.AwaitWaiters(t, c, 1)
		multi := primitives.NewMultiLock([]*primitives.Lock{c.Lock("l"), c.FairLock("m")})
		for range 2 {
			err := fixture.ErrOf(multi.Acquire(t.Context(), primitives.WithWait(50*time.Millisecond)))
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorContains(t, err, "held by "+hold.ID())
		}
		stop()
		require.ErrorContains(t, fixture.Await(t, first).Err, "held by "+hold.ID())
		fixture.Release(t, hold)
	})
}

// Only one of the waiters makes attempts for the member that is held.
func TestC7MultiLocksBusyThenSilent(t *testing.T) {
	t.Parallel()
	fixture.Bubble(t, func(t *testing.T, b *fixture.BubbleTest) {
		hold := fixture.Acquire(t, t.Context(), b.Other)
		c := fixture.NewClient(t, b.P.Client(t, fixture.DialsOnce), primitives.WithCommandTimeout(500*time.Millisecond))
		multi := primitives.NewMultiLock([]*primitives.Lock{c.Lock("l"), c.FairLock("m")})
		var waiting []<-chan fixture.Result
		for range 3 {
			waiting = append(waiting, fixture.StartAcquire(context.Background(), multi, primitives.WithWait(3*time.Second)))
			synctest.Wait()
		}
		b.P.BlackHole(true)
		for _, w := range waiting {
			err := fixture.Await(t, w).Err
			require.ErrorIs(t, err, primitives.ErrNotAcquired)
			require.ErrorIs(t, err, primitives.ErrUnavailable)
			require.ErrorContains(t, err, "held by "+hold.ID())
		}
		b.P.Heal()
		fixture.Release(t, hold)
	})
}

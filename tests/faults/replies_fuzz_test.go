package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/kinds"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// choices reads choices from the input of a fuzzer. It starts again at the end, so that an input of
// any length serves any number of choices.
type choices struct {
	data []byte
	at   int
}

func (c *choices) next() int {
	if len(c.data) == 0 {
		return 0
	}
	c.at++
	return int(c.data[(c.at-1)%len(c.data)])
}

// pick returns one of the values.
func pick[T any](c *choices, values ...T) T { return values[c.next()%len(values)] }

// refusal is an error reply of Redis.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) RedisError()     {}

// reply chooses any value that go-redis returns for any reply, or an error.
func (c *choices) reply(depth int) (any, error) {
	switch c.next() % 12 {
	case 0, 1:
		return pick[int64](c, 0, 1, -1, -2, 2, 1000, 30_000, math.MaxInt64, math.MinInt64, math.MaxInt32+1), nil
	case 2, 3:
		return pick(c, "", "0", "1", "over", "again", "lost", "in", "lock", "reader", "writer", "fair", "permits",
			"mode", "x:write", "id 1 1000", "id  1", "9999999999999999999", "-1", "nan", "inf", "1e400", "0x1p-2",
			strings.Repeat("x", 1<<10), "\x00\xff\n"), nil
	case 4, 5, 6, 7:
		if depth == 3 {
			return nil, nil
		}
		list := make([]any, c.next()%9)
		for i := range list {
			list[i], _ = c.reply(depth + 1)
		}
		return list, nil
	case 8:
		return nil, nil
	case 9:
		return pick[any](c, 1.5, math.NaN(), math.Inf(1), true, false, new(big.Int).Lsh(big.NewInt(1), 200),
			map[any]any{"a": int64(1)}, map[any]any{}, uint64(math.MaxUint64), []any(nil)), nil
	}
	return nil, pick[error](c, refusal("WRONGTYPE x"), refusal("NOPERM x"), refusal("OOM x"), refusal("LOADING x"),
		refusal("NOSCRIPT x"), refusal("ERR x"), refusal("MOVED x"), refusal("TRYAGAIN x"), refusal(""), redis.Nil, io.EOF,
		refusal("READONLY x"), refusal("CROSSSLOT x"), refusal("NOAUTH x"), errors.New("no error of Redis"))
}

// strangeServer is a hook that answers all commands with chosen replies. Nothing is sent.
type strangeServer struct {
	mu      sync.Mutex
	replies choices
	sent    int // commands so far
	scripts int // scripts so far
	strange int // of them, how many got a value that no script returns
}

func (s *strangeServer) DialHook(redis.DialHook) redis.DialHook {
	return func(context.Context, string, string) (net.Conn, error) { return nil, fixture.ErrTest }
}

func (s *strangeServer) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.answer(cmd) }
}

func (s *strangeServer) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) (first error) {
		for _, cmd := range cmds {
			if err := s.answer(cmd); err != nil && first == nil {
				first = err
			}
		}
		return first
	}
}

func (s *strangeServer) answer(cmd redis.Cmder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	value, err := s.replies.reply(0)
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		s.scripts++
		switch value.(type) {
		case int64, string, []any:
		default:
			if err == nil {
				s.strange++
			}
		}
	}
	if c, ok := cmd.(interface{ SetVal(v any) }); ok && err == nil {
		c.SetVal(value)
	}
	cmd.SetErr(err)
	return err
}

func (s *strangeServer) counts() (sent, scripts, strange int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent, s.scripts, s.strange
}

// FuzzReplies gives every script's command any reply. No method may panic, hang, send commands
// without end, or take a reply that no script returns for success; and nothing may be left of a
// client.
func FuzzReplies(f *testing.F) {
	for kind := range byte(len(strangeKinds())) {
		for op := range byte(len(strangeOps)) {
			if !redistest.Full() && (op+kind)%4 != 0 {
				continue // each call in a session of some kind, and each kind with some calls
			}
			f.Add(kind, []byte{1, op}, []byte{0, op, 9, 4 + op, kind, 2, op})
			f.Add(kind, []byte{op, 16}, []byte{4, op, kind, 0, 1})
		}
	}
	f.Add(strangeKind("permits"), []byte{1}, []byte{4, 3, 0, 0, 0, 0, 0, 0}) // always more leases to collect
	f.Fuzz(func(t *testing.T, kind byte, ops, replies []byte) {
		before := runtime.NumGoroutine()
		s := &strangeServer{replies: choices{data: replies}}
		rdb := redis.NewClient(&redis.Options{
			MaxRetries: 2, MinRetryBackoff: time.Microsecond, MaxRetryBackoff: time.Microsecond, DialerRetries: 1,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, fixture.ErrTest },
		})
		rdb.AddHook(s)
		c, err := primitives.New(rdb, primitives.WithCommandTimeout(10*time.Millisecond),
			primitives.WithDefaults(primitives.WithWait(time.Millisecond)))
		if err != nil {
			t.Fatal(err)
		}
		var path []string
		done := make(chan struct{})
		go func() {
			defer close(done)
			path = strangeSession(t, s, c, int(kind), ops[:min(len(ops), 6)])
			fixture.CloseNow(c)
			_ = rdb.Close()
		}()
		select {
		case <-done:
		case <-time.After(fixture.Soon):
			buf := make([]byte, 1<<20)
			t.Fatalf("a call hangs\n%s", buf[:runtime.Stack(buf, true)])
		}
		if sent, _, _ := s.counts(); sent > 50_000 {
			t.Fatalf("%v sent %d commands", path, sent)
		}
		limit := time.Now().Add(fixture.Soon)
		for ; runtime.NumGoroutine() > before; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(limit) {
				buf := make([]byte, 1<<20)
				t.Fatalf("%v leaves goroutines\n%s", path, buf[:runtime.Stack(buf, true)])
			}
		}
	})
}

// strangeKinds make a primitive of each kind, and some in other ways. Joint locks come last: see
// ofOneName.
func strangeKinds() (list []func(c *primitives.Client, name string) any) {
	for _, k := range kinds.Named() {
		list = append(list, func(c *primitives.Client, name string) any { return k.Open(c, name) })
	}
	return append(list,
		func(c *primitives.Client, name string) any { return c.Lock(name, primitives.WithOwner("me")) },
		func(c *primitives.Client, name string) any { return c.CountDownLatch(name) },
		func(c *primitives.Client, name string) any {
			return primitives.NewMultiLock([]*primitives.Lock{c.Lock(name), c.FairLock(name + "2")})
		},
		func(c *primitives.Client, name string) any {
			return primitives.NewRedLock([]*primitives.Lock{c.Lock(name), c.RWLock(name + "2").Reader(),
				c.RWLock(name + "3").Writer()})
		},
	)
}

// ofOneName is the number of strangeKinds that are no joint locks.
func ofOneName() int { return len(strangeKinds()) - 2 }

// strangeKind returns the number of a kind in strangeKinds.
func strangeKind(name string) byte {
	return byte(slices.IndexFunc(kinds.Named(), func(k kinds.Kind) bool { return k.Name == name }))
}

// session is one sequence of calls, with the holds that it has.
type session struct {
	c    *primitives.Client
	name string
	p    any // the primitive
	held []*primitives.Hold
	ctx  context.Context //nolint:containedctx // of the latest hold, so that acquisitions nest
}

var errNoSuchCall = errors.New("the primitive has no such method")

// strangeOps are the calls of a session.
var strangeOps = []struct {
	name string
	call func(s *session) error
}{
	{"acquire", func(s *session) error { return s.acquired(s.p.(fixture.Handle).Acquire(s.ctx)) }},
	{"try", func(s *session) error { return s.acquired(s.p.(fixture.Handle).TryAcquire(s.ctx)) }},
	{"adopt", func(s *session) error { return s.acquired(s.p.(adopter).Adopt(s.ctx, someID(s.p))) }},
	{"release id", func(s *session) error { return s.p.(adopter).ReleaseID(s.ctx, someID(s.p)) }},
	{"force", func(s *session) error { return fixture.ErrOf(s.p.(*primitives.Lock).ForceRelease(s.ctx)) }},
	{"info", func(s *session) error {
		return fixture.ErrOf(s.p.(interface {
			Info(context.Context) (primitives.Info, error)
		}).Info(s.ctx))
	}},
	{"init", func(s *session) error {
		return fixture.ErrOf(s.p.(interface {
			Init(context.Context, int) (bool, error)
		}).Init(s.ctx, 2))
	}},
	{"add", func(s *session) error {
		return s.p.(interface {
			Add(context.Context, int) error
		}).Add(s.ctx, 1)
	}},
	{"drain", func(s *session) error { return fixture.ErrOf(s.p.(*primitives.Semaphore).Drain(s.ctx)) }},
	{"resize", func(s *session) error { return s.p.(*primitives.PermitExpirableSemaphore).Resize(s.ctx, 3) }},
	{"delete", func(s *session) error {
		return fixture.ErrOf(s.p.(interface {
			Delete(context.Context) (bool, error)
		}).Delete(s.ctx))
	}},
	{"count down", func(s *session) error { return s.p.(*primitives.CountDownLatch).CountDown(s.ctx) }},
	{"count", func(s *session) error { return fixture.ErrOf(s.p.(*primitives.CountDownLatch).Count(s.ctx)) }},
	{"wait", func(s *session) error {
		ctx, cancel := context.WithTimeout(s.ctx, time.Millisecond)
		defer cancel()
		return s.p.(*primitives.CountDownLatch).Wait(ctx)
	}},
	{"check", func(s *session) error { return s.last().Check(s.ctx) }},
	{"extend", func(s *session) error { return s.last().Extend(s.ctx, time.Minute) }},
	{"release", func(s *session) error { return s.last().Release(s.ctx) }},
	{"locker", func(s *session) (err error) {
		defer func() {
			if r := recover(); r != nil {
				if err = r.(error); !errors.As(err, new(*primitives.Error)) {
					panic(r)
				}
			}
		}()
		locker := s.p.(*primitives.Lock).Locker(s.ctx)
		if !locker.TryLock() { // it has hidden why
			return errors.Join(primitives.ErrNotAcquired, primitives.ErrOutcomeUnknown)
		}
		locker.Unlock()
		return primitives.ErrOutcomeUnknown
	}},
	{"locks", func(s *session) error {
		for _, err := range s.c.Locks(s.ctx, s.name) {
			return err
		}
		return errNoSuchCall
	}},
	{"inspect", func(s *session) error { return fixture.ErrOf(s.c.Inspect(s.ctx, s.name)) }},
}

type adopter interface {
	Adopt(ctx context.Context, id string, opts ...primitives.Option) (*primitives.Hold, error)
	ReleaseID(ctx context.Context, id string) error
}

func someID(p any) string {
	if _, ok := p.(*primitives.PermitExpirableSemaphore); ok {
		return strings.Repeat("0123456789abcdef", 2)
	}
	return "somebody"
}

func (s *session) acquired(hold *primitives.Hold, err error) error {
	if err == nil {
		s.held = append(s.held, hold)
		s.ctx = context.WithoutCancel(hold.Context())
	}
	return err
}

// last returns the hold that was acquired last, or panics with a type error.
func (s *session) last() *primitives.Hold {
	if len(s.held) == 0 {
		panic(errNoSuchCall)
	}
	return s.held[len(s.held)-1]
}

// do runs an operation. It returns errNoSuchCall if the primitive has none, or has no hold.
func (s *session) do(op func(*session) error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *runtime.TypeAssertionError:
			if !strings.Contains(r.Error(), "primitives.") {
				panic(r)
			}
			err = errNoSuchCall
		case error:
			if !errors.Is(r, errNoSuchCall) {
				panic(r)
			}
			err = errNoSuchCall
		default:
			panic(r)
		}
	}()
	return op(s)
}

// strangeSession runs calls until one fails in a way that goes on in the background. It returns
// their names.
func strangeSession(t *testing.T, server *strangeServer, c *primitives.Client, kind int, ops []byte) (path []string) {
	all := strangeKinds()
	s := &session{c: c, p: all[kind%len(all)](c, "x"), name: "x", ctx: t.Context()}
	for _, op := range ops {
		call := strangeOps[int(op)%len(strangeOps)]
		path = append(path, fmt.Sprintf("%T %s", s.p, call.name))
		_, scripts, strange := server.counts()
		err := s.do(call.call)
		_, scriptsAfter, strangeAfter := server.counts()
		if err == nil && scriptsAfter == scripts+1 && strangeAfter == strange+1 {
			t.Errorf("%v: a reply that no script returns passed for success", path)
		}
		if errors.Is(err, primitives.ErrOutcomeUnknown) {
			return path // what follows might meet its rollback
		}
	}
	return path
}

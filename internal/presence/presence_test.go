package presence_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/presence"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/pubsub"
	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

const (
	ms = time.Millisecond

	// The ids of clients, and their tags.
	me, myTag       = "11111111-1111-1111-1111-111111111111", "1111111111111111"
	other, otherTag = "22222222-2222-2222-2222-222222222222", "2222222222222222"
	prefix          = "p:" // of names on the wire
)

// client is a client whose locks are on a server in memory. Its presence is on a miniredis, and
// records its commands.
type client struct {
	*Client
	shut     func() // closes it, and abandons its holds
	presence *presence.Presence
	locks    *Server
	redis    *redistest.Server
	proxy    *redistest.Proxy // to redis
	runner   *scripts.Runner
	hub      *pubsub.Hub

	pipelines pipelines

	mu        sync.Mutex
	sent      []string // by the presence: see note
	questions []question
	holders   []string                                       // further holders of each name, for asks of all
	looks     []time.Duration                                // when the client looked for waiters that do not ask
	foreign   atomic.Value                                   // a name for which such a waiter waits
	answer    func(asks []watchdog.Renewal) []watchdog.State // to questions; nil: the server's
	refused   map[string]bool                                // commands that Redis refuses
}

// question is a batch of leases that the presence has asked about.
type question struct {
	at    time.Duration
	group any
	ttls  []time.Duration
}

// bubble runs f with a client in a bubble with a fake clock. Options change its engine.
func bubble(t *testing.T, f func(t *testing.T, c *client), options ...func(*engine.Config)) {
	t.Helper()
	Bubble(t, func(t *testing.T, s *Server) {
		s.MayStayHeld()
		f(t, newClient(t, s, "worker", options...))
	})
}

func newClient(t *testing.T, s *Server, name string, options ...func(*engine.Config)) *client {
	redis := redistest.Embedded(t)
	c := &client{locks: s, redis: redis, proxy: redis.Proxy(t), refused: map[string]bool{}}
	rdb := c.proxy.Client(t)
	rdb.AddHook(&c.pipelines)
	c.runner = scripts.NewRunner(rdb, 5*time.Second)
	c.hub = pubsub.New(rdb, pubsub.Config{})
	config := presence.Config{
		ID: me, Name: name, Prefix: prefix, Runner: c.runner, Hub: c.hub,
		Probe:   func(o *engine.Ownership) []any { return []any{"exists", prefix + o.Resource().Name} },
		ManyIDs: func(kind string) bool { return kind == "permits" },
		Holders: func(_ context.Context, r *engine.Resource) ([]string, error) {
			return append(s.IDs(r.Name), c.holders...), nil
		},
		AnyWait: func(_ context.Context, resources []*engine.Resource) []bool {
			waits := make([]bool, len(resources))
			for i, r := range resources {
				c.looks = append(c.looks, c.locks.Now())
				waits[i] = r.Name == c.foreign.Load()
			}
			return waits
		},
	}
	c.Client = s.NewClient(me, func(o *engine.Config) {
		renew := o.Commands.Renew
		config.Renew = func(ctx context.Context, group any, asks []watchdog.Renewal) ([]watchdog.State, error) {
			c.ask(group, asks)
			if c.answer != nil {
				return c.answer(asks), nil
			}
			return renew(ctx, group, asks)
		}
		o.Owners.TagOf = presence.TagOf
		o.Presence.HoldAdded = func() { c.presence.Wake() }
		o.Presence.WaitBegan = func(r *engine.Resource) { c.presence.WaitBegan(r) }
		o.Presence.WaitEnded = func(r *engine.Resource) { c.presence.WaitEnded(r) }
		o.Presence.StaysTaken = func(id string, rest time.Duration) { c.presence.StaysTaken(id, rest) }
		o.Presence.CanLinger = func(ctx context.Context) bool { return c.presence.CanLinger(ctx) }
		o.Presence.HoldListens = func() { c.presence.HoldListens() }
		o.Presence.Ask = func(r *engine.Resource, holder string) { c.presence.Ask(r, holder) }
		for _, option := range options {
			option(o)
		}
	})
	config.Logger = c.Logger
	c.presence = presence.New(config)
	c.presence.Use(c.Core)
	require.NoError(t, ErrOf(c.runner.Commands(t.Context(), []any{"get", "connects"})))
	redis.Mini().Server().SetPreHook(c.refuses)
	c.proxy.Watch(c.note)
	c.shut = sync.OnceFunc(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, _ = c.Core.Close(ended, engine.CloseHooks{Hurry: c.runner.Stop, Cut: func() {}, Stop: func(left error) {
			c.presence.Close(left != nil)
			c.hub.Close()
			c.runner.Close()
		}})
	})
	t.Cleanup(c.shut)
	return c
}

// presenceCommands are the commands that a presence sends, other than questions about leases.
var presenceCommands = []string{"psetex", "getdel", "get", "subscribe", "unsubscribe", "publish", "exists"}

// note records a command and its time, to 10 ms, as "100ms psetex me worker".
func (c *client) note(args []string) {
	isState := len(args) > 1 && args[1] == stateKey // it is sent with the name: see state_test.go
	if isState || !slices.Contains(presenceCommands, strings.ToLower(args[0])) {
		return
	}
	text := strings.ToLower(args[0]) + " " + strings.Join(args[1:], " ")
	text = strings.NewReplacer(
		"redlatch_client:{"+myTag+"} 30000", "me", "redlatch_client:{"+myTag+"}", "me",
		"redlatch_holder:{"+myTag+"}", "me",
		"redlatch_client:{"+otherTag+"}", "other", "redlatch_holder:{"+otherTag+"}", "other",
	).Replace(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = append(c.sent, fmt.Sprint(c.locks.Now().Round(10*ms), " ", text))
}

// commands returns what was recorded of commands with one of these names.
func (c *client) commands(names ...string) (got []string) {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.sent {
		if slices.Contains(names, strings.Fields(text)[1]) {
			got = append(got, text)
		}
	}
	return got
}

func (c *client) ask(group any, asks []watchdog.Renewal) {
	q := question{at: c.locks.Now(), group: group}
	for _, a := range asks {
		q.ttls = append(q.ttls, a.TTL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.questions = append(c.questions, q)
}

// refuse makes Redis refuse a command, or no longer.
func (c *client) refuse(command string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[command] = on
}

func (c *client) refuses(peer *server.Peer, command string, _ ...string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused := c.refused[strings.ToLower(command)]
	if refused {
		peer.WriteError("NOPERM this user has no permissions")
	}
	return refused
}

// pipelines is a hook that records the pipelines of a go-redis client.
type pipelines struct {
	mu  sync.Mutex
	all [][]goredis.Cmder
}

func (p *pipelines) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (p *pipelines) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (p *pipelines) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error {
		p.mu.Lock()
		p.all = append(p.all, commands)
		p.mu.Unlock()
		return next(ctx, commands)
	}
}

// of returns the sizes of the pipelines that begin with a command of that name. It does not count
// HELLO, which asks for the server's role.
func (p *pipelines) of(name string) (sizes []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, commands := range p.all {
		if commands[0].Name() == "hello" {
			commands = commands[1:]
		}
		if len(commands) > 0 && commands[0].Name() == name {
			sizes = append(sizes, len(commands))
		}
	}
	return sizes
}

// holdFor holds a lock for d.
func (c *client) holdFor(t *testing.T, d time.Duration) {
	h := Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
	Sleep(d)
	Release(t, h)
}

// silence makes Redis silent, and waits until the client has noticed that.
func (c *client) silence(t *testing.T) {
	c.proxy.BlackHole(true)
	require.Error(t, ErrOf(c.runner.Do(t.Context(), scripts.Load("lock/check"), []any{"x"})))
	require.False(t, c.runner.Answering())
}

// wait waits for d without a hold.
func (c *client) wait(d time.Duration) {
	c.presence.WaitBegan(c.Lock("w"))
	Sleep(d)
	c.presence.WaitEnded(c.Lock("w"))
}

// A name is written when its client has held or waited for 100 ms. A client that has been idle for
// a second deletes it.
func TestNameIsShownWhileItsClientHoldsOrWaits(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, c *client)
		want []string // a minute later
	}{
		{"a short hold", func(t *testing.T, c *client) { c.holdFor(t, 99*ms) }, nil},
		{"many short holds", func(t *testing.T, c *client) {
			for range 50 {
				c.holdFor(t, 99*ms)
			}
		}, nil},
		{"a hold", func(t *testing.T, c *client) { c.holdFor(t, 101*ms) }, []string{"100ms psetex", "1.35s getdel"}},
		{
			"a long hold", func(t *testing.T, c *client) { c.holdFor(t, 25*time.Second) },
			[]string{"100ms psetex", "10.1s psetex", "20.1s psetex", "26.1s getdel"},
		},
		{"a wait", func(_ *testing.T, c *client) { c.wait(101 * ms) }, []string{"100ms psetex", "1.35s getdel"}},
		{"a short wait, then a short hold", func(t *testing.T, c *client) {
			c.presence.WaitBegan(c.Lock("w"))
			Sleep(90 * ms)
			h := Acquire(t, t.Context(), c.Lock("x"))
			c.presence.WaitEnded(c.Lock("w"))
			Sleep(90 * ms)
			Release(t, h)
		}, nil},
		{"short waits that overlap", func(_ *testing.T, c *client) {
			c.presence.WaitBegan(c.Lock("w"))
			Sleep(60 * ms)
			c.presence.WaitBegan(c.Lock("w"))
			Sleep(30 * ms)
			c.presence.WaitEnded(c.Lock("w"))
			c.wait(60 * ms)
			c.presence.WaitEnded(c.Lock("w"))
		}, []string{"100ms psetex", "1.35s getdel"}},
		{"a wait during a hold", func(t *testing.T, c *client) {
			h := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(60 * ms)
			c.wait(60 * ms)
			Release(t, h)
		}, []string{"100ms psetex", "1.35s getdel"}},
		{"another hold within a second", func(t *testing.T, c *client) {
			c.holdFor(t, 200*ms)
			Sleep(1100 * ms)
			c.holdFor(t, 200*ms)
		}, []string{"100ms psetex", "2.6s getdel"}},
		{"another hold later", func(t *testing.T, c *client) {
			c.holdFor(t, 200*ms)
			Sleep(1800 * ms)
			c.holdFor(t, 200*ms)
		}, []string{"100ms psetex", "1.35s getdel", "2.1s psetex", "3.35s getdel"}},
		{"a hold while the name is deleted", func(t *testing.T, c *client) {
			c.proxy.HoldReplies(redistest.Named("getdel"))
			c.holdFor(t, 200*ms)
			Sleep(1190 * ms) // the reply is late by 40 ms
			c.holdFor(t, 200*ms)
		}, []string{"100ms psetex", "1.35s getdel", "1.49s psetex", "2.74s getdel"}},
		{"a wait while the name is deleted", func(t *testing.T, c *client) {
			c.proxy.HoldReplies(redistest.Named("getdel"))
			c.holdFor(t, 200*ms)
			Sleep(1190 * ms)
			c.wait(200 * ms)
		}, []string{"100ms psetex", "1.35s getdel", "1.49s psetex", "2.74s getdel"}},
		{"writes that fail", func(t *testing.T, c *client) {
			c.proxy.DropCommands(2, redistest.Named("psetex"))
			c.holdFor(t, 5*time.Second)
		}, []string{"100ms psetex", "1.1s psetex", "2.1s psetex", "6.1s getdel"}},
		{"writes that are refused", func(t *testing.T, c *client) {
			c.refuse("psetex", true)
			c.holdFor(t, 25*time.Second)
			assert.Equal(t, 1, strings.Count(c.Logged(), "client name refused"), c.Logged())
			assert.Contains(t, c.Logged(), "redlatch_client:{"+myTag+"}")
			assert.Contains(t, c.Logged(), "NOPERM")
		}, []string{"100ms psetex", "10.1s psetex", "20.1s psetex", "26.1s getdel"}},
		// A deletion could overtake the write that is under way.
		{"writes without an answer", func(t *testing.T, c *client) {
			c.proxy.HoldReplies(redistest.Named("psetex"))
			c.holdFor(t, 13*time.Second)
		}, []string{"100ms psetex", "6.1s psetex", "12.1s psetex"}},
		{"a write that is answered a moment after the client was idle", func(t *testing.T, c *client) {
			deliver := c.proxy.HoldReplies(redistest.Named("psetex"))
			c.holdFor(t, 200*ms)
			Sleep(1200 * ms)
			deliver()
		}, []string{"100ms psetex", "1.4s getdel"}},
		{"closed", func(t *testing.T, c *client) {
			c.holdFor(t, 200*ms)
			c.presence.Close(false)
			c.holdFor(t, 5*time.Second)
		}, []string{"100ms psetex", "200ms getdel"}},
		{"closed with a hold", func(t *testing.T, c *client) {
			Acquire(t, t.Context(), c.Lock("x"))
			Sleep(200 * ms)
			c.shut()
		}, []string{"100ms psetex"}},
		{"closed without a name", func(t *testing.T, c *client) {
			c.holdFor(t, 50*ms)
			c.shut()
		}, nil},
		{"closed while Redis is silent", func(t *testing.T, c *client) {
			h := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(200 * ms)
			c.silence(t)
			began := time.Now()
			c.presence.Close(false)
			assert.Zero(t, time.Since(began))
			Release(t, h)
		}, []string{"100ms psetex"}},
		{"closed when Redis has just become silent", func(t *testing.T, c *client) {
			c.holdFor(t, 200*ms)
			c.proxy.BlackHole(true)
			began := time.Now()
			c.presence.Close(false)
			assert.Equal(t, 100*ms, time.Since(began))
		}, []string{"100ms psetex"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, c *client) {
				tt.do(t, c)
				Sleep(time.Minute)
				var got []string
				for _, command := range c.commands("psetex", "getdel") {
					command = strings.TrimSuffix(command, " worker")
					require.True(t, strings.HasSuffix(command, " me"), command)
					got = append(got, strings.TrimSuffix(command, " me"))
				}
				assert.Equal(t, tt.want, got)
			})
		})
	}
}

func TestClientWithoutANameWritesNone(t *testing.T) {
	Bubble(t, func(t *testing.T, s *Server) {
		c := newClient(t, s, "")
		c.proxy.Delay(ms)
		c.holdFor(t, 1900*ms)
		Sleep(time.Minute)
		assert.Equal(t, []string{"700ms subscribe me", "2s unsubscribe me"},
			c.commands("psetex", "getdel", "subscribe", "unsubscribe"))
	})
}

// A client subscribes for holds that are older than 700 ms, and ends the subscription with the last
// one. The hold's id decides the channel. When a subscription is confirmed, the client asks about
// its holds.
func TestSubscriptionsFollowTheHolds(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, c *client)
		want []string // a minute later
	}{
		{"a young hold", func(t *testing.T, c *client) { c.holdFor(t, 690*ms) }, nil},
		{"a wait", func(_ *testing.T, c *client) { c.wait(time.Minute) }, nil},
		{
			"a hold", func(t *testing.T, c *client) { c.holdFor(t, 1900*ms) },
			[]string{"700ms subscribe me", "750ms exists p:x", "2s unsubscribe me"},
		},
		{"two holds", func(t *testing.T, c *client) {
			x := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(2 * time.Second)
			y := Acquire(t, t.Context(), c.Lock("y"))
			Sleep(time.Second)
			Release(t, x)
			Sleep(time.Second)
			Release(t, y)
		}, []string{"700ms subscribe me", "750ms exists p:x", "4.2s unsubscribe me"}},
		{"a hold with the id of another client", func(t *testing.T, c *client) {
			x := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(500 * ms)
			y := Acquire(t, t.Context(), c.Lock("y"), OwnedBy(other+":7"))
			Sleep(1900 * ms)
			Release(t, x)
			Sleep(time.Second)
			Release(t, y)
		}, []string{
			"700ms subscribe me", "750ms exists p:x", "1.2s subscribe other", "1.25s exists p:y", "2.5s unsubscribe me",
			"3.5s unsubscribe other",
		}},
		{"confirmed late", func(t *testing.T, c *client) {
			deliver := c.proxy.HoldReplies(redistest.Named("subscribe"))
			h := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(1010 * ms)
			deliver()
			Sleep(time.Second)
			Release(t, h)
		}, []string{"700ms subscribe me", "1.05s exists p:x", "2.05s unsubscribe me"}},
		{"a hold that begins while the client is idle", func(t *testing.T, c *client) {
			c.holdFor(t, 200*ms)
			Sleep(200 * ms)
			c.holdFor(t, 1600*ms)
		}, []string{"1.1s subscribe me", "1.15s exists p:x", "2.15s unsubscribe me"}},
		{"one of two confirmed late", func(t *testing.T, c *client) {
			x := Acquire(t, t.Context(), c.Lock("x"), OwnedBy(other+":7"))
			Sleep(500 * ms)
			y := Acquire(t, t.Context(), c.Lock("y"))
			Sleep(990 * ms)
			Release(t, x)
			z := Acquire(t, t.Context(), c.Lock("z"), OwnedBy(other+":8"))
			Sleep(500 * ms)
			deliver := c.proxy.HoldReplies(redistest.Named("subscribe"))
			Sleep(610 * ms)
			deliver()
			Sleep(500 * ms)
			Release(t, y)
			Sleep(300 * ms)
			Release(t, z)
		}, []string{
			"700ms subscribe other", "750ms exists p:x", "1.2s subscribe me", "1.25s exists p:y", "1.5s unsubscribe other",
			"2.19s subscribe other", "2.64s exists p:z", "3.14s unsubscribe me", "3.64s unsubscribe other",
		}},
		// After a refusal it tries none for a minute.
		{"refused", func(t *testing.T, c *client) {
			c.refuse("subscribe", true)
			x := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(20 * time.Second)
			y := Acquire(t, t.Context(), c.Lock("y"), OwnedBy(other+":7"))
			Sleep(20 * time.Second)
			Release(t, y)
			c.refuse("subscribe", false)
			Sleep(30 * time.Second)
			Release(t, x)
		}, []string{"700ms subscribe me", "1m0.86s subscribe me", "1m0.91s exists p:x", "1m10.11s unsubscribe me"}},
		{"the presence has closed", func(t *testing.T, c *client) {
			h := Acquire(t, t.Context(), c.Lock("x"))
			Sleep(500 * ms)
			c.presence.Close(true)
			Sleep(10 * time.Second)
			Release(t, h)
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 3 { // a look may take the tags in any order
				bubble(t, func(t *testing.T, c *client) {
					c.proxy.Delay(ms) // the look that subscribes does not see the confirmation
					tt.do(t, c)
					Sleep(time.Minute)
					assert.Equal(t, tt.want, c.commands("subscribe", "unsubscribe", "exists"))
				})
			}
		})
	}
}

// A busy client has one goroutine, however its holds follow each other. An idle one has none.
func TestGoroutinesOfAPresence(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		goroutines := func() (n int) {
			synctest.Wait()
			buf := make([]byte, 1<<20)
			for stack := range bytes.SplitSeq(buf[:runtime.Stack(buf, true)], []byte("\n\n")) {
				if bytes.Contains(stack, []byte("presence.(*Presence).")) {
					n++
				}
			}
			return n
		}
		for range 3 {
			h := Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour))
			c.presence.RecheckAll()
			Sleep(2 * time.Second)
			assert.Equal(t, 1, goroutines())
			Release(t, h)
		}
		deliver := c.proxy.HoldReplies(redistest.Named("getdel"))
		for c.proxy.Held() == 0 {
			Sleep(10 * ms)
		}
		h := Acquire(t, t.Context(), c.Lock("x"), FixedLease(time.Hour)) // while the name is deleted
		deliver()
		synctest.Wait()
		Acquire(t, t.Context(), c.Lock("y"), FixedLease(50*ms))
		Sleep(200 * ms)
		assert.Equal(t, 1, goroutines())
		Release(t, h)
		Sleep(time.Minute)
		assert.Zero(t, goroutines())
	})
}

// Names are read once for each client, 100 in a pipeline, and within half a second.
func TestNamesOfTheClientsOfIDs(t *testing.T) {
	bubble(t, func(t *testing.T, c *client) {
		for tag, name := range map[string]string{myTag: "worker", otherTag: "other worker"} {
			require.NoError(t, c.redis.Mini().Set("redlatch_client:{"+tag+"}", name))
		}
		known := map[string]string{}
		ids := []string{me + ":1", "job 7", other + ":1", me + ":2"}
		want := []string{"worker", "", "other worker", "worker"}
		assert.Equal(t, want, c.presence.Names(t.Context(), ids, known))
		assert.Equal(t, map[string]string{myTag: "worker", presence.TagOf("job 7"): "", otherTag: "other worker"}, known)
		assert.Len(t, c.commands("get"), 3)
		assert.Equal(t, want, c.presence.Names(t.Context(), ids, known))
		assert.Len(t, c.commands("get"), 3)
		assert.Empty(t, c.presence.Names(t.Context(), nil, known))

		var many []string
		for i := range 150 {
			many = append(many, fmt.Sprint("job ", i))
			require.NoError(t, c.redis.Mini().Set("redlatch_client:{"+presence.TagOf(many[i])+"}", many[i]))
		}
		assert.Equal(t, many, c.presence.Names(t.Context(), many, map[string]string{}))
		assert.Equal(t, []int{1, 3, 100, 50}, c.pipelines.of("get"))

		c.proxy.BlackHole(true)
		began := time.Now()
		assert.Equal(t, make([]string, 150), c.presence.Names(t.Context(), many, map[string]string{}))
		assert.Equal(t, 500*ms, time.Since(began))
		assert.Equal(t, []int{1, 3, 100, 50, 100}, c.pipelines.of("get"))
	})
}

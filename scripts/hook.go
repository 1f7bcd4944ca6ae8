package scripts

import (
	"context"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// punctual makes chosen commands of a go-redis client end with their context's deadline, and with
// nothing else. The application chooses the client's own timeouts. They may be too short for a slow
// server, or there may be none. A copy of the client can be configured differently and shares its
// connections, but it has no hooks, so the application's hooks would miss the commands.
//
// punctual therefore adds a hook to the client, which passes marked pipelines on to such a copy.
// All hooks that were added before it have seen the pipeline by then. When the application adds
// another hook, punctual adds its own once more, behind that hook.
type punctual struct {
	rdb     weak.Pointer[redis.Client]
	copy    *redis.Client
	send    redis.ProcessPipelineHook // sends pipelines through the copy
	process redis.ProcessHook         // sends commands through the copy

	mu   sync.Mutex // held while last is replaced
	last atomic.Pointer[lastHook]
	lastDial
}

// lastHook is the hook that passes pipelines on, as long as it is the last one.
type lastHook struct {
	of      *punctual
	covered atomic.Bool // a hook was added after this one
}

// punctuals has the hook of each client, which all runners of the client share.
var punctuals = hooks[redis.Client, punctual]{}

// punctualOf returns the punctual of rdb, and makes it if there is none.
func punctualOf(rdb *redis.Client) *punctual {
	return punctuals.of(rdb, func() *punctual {
		p := &punctual{rdb: weak.Make(rdb), copy: rdb.WithTimeout(0)} // the copy has no timeouts: only the deadline counts
		p.copy.Options().ContextTimeoutEnabled = true
		p.copy.AddHook(copyHook{p}) // sets send and process
		rdb.AddHook(p)              // notes dials
		p.last.Store(&lastHook{of: p})
		rdb.AddHook(p.last.Load())
		return p
	})
}

// prepare marks a command that is sent alone, or the first one of a pipeline. It is a [singleCmd].
// A nil p does nothing.
func (p *punctual) prepare(first redis.Cmder) {
	if p == nil {
		return
	}
	first.(*singleCmd).punctual = true
	if p.isCovered() {
		p.uncover()
	}
}

// isCovered reports whether the application has added a hook that would not see marked pipelines.
func (p *punctual) isCovered() bool { return p.last.Load().covered.Load() }

// uncover makes the hook the last one again.
func (p *punctual) uncover() {
	p.mu.Lock()
	defer p.mu.Unlock()
	rdb := p.rdb.Value()
	if rdb == nil || !p.isCovered() {
		return
	}
	last := &lastHook{of: p}
	rdb.AddHook(last)
	p.last.Store(last)
}

// copyHook is the hook of the copy.
type copyHook struct{ of *punctual }

// ProcessPipelineHook implements [redis.Hook].
func (h copyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.of.send == nil { // the first one is for pipelines, and the next one for transactions
		h.of.send = next
	}
	return next
}

// DialHook implements [redis.Hook].
func (copyHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook].
func (h copyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.of.process == nil {
		h.of.process = next
	}
	return next
}

// ProcessPipelineHook implements [redis.Hook]. go-redis calls it for the client, and again for each
// hook that is added later.
func (h *lastHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if !isGoRedis(next) {
		h.covered.Store(true)
	}
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmd, ok := cmds[0].(*singleCmd); ok && cmd.punctual && h == h.of.last.Load() {
			return h.of.send(ctx, cmds)
		}
		return next(ctx, cmds)
	}
}

// DialHook implements [redis.Hook].
func (*lastHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements [redis.Hook]. It is for commands that a user's type sends alone.
func (h *lastHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if single, ok := cmd.(*singleCmd); ok && single.punctual && h == h.of.last.Load() {
			return h.of.process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// isGoRedis reports whether next belongs to go-redis itself, not to a hook.
func isGoRedis(next redis.ProcessPipelineHook) bool {
	f := runtime.FuncForPC(reflect.ValueOf(next).Pointer())
	return f != nil && strings.HasPrefix(f.Name(), "github.com/redis/go-redis/v9.")
}

// lastDial is a hook that notes what becomes of a client's dials, and gives deadlines to its
// connections.
type lastDial struct {
	addr   atomic.Pointer[string]     // the address of the latest connection; nil if there is none, or if it is unknown
	failed atomic.Pointer[failedDial] // the latest failure, if no dial succeeded since and its context did not end it
	dials  atomic.Int32               // the number of dials under way
	made   atomic.Int64               // the number of dials that succeeded
	places places
	conns  redisutil.Conns
}

// failedDial says why and when a dial failed.
type failedDial struct {
	err error
	at  time.Time
}

// lastDials has the hook of each client that a type embeds, by its options.
var lastDials = hooks[redis.Options, lastDial]{}

// lastDialOf returns the hook of the client with those options that rdb embeds, and adds it if
// there is none.
func lastDialOf(rdb redis.UniversalClient, o *redis.Options) *lastDial {
	return lastDials.of(o, func() *lastDial {
		d := &lastDial{}
		rdb.AddHook(d)
		return d
	})
}

// DialHook implements [redis.Hook]. With Sentinel, the server is another one after a failover,
// although addr stays.
func (d *lastDial) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.dials.Add(1)
		defer d.dials.Add(-1)
		conn, err := next(ctx, network, addr)
		switch {
		case err == nil:
			d.failed.Store(nil)
			d.made.Add(1)
		case ctx.Err() == nil:
			d.failed.Store(&failedDial{err, time.Now()})
		}
		if err == nil && conn.RemoteAddr() != nil {
			if now, was := conn.RemoteAddr().String(), d.addr.Load(); was == nil || *was != now {
				d.places.note(was, now)
				d.addr.Store(&now)
			}
		}
		if err != nil {
			return nil, err
		}
		return d.conns.Wrap(conn), nil
	}
}

// ProcessHook implements [redis.Hook].
func (d *lastDial) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (d *lastDial) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// hooks has one hook H for each client, which is identified by a C. It keeps neither of them alive:
// the client keeps the hook.
type hooks[C, H any] struct {
	mu    sync.Mutex
	added map[weak.Pointer[C]]weak.Pointer[H]
}

// of returns the hook of a client. If there is none, add makes it and adds it to the client, with
// mu held.
func (h *hooks[C, H]) of(client *C, add func() *H) *H {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := weak.Make(client)
	if hook := h.added[key].Value(); hook != nil {
		return hook
	}
	if h.added == nil {
		h.added = map[weak.Pointer[C]]weak.Pointer[H]{}
	}
	hook := add()
	h.added[key] = weak.Make(hook)
	runtime.AddCleanup(client, func(key weak.Pointer[C]) {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.added, key)
	}, key)
	return hook
}

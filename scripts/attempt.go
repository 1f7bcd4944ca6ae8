package scripts

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// processor sends commands. It is a client, one of its connections, or its pipelines.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// call is one run of a script. It does not change: every attempt sends the same arguments.
type call struct {
	script   *Script
	args     []any // "evalsha", mark, number of keys, keys, arguments
	mark     *mark
	firstKey int8 // the index of the first key in args, by which a cluster client routes; 0 if there are no keys
	key      any  // the first key; nil if there are no keys

	// Both are made once for all attempts, by deadlines.after. Once leaves them nil.
	end *deadline       // when the call gives up, unless its caller's context ends before
	ctx context.Context //nolint:containedctx // the context of its attempts

	memory *callMemory
}

// callMemory contains what a call refers to, in one allocation.
type callMemory struct {
	args   [18]any // the size is enough for a release that passes a lock on
	mark   mark
	joined joinedContext
	inline joinedContext // the context of the attempt in the caller's goroutine
}

func newCall(s *Script, keys, args []any) call {
	c := call{script: s, memory: new(callMemory)}
	c.mark = &c.memory.mark
	c.mark.begin(context.Background(), s)
	c.args = append(c.memory.args[:0], "evalsha", c.mark, len(keys))
	if len(keys) > 0 {
		c.firstKey = 3
		c.key = keys[0]
	}
	c.args = append(append(c.args, keys...), args...)
	return c
}

// copy returns the same call with arguments of its own, for further attempts while an earlier one
// still uses c's arguments.
func (c *call) copy() call {
	other := *c
	other.memory = new(callMemory)
	other.memory.joined = c.memory.joined
	other.mark = &other.memory.mark
	other.memory.joined.mark = other.mark
	other.ctx = &other.memory.joined
	other.args = append(append(other.memory.args[:0], c.args[0], other.mark), c.args[2:]...)
	other.mark.begin(other.ctx, c.script)
	return other
}

// command returns the arguments of an EVALSHA, or of an EVAL if the script is sent with its text.
func (c *call) command(withText bool) []any {
	if !withText {
		return c.args
	}
	return append([]any{"eval", textMark{c.mark}}, c.args[2:]...)
}

// failed returns the error of an attempt that ended with err, which says whether the command was
// sent.
func (c *call) failed(err error) error {
	if wasAnswered(err) || c.mark.wasWritten() {
		return err
	}
	return &unsent{err}
}

// attempt runs a script once, by its digest. If the server does not know the script, attempt loads
// it and sends it again. If the server has forgotten it in between (SCRIPT FLUSH), or cannot load
// it, attempt sends it with its text. None of these is a retry, because NOSCRIPT means that nothing
// was executed. If the caller has returned meanwhile, the script is not sent again, because it
// would be executed after the commands that the caller has sent since, such as a rollback.
//
// The caller is registered in running. ctx bounds the time until the command is sent. The error
// comes from go-redis, or is an [unsent]. classify says what it means.
func (r *Runner) attempt(ctx context.Context, via processor, c call) (Reply, error) {
	isLoaded := false
	withText := false
	for {
		reply, err := r.send(ctx, via, c, withText)
		isUnknown := !withText && repliedWith(err, unknownScript)
		switch {
		case !isUnknown:
			return reply, c.failed(err)
		case c.isAbandoned(ctx):
			return Reply{}, notSent(ctx, time.Now())
		case !isLoaded && r.load(ctx, via, c) == nil:
			isLoaded = true // now the digest should be enough
		default:
			withText = true
		}
	}
}

// unknownScript is how a server's answer begins if it does not know a digest.
const unknownScript = "NOSCRIPT"

// send sends the command of a call once.
func (r *Runner) send(ctx context.Context, via processor, c call, withText bool) (Reply, error) {
	c.mark.again()
	cmd := newCmd(ctx, c.firstKey, c.command(withText)...)
	cmd.SetStepCount(1) // otherwise a cluster client asks any node for it (COMMAND), which may hang
	sent := time.Now()  // before the command is written, so that a TTL that it sets counts from no later than this
	reply, err := cmd.reply(sent, via.Process(ctx, cmd))
	r.recovery.note(c.key, err)
	return reply, err
}

// isAbandoned reports whether the call whose attempts use ctx has returned, or is about to.
func isAbandoned(ctx context.Context) bool {
	joined, ok := ctx.(*joinedContext)
	return ctx.Err() != nil || (ok && joined.values.Err() != nil)
}

// isAbandoned reports whether nobody waits for an attempt at c with that context.
func (c *call) isAbandoned(ctx context.Context) bool {
	return c.mark.state.Load() == isDropped || isAbandoned(ctx)
}

// load loads the script into the node that serves the command's keys. On a cluster client,
// ScriptLoad would fail if any shard is down. An attempt that holds a connection loads the script
// over it, because other attempts may hold all other connections, and each of them may wait for one
// more.
func (r *Runner) load(ctx context.Context, via processor, c call) error {
	loader := redis.Scripter(r.rdb)
	holding, holds := via.(*waiting)
	piped, ok := via.(*pipelines)
	switch {
	case holds:
		loader = holding.tx
	case r.slots.client != nil && c.firstKey > 0:
		node, err := r.slots.client.MasterForKey(ctx, c.args[c.firstKey].(string))
		if err != nil {
			return err
		}
		loader = node
	case ok:
		return piped.load(ctx, c.script)
	}
	return loader.ScriptLoad(ctx, c.script.text).Err()
}

// singleCmd is a command that go-redis must not send twice. The runner retries instead, because
// go-redis would not report that the first attempt has an unknown outcome.
type singleCmd struct {
	*redis.Cmd
	answered bool   // SetErr(nil) was called
	punctual bool   // ends with its context's deadline: see type punctual; set on a pipeline's first command
	heard    func() // called with each answer, unless it is nil
	asksRole bool   // see newRoleCmd
}

// newCmd returns a command whose first key is at index firstKey of args. The index is 0 if there is
// no key.
func newCmd(ctx context.Context, firstKey int8, args ...any) *singleCmd {
	cmd := &singleCmd{Cmd: redis.NewCmd(ctx, args...)}
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// NoRetry keeps go-redis from sending the command again.
func (*singleCmd) NoRetry() bool { return true }

// Clone returns a singleCmd, too, so that copies that go-redis makes are not sent twice.
func (c *singleCmd) Clone() redis.Cmder {
	return &singleCmd{c.Cmd.Clone().(*redis.Cmd), c.answered, c.punctual, c.heard, c.asksRole}
}

// SetErr records the command's result. An answer stays: when a pipeline breaks, go-redis sets the
// error of the pipeline on the commands that were answered before, too.
func (c *singleCmd) SetErr(err error) {
	if c.answered {
		return
	}
	if c.asksRole && err == nil && isReplica(c.Val()) {
		err = errFormer
	}
	if repliedWith(err, refusesAll...) {
		err = closingAnswer{err}
	}
	c.answered = err == nil
	c.Cmd.SetErr(err)
	if c.heard != nil && wasAnswered(err) {
		c.heard()
	}
}

// reply returns the answer to a command that was sent at sent, alone or with others. err is what
// the send returned: for a pipeline, the error of the first command that failed, or of a hook that
// kept the pipeline from being sent. err counts only if the command has no result of its own.
func (c *singleCmd) reply(sent time.Time, err error) (Reply, error) {
	if own := c.Err(); own != nil || c.answered {
		err = own
	}
	if closing, ok := errors.AsType[closingAnswer](err); ok {
		err = closing.error
	}
	if err != nil && !errors.Is(err, redis.Nil) { // a nil answer is an answer
		return Reply{}, err
	}
	return Reply{Value: c.Val(), Sent: sent}, nil
}

// pipelines sends each command in a pipeline of its own. go-redis keeps separate connections for
// pipelines, so commands that block, such as an application's BLPOP, cannot use them up.
type pipelines struct {
	hook    *punctual  // makes commands end with their context's deadline; if nil, they end with the client's timeouts
	masters *toMasters // sends the commands instead, if it is not nil
	idle    sync.Pool  // each element is a redis.Pipeliner
	reuses  bool       // if false, each send asks for a pipeline, because a user's type may count or choose pipelines
}

func newPipelines(rdb redis.UniversalClient, hook *punctual) *pipelines {
	_, reuses := rdb.(*redis.Client)
	return &pipelines{hook: hook, reuses: reuses, idle: sync.Pool{New: func() any { return rdb.Pipeline() }}}
}

// Process implements [processor]. The command is a [singleCmd].
func (p *pipelines) Process(ctx context.Context, cmd redis.Cmder) error {
	if p.masters != nil {
		return p.masters.Process(ctx, cmd)
	}
	p.hook.prepare(cmd)
	pipe := p.idle.Get().(redis.Pipeliner)
	_ = pipe.Process(ctx, cmd) // this only queues cmd
	return p.exec(ctx, pipe)
}

// batch sends all commands in one pipeline. The first one is a [singleCmd].
func (p *pipelines) batch(ctx context.Context, cmds []redis.Cmder) error {
	if p.masters != nil {
		return p.masters.batch(ctx, cmds)
	}
	p.hook.prepare(cmds[0])
	pipe := p.idle.Get().(redis.Pipeliner)
	_ = pipe.BatchProcess(ctx, cmds...) // this only queues them
	return p.exec(ctx, pipe)
}

// load loads a script into the server.
func (p *pipelines) load(ctx context.Context, s *Script) error {
	return p.Process(ctx, newCmd(ctx, 0, "script", "load", s.text))
}

func (p *pipelines) exec(ctx context.Context, pipe redis.Pipeliner) error {
	_, err := pipe.Exec(ctx) // this leaves the pipeline empty, so it can be used again
	if p.reuses {
		p.idle.Put(pipe)
	}
	return err
}

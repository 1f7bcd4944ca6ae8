package torture

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// The faults.
const (
	faultKill      = "kill"
	faultStop      = "stop"
	faultHole      = "black-hole"
	faultDials     = "dials"
	faultRefuse    = "refuse"
	faultReplies   = "replies"
	faultCopies    = "copies"
	faultPubSub    = "pubsub"
	faultMessages  = "messages"
	faultSlow      = "slow"
	faultLate      = "late-replies"
	faultScripts   = "scripts"
	faultPause     = "pause"
	faultRestart   = "restart"
	faultDataLoss  = "data-loss"
	faultFailover  = "failover"
	faultSwitch    = "switchover"
	faultMigration = "migration"
	faultMemory    = "memory"
	faultDelete    = "delete"
	faultOverwrite = "overwrite"
	faultForce     = "force"
)

// fault is a kind of fault.
type fault struct {
	name  string
	usage string
	// topologies are where it can be injected: "" on any Redis, also on one that others use.
	topologies []string
	process    func(r *round, p *process, rng *rand.Rand) // of one client process
	server     func(r *round, rng *rand.Rand) error       // of the servers, or by the operator
}

// faults are all faults. To add one, list it here.
func faults() []fault {
	own := Topologies
	return []fault{
		{name: faultKill, usage: "kill -9 of a client process", process: (*round).kill},
		{
			name: faultStop, usage: "SIGSTOP of a client process, often for longer than its holds last",
			process: (*round).stop,
		},
		{name: faultHole, usage: "a client's packets vanish", process: (*round).blackHole},
		{
			name: faultDials, usage: "a client's connections break, and its dials hang",
			process: (*round).hangDials,
		},
		{
			name: faultRefuse, usage: "a client's connections break, and new ones are refused",
			process: (*round).refuse,
		},
		{name: faultReplies, usage: "replies to a client are lost", process: (*round).loseReplies},
		{
			name: faultCopies, usage: "commands arrive seconds late, after their repetitions",
			process: (*round).lateCopies,
		},
		{name: faultPubSub, usage: "a client's subscriptions break", process: (*round).cutPubSub},
		{
			name: faultMessages, usage: "messages to a client are lost",
			process: (*round).loseMessages,
		},
		{name: faultSlow, usage: "a client's replies are late", process: (*round).slow},
		{
			name: faultLate, usage: "replies to commands of one kind are held back",
			process: (*round).lateReplies,
		},
		{name: faultScripts, usage: "SCRIPT FLUSH", server: (*round).flushScripts},
		{name: faultDelete, usage: "an operator deletes a key", server: (*round).deleteKey},
		{
			name: faultOverwrite, usage: "an operator overwrites a key",
			server: (*round).overwriteKey,
		},
		{name: faultForce, usage: "ForceRelease", server: (*round).forceRelease},
		{name: faultPause, usage: "CLIENT PAUSE", topologies: own, server: (*round).clientPause},
		{name: faultMemory, usage: "full memory", topologies: own, server: (*round).fullMemory},
		{
			name: faultRestart, usage: "the server is killed and restarts with its data",
			topologies: []string{Single, Independent}, server: (*round).restart,
		},
		{
			name: faultDataLoss, usage: "the server is killed and restarts empty",
			topologies: []string{Single, Independent}, server: (*round).restartEmpty,
		},
		{
			name: faultFailover, usage: "the master is killed, and a replica takes over",
			topologies: []string{Sentinel, Cluster}, server: (*round).failover,
		},
		{
			name: faultSwitch, usage: "a replica takes over from a live master",
			topologies: []string{Sentinel, Cluster}, server: (*round).switchover,
		},
		{
			name: faultMigration, usage: "the slot of a name migrates",
			topologies: []string{Cluster}, server: (*round).migrate,
		},
	}
}

// Fault describes a fault to users.
type Fault struct{ Name, Usage string }

// Faults returns all faults, and what they are.
func Faults() (out []Fault) {
	for _, f := range faults() {
		out = append(out, Fault{f.name, f.usage})
	}
	return out
}

// possible reports whether f can be injected into a deployment.
func (f *fault) possible(d *deployment) bool {
	return len(f.topologies) == 0 || d.own && slices.Contains(f.topologies, d.kind)
}

// between returns a random duration.
func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(rng.Int64N(int64(high-low)+1))
}

// begin opens a window. The caller ends it with finish.
func (r *round) begin(w window) *window {
	w.interval = interval{monotonic(), never}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.windows = append(r.windows, &w)
	return &w
}

// endAct notes that what ends holds is over, while the window lasts.
func (r *round) endAct(w *window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.acted = monotonic()
}

func (r *round) finish(w *window) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.end = monotonic()
}

// sleep waits for d, or until the round heals.
func (r *round) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.healing.Done():
	}
}

// seeded returns random numbers that the seeds determine.
func seeded(a, b uint64) *rand.Rand {
	return rand.New(rand.NewPCG(a, b)) //nolint:gosec // a run can be repeated
}

// outage is a random length of a fault: shorter and longer than the holds last.
func (r *round) outage(rng *rand.Rand) time.Duration { return between(rng, r.cfg.TTL/4, 2*r.cfg.TTL) }

// silentTime is a random length of a fault in which a client hears nothing. Half of them are so long
// that calls begin and end within them.
func (r *round) silentTime(rng *rand.Rand) time.Duration {
	if rng.IntN(2) == 0 {
		return r.outage(rng)
	}
	return between(rng, 2*r.cfg.TTL, 4*r.cfg.TTL)
}

func (r *round) kill(p *process, _ *rand.Rand) {
	w := r.begin(window{fault: faultKill, process: p.id})
	p.kill()
	<-p.exited
	r.finish(w)
	r.replace(p)
}

func (r *round) stop(p *process, rng *rand.Rand) {
	w := r.begin(window{fault: faultStop, process: p.id})
	p.stop(true)
	r.sleep(r.outage(rng))
	p.stop(false)
	r.finish(w)
}

// disturb applies a fault to all proxies of a process for a while.
func (r *round) disturb(p *process, name string, d time.Duration, on, off func(*redistest.Proxy)) {
	w := r.begin(window{fault: name, process: p.id})
	for _, proxy := range p.slot.proxies {
		on(proxy)
	}
	r.sleep(d)
	for _, proxy := range p.slot.proxies {
		off(proxy)
	}
	r.finish(w)
}

func heal(p *redistest.Proxy) { p.Heal() }

func (r *round) blackHole(p *process, rng *rand.Rand) {
	r.disturb(p, faultHole, r.silentTime(rng), func(x *redistest.Proxy) { x.BlackHole(true) }, func(x *redistest.Proxy) {
		x.Heal()
		x.Reset() // connections that lost data stay silent: TCP would have resent it, or reset the connection
	})
}

func (r *round) hangDials(p *process, rng *rand.Rand) {
	_ = p.send(order{Do: "hang", On: true}) // a dead process is noticed elsewhere
	r.disturb(p, faultDials, r.outage(rng), func(x *redistest.Proxy) { x.Reset() }, heal)
	_ = p.send(order{Do: "hang"})
}

func (r *round) refuse(p *process, rng *rand.Rand) {
	r.disturb(p, faultRefuse, r.silentTime(rng), func(x *redistest.Proxy) {
		x.Refuse(true)
		x.Reset()
	}, func(x *redistest.Proxy) {
		began := time.Now()
		x.Heal()
		if time.Since(began) > portTaken {
			r.void.Store(true)
		}
	})
}

// portTaken is how long it takes to listen on a port again, if another program has not taken it meanwhile. Then the
// clients may have talked to that program.
const portTaken = time.Second

func isScript(args []string) bool { return strings.HasPrefix(strings.ToLower(args[0]), "eval") }

func (r *round) loseReplies(p *process, rng *rand.Rand) {
	r.disturb(p, faultReplies, r.outage(rng), func(x *redistest.Proxy) {
		x.DropRepliesRandomly(0.3, rng.Uint64(), isScript)
	}, heal)
}

func (r *round) cutPubSub(p *process, _ *rand.Rand) {
	r.disturb(p, faultPubSub, 0, func(x *redistest.Proxy) { x.CutPubSub() }, heal)
}

func (r *round) loseMessages(p *process, rng *rand.Rand) {
	r.disturb(p, faultMessages, r.outage(rng), func(x *redistest.Proxy) { x.DropMessages(true) }, heal)
}

func (r *round) slow(p *process, rng *rand.Rand) {
	d := between(rng, 30*time.Millisecond, r.cfg.TTL/5)
	r.disturb(p, faultSlow, r.outage(rng), func(x *redistest.Proxy) { x.Delay(d) }, heal)
}

// lateReplies holds replies back, up to three times. What they answer has been executed long before.
func (r *round) lateReplies(p *process, rng *rand.Rand) {
	moment := []string{"", momentAcquire, momentNest, momentRenew, momentRenew, momentRelease}[rng.IntN(6)]
	late := func(args []string) bool { return isScript(args) && (moment == "" || momentOf(args) == moment) }
	for range 1 + rng.IntN(3) {
		var release []func()
		r.disturb(p, faultLate, between(rng, 50*time.Millisecond, r.cfg.TTL),
			func(x *redistest.Proxy) { release = append(release, x.HoldReplies(late)) },
			func(x *redistest.Proxy) { x.Heal() })
		for _, f := range release {
			f()
		}
	}
}

// copyDelay bounds how late a copy of a command arrives. Redis remembers requests for 15 s and more.
const copyDelay = 5 * time.Second

// lateCopies holds commands back: their connections break, and they arrive later by themselves, after the
// client has sent them again. No copy arrives after its client or the data of the server is gone: what it
// left could not be told from what the client left.
func (r *round) lateCopies(p *process, rng *rand.Rand) {
	targets := r.targets()
	for i, proxy := range p.slot.proxies {
		rng := seeded(rng.Uint64(), uint64(i)) // the proxy calls the match in its own goroutines
		left := 5
		proxy.DropCommands(math.MaxInt, func(args []string) bool { // each command that matches is dropped
			if left == 0 || !isScript(args) || rng.IntN(8) != 0 {
				return false
			}
			left--
			delay := between(rng, 5*time.Millisecond, copyDelay)
			r.copies.Go(func() { r.deliver(p, targets[i], slices.Clone(args), delay) })
			return true
		})
	}
	r.disturb(p, faultCopies, r.outage(rng), func(*redistest.Proxy) {}, heal)
}

func (r *round) targets() []string { return r.d.targets }

func (r *round) deliver(p *process, addr string, args []string, delay time.Duration) {
	lossesBefore := r.losses.Load()
	time.Sleep(delay)
	if !p.alive() || r.losses.Load() != lossesBefore {
		return
	}
	rdb := newClient(&redis.UniversalOptions{
		Addrs: []string{addr}, Username: r.d.Username, Password: r.d.Password, DB: r.d.DB, TLSConfig: r.d.TLS, MaxRetries: -1,
	})
	defer func() { _ = rdb.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	all := make([]any, len(args))
	for i, arg := range args {
		all[i] = arg
	}
	at := monotonic()
	reply, err := rdb.Do(ctx, all...).Result() // the client does not get it
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivered = append(r.delivered, lateCopy{p.id, at, delay, args[2:], fmt.Sprint(reply, errorText(err))})
}

// lateCopy is a command that arrived late, for the log.
type lateCopy struct {
	process int
	at      int64
	delay   time.Duration
	args    []string // without the name and the script
	reply   string
}

// soon returns a context for a command of the harness.
func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Second)
}

func (r *round) flushScripts(*rand.Rand) error {
	ctx, cancel := soon()
	defer cancel()
	w := r.begin(window{fault: faultScripts, process: noProcess})
	defer r.finish(w)
	return r.d.eachNode(ctx, func(ctx context.Context, rdb *redis.Client) error { return rdb.ScriptFlush(ctx).Err() })
}

// noProcess is the process of a window that delays nobody.
const noProcess = -2

func (r *round) clientPause(rng *rand.Rand) error {
	ctx, cancel := soon()
	defer cancel()
	d := between(rng, 100*time.Millisecond, r.cfg.TTL)
	mode := []string{"ALL", "WRITE"}[rng.IntN(2)]
	if r.d.kind == Sentinel || r.d.kind == Cluster {
		mode = "WRITE" // Sentinels and their PINGs are clients too
	}
	w := r.begin(window{fault: faultPause, process: -1})
	defer r.finish(w)
	err := r.d.eachNode(ctx, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.Do(ctx, "CLIENT", "PAUSE", d.Milliseconds(), mode).Err()
	})
	r.sleep(d)
	// Healing early: the server ends the pause by itself, and the window lasts until then.
	time.Sleep(50 * time.Millisecond)
	_ = r.d.eachNode(ctx, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.Do(ctx, "CLIENT", "UNPAUSE").Err()
	})
	return err
}

func (r *round) fullMemory(rng *rand.Rand) error {
	ctx, cancel := soon()
	defer cancel()
	limit := func(bytes string) error {
		return r.d.eachNode(ctx, func(ctx context.Context, rdb *redis.Client) error {
			return rdb.ConfigSet(ctx, "maxmemory", bytes).Err()
		})
	}
	w := r.begin(window{fault: faultMemory, process: -1})
	defer r.finish(w)
	err := limit("1mb")
	r.sleep(between(rng, 200*time.Millisecond, 2*time.Second))
	if undo := limit("0"); undo != nil {
		return undo
	}
	return err
}

func (r *round) restart(rng *rand.Rand) error {
	s := r.d.servers[rng.IntN(len(r.d.servers))]
	w := r.begin(window{fault: faultRestart, process: -1})
	defer r.finish(w)
	if err := s.Kill(); err != nil {
		return err
	}
	r.sleep(between(rng, 0, time.Second))
	return s.Restart()
}

func (r *round) restartEmpty(rng *rand.Rand) error {
	s := r.d.servers[rng.IntN(len(r.d.servers))]
	w := r.lose(faultDataLoss)
	defer r.finish(w)
	if err := s.Kill(); err != nil {
		return err
	}
	r.endAct(w) // nothing that is acquired from now on is lost
	r.sleep(between(rng, 0, time.Second))
	if err := r.d.wipe(s); err != nil {
		return err
	}
	err := s.Restart()
	r.nextGeneration()
	return err
}

// lose begins a window in which the servers may forget anything.
func (r *round) lose(name string) *window {
	r.losses.Add(1)
	return r.begin(window{fault: name, process: -1, lossy: true})
}

// operable are the primitives that most sessions use now, and whose keys the operator may change; all of them, if
// none is used now.
func (r *round) operable() (out []string) {
	isOperable := func(p string) bool { return workloads[p].operator }
	for _, names := range [][]string{r.times.at(monotonic()), r.cfg.Primitives} {
		for _, p := range names {
			if isOperable(p) {
				out = append(out, p)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out
}

// operate changes a key of each primitive that is in use, as an operator would, at a moment of its own. act reports
// whether the key was there. Its window lasts for longer than act.
func (r *round) operate(
	name string, rng *rand.Rand, act func(ctx context.Context, primitive, key string) (bool, error), lasts time.Duration,
) error {
	var all errgroup
	for _, primitive := range r.operable() {
		key, moment := lockName(r.tag, primitive, rng.IntN(namesOf)), aMoment(rng)
		all.Go(func() error {
			r.await(moment, key, r.slots)
			ctx, cancel := soon()
			defer cancel()
			w := r.begin(window{fault: name, process: -1, names: []string{key}})
			hit, err := act(ctx, primitive, key)
			if r.endAct(w); lasts > 0 {
				time.Sleep(lasts)
			}
			r.finish(w)
			r.mu.Lock()
			defer r.mu.Unlock()
			w.hit = hit && err == nil
			return err
		})
	}
	return all.Wait()
}

// errgroup runs functions at the same time, and joins their errors.
type errgroup struct {
	sync.WaitGroup

	mu  sync.Mutex
	err error
}

func (g *errgroup) Go(f func() error) {
	g.WaitGroup.Go(func() {
		err := f()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.err = errors.Join(g.err, err)
	})
}

func (g *errgroup) Wait() error {
	g.WaitGroup.Wait()
	return g.err
}

func (r *round) deleteKey(rng *rand.Rand) error {
	return r.operate(faultDelete, rng, func(ctx context.Context, _, key string) (bool, error) {
		n, err := r.d.rdb.Del(ctx, key).Result()
		return n > 0, err
	}, 0)
}

func (r *round) overwriteKey(rng *rand.Rand) error {
	const script = `local there = redis.call('exists', KEYS[1])
redis.call('set', KEYS[1], 'not a lock', 'px', ARGV[1])
return there`
	const lasts = 200 * time.Millisecond
	return r.operate(faultOverwrite, rng, func(ctx context.Context, _, key string) (bool, error) {
		n, err := r.d.rdb.Eval(ctx, script, []string{key}, lasts.Milliseconds()).Int()
		return n > 0, err
	}, lasts+20*time.Millisecond) // the window lasts as long as the key does
}

func (r *round) forceRelease(rng *rand.Rand) error {
	return r.operate(faultForce, rng, func(ctx context.Context, primitive, key string) (bool, error) {
		switch primitive {
		case "fair":
			return r.client.FairLock(key).ForceRelease(ctx)
		case "rwlock":
			rw := r.client.RWLock(key)
			a, err := rw.Reader().ForceRelease(ctx)
			if err != nil {
				return false, err
			}
			b, err := rw.Writer().ForceRelease(ctx)
			return a || b, err
		case "fenced", "cohort", "linger":
			return r.client.FencedLock(key).ForceRelease(ctx)
		}
		return r.client.Lock(key).ForceRelease(ctx)
	}, 0)
}

// exclusive lets one fault at a time have a server or a process.
type exclusive struct {
	mu   sync.Mutex
	busy map[any]bool
}

func (e *exclusive) take(what any) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[what] {
		return false
	}
	if e.busy == nil {
		e.busy = map[any]bool{}
	}
	e.busy[what] = true
	return true
}

func (e *exclusive) give(what any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.busy, what)
}

// inject injects one random fault in the background. It returns false if nothing could be disturbed now.
func (r *round) inject(f *fault) bool {
	rng := seeded(r.rand.Uint64(), r.rand.Uint64()) // r.rand is for one goroutine
	if f.server != nil {
		if !r.exclusive.take("server") {
			return false
		}
		r.injected(f.name)
		r.faults.Go(func() {
			defer r.exclusive.give("server")
			if err := f.server(r, rng); err != nil {
				r.fail(fmt.Errorf("fault %s: %w", f.name, err))
			}
			if len(f.topologies) > 0 { // a server that is mostly away tests little
				r.sleep(between(rng, 300*time.Millisecond, 1500*time.Millisecond))
			}
		})
		return true
	}
	s := r.slots[rng.IntN(r.victims)]
	if !r.exclusive.take(s) {
		return false
	}
	r.injected(f.name)
	r.faults.Go(func() {
		defer r.exclusive.give(s)
		r.await(aMoment(rng), "", []*slot{s})
		f.process(r, s.current(), rng)
	})
	return true
}

// operator is the harness's own client, for forced releases.
func operator(rdb redis.UniversalClient) (*primitives.Client, error) {
	return primitives.New(rdb, primitives.WithClientName("redlatch torture"))
}

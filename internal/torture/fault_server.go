package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

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

// operable are the primitives that most sessions use now, and whose keys the operator may change;
// all of them, if none is used now.
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

// operate changes a key of each primitive that is in use, as an operator would, at a moment of its
// own.
func (r *round) operate(fault string, rng *rand.Rand) error {
	var all errgroup
	for _, primitive := range r.operable() {
		key, moment := lockName(r.tag, primitive, rng.IntN(namesOf)), aMoment(rng)
		all.Go(func() error {
			r.await(moment, key, r.slots)
			return r.operateOn(fault, primitive, key)
		})
	}
	return all.Wait()
}

// operateOn changes a key as an operator would.
func (r *round) operateOn(fault, primitive, key string) error {
	ctx, cancel := soon()
	defer cancel()
	w := r.begin(window{fault: fault, process: -1, names: []string{key}})
	hit, err := r.change(ctx, fault, primitive, key)
	r.endAct(w)
	if fault == faultOverwrite { // the window lasts as long as the key does
		time.Sleep(overwritten + 20*time.Millisecond)
	}
	r.finish(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	w.hit = hit && err == nil
	return err
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

func (r *round) deleteKey(rng *rand.Rand) error { return r.operate(faultDelete, rng) }

func (r *round) overwriteKey(rng *rand.Rand) error { return r.operate(faultOverwrite, rng) }

func (r *round) forceRelease(rng *rand.Rand) error { return r.operate(faultForce, rng) }

// overwritten is how long an overwritten key lasts.
const overwritten = 200 * time.Millisecond

// change does to a key what an operator does, and reports whether the key was there.
func (r *round) change(ctx context.Context, fault, primitive, key string) (bool, error) {
	const overwrite = `local there = redis.call('exists', KEYS[1])
redis.call('set', KEYS[1], 'not a lock', 'px', ARGV[1])
return there`
	switch fault {
	case faultDelete:
		n, err := r.d.rdb.Del(ctx, key).Result()
		return n > 0, err
	case faultOverwrite:
		n, err := r.d.rdb.Eval(ctx, overwrite, []string{key}, overwritten.Milliseconds()).Int()
		return n > 0, err
	}
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
	case "fenced", "cohort", "linger", electionPrimitive:
		return r.client.FencedLock(key).ForceRelease(ctx)
	}
	return r.client.Lock(key).ForceRelease(ctx)
}

// operator is the harness's own client, for forced releases.
func operator(rdb redis.UniversalClient) (*primitives.Client, error) {
	return primitives.New(rdb, primitives.WithClientName("redlatch torture"))
}

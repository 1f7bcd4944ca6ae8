package torture

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// leftovers waits until nothing of the round is left in Redis, and returns what stays although it
// must not.
func (r *round) leftovers(h *history) []Violation {
	const limit = int64(3 * time.Second)
	until := max(monotonic(), r.lastLease(h)) + limit + h.lengthened(h.begin)
	due := expected{pools: h.pools(), tokens: h.tokens(), longer: time.Duration(h.lengthened(h.begin))}
	for {
		left, err := r.left(due)
		switch {
		case err == nil && len(left) == 0:
			return nil
		case monotonic() < until:
			time.Sleep(50 * time.Millisecond)
		case err != nil:
			return []Violation{{Check: checkLeft, Detail: "cannot look: " + err.Error()}}
		default:
			slices.Sort(left)
			return []Violation{{Check: checkLeft, Detail: strings.Join(slices.Compact(left), "; ")}}
		}
	}
}

// left lists the round's keys and subscriptions that are still in Redis, although nobody holds or
// waits any more.
func (r *round) left(due expected) (out []string, err error) {
	ctx, cancel := soon()
	defer cancel()
	var mu sync.Mutex
	err = r.d.eachNode(ctx, func(ctx context.Context, rdb *redis.Client) error {
		found, err := r.leftOn(ctx, rdb, due)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, found...)
		return err
	})
	return out, err
}

func (r *round) leftOn(ctx context.Context, rdb *redis.Client, due expected) (out []string, err error) {
	abandoned := r.hadDeaths() || r.hasOutsiders() // a waiter died, or one of another library gave up
	keys := rdb.Scan(ctx, 0, "*"+r.tag+"*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		switch {
		case strings.HasPrefix(key, "redisson_lock_token:"): // counts for ever
			name := strings.Trim(strings.TrimPrefix(key, "redisson_lock_token:"), "{}")
			if last, err := rdb.Get(ctx, key).Int64(); err == nil && last < due.tokens[name] {
				out = append(out, fmt.Sprintf("%s is %d, after token %d", key, last, due.tokens[name]))
			}
		case strings.HasSuffix(key, ":epoch"): // lasts as long as its semaphore
		case strings.HasPrefix(key, "redisson_unlock_latch:"), strings.HasPrefix(key, "redlatch_rwlock_claim:"),
			abandoned && strings.HasPrefix(key, "redlatch_lock_"),
			strings.Contains(key, ":rwlock_timeout:") && r.hadOperators(): // the operator knows only the lock's key
			if ttl := rdb.PTTL(ctx, key).Val(); ttl < 0 && ttl != -2 {
				out = append(out, fmt.Sprintf("key %s without a TTL", key))
			} else if ttl > rememberedOf(key)+due.longer {
				out = append(out, fmt.Sprintf("key %s for another %v", key, ttl))
			}
		case r.isPool(key):
			n, err := rdb.Get(ctx, key).Int()
			if low, high := r.permitsLeft(key, due.pools); err == nil && (n < low || n > high) {
				out = append(out, fmt.Sprintf("%s has %d permits, and should have %d to %d", key, n, low, high))
			}
		case abandoned && strings.HasPrefix(key, "redisson_lock_"), // the queue of a fair lock, if nobody has waited since
			(r.hadDeaths() || due.pools[leased(key)].orphans) && strings.HasSuffix(key, ":timeout"): // permits of a dead process
		default:
			out = append(out, contentOf(ctx, rdb, key))
		}
	}
	if err := keys.Err(); err != nil {
		return nil, err
	}
	for _, ask := range []string{"CHANNELS", "SHARDCHANNELS"} {
		channels, err := rdb.Do(ctx, "PUBSUB", ask, "*"+r.tag+"*").StringSlice()
		if err != nil {
			return nil, err
		}
		for _, channel := range channels {
			out = append(out, "subscription to "+channel)
		}
	}
	return out, nil
}

// contentOf says what a key holds, and for how long.
func contentOf(ctx context.Context, rdb *redis.Client, key string) string {
	text := fmt.Sprintf("key %s for another %v", key, rdb.PTTL(ctx, key).Val())
	if fields, err := rdb.HGetAll(ctx, key).Result(); err == nil {
		text += fmt.Sprintf(": %v", fields)
	}
	return text
}

// expected is what Redis should hold once nobody holds or waits any more.
type expected struct {
	pools  map[string]pool
	tokens map[string]int64 // the highest that a hold of the name had
	longer time.Duration    // by how much all keys may last longer
}

// tokens returns the highest token of each name. Servers that lost data may have lost their
// counters, too. A hold that was passed on has a token that was reserved by the first hold with its
// id.
func (h *history) tokens() map[string]int64 {
	out := map[string]int64{}
	for _, o := range h.ops {
		if o.holds() && o.ret.Token > 0 && !h.lossy(o.call.Names[0], h.ownershipBegin(o), h.end) {
			out[o.call.Names[0]] = max(out[o.call.Names[0]], o.ret.Token)
		}
	}
	return out
}

// rememberedOf is for how long Redis remembers a request at most: doc/contract.md, C16.
func rememberedOf(key string) time.Duration {
	if strings.Contains(key, ":semaphore:") {
		return 24 * time.Hour
	}
	return 3 * time.Minute
}

// isPool reports whether key is the count of a semaphore or a latch.
func (r *round) isPool(key string) bool {
	return strings.HasPrefix(key, r.tag+":semaphore:") || strings.HasPrefix(key, r.tag+":permits:") ||
		strings.HasPrefix(key, r.tag+":latch:")
}

// permitsLeft returns how many permits a pool may have once nobody holds any.
func (r *round) permitsLeft(key string, pools map[string]pool) (low, high int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.Contains(key, ":latch:") || !strings.HasSuffix(key, fmt.Sprintf(":g%d", r.generation)) {
		return math.MinInt, math.MaxInt
	}
	p, ok := pools[key]
	if !ok {
		p = pool{low: poolSize, high: poolSize}
	}
	if r.generation > 0 || p.orphans { // a process that began with an earlier one may have died
		p.low = math.MinInt
	}
	return p.low, p.high
}

// pool is how many permits a semaphore may have once nobody holds any.
type pool struct {
	low, high int
	orphans   bool // some may be left to their leases, and are collected only by the next acquisition
}

// leased returns the name of the semaphore that has a key of leases.
func leased(key string) string {
	_, name, _ := strings.Cut(key, "{")
	return strings.TrimSuffix(name, "}:timeout")
}

// pools returns the sizes of all semaphores after every change that clients have made.
func (h *history) pools() map[string]pool {
	out := map[string]pool{}
	for name, ops := range h.names {
		if limitOf(ops) == 0 {
			continue
		}
		p := pool{low: poolSize, high: poolSize}
		for _, o := range ops {
			known, unknown := o.outcome() == outcomeOK, o.outcome() == outcomeUnknown
			n := o.call.Permits
			switch {
			case o.call.Do == opAdd && known:
				p.low, p.high = p.low+n, p.high+n
			case o.call.Do == opAdd && unknown:
				p.low, p.high = p.low+min(n, 0), p.high+max(n, 0)
			case o.call.Do == opDrain && known:
				p.low, p.high = p.low-int(o.ret.Count), p.high-int(o.ret.Count)
			case o.call.Do == opDrain && unknown:
				p.low, p.high = math.MinInt/2, math.MaxInt/2
			case unknown && (o.call.Do == opAdopt || o.call.Do == opReleaseID), o.detached && !wasGivenBack(o, ops),
				o.call.Do == opDetach && !known, // of several permits, one was lost
				o.holds() && o.call.MinHold > 0, // released, and left to the rest of their minimum
				o.wasLeft(),
				h.mayReturn(o, name):
				p.orphans = true
			}
		}
		if sizes := lastSizes(ops); ops[0].call.Primitive == "permits" {
			p.low, p.high = slices.Min(sizes), slices.Max(sizes)
		}
		out[name] = p
	}
	return out
}

// mayReturn reports whether a late copy of an acquisition may acquire again, until its lease ends.
// That can happen if somebody else ended the hold by its id, and could not know that an attempt was
// in doubt; if the lease has ended and the hold was never released; or if the key held the data of
// another program, so that Redis refused the rollback.
func (h *history) mayReturn(o *op, name string) bool {
	wasForeign := o.call.Do == opAcquire && o.is(isForeign)
	if !wasForeign && !o.holds() || !h.inDoubt(o, name) {
		return false
	}
	wasTaken := len(h.takeovers(o, o.call.At, never)) > 0
	wasNotReleased := o.loss() != nil && o.release == nil
	return wasForeign || wasTaken || wasNotReleased
}

// latestCopy bounds how long after a call a copy of one of its commands may be executed, in ns.
func (h *history) latestCopy() int64 {
	if h.exact {
		return int64(copyAgeLimit)
	}
	return int64(copyDelay)
}

// inDoubt reports whether an acquisition may have been sent more than once: its answer was lost, or
// late. A server that does not run for a while executes all copies later.
func (h *history) inDoubt(o *op, name string) bool {
	return h.disturbed(o.process, name, o.call.At, o.ret.At) || h.isBusy(o.process, o.call.At, o.ret.At)
}

// wasLeft reports whether a hold was lost, or its release was repeated, perhaps until its lease had
// ended.
func (o *op) wasLeft() bool {
	wasRepeated := o.holds() && o.release != nil && !o.isReleased()
	return o.loss() != nil || wasRepeated
}

// wasGivenBack reports whether a detached hold was adopted or released for certain.
func wasGivenBack(o *op, ops []*op) bool {
	return slices.ContainsFunc(ops, func(t *op) bool { return t.outcome() == outcomeOK && t.call.Target == o.ret.ID })
}

// lastSizes returns the sizes that Resize may have set last.
func lastSizes(ops []*op) (sizes []int) {
	sizes = []int{poolSize}
	for _, o := range ops {
		if o.call.Do != opResize || o.outcome() != outcomeOK && o.outcome() != outcomeUnknown {
			continue
		}
		if o.outcome() == outcomeOK { // it replaces every size that was set before it began
			sizes = sizes[:0]
			for _, other := range ops {
				if other.call.Do == opResize && (other.outcome() == outcomeOK && other.ret.At >= o.call.At ||
					other.outcome() == outcomeUnknown) {
					sizes = append(sizes, other.call.Permits)
				}
			}
			continue
		}
		sizes = append(sizes, o.call.Permits)
	}
	return sizes
}

func (r *round) hadOperators() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.windows, func(w *window) bool { return len(w.names) > 0 })
}

// hasOutsiders reports whether there are processes that use another library.
func (r *round) hasOutsiders() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.processes, func(p *process) bool { return p.library != "" })
}

func (r *round) hadDeaths() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.windows, func(w *window) bool { return w.fault == faultKill || w.lossy })
}

// lastLease returns when the last lease ends that nobody renews and nobody gives back: of processes
// that have died, or that use another library; of servers that forgot a release, of holds that were
// detached or adopted with an unknown outcome, and of acquisitions in doubt that were ended by
// their id. A count of a shared owner that was not given back lasts for as long as others of that
// owner renew the lock.
func (r *round) lastLease(h *history) (end int64) {
	longest := longestLease*int64(r.ttl) + int64(waiterTimeout)
	for _, w := range h.windows {
		if w.fault == faultKill || w.lossy {
			end = max(end, w.end+longest)
		}
	}
	for _, o := range h.ops {
		if o.holds() && o.call.MinHold > 0 {
			end = max(end, o.ret.At+int64(o.call.MinHold))
		}
		switch {
		case o.outside && (o.outcome() == outcomeUnknown || o.holds()):
			i := h.possibleOutside(o, o.call.Names[0])
			end = max(end, i.end)
		case o.call.Do == opAdopt && o.isOpen(), h.mayReturn(o, o.call.Names[0]):
			end = max(end, o.call.At+h.latestCopy()+longest)
		case o.holds() && o.root.call.Owner != "" && (o.release == nil || o.release.outcome() != outcomeOK):
			end = max(end, h.end+longest)
		case o.forgot:
			end = max(end, h.end+int64(o.lease()))
		case o.detached:
			end = max(end, o.until)
		}
	}
	return end
}

package torture

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The harness looks at the locks in Redis while clients use them. So it sees a hold that claims to be valid for
// longer than Redis keeps it, even if nobody else acquires in that time.

const (
	sampling      = 100 * time.Millisecond
	sampleTimeout = 200 * time.Millisecond
	// sampleTolerance is for the milliseconds of Redis.
	sampleTolerance = 3 * time.Millisecond
)

// sample is an answer of Redis about a lock: who holds it, and when the lease ends.
type sample struct {
	name   string
	id     string
	before int64 // the command was sent
	after  int64 // it was answered
	until  int64 // the latest end of the lease
}

// claim is a validity that a holder has seen.
type claim struct{ at, until int64 }

// sampled are the primitives whose holder and lease stand in one hash.
var sampled = []string{"lock", "nested", "spin", "cohort", "linger", "fenced", "fair", "rwlock"}

// sampleScript returns the fields of a lock's hash, and its TTL.
const sampleScript = `if redis.call('type', KEYS[1]).ok ~= 'hash' then return {0} end
local fields = redis.call('hkeys', KEYS[1])
table.insert(fields, 1, redis.call('pttl', KEYS[1]))
return fields`

// sample looks at all locks of the round, again and again.
func (r *round) sample(ctx context.Context) {
	var names []string
	for _, p := range r.cfg.Primitives {
		for _, s := range sampled {
			for i := range namesOf {
				if p == s {
					names = append(names, lockName(r.tag, p, i))
				}
			}
		}
	}
	for ctx.Err() == nil {
		r.sampleOnce(ctx, names)
		select {
		case <-ctx.Done():
		case <-time.After(sampling):
		}
	}
}

func (r *round) sampleOnce(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	before := monotonic()
	replies := make([]*redis.Cmd, len(names))
	_, _ = r.d.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, name := range names {
			replies[i] = pipe.Eval(ctx, sampleScript, []string{name})
		}
		return nil
	})
	after := monotonic()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, reply := range replies {
		fields, err := reply.Slice()
		if err != nil || len(fields) < 2 {
			continue // no answer, or not held
		}
		left, _ := fields[0].(int64)
		for _, field := range fields[1:] {
			id, _ := field.(string)
			r.samples = append(r.samples, sample{
				names[i], strings.TrimSuffix(id, ":write"), before, after, after + left*int64(time.Millisecond),
			})
		}
	}
}

// checkSamples finds holds that claimed to be valid for longer than Redis would keep them. Readers have leases of
// their own.
func (h *history) checkSamples() (out []Violation) {
	seen := map[*op]bool{}
	for _, s := range h.samples {
		for _, o := range h.names[s.name] {
			if seen[o] || !o.holds() || o.call.Read || o.ret.ID != s.id ||
				o.claimEnd() <= s.after || h.lossy(o.call.At, s.until) {
				continue
			}
			for _, c := range o.claims {
				if over := time.Duration(c.until - s.until); c.at <= s.before && over > sampleTolerance {
					seen[o] = true
					out = append(out, violation(checkLease, o, s.name, "%s was valid for its holder for %v longer than Redis kept it",
						s.id, over.Round(time.Millisecond)))
					break
				}
			}
		}
	}
	return out
}

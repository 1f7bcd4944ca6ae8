package torture

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/test/memredis"
	"github.com/redlatch/redlatch/internal/torture/simnet"
)

// A simulated server is looked at after each script. So it is known when an id comes back into the
// hash of a lock: after its release, a late copy has acquired for it, or a rollback or a renewal
// came too late. That needs no rival who meets it, and no fault excuses it except one in which the
// server gets older data.

// appearance is when an id came into a lock in which it had been before.
type appearance struct {
	name, id string
	at       int64
}

// watchAppearances notes which ids come back on a server.
func (w *world) watchAppearances(server *simnet.Server) {
	var db *memredis.Server
	server.Use(func(of *memredis.Server) { db = of })
	present, known := map[string][]string{}, map[[2]string]bool{}
	server.Watch(func(args []string) {
		for _, key := range keysOf(args) {
			name := w.lockOf(key)
			if name == "" {
				continue
			}
			fields, _, _ := db.Peek(key)
			for i, f := range fields {
				fields[i] = strings.TrimSuffix(f, ":write")
			}
			for _, id := range fields {
				// A member of a redlock that is slow gets it for the first time while it is
				// released.
				isBack := known[[2]string{key, id}] && !slices.Contains(present[key], id)
				if isBack {
					w.round.appeared = append(w.round.appeared, appearance{name, id, monotonic()})
				}
				known[[2]string{key, id}] = true
			}
			present[key] = fields
		}
	})
}

// keysOf returns the keys of a script.
func keysOf(args []string) []string {
	if !isScript(args) || len(args) < 4 {
		return nil
	}
	n, err := strconv.Atoi(args[2])
	if err != nil || n > len(args)-3 {
		return nil
	}
	return args[3 : 3+n]
}

// lockOf returns the name of the lock that has a key; "" if it is not the hash of a lock.
func (w *world) lockOf(key string) string {
	prefix, rest, ok := strings.Cut(key, ":")
	primitive, number, isName := strings.Cut(rest, ":")
	if !ok || !isName || prefix != w.round.tag {
		return ""
	}
	switch {
	case slices.Contains(sampled, primitive), primitive == "multi":
		return key
	case primitive == "redlock": // the key of a member
		number, _, _ = strings.Cut(number, ":")
		return strings.Join([]string{prefix, primitive, number}, ":")
	}
	return ""
}

// checkAppearances finds ids that came into a lock after their releases.
func (h *history) checkAppearances() (out []Violation) {
	for _, a := range h.appeared {
		o := h.lastReleased(a)
		if o == nil || h.lossy(a.name, o.call.At, a.at) || o.mayHaveLateMember(a.at) {
			continue
		}
		out = append(out, violation(checkKept, o, a.name, "%s came back %v after its release", a.id,
			time.Duration(a.at-o.release.ret.At).Round(time.Microsecond)))
	}
	return out
}

// mayHaveLateMember reports whether o is of a redlock, and a command for one of its members may
// have been executed at that time, although o was released before: the client waits for a majority
// only. It undoes what that command has acquired. If an earlier attempt of the same acquisition has
// had the member, the id comes back. The samples tell whether it stays.
func (o *op) mayHaveLateMember(at int64) bool {
	const longestBudget = 2 * time.Second // for a member: a tenth of the TTL, up to that
	budget := min(max(o.root.call.TTL/10, 100*time.Millisecond), longestBudget)
	return o.call.Primitive == "redlock" && at-o.release.ret.At <= int64(budget)
}

// lastReleased returns the hold that was released last of those with the id that appeared; nil if
// the id may still, or again, be that of somebody.
func (h *history) lastReleased(a appearance) (last *op) {
	for _, o := range h.names[a.name] {
		isOfID := o.root.ret.orNone().ID == a.id || o.ret.orNone().ID == a.id
		isTaken := sharePermits(o.call.Target, a.id)
		if !isOfID && !isTaken {
			continue
		}
		isPrivate := !isTaken && !o.call.Passes && o.root.call.Owner == "" && !o.detached
		if !isPrivate {
			return nil
		}
		isCount := o.call.Do == opAcquire && o.holds()
		if !isCount {
			continue
		}
		isOver := o.isReleased() && o.release.ret.At < a.at
		if !isOver {
			return nil
		}
		if last == nil || o.release.ret.At > last.release.ret.At {
			last = o
		}
	}
	return last
}

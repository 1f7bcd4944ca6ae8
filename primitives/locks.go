package primitives

import (
	"context"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/scripts"
)

// Locks walks over the locks that are held now, by SCAN on every master: locks of every kind whose key is a hash, each name once. match is
// Redis's glob on the user's name, "*" for all. Kind is what the keys tell: "reader" or "writer"; "fair" while the fair lock's queue is in use;
// "fenced" if the name has a fencing token; else "lock". A reader whose leases have ended is not listed, and each reader has its own TTL. A hash that
// neither expires nor has a Redisson id in every field is not taken for a lock. An error ends the walk: it comes with a zero Info.
//
// The walk is not a snapshot: concurrent changes may or may not appear.
func (c *Client) Locks(ctx context.Context, match string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		h := &handle{c: c, kind: "locks", name: match}
		seen, names := map[string]bool{}, map[string]string{}
		var err error
		for key, failed := range c.run.Hashes(ctx, escapeGlob(c.prefix)+match) {
			if err = failed; err != nil {
				break
			}
			if seen[key] || isOurs(key) {
				continue
			}
			seen[key] = true
			info, held, failed := c.lockAt(ctx, key)
			if err = failed; err != nil {
				break
			}
			if held {
				c.identify(ctx, info.Holders, names)
			}
			if held && !yield(info, nil) {
				return
			}
		}
		if err != nil {
			yield(Info{}, h.failed("list", err))
		}
	}
}

// lockAt reads the lock at a key; false: there is none.
func (c *Client) lockAt(ctx context.Context, key string) (Info, bool, error) {
	if err := context.Cause(ctx); err != nil {
		return Info{}, false, err
	}
	if err := c.begin(ctx); err != nil {
		return Info{}, false, err
	}
	defer c.calls.Done()
	keys := []any{key}
	for _, more := range []string{tokenPrefix, fairQueue, fairSigns} {
		keys = append(keys, prefixed(more, key))
	}
	if c.enforcesSlots() && slotOf(key) != slotOf(keys[1].(string)) {
		keys = keys[:1]
	}
	reply, err := c.run.Do(ctx, lockList, keys)
	if len(keys) > 1 && err != nil && (divisible(err) || redis.HasErrorPrefix(err, "CROSSSLOT")) {
		// Keys that Redis refuses, because they are in other slots, have moved, or are not allowed, tell nothing.
		reply, err = c.run.Do(ctx, lockList, keys[:1])
	}
	if isWrongType(err) {
		return Info{}, false, nil // it was a hash a moment ago
	}
	if err != nil {
		return Info{}, false, err
	}
	answer := reply.Value.([]any)
	kind, _ := answer[0].(string)
	info := Info{Name: strings.TrimPrefix(key, c.prefix), Kind: kind, TTL: ttlOf(answer[1].(int64))}
	return info, readLock(&info, answer[2:]), nil
}

// isOurs tells whether key is a hash that this library keeps beside a lock: it may look like a lock.
func isOurs(key string) bool {
	return strings.HasPrefix(key, fairSigns+":") || strings.HasPrefix(key, fairOurs+":") ||
		strings.HasPrefix(key, memoryPrefix+":") && strings.HasSuffix(key, ":"+sharedCounts)
}

// lockList asks what a lock's keys tell of it.
var lockList = scripts.Load("lock/list")

// isWrongType tells whether a key holds another type than a script expects. Miniredis words it differently.
func isWrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// redissonID is how Redisson, and this library, name holders.
var redissonID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:\S+$`)

// readLock fills in the holders from a hash's fields, values and TTLs, and tells whether that hash is a lock that is held.
func readLock(info *Info, fields []any) bool {
	for ; len(fields) >= 3; fields = fields[3:] {
		field, _ := fields[0].(string)
		value, _ := fields[1].(string)
		left, _ := fields[2].(int64)
		both := info.Kind == "reader" || info.Kind == "writer"
		if both && field == "mode" {
			continue
		}
		count, err := strconv.Atoi(value)
		if err != nil || (info.TTL < 0 && !redissonID.MatchString(field)) {
			return false // somebody else's hash: each lock expires
		}
		if both {
			field = strings.TrimSuffix(field, ":write")
		}
		info.Holders = append(info.Holders, Holder{ID: field, Count: count, TTL: ttlOf(left)})
	}
	return len(info.Holders) > 0
}

// escapeGlob makes a glob that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

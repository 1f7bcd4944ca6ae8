package primitives

import (
	"context"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/scripts"
)

// Locks lists the locks that are held now: all kinds of locks, but no semaphores and no latches. match is a
// Redis glob on the user's name. "*" lists all. Each name comes once. An error ends the list: it comes
// with a zero Info.
//
// Kind is what the keys show: "reader" or "writer"; "fair" while the fair lock's queue is in use; "fenced"
// if the name has a fencing token; else "lock". A reader whose leases have ended is not listed. Each
// reader has its own TTL. A hash without expiry is listed only if every field is an id of Redisson's form,
// and a hash of several fields only if one of them is the mode of a read-write lock.
//
// Locks runs SCAN on every master, and one script for each hash that it finds. On a large Redis that
// takes long, but blocks nobody. Not a snapshot: concurrent changes may or may not appear.
func (c *Client) Locks(ctx context.Context, match string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		r := &engine.Resource{Kind: "locks", Name: match}
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
				c.nameClients(ctx, info.Holders, names)
			}
			if held && !yield(info, nil) {
				return
			}
		}
		if err != nil {
			yield(Info{}, failed(r, "list", err))
		}
	}
}

// lockAt reads the lock at a key by lock/list. It returns false if there is none. The other keys show the
// kind. If Redis refuses them, it reads the hash alone, and the kind is then "lock" at worst.
func (c *Client) lockAt(ctx context.Context, key string) (Info, bool, error) {
	if err := context.Cause(ctx); err != nil {
		return Info{}, false, err
	}
	if err := c.core.Begin(ctx); err != nil {
		return Info{}, false, err
	}
	defer c.core.Leave()
	keys := []any{key}
	for _, more := range []string{tokenPrefix, fairQueueKey, fairClientsKey} {
		keys = append(keys, prefixed(more, key))
	}
	if c.enforcesSlots() && redisutil.Slot(key) != redisutil.Slot(keys[1].(string)) {
		keys = keys[:1]
	}
	reply, err := c.run.Do(ctx, lockList, keys)
	if len(keys) > 1 && err != nil && (isDivisible(err) || redis.HasErrorPrefix(err, "CROSSSLOT")) {
		// Redis refuses the other keys: they are in other slots, have moved, or are forbidden.
		reply, err = c.run.Do(ctx, lockList, keys[:1])
	}
	if isWrongType(err) {
		return Info{}, false, nil // it was a hash a moment ago
	}
	if err != nil {
		return Info{}, false, err
	}
	answer := elementsOf(reply.Value, nil)
	info := Info{
		Name: strings.TrimPrefix(key, c.prefix), Kind: answer.text(), TTL: ttlOf(answer.number()),
		Token: tokenOf(answer.next()),
	}
	held := readLock(&info, &answer)
	return info, held, answer.err
}

// isOurs reports whether key is a hash that this library keeps beside a lock. Its fields may look like
// a lock's.
func isOurs(key string) bool {
	return strings.HasPrefix(key, fairClientsKey+":") || strings.HasPrefix(key, fairWaitersKey+":") ||
		strings.HasPrefix(key, requestPrefix+":")
}

// lockList reads a lock's kind and holders from its keys.
var lockList = scripts.Load("lock/list")

// isWrongType reports whether a key holds another type than a script expects. Miniredis words it
// differently.
func isWrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// redissonID is the form of the ids that Redisson and this library give to holders.
var redissonID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:\S+$`)

// readLock fills in the holders from a hash's fields, values and TTLs. It returns false if the hash is no
// lock, or is not held.
func readLock(info *Info, fields *elements) bool {
	for fields.more() {
		field, value, left := fields.text(), fields.text(), fields.number()
		both := info.Kind == "reader" || info.Kind == "writer"
		if both && field == "mode" {
			continue
		}
		count, err := strconv.Atoi(value)
		if err != nil || (info.TTL < 0 && !redissonID.MatchString(field)) {
			return false // no lock: locks expire
		}
		if both {
			field = strings.TrimSuffix(field, ":write")
		}
		info.Holders = append(info.Holders, Holder{ID: field, Count: count, TTL: ttlOf(left)})
	}
	return len(info.Holders) > 0
}

// escapeGlob returns a glob that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

package primitives

import (
	"context"
	"iter"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Locks walks over the locks that are held now, by SCAN on every master: those of every kind whose key is a hash, each name once. match is
// Redis's glob on the user's name, "*" for all. Kind is what the key can tell: "reader" or "writer", else "lock". A hash that neither expires nor
// has a Redisson id in every field is taken for somebody else's. An error ends the walk: it comes with a zero Info.
//
// A walk is no snapshot: what is taken or released while it lasts may be missing or not.
func (c *Client) Locks(ctx context.Context, match string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		h := &handle{c: c, kind: "locks", name: match}
		seen, names := map[string]bool{}, map[string]string{}
		var err error
		for key, failed := range c.run.Hashes(ctx, escapeGlob(c.prefix)+match) {
			if err = failed; err != nil {
				break
			}
			if seen[key] {
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
	reply, err := c.run.Do(ctx, lockInfo, []any{key})
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return Info{}, false, nil // it was a hash a moment ago
	}
	if err != nil {
		return Info{}, false, err
	}
	answer := reply.Value.([]any)
	info := Info{Name: strings.TrimPrefix(key, c.prefix), Kind: "lock", TTL: ttlOf(answer[0].(int64))}
	return info, readLock(&info, answer[1:]), nil
}

// redissonID is how Redisson, and this library, name holders.
var redissonID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:\S+$`)

// readLock fills in the holders from a hash's fields and values, and tells whether that hash is a lock's.
func readLock(info *Info, fields []any) bool {
	locks := info.TTL >= 0 // each lock expires
	strangers := false
	for i := 0; i+1 < len(fields); i += 2 {
		field, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		switch {
		case field == "mode" && value == "read":
			info.Kind = "reader"
		case field == "mode" && value == "write":
			info.Kind = "writer"
		default:
			strangers = strangers || !redissonID.MatchString(field)
		}
	}
	info.Holders = holders(fields, info.TTL)
	entries := len(fields) / 2
	if info.Kind != "lock" {
		entries--
		for i := range info.Holders {
			info.Holders[i].ID = strings.TrimSuffix(info.Holders[i].ID, ":write")
		}
	}
	return len(info.Holders) > 0 && len(info.Holders) == entries && (locks || !strangers)
}

// escapeGlob makes a glob that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

package primitives

import (
	"context"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"github.com/redlatch/redlatch/internal/presence"
	"github.com/redlatch/redlatch/scripts"
)

// Locks lists the locks that are held now: all kinds of locks, but no semaphores and no latches.
// match is a Redis glob on the user's name. "*" lists all. Each name comes once. An error ends the
// list: it comes with a zero Info.
//
// Kind is what the keys show: "reader" or "writer"; "fair" while the fair lock's queue is in use;
// "fenced" if the name has a fencing token; else "lock". Waiters are the waiters of a fair lock, in
// order. A reader whose leases have ended is not listed. Each reader has its own TTL. A hash
// without expiry is listed only if every field is an id of Redisson's form, and a hash of several
// fields only if one of them is the mode of a read-write lock.
//
// Locks runs SCAN on every master, and one script for each hash that it finds, many in a pipeline.
// On a large Redis that takes long, but does not block the server. Not a snapshot: concurrent
// changes may or may not appear.
func (c *Client) Locks(ctx context.Context, match string) iter.Seq2[Info, error] {
	return c.list(ctx, "locks", match, c.run.Hashes(ctx, escapeGlob(c.prefix)+match),
		func(key string) (Info, bool, error) { return c.lockAt(ctx, key) })
}

// lockAt reads the lock at a key by lock/list. It returns false if there is none. The other keys
// show the kind. If Redis refuses them, it reads the hash alone, and the kind is then "lock" at
// worst.
func (c *Client) lockAt(ctx context.Context, key string) (Info, bool, error) {
	token := prefixed(tokenPrefix, key)
	of := &scripts.KindKeys{TokenKey: token, Queue: prefixed(fairQueueKey, key), Clients: prefixed(fairClientsKey, key)}
	reply, err := withOthers(ctx, c, key, token,
		scripts.LockList{Keys: &scripts.Keys{Main: key, KindKeys: of}},
		scripts.LockList{Keys: &scripts.Keys{Main: key}})
	if scripts.IsWrongType(err) {
		return Info{}, false, nil // the key was a hash a moment ago, and is not any longer
	}
	if err != nil {
		return Info{}, false, err
	}
	info := Info{
		Name: strings.TrimPrefix(key, c.prefix), Kind: reply.Kind, TTL: ttlOf(reply.PTTL),
		Waiters: reply.Waiters, Token: scripts.TokenOf(reply.Token),
	}
	held := addHolders(&info, reply.Fields)
	return info, held, nil
}

// isOurs reports whether the key is one that this library keeps beside a lock. It may look like a
// lock or a number.
func isOurs(key string) bool {
	for _, prefix := range []string{
		fairClientsKey, fairWaitersKey, tokenPrefix, requestPrefix, rwReservation, presence.ClientName,
	} {
		if strings.HasPrefix(key, prefix+":") {
			return true
		}
	}
	return false
}

// redissonID is the form of the ids that Redisson and this library give to holders.
var redissonID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}:\S+$`)

// addHolders fills in the holders from a hash's fields. It returns false if the hash is no lock, or
// is not held.
func addHolders(info *Info, fields []scripts.LockListField) bool {
	for _, f := range fields {
		field := f.Field
		both := info.Kind == "reader" || info.Kind == "writer"
		if both && field == "mode" {
			continue
		}
		count, err := strconv.Atoi(f.Value)
		mayBeLock := info.TTL >= 0 || redissonID.MatchString(field) // locks expire
		if err != nil || !mayBeLock {
			return false
		}
		if both {
			field = strings.TrimSuffix(field, ":write")
		}
		info.Holders = append(info.Holders, Holder{ID: field, Count: count, TTL: ttlOf(f.PTTL)})
	}
	return len(info.Holders) > 0
}

// escapeGlob returns a glob that matches s alone.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

package primitives

import (
	"context"
	"iter"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/presence"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/scripts"
)

// This file finds out what is in Redis under a name whose kind is unknown. It is for people and
// tools.

// kindInteger is the kind of a number that may belong to a semaphore, a latch or something else.
const kindInteger = "integer"

// Inspect describes what is in Redis under name, whatever its kind:
//
//   - a lock, as [Client.Locks] does, with a fair lock's waiters, and even if nobody holds it but
//     it has waiters or a fencing counter;
//   - permits, if some are taken, as [PermitExpirableSemaphore.Info] does;
//   - any other whole number, as kind "integer": it may be a semaphore, permits that are all free,
//     a latch, or somebody's counter. Permits and Available are the number, and TTL is the key's.
//
// The Kind is "" if there is nothing. Data of another program is [ErrForeign], and the error says
// what it is.
func (c *Client) Inspect(ctx context.Context, name string) (Info, error) {
	info, err := c.inspect(ctx, name)
	if err != nil {
		return Info{}, failed(&engine.Resource{Core: c.core, Kind: "name", Name: name}, "inspect", err)
	}
	info.Name = name
	return info, nil
}

func (c *Client) inspect(ctx context.Context, name string) (Info, error) {
	if name == "" {
		return Info{}, invalid("an empty name")
	}
	info, held, err := c.lockAt(ctx, c.prefix+name)
	if err != nil {
		return Info{}, err
	}
	isLock := held || info.Token > 0
	if isLock || len(info.Waiters) > 0 {
		c.nameHolders(ctx, info.Holders)
		return info, nil
	}
	info, err = c.numberAt(ctx, c.prefix+name)
	if err == nil && info.Kind == "" {
		err = c.foreignAt(ctx, c.prefix+name)
	}
	return info, err
}

// typeAt returns the type of a key, or "none" if there is no such key.
func (c *Client) typeAt(ctx context.Context, key string) (string, error) {
	values, err := c.run.Commands(ctx, []any{"type", key})
	if err != nil {
		return "", err
	}
	found, _ := values[0].(string)
	return found, nil
}

// foreignAt returns [ErrForeign] if a key holds something other than a lock or a number.
func (c *Client) foreignAt(ctx context.Context, key string) error {
	return c.during(ctx, func() error {
		keys := &scripts.Keys{Main: key}
		_, err := scripts.LockInfo{Keys: keys}.Do(ctx, c.calls)
		if scripts.IsForeign(err) { // it may be foreign to locks of that kind only
			_, err = scripts.RWLockWriteInfo{Keys: keys}.Do(ctx, c.calls)
		}
		if !scripts.IsWrongType(err) {
			return err
		}
		found, failed := c.typeAt(ctx, key)
		if failed == nil && found != "none" {
			failed = &foreignError{holds("a " + found), err}
		}
		return failed
	})
}

// Numbers lists whole numbers: semaphores, permits, latches, and counters of others. match is a
// Redis glob on the user's name. Each number comes once, as [Client.Inspect] describes it. An error
// ends the list: it comes with a zero Info. The numbers that this library and Redisson keep beside
// a lock are left out.
//
// Numbers runs SCAN on every master and reads the beginning of every string that matches. On a
// large Redis that takes long, but does not block the server. Not a snapshot: concurrent changes
// may or may not appear.
func (c *Client) Numbers(ctx context.Context, match string) iter.Seq2[Info, error] {
	return c.list(ctx, "numbers", match, c.run.Keys(ctx, escapeGlob(c.prefix)+match, "string"),
		func(key string) (Info, bool, error) {
			if strings.Contains(key, ":rwlock_timeout:") { // the lease of a reader's count
				return Info{}, false, nil
			}
			info, err := c.numberAt(ctx, key)
			return info, info.Kind != "", err
		})
}

// listed is what was found at one key of a list.
type listed struct {
	info    Info
	belongs bool // in the list
	err     error
}

// readTogether is how many keys of a list are read at a time. The runner puts them into a few
// pipelines.
const readTogether = 100

// list yields what read finds at each of the keys, once, and ends with the first error. read also
// reports whether its result belongs in the list. Many goroutines call it. list skips keys that
// this library keeps beside others.
func (c *Client) list(
	ctx context.Context, kind, match string, keys iter.Seq2[string, error],
	read func(key string) (Info, bool, error),
) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		fail := func(err error) {
			yield(Info{}, failed(&engine.Resource{Core: c.core, Kind: kind, Name: match}, "list", err))
		}
		known := map[string]*presence.About{}
		// yieldAll reads these keys, and reports whether the list goes on.
		yieldAll := func(keys []string) bool {
			found := make([]listed, len(keys))
			var readers sync.WaitGroup
			for i, key := range keys {
				readers.Go(func() { found[i].info, found[i].belongs, found[i].err = read(key) })
			}
			readers.Wait()
			var holders []*Holder
			for i := range found {
				for j := range found[i].info.Holders {
					holders = append(holders, &found[i].info.Holders[j])
				}
			}
			c.nameClients(ctx, holders, known)
			for _, at := range found {
				switch {
				case at.err != nil:
					fail(at.err)
					return false
				case at.belongs && !yield(at.info, nil):
					return false
				}
			}
			return true
		}
		seen := map[string]bool{}
		var next []string
		for key, err := range keys {
			if err != nil {
				if yieldAll(next) {
					fail(err)
				}
				return
			}
			if seen[key] || isOurs(key) {
				continue
			}
			seen[key] = true
			next = append(next, key)
			if len(next) == readTogether {
				if !yieldAll(next) {
					return
				}
				next = nil
			}
		}
		yieldAll(next)
	}
}

// numberAt reads the number at a key by semaphore/list. The Kind is "" if there is none.
func (c *Client) numberAt(ctx context.Context, key string) (info Info, err error) {
	leases := suffixed(key, "timeout")
	reply, err := withOthers(ctx, c, key, leases,
		scripts.SemaphoreList{Keys: &scripts.Keys{Main: key, KindKeys: &scripts.KindKeys{Leases: leases}}},
		scripts.SemaphoreList{Keys: &scripts.Keys{Main: key}})
	if err != nil {
		if scripts.IsWrongType(err) {
			err = nil
		}
		return Info{}, err
	}
	name := strings.TrimPrefix(key, c.prefix)
	if reply.Kind == permitsKind {
		return c.PermitExpirableSemaphore(name).Info(ctx)
	}
	n, err := strconv.Atoi(reply.Number)
	if err != nil {
		return Info{}, nil // not a number of 64 bits, so it is none of ours
	}
	return Info{Name: name, Kind: kindInteger, TTL: ttlOf(reply.PTTL), Permits: n, Available: n}, nil
}

// withOthers runs a script that also reads other keys. If Redis refuses these keys, because they
// are in other slots, have moved, or are forbidden, it runs the call that reads one key alone.
// other is one of the other keys.
func withOthers[R any, C interface {
	Do(ctx context.Context, by scripts.Sender) (R, error)
}](ctx context.Context, c *Client, key, other string, all, alone C) (reply R, err error) {
	err = c.during(ctx, func() error {
		if !c.enforcesSlots() || redisutil.Slot(key) == redisutil.Slot(other) {
			reply, err = all.Do(ctx, c.calls)
			if !isDivisible(err) && !redis.HasErrorPrefix(err, "CROSSSLOT") {
				return err
			}
		}
		reply, err = alone.Do(ctx, c.calls)
		return err
	})
	return reply, err
}

package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// wireKey is a key of a primitive, and the type that it has.
type wireKey struct{ name, kind string }

// keysOfKind lists the keys of the kinds in strangeKinds, for a name without braces.
func keysOfKind(p any, fenced, fair bool, name string) []wireKey {
	requests := "redisson_unlock_latch:{" + name + "}:"
	keys := []wireKey{{name, "hash"}, {requests + "shared", "hash"}}
	switch p.(type) {
	case *primitives.Semaphore, *primitives.CountDownLatch:
		return []wireKey{{name, "string"}}
	case *primitives.PermitExpirableSemaphore:
		return []wireKey{{name, "string"}, {"{" + name + "}:timeout", "zset"}}
	}
	if fair {
		return append(keys, wireKey{"redisson_lock_queue:{" + name + "}", "list"},
			wireKey{"redisson_lock_timeout:{" + name + "}", "zset"},
			wireKey{"redlatch_lock_waiters:{" + name + "}", "hash"}, wireKey{"redlatch_lock_clients:{" + name + "}", "hash"})
	}
	if fenced {
		keys = append(keys, wireKey{"redisson_lock_token:{" + name + "}", "string"})
	}
	return append(keys, wireKey{requests + "line", "zset"}, wireKey{"redlatch_rwlock_claim:{" + name + "}", "string"})
}

// foreign returns the commands that store chosen content of any type at a key.
func foreign(c *choices, key string) (kind string, command []any) {
	texts := []string{
		"", "0", "1", "2", "-1", "1.5", "1e5", "0x10", "inf", "-inf", "nan", "9223372036854775807",
		"-9223372036854775808", "99999999999999999999", "1700000000000", " 1", "01", "x", "read", "write", "\x00\xff\n{}",
		strings.Repeat("7", 300), "somebody", "client 1000 30000 1700000000000", "client 9 9999999999999999999 5",
	}
	fields := []string{
		"mode", "me", "somebody", "me:write", "somebody:write", ":write", "x", "shared", "reach", "front", "holder",
		"6f1ed002-ab5f-4a5c-9b3a-a0a9a9a9a9a9:1", "client", "", "0123456789abcdef", "\x01\x23\x45\x67\x89\xab\xcd\xef" +
			"\x01\x23\x45\x67\x89\xab\xcd\xef",
	}
	scores := []any{"0", "1", "-1", "inf", "-inf", "1e300", "-1e300", "1700000000000", "922337203685477", "1.5"}
	n := 1 + c.next()%4
	if c.next() == 255 {
		n = 3000
	}
	element := func(i int, from []string) string {
		if i >= 4 {
			return fmt.Sprint(i)
		}
		return pick(c, from...)
	}
	switch kind = pick(c, "string", "list", "set", "zset", "hash", "stream"); kind {
	case "string":
		return kind, []any{"set", key, pick(c, texts...)}
	case "list", "set":
		command = []any{map[string]string{"list": "rpush", "set": "sadd"}[kind], key}
		for i := range n {
			command = append(command, element(i, fields))
		}
	case "zset":
		command = []any{"zadd", key}
		for i := range n {
			command = append(command, pick(c, scores...), element(i, fields))
		}
	case "hash":
		command = []any{"hset", key}
		for i := range n {
			command = append(command, element(i, fields), pick(c, texts...))
		}
	default:
		command = []any{"xadd", key, "*", "f", "v"}
	}
	return kind, command
}

// isWholeNumber reports whether Redis can count with a text.
func isWholeNumber(text string) bool {
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == text
}

// FuzzForeignKeys stores content of any type at a key of each primitive, and then calls its
// methods. They return in time, with few commands, and with Redis's own errors. Content of another
// type than the key's, and a number that is none, is never changed, and keeps no lock held.
func FuzzForeignKeys(f *testing.F) {
	s := redistest.Fresh(f)
	admin := s.Client(f)
	for kind := range byte(ofOneName()) {
		for key := range byte(6) {
			for what := range byte(6) {
				f.Add(kind, key, []byte{0, 0, what, kind + key + what, what + 10}, []byte{0, 16, what, 1, key, 16})
			}
		}
	}
	f.Add(strangeKind("permits"), byte(0), []byte("B"), []byte("2")) // "01"
	readerHash := []byte{1, 0, 4, 0, 18, 1, 14}
	f.Add(strangeKind("reader"), byte(0), readerHash, []byte{5, 1, 16, 18, 19, 4}) // with 1.7e12 holds
	f.Add(byte(0), byte(0), readerHash, []byte{18, 19})
	f.Fuzz(func(t *testing.T, kind, at byte, content, ops []byte) {
		ctx := context.Background()
		if err := admin.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		rdb := s.Client(t, fixture.NoRetries)
		var sent fixture.CountingHook
		rdb.AddHook(&sent)
		c, err := primitives.New(rdb, primitives.WithDefaults(primitives.WithWait(50*time.Millisecond)))
		if err != nil {
			t.Fatal(err)
		}
		defer fixture.CloseNow(c)
		n := int(kind) % ofOneName()
		session := &session{c: c, p: strangeKinds()[n](c, "x"), name: "x", ctx: ctx}
		keys := keysOfKind(session.p, byte(n) == strangeKind("fenced"), byte(n) == strangeKind("fair"), "x")
		key := keys[int(at)%len(keys)]
		choose := &choices{data: content}
		stored, command := foreign(choose, key.name)
		if err := admin.Do(ctx, command...).Err(); err != nil {
			t.Fatal(err)
		}
		if pick(choose, false, false, true) {
			admin.PExpire(ctx, key.name, time.Hour)
		}
		before, ttl := admin.Dump(ctx, key.name).Val(), admin.PTTL(ctx, key.name).Val()
		text := admin.Get(ctx, key.name).Val()
		var path []string
		for _, op := range ops[:min(len(ops), 8)] {
			call := strangeOps[int(op)%len(strangeOps)]
			began := time.Now()
			err := session.do(call.call)
			path = append(path, fmt.Sprintf("%s: %v", call.name, err))
			if took := time.Since(began); took > 5*time.Second {
				t.Fatalf("%v\n%q\ntook %v", path, command, took)
			}
			if errors.Is(err, primitives.ErrOutcomeUnknown) {
				return // no answer within the wait
			}
			var reply redis.Error
			if err != nil && !errors.As(err, &reply) && !isOurError(err) {
				t.Fatalf("%q %v: an error of no type: %v", command[:min(len(command), 20)], path, err)
			}
			foreignLock := key == keys[0] && stored != key.kind
			acquires := !errors.Is(err, errNoSuchCall) && (call.name == "try" || call.name == "acquire")
			if foreignLock && acquires {
				if !isWrongType(err) { // the wait may have ended before the first answer
					err = session.acquired(session.p.(fixture.Handle).Acquire(ctx, primitives.WithWait(fixture.Soon)))
				}
				if !isWrongType(err) {
					t.Fatalf("%v: the key has type %s: %v", path, stored, err)
				}
			}
		}
		for _, hold := range session.held {
			_ = hold.Release(ctx)
		}
		fixture.CloseNow(c)
		if n := sent.N.Load(); n > 200 {
			t.Fatalf("%v: %d commands", path, n)
		}
		what := fmt.Sprintf("kind %d, %q, %v", n, command[:min(len(command), 20)], path)
		if stored != key.kind || (stored == "string" && key.kind == "string" && !isWholeNumber(text) &&
			!strings.HasPrefix(key.name, "redlatch_rwlock_claim")) {
			if admin.Dump(ctx, key.name).Val() != before {
				t.Fatalf("%s: the content has changed", what)
			}
			if after := admin.PTTL(ctx, key.name).Val(); after > ttl || (after < 0) != (ttl < 0) {
				t.Fatalf("%s: its ttl was %v and is %v", what, ttl, after)
			}
			if key != keys[0] && keys[0].kind == "hash" && admin.Exists(ctx, "x").Val() != 0 {
				t.Fatalf("%s: the lock stays held: %v, ttl %v", what, admin.HGetAll(ctx, "x").Val(), admin.PTTL(ctx, "x").Val())
			}
		}
		if keys[0].kind == "hash" && (key != keys[0] || ttl > 0) && admin.PTTL(ctx, "x").Val() == -1 {
			t.Fatalf("%s: the lock has no ttl: %v", what, admin.HGetAll(ctx, "x").Val())
		}
	})
}

func isWrongType(err error) bool { return err != nil && strings.Contains(err.Error(), "WRONGTYPE") }

// isOurError reports whether err is one of the library's documented errors.
func isOurError(err error) bool {
	for _, known := range []error{
		primitives.ErrNotAcquired, primitives.ErrLost, primitives.ErrNotHeld, primitives.ErrDeadlock,
		primitives.ErrUnsupported, primitives.ErrInvalid, primitives.ErrOutcomeUnknown, errNoSuchCall,
		context.DeadlineExceeded,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

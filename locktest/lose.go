package locktest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

// Lose ends hold's ownership on the server, as an operator's forced release does. When Lose
// returns, the hold's context has ended with [primitives.ErrLost] and waiters have been woken up.
// Release then returns ErrLost. Nested holds are lost too. Other holders are not affected: other
// readers keep the lock, and other permits stay acquired.
//
// Lose works for every kind with a lease, for joint locks, and for any name. The hold of a plain
// semaphore has no lease and cannot be lost. The hold must be in database 0 of this server, and its
// client must be able to reach the server. Lose calls t.Fatalf if there is no such hold.
func (s *Server) Lose(t testing.TB, hold *primitives.Hold) {
	t.Helper()
	if hold.ID() == "" {
		t.Fatalf("locktest: a hold of %q without an id cannot be lost", hold.Name())
	}
	ctx := context.Background() // t.Context is cancelled already if a t.Cleanup calls Lose
	switch found, err := s.releaseAll(ctx, hold); {
	case err != nil:
		t.Fatalf("locktest: lose %q of %q: %v", hold.ID(), hold.Name(), err)
	case !found:
		t.Fatalf("locktest: %q of %q holds nothing on this server", hold.ID(), hold.Name())
	}
	// Check makes the client notice the loss now instead of at its next renewal.
	if err := hold.Check(ctx); !errors.Is(err, primitives.ErrLost) {
		t.Fatalf("locktest: %q of %q is not lost: %v", hold.ID(), hold.Name(), err)
	}
}

// LoseName is [Server.Lose] for tests without a hold at hand, because the code under test calls Do:
// it ends whatever is held under name, by whichever clients. Name is the whole name in Redis, with
// the prefix of [primitives.WithPrefix]. For a joint lock it is the name of one member.
//
// When LoseName returns, the former holders have lost name, and their clients have been told. A
// client then asks the server, so the context of a hold ends milliseconds later: wait for it. (In a
// bubble, synctest.Wait does.) A client listens for such a message when one of its holds is about a
// second old, and LoseName waits for that, for 1.5 s at most. A hold whose client does not hear it,
// as behind a partition, ends at its next renewal.
//
// A plain semaphore has no holders in Redis. LoseName calls t.Fatalf if nothing is held.
func (s *Server) LoseName(t testing.TB, name string) {
	t.Helper()
	ctx := context.Background() // t.Context is cancelled already if a t.Cleanup calls LoseName
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	notices, err := s.releaseName(ctx, rdb, name)
	if err == nil {
		err = notices.deliver(ctx, rdb)
	}
	if err != nil {
		t.Fatalf("locktest: lose %q: %v", name, err)
	}
}

// direct returns a client that bypasses the link, which may be cut.
func (s *Server) direct() *redis.Client {
	o := s.Options()
	o.Dialer = s.dial
	return redis.NewClient(o)
}

// releaseName releases all that is held under name. It returns what the former holders must hear.
func (s *Server) releaseName(ctx context.Context, rdb *redis.Client, name string) (sent notices, err error) {
	// The first command also starts the miniredis, which the hook needs.
	if err := rdb.Ping(ctx).Err(); err != nil {
		return nil, err
	}
	client, err := primitives.New(rdb)
	if err != nil {
		return nil, err
	}
	info, err := client.Inspect(ctx, name)
	switch {
	case err != nil:
	case len(info.Holders) == 0:
		err = fmt.Errorf("nothing is held under that name, kind %q", info.Kind)
	default:
		s.hookMu.Lock()
		defer s.hookMu.Unlock()
		var mu sync.Mutex // the hook runs in the server's goroutines
		mini := s.mini.Server()
		mini.SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
			if command == "PUBLISH" && len(args) == 2 && strings.HasPrefix(args[0], "redlatch_holder:") {
				mu.Lock()
				defer mu.Unlock()
				sent = append(sent, notice{args[0], args[1]})
			}
			return false
		})
		defer mini.SetPreHook(nil)
		for _, holder := range info.Holders {
			k := heldKey{kindOf(info.Kind), name}
			if _, err = k.free(ctx, client, rdb, holder.ID); err != nil {
				break
			}
		}
	}
	return sent, errors.Join(err, client.Close(ctx)) // Close waits for the notices
}

// kindOf is the kind with that name in [primitives.Info].
func kindOf(name string) kind {
	switch name {
	case "reader":
		return reader
	case "writer":
		return writer
	case "permits":
		return permits
	}
	return exclusive
}

// notices are messages to the clients of former holders.
type notices []notice

type notice struct{ channel, payload string }

// noticeLimit is how long a notice is repeated until a client hears it. Clients begin to listen
// when a hold is older than 0.7 s, and look for such holds every 0.25 s.
const noticeLimit = 1500 * time.Millisecond

// deliver publishes each notice again until a client hears it. The first publication may have been
// too early. A notice may come twice: it only makes the client ask for its hold.
func (n notices) deliver(ctx context.Context, rdb *redis.Client) error {
	until := time.Now().Add(noticeLimit)
	for len(n) > 0 {
		heard, err := rdb.Publish(ctx, n[0].channel, n[0].payload).Result()
		if err != nil {
			return err
		}
		if heard > 0 || time.Now().After(until) {
			n = n[1:]
			continue
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// releaseAll releases every key that hold holds on this server. It reports whether there was one.
func (s *Server) releaseAll(ctx context.Context, hold *primitives.Hold) (found bool, err error) {
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	// The first command also starts the miniredis, which findKeys needs.
	if err := rdb.Ping(ctx).Err(); err != nil {
		return false, err
	}
	client, err := primitives.New(rdb)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()

	keys, err := s.findKeys(ctx, hold)
	if err != nil {
		return false, err
	}
	for _, k := range keys {
		held, err := k.free(ctx, client, rdb, hold.ID())
		if err != nil {
			return found, err
		}
		found = found || held
	}
	return found, nil
}

// heldKey is a key held by a hold: of a lock, of a member of a joint lock, or of a permit
// semaphore.
type heldKey struct {
	kind kind
	name string // full name in Redis, including the client's prefix
}

type kind int

const (
	exclusive kind = iota // plain, fair or fenced
	reader
	writer
	permits
)

// free is release, and wakes up all waiters.
func (k heldKey) free(
	ctx context.Context, client *primitives.Client, rdb *redis.Client, id string,
) (held bool, err error) {
	held, err = k.release(ctx, client, id)
	// Redis does not show whether an exclusive lock is plain or fair. The release has already
	// notified the waiters if the lock is fair. This message wakes the waiters of a plain or fenced
	// lock.
	if err == nil && held && k.kind == exclusive {
		err = rdb.Publish(ctx, lockChannel(k.name), "0").Err()
	}
	return held, err
}

// release releases all counts of id and reports whether there were any.
func (k heldKey) release(ctx context.Context, client *primitives.Client, id string) (held bool, err error) {
	type releaser interface {
		ReleaseID(ctx context.Context, id string) error
	}
	var handles []releaser
	switch k.kind {
	case exclusive:
		handles = []releaser{client.FairLock(k.name)}
	case reader:
		handles = []releaser{client.RWLock(k.name).Reader()}
	case writer: // nested holds of a writer may be readers, under the same id
		handles = []releaser{client.RWLock(k.name).Reader(), client.RWLock(k.name).Writer()}
	case permits:
		handles = []releaser{client.PermitExpirableSemaphore(k.name)}
	}
	for _, h := range handles {
		for {
			err := h.ReleaseID(ctx, id)
			if errors.Is(err, primitives.ErrNotHeld) {
				break
			}
			if err != nil {
				return held, err
			}
			held = true
		}
	}
	return held, nil
}

// lockChannel returns the channel on which Redisson publishes the releases of a lock.
func lockChannel(key string) string {
	if strings.Contains(key, "{") {
		return "redisson_lock__channel:" + key
	}
	return "redisson_lock__channel:{" + key + "}"
}

// findKeys returns the keys that hold holds. It returns none if the hold has ended or belongs to
// another server.
//
// The name of the hold does not identify its keys. It lacks the client's prefix and the kind. A
// joint hold's name is the comma-joined list of its members' names, and any name may contain
// commas. So findKeys makes the hold check itself, and reads the keys from the commands that the
// check sends.
func (s *Server) findKeys(ctx context.Context, hold *primitives.Hold) ([]heldKey, error) {
	s.hookMu.Lock()
	defer s.hookMu.Unlock()
	id, rawIDs := hold.ID(), rawPermitIDs(hold.ID())
	var mu sync.Mutex // the hook runs in the server's goroutines
	var keys []heldKey
	mini := s.mini.Server()
	mini.SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		if k, ok := parseCheck(command, args, id, rawIDs); ok {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(keys, k) { // NOSCRIPT makes the client send the check again
				keys = append(keys, k)
			}
		}
		return false
	})
	defer mini.SetPreHook(nil)
	switch err := hold.Check(ctx); {
	case errors.Is(err, primitives.ErrLost), errors.Is(err, primitives.ErrNotHeld):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("check: %w", err)
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(keys), nil
}

// parseCheck returns the key that a command checks, if the command is a check of id or of the
// permits rawIDs. Only check scripts have the id as their single argument; a writer's id ends in
// ":write". The number of keys identifies the kind: 1 for a lock (its hash), 2 for a reader (also
// the prefix of the readers' leases), 4 for permits.
//
// An id that may be shared is checked by a renewal of 0 ms. It has a key more, which lists the
// acquisitions that share the id, and three arguments: the id, 0, and which acquisition asks.
func parseCheck(command string, args []string, id, rawIDs string) (heldKey, bool) {
	if (command != "EVALSHA" && command != "EVAL") || len(args) < 2 {
		return heldKey{}, false
	}
	keys, err := strconv.Atoi(args[1])
	if err != nil || keys < 1 || len(args) <= 2+keys {
		return heldKey{}, false
	}
	key, rest := args[2], args[2+keys:]
	switch {
	case len(rest) == 1:
	case len(rest) == 3 && rest[1] == "0":
		keys--
	default:
		return heldKey{}, false
	}
	switch arg := rest[0]; {
	case keys == 1 && arg == id:
		return heldKey{exclusive, key}, true
	case keys == 1 && arg == id+":write":
		return heldKey{writer, key}, true
	case keys == 2 && arg == id:
		return heldKey{reader, key}, true
	case keys > 2 && rawIDs != "" && arg == rawIDs:
		return heldKey{permits, key}, true
	}
	return heldKey{}, false
}

// rawPermitIDs returns the comma-separated permit ids in id as Redis stores them: raw bytes,
// concatenated. It returns "" if id is not a list of permit ids.
func rawPermitIDs(id string) string {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, ",", ""))
	if err != nil {
		return ""
	}
	return string(raw)
}

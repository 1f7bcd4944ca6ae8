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

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/primitives"
)

// Lose takes away what hold holds, as an operator who releases it by force would. When Lose returns,
// the hold's context has ended with [primitives.ErrLost], its waiters are woken and may acquire, and
// Release will return ErrLost. Nested holds are lost too. Other holders stay: readers beside a
// reader, permits beside a permit.
//
// It works for every kind that can be lost, joint locks too, and for any name. A plain semaphore's
// hold has no lease and cannot be lost. The hold must be on this server's database 0, and its client
// must reach the server. t fails at once if hold holds nothing there.
func (s *Server) Lose(t testing.TB, hold *primitives.Hold) {
	t.Helper()
	if hold.ID() == "" {
		t.Fatalf("locktest: a hold of %q without an id cannot be lost", hold.Name())
	}
	ctx := context.Background() // for t.Cleanup too
	switch found, err := s.take(ctx, hold); {
	case err != nil:
		t.Fatalf("locktest: lose %q of %q: %v", hold.ID(), hold.Name(), err)
	case !found:
		t.Fatalf("locktest: %q of %q holds nothing on this server", hold.ID(), hold.Name())
	}
	if err := hold.Check(ctx); !errors.Is(err, primitives.ErrLost) {
		t.Fatalf("locktest: %q of %q is not lost: %v", hold.ID(), hold.Name(), err)
	}
}

// take releases all that hold holds on this server, and tells whether there was anything.
func (s *Server) take(ctx context.Context, hold *primitives.Hold) (found bool, err error) {
	o := s.Options()
	o.Dialer = s.dial // past the link
	rdb := redis.NewClient(o)
	defer func() { _ = rdb.Close() }()
	if err := rdb.Ping(ctx).Err(); err != nil { // it also starts the miniredis, which watch needs
		return false, err
	}
	client, err := primitives.New(rdb)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()

	places, err := s.watch(ctx, hold)
	if err != nil {
		return false, err
	}
	for _, p := range places {
		held, err := p.free(ctx, client, hold.ID())
		if err != nil {
			return found, err
		}
		found = found || held
		// A plain lock and a fair one look alike in Redis. The release by a fair lock's script has woken
		// the waiters of a fair lock. This message wakes those of a plain one.
		if p.kind == exclusive && held {
			if err := rdb.Publish(ctx, lockChannel(p.key), "0").Err(); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// place is where a hold holds something: a lock, a member of a joint lock, or a semaphore.
type place struct {
	kind kind
	key  string // the full name in Redis, with the client's prefix
}

type kind int

const (
	exclusive kind = iota // plain, fair or fenced
	reader
	writer
	permits
)

// free releases all counts of id, and tells whether there were any.
func (p place) free(ctx context.Context, client *primitives.Client, id string) (held bool, err error) {
	type releaser interface {
		ReleaseID(ctx context.Context, id string) error
	}
	var of []releaser
	switch p.kind {
	case exclusive:
		of = []releaser{client.FairLock(p.key)}
	case reader:
		of = []releaser{client.RWLock(p.key).Reader()}
	case writer: // may read too, by nested holds
		of = []releaser{client.RWLock(p.key).Reader(), client.RWLock(p.key).Writer()}
	case permits:
		of = []releaser{client.PermitExpirableSemaphore(p.key)}
	}
	for _, r := range of {
		for {
			err := r.ReleaseID(ctx, id)
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

// lockChannel is Redisson's channel of a lock's releases.
func lockChannel(key string) string {
	if strings.Contains(key, "{") {
		return "redisson_lock__channel:" + key
	}
	return "redisson_lock__channel:{" + key + "}"
}

// watch finds out where hold holds something. A name alone does not tell: it lacks the client's
// prefix and the kind, and the name of a joint hold is that of its members, joined by commas, while
// any name may contain commas. So watch has the hold ask Redis, and reads what it asks for. There is
// none if the hold has ended or asks another server.
func (s *Server) watch(ctx context.Context, hold *primitives.Hold) ([]place, error) {
	s.watching.Lock() // the miniredis has one hook
	defer s.watching.Unlock()
	id, raw := hold.ID(), rawPermits(hold.ID())
	var mu sync.Mutex
	var places []place
	mini := s.mini.Server()
	mini.SetPreHook(func(_ *server.Peer, command string, args ...string) bool {
		if p, ok := asked(command, args, id, raw); ok {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(places, p) { // a script that Redis did not know is sent twice
				places = append(places, p)
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
	return slices.Clone(places), nil
}

// asked reads a command. If it is a script that checks whether id, or the permits raw, is held, asked
// returns what the script is about. Those scripts, and only those, have the id as their one argument;
// a writer's ends in ":write". Their keys tell the kinds apart: a lock's script has its hash alone, a
// reader's also the prefix of the readers' leases, and one for permits four.
func asked(command string, args []string, id, raw string) (place, bool) {
	if (command != "EVALSHA" && command != "EVAL") || len(args) < 2 {
		return place{}, false
	}
	keys, err := strconv.Atoi(args[1])
	if err != nil || keys < 1 || len(args) != 2+keys+1 {
		return place{}, false
	}
	key, arg := args[2], args[2+keys]
	switch {
	case keys == 1 && arg == id:
		return place{exclusive, key}, true
	case keys == 1 && arg == id+":write":
		return place{writer, key}, true
	case keys == 2 && arg == id:
		return place{reader, key}, true
	case keys > 2 && raw != "" && arg == raw:
		return place{permits, key}, true
	}
	return place{}, false
}

// rawPermits are the ids of permits as they stand in Redis, one behind the other; "" if id is none.
func rawPermits(id string) string {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, ",", ""))
	if err != nil {
		return ""
	}
	return string(raw)
}

package pubsub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// router maps channels to servers. It holds everything in which the kinds of pub/sub differ, except
// the names of the commands.
type router interface {
	sharded() bool
	// serverFor returns the server on which to subscribe the channel. It may do I/O.
	serverFor(ctx context.Context, channel string) (server, error)
	// refresh reloads the server map in the background, after a placement has failed.
	refresh(ctx context.Context)
}

// server identifies a server to subscribe on, and how to connect to it.
type server struct {
	name    string // unique per server
	sharded bool
	options *redis.Options
	// check returns why a link to the server at addr should leave it, if it should. It does no I/O
	// in the foreground. Nil if nothing but the connection can fail.
	check func(ctx context.Context, addr net.Addr) error
}

// plainServer is the name of the only server of plain pub/sub.
const plainServer = ""

// single and cluster are the methods that this package needs from a client. They are interfaces so
// that structs that embed a go-redis client work too.
type (
	single interface {
		Options() *redis.Options
	}
	cluster interface {
		Options() *redis.ClusterOptions
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
		ReloadState(ctx context.Context)
	}
)

// newRouter chooses the kind of pub/sub. It may ask servers, in goroutines that it starts with
// spawn.
func newRouter(ctx context.Context, spawn func(func()), rdb redis.UniversalClient, cfg Config) (router, error) {
	switch c := rdb.(type) {
	case cluster:
		on, err := detectSharded(ctx, spawn, c, cfg.Sharded)
		if err != nil {
			return nil, err
		}
		if on {
			return shardRouter{c}, nil
		}
		return clusterRouter{c}, nil
	case single:
		if cfg.Sharded != nil && *cfg.Sharded {
			return nil, fmt.Errorf("%w: sharded pub/sub needs a cluster", ErrUnsupported)
		}
		return singleRouter{c.Options(), cfg.Server}, nil
	default:
		return nil, fmt.Errorf("%w: %T is neither a Client nor a ClusterClient", ErrUnsupported, rdb)
	}
}

// Limits of detectSharded, which asks further masters while earlier ones have not answered.
const (
	askNext = 100 * time.Millisecond // pause before the next master is asked
	// maxAsked is also enough to load the cluster map: each attempt makes go-redis ask a random
	// server for it.
	maxAsked   = 12
	maxLookups = 32 // lookups of random keys, to find a master that was not asked before
)

// detectSharded asks random masters for the kind of pub/sub, until one has answered. It does not
// wait for a server that hangs or is down, because it may not be one that the caller needs.
func detectSharded(ctx context.Context, spawn func(func()), c cluster, sharded *bool) (bool, error) {
	type answer struct {
		on  bool
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	masters := &unasked{cluster: c, asked: make(map[string]bool)}
	answers := make(chan answer, maxAsked) // no goroutine blocks when nobody listens any more
	next := time.NewTicker(askNext)
	defer next.Stop()
	asked := 0
	failed := 0
	for {
		if asked < maxAsked {
			asked++
			spawn(func() {
				on, err := askSharded(ctx, masters, sharded)
				answers <- answer{on, err}
			})
		}
		select {
		case a := <-answers:
			failed++
			if a.err == nil || failed == maxAsked {
				return a.on, a.err
			}
		case <-next.C:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// askSharded decides as Redisson does: by the configuration, otherwise by the reply to PUBSUB
// SHARDNUMSUB. It looks up a master in either case. The first lookup loads the client's map of the
// cluster, which must not depend on a single server either.
func askSharded(ctx context.Context, masters *unasked, sharded *bool) (bool, error) {
	node, err := masters.next(ctx)
	switch {
	case err != nil:
		return false, fmt.Errorf("pubsub: find a master: %w", err)
	case sharded != nil:
		return *sharded, nil
	case masters.cluster.Options().ClusterSlots != nil:
		// With a ClusterSlots func the servers may not be a cluster, for instance Sentinel's.
		// Redisson always uses plain pub/sub there.
		return false, nil
	}
	err = node.PubSubShardNumSub(ctx, "0").Err()
	var reply redis.Error
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &reply) && !isTemporary(reply.Error()):
		return false, nil // the server does not know the command
	default:
		return false, fmt.Errorf("pubsub: detect sharded pub/sub: %w", err)
	}
}

// unasked finds masters that were not asked before, for any number of goroutines.
type unasked struct {
	cluster cluster
	mu      sync.Mutex
	asked   map[string]bool // by address
}

// next returns a random master that it has not returned before. In a small cluster it soon returns
// some master again, which may have recovered.
func (u *unasked) next(ctx context.Context) (*redis.Client, error) {
	var node *redis.Client
	for range maxLookups {
		var err error
		node, err = u.cluster.MasterForKey(ctx, randomKey())
		if err != nil {
			return nil, err
		}
		if u.isNew(node.Options().Addr) {
			break
		}
	}
	return node, nil
}

func (u *unasked) isNew(address string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	isNew := !u.asked[address]
	u.asked[address] = true
	return isNew
}

// randomKey returns a key of a random slot.
func randomKey() string { return strconv.Itoa(rand.Int()) } //nolint:gosec // any slot will do

// isTemporary reports whether an error reply is about a temporary state of the server, and not
// about the command.
func isTemporary(reply string) bool {
	switch errorCode(reply) {
	case "LOADING", "NOAUTH", "WRONGPASS", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "MOVED", "ASK":
		return true
	default:
		return strings.Contains(reply, "max number of clients")
	}
}

// errorCode returns the first word of an error reply.
func errorCode(reply string) string {
	word, _, _ := strings.Cut(reply, " ")
	return word
}

// singleRouter is plain pub/sub on a single server. With Sentinel that is the current master, which
// the client looks up for each dial.
type singleRouter struct {
	options *redis.Options
	where   func() (string, int64) // Config.Server
}

func (singleRouter) sharded() bool           { return false }
func (singleRouter) refresh(context.Context) {}
func (r singleRouter) serverFor(context.Context, string) (server, error) {
	s := server{name: plainServer, options: r.options}
	if r.where != nil {
		s.check = r.follow(r.where())
	}
	return s, nil
}

// follow returns the check for a link that is dialed while commands go to the address was and the
// number of moves is before. Only a change counts: a name may resolve to several addresses of one
// server, and the link may reach a new server before the commands do.
func (r singleRouter) follow(was string, before int64) func(context.Context, net.Addr) error {
	return func(_ context.Context, addr net.Addr) error {
		now, moves := r.where()
		isSame := moves == before && (now == "" || now == was)
		before = moves
		if now != "" {
			was = now
		}
		switch {
		case isSame, addr == nil, now == addr.String():
			return nil
		case now == "":
			return errors.New("pubsub: commands have met a former primary")
		}
		return fmt.Errorf("pubsub: commands go to %s now", now)
	}
}

// clusterRouter is plain pub/sub on a cluster. The cluster broadcasts messages, so any master
// works. Each attempt picks a random one, so a dead master is left behind.
type clusterRouter struct{ client cluster }

func (clusterRouter) sharded() bool                 { return false }
func (r clusterRouter) refresh(ctx context.Context) { r.client.ReloadState(ctx) }
func (r clusterRouter) serverFor(ctx context.Context, _ string) (server, error) {
	key := randomKey()
	node, err := r.client.MasterForKey(ctx, key)
	if err != nil {
		return server{}, fmt.Errorf("pubsub: find a master: %w", err)
	}
	options := node.Options()
	check := func(ctx context.Context, _ net.Addr) error { return r.check(ctx, key, options.Addr) }
	return server{name: plainServer, options: options, check: check}, nil
}

// check returns an error if the master at addr has lost the slot of the key by which it was found.
// Before a node leaves the cluster, its slots move. Once it has left, it answers as before, but
// gets no messages. Neither does a former master that Sentinel has replaced.
func (r clusterRouter) check(ctx context.Context, key, addr string) error {
	node, err := r.client.MasterForKey(ctx, key)
	if err != nil {
		return nil //nolint:nilerr // there is no known reason to leave the server
	}
	if now := node.Options().Addr; now != addr {
		return fmt.Errorf("pubsub: the slot for which the server was chosen is on %s now", now)
	}
	return nil
}

// shardRouter is sharded pub/sub: a channel belongs to the master of its slot.
type shardRouter struct{ client cluster }

func (shardRouter) sharded() bool                 { return true }
func (r shardRouter) refresh(ctx context.Context) { r.client.ReloadState(ctx) }
func (r shardRouter) serverFor(ctx context.Context, channel string) (server, error) {
	node, err := r.client.MasterForKey(ctx, channel)
	if err != nil {
		return server{}, fmt.Errorf("pubsub: find the master of %q: %w", channel, err)
	}
	return server{name: node.Options().Addr, sharded: true, options: node.Options()}, nil
}

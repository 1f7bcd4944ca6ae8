package scripts

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// shards has the batchers of a cluster, one for each master, so a slow shard delays only its own
// commands.
//
// The client of the node sends a batch, and follows no redirections. A command that is answered
// MOVED or ASK was not executed. The cluster client then sends it again, alone, and follows the
// redirection. The other commands of the batch do not wait for that.
//
// Do not send batches through the cluster client's own pipelines. If such a pipeline breaks after
// it has followed redirections, go-redis leaves MOVED or ASK as the error of commands that it has
// sent again. Their outcome would seem to be known.
type shards struct {
	r       *Runner
	cluster *redis.ClusterClient // nil if the client is not a cluster client

	mu      sync.Mutex                                 // held while batches is replaced
	batches atomic.Pointer[map[*redis.Client]*batcher] // by each node that had commands; the map is never changed
}

// Server returns a value that stands for the server that has a key now, or nil if the server is not
// known. A server that takes its place, for example after a failover by Sentinel, has another
// value, and a server that is met again has its earlier one. Server sends nothing.
func (r *Runner) Server(key string) any {
	if r.dialed != nil {
		if addr := r.Address(); addr != "" {
			return addr
		}
		return nil
	}
	if r.slots.client == nil || !r.slots.loaded.Load() {
		return nil
	}
	node, err := r.slots.client.MasterForKey(context.Background(), key)
	if err != nil {
		return nil
	}
	return node
}

// Address returns the address of the latest connection of a client that is not a cluster client, or
// "" if it is not known. With Sentinel it is the address of the master to which commands go.
// Address sends nothing.
func (r *Runner) Address() string {
	if r.dialed == nil {
		return ""
	}
	if addr := r.dialed.addr.Load(); addr != nil {
		return *addr
	}
	return ""
}

// The limits of a shard. A cluster has several shards, and other connections for commands that are
// sent alone.
const (
	maxDirectShard = 2
	maxOthersShard = 3
)

// batcher returns the batcher of the shard that has the keys of c. It returns nil if the client is
// not a cluster client, or does not know the shard. Then c is sent alone. The client has a slot
// map, so MasterForKey does not block.
func (s *shards) batcher(ctx context.Context, c call) *batcher {
	if s.cluster == nil || c.firstKey == 0 {
		return nil
	}
	node, err := s.cluster.MasterForKey(ctx, c.args[c.firstKey].(string))
	if err != nil {
		return nil
	}
	return s.of(node, c.end)
}

// of returns the batcher of a node, for a call with that deadline.
func (s *shards) of(node *redis.Client, end *deadline) *batcher {
	b := (*s.batches.Load())[node]
	if b == nil {
		return s.add(node, end)
	}
	if b.latest.Load() != end { // this is rare, because calls share deadlines
		b.latest.Store(end)
	}
	return b
}

// add makes the batcher of a node, for a call with that deadline. It removes the batchers whose
// latest call is over, because their nodes may have left the cluster. A node that has not left gets
// another batcher with its next command.
func (s *shards) add(node *redis.Client, end *deadline) *batcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	batches := map[*redis.Client]*batcher{}
	for other, b := range *s.batches.Load() {
		if other == node { // another call has added it meanwhile
			return b
		}
		if b.latest.Load().Err() == nil {
			batches[other] = b
		}
	}
	b := newBatcher(s.r, node, node, maxDirectShard, maxOthersShard)
	b.latest.Store(end)
	batches[node] = b
	s.batches.Store(&batches)
	return b
}

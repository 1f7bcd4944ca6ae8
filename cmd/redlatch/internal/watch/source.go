package watch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// Bounds of one look at one node. A look sends at most maxPages + lockBatches + clientBatches
// commands and one, and for the listeners 10, or 20 on a cluster: fewer than 100, whatever there
// is. Looks begin a second apart. If the bounds do not let a look read everything, it reads what
// was read longest ago, and the next look goes on.
const (
	page     = 1000   // COUNT of a SCAN
	maxPages = 20     // SCANs, for hashes and for clients
	maxNew   = 3_000  // hashes that were found and wait to be read for the first time
	maxHeld  = 10_000 // held locks that are known

	lockBatches   = 25   // batches of locks. 10,000 locks take two looks
	newBatches    = 15   // how many of them are for names that were found, if held locks wait, too
	clientBatches = 10   // batches of clients
	listenerBatch = 1000 // channels of which the listeners are counted at once

	// A batch is one command, and other clients wait until it is done. 200 plain locks take 1.6 ms
	// of a server on a machine with two cores. A lock with many holders or waiters takes more, so
	// batchWork bounds the batch, too.
	batch     = 200
	batchWork = 1500 // commands that a batch executes in the server; a plain lock is 6

	maxHolders = 100   // holders of a lock
	maxWaiters = 100   // waiters of a lock
	maxLeases  = 20    // nested holds of one reader
	maxClients = 5_000 // clients that say for what they wait
)

// Source reads snapshots. It is not safe for concurrent use, but for Detail.
type Source struct {
	rdb           redis.UniversalClient
	prefix, match string
	timeout       time.Duration // of a command

	detail atomic.Pointer[[]string] // keys that each look reads; nil: none

	nodes   map[string]*node    // by address of a master
	locks   map[string]*reading // by key: the held locks that are known
	tellers map[string]*teller  // by tag: what clients say
	isCut   bool                // locks were left out, because too many are held
}

// node is what the source knows of one master.
type node struct {
	rdb    redis.UniversalClient
	pass   pass
	search search
	found  []string // keys that wait to be read for the first time
}

// pass is the position of a SCAN that may last for many looks.
type pass struct {
	cursor  uint64
	visited int64
	size    int64 // keys when the pass began
}

// search is the position of a SCAN for clients that say for what they wait. It begins when a pass
// is complete.
type search struct {
	cursor   uint64
	underWay bool
}

// NewSource returns a source of the locks whose names match the glob. prefix is that of WithPrefix.
func NewSource(rdb redis.UniversalClient, prefix, match string) *Source {
	return &Source{
		rdb: rdb, prefix: prefix, match: literal(prefix) + match, timeout: defaultTimeout,
		nodes: map[string]*node{}, locks: map[string]*reading{}, tellers: map[string]*teller{},
	}
}

// Detail sets the names that somebody looks at in detail. However many locks are held, each look
// reads them again.
func (s *Source) Detail(names ...string) {
	keys := make([]string, 0, len(names))
	for _, name := range names {
		keys = append(keys, s.prefix+name)
	}
	s.detail.Store(&keys)
}

// Look returns the locks that are held now, as far as they are known. It goes on with the SCAN
// where the last look left it, and reads locks again: all of them, if they are not too many for one
// look. A pass of the SCAN that is complete starts again at the next look.
func (s *Source) Look(ctx context.Context) (*Snapshot, error) {
	nodes, err := s.masters(ctx)
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{Whole: true}
	for _, n := range nodes {
		pages := maxPages
		if err := s.findClients(ctx, n, &pages); err != nil {
			return nil, err
		}
		if err := s.scan(ctx, n, snap, &pages); err != nil {
			return nil, err
		}
		if err := s.findClients(ctx, n, &pages); err != nil {
			return nil, err
		}
	}
	if err := s.readLocks(ctx, nodes, snap); err != nil {
		return nil, err
	}
	if err := s.readClients(ctx, nodes); err != nil {
		return nil, err
	}
	s.compose(snap, time.Now())
	return snap, s.countListeners(ctx, nodes, snap)
}

// bounded runs f, which sends one command or a pipeline, and waits for it no longer than the
// timeout.
func (s *Source) bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return f(ctx)
}

// masters returns the nodes that have locks.
func (s *Source) masters(ctx context.Context) (nodes []*node, err error) {
	var clients []redis.UniversalClient
	err = s.bounded(ctx, func(ctx context.Context) (err error) {
		clients, err = redisutil.Masters(ctx, s.rdb)
		return err
	})
	if err != nil {
		return nil, err
	}
	known := s.nodes
	s.nodes = map[string]*node{}
	for _, rdb := range clients {
		addr := addressOf(rdb)
		n := known[addr]
		if n == nil {
			n = &node{}
		}
		n.rdb = rdb
		s.nodes[addr] = n
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func addressOf(rdb redis.UniversalClient) string {
	if c, ok := rdb.(*redis.Client); ok {
		return c.Options().Addr
	}
	return ""
}

// cluster is a client of a cluster.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
}

// nodeOf returns the node that has a key; nil if that is not known now.
func (s *Source) nodeOf(ctx context.Context, key string) *node {
	c, isCluster := s.rdb.(cluster)
	if !isCluster {
		return s.nodes[addressOf(s.rdb)]
	}
	master, err := c.MasterForKey(ctx, key)
	if err != nil {
		return nil
	}
	return s.nodes[addressOf(master)]
}

// scan continues the pass of one node, within its bounds. It takes its SCANs from pages, and keeps
// the hashes that are not known for readLocks.
func (s *Source) scan(ctx context.Context, n *node, snap *Snapshot, pages *int) error {
	p := &n.pass
	begins, isWhole := p.cursor == 0, false
	if begins && *pages > 0 {
		err := s.bounded(ctx, func(ctx context.Context) (err error) {
			p.size, err = n.rdb.DBSize(ctx).Result()
			return err
		})
		if err != nil && !refused(err) { // only the progress needs it
			return err
		}
		p.visited = 0
	}
	for ; *pages > 0 && len(n.found) < maxNew; *pages-- {
		keys, err := s.scanPage(ctx, n, &p.cursor, s.match, "hash")
		if err != nil {
			return err
		}
		for _, key := range keys {
			if !isOurs(key) && s.locks[key] == nil {
				n.found = append(n.found, key)
			}
		}
		p.visited = min(p.visited+page, p.size)
		if p.cursor == 0 {
			p.visited = p.size
			isWhole = begins
			n.search.underWay = true
			*pages--
			break
		}
	}
	snap.Whole = snap.Whole && isWhole
	snap.Keys += p.size
	snap.Visited += float64(p.visited)
	return nil
}

// scanPage goes on with a SCAN by one page.
func (s *Source) scanPage(ctx context.Context, n *node, cursor *uint64, match, kind string) (keys []string, err error) {
	err = s.bounded(ctx, func(ctx context.Context) (err error) {
		keys, *cursor, err = n.rdb.ScanType(ctx, *cursor, match, page, kind).Result()
		return err
	})
	return keys, err
}

// findClients goes on with the search of one node, if one is under way. It takes its SCANs from
// pages.
func (s *Source) findClients(ctx context.Context, n *node, pages *int) error {
	for ; n.search.underWay && *pages > 0; *pages-- {
		keys, err := s.scanPage(ctx, n, &n.search.cursor, statePrefix+"*"+stateSuffix, "string")
		if err != nil {
			return err
		}
		for _, key := range keys {
			s.meet(strings.TrimSuffix(strings.TrimPrefix(key, statePrefix), stateSuffix))
		}
		n.search.underWay = n.search.cursor != 0
	}
	return nil
}

// refused reports whether Redis answered with an error, as opposed to no answer.
func refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// sendAll sends a pipeline. Errors that Redis answered concern single commands, which their callers
// check.
func sendAll(ctx context.Context, pipe redis.Pipeliner) error {
	if pipe.Len() == 0 {
		return nil
	}
	_, err := pipe.Exec(ctx)
	isOutage := redis.HasErrorPrefix(err, "LOADING") || redis.HasErrorPrefix(err, "CLUSTERDOWN")
	isOfOneCommand := refused(err) && !isOutage
	if isOfOneCommand {
		return nil
	}
	return err
}

// run runs one of the scripts on a node, and returns its replies.
func (s *Source) run(ctx context.Context, script *redis.Script, n *node, args []any) (replies []any, err error) {
	err = s.bounded(ctx, func(ctx context.Context) (err error) {
		replies, err = script.Run(ctx, n.rdb, nil, args...).Slice()
		return err
	})
	return replies, err
}

// countListeners adds the clients that listen on the channel of a lock. A client that waits listens
// there, once for all its waiters, unless it stands in line and need not. Waiters of a fair lock
// stand in its queue.
func (s *Source) countListeners(ctx context.Context, nodes []*node, snap *Snapshot) error {
	locks := map[string]*Lock{}
	var channels []any
	for i := range snap.Held {
		l := &snap.Held[i]
		channel := lockChannel
		switch l.Kind {
		case "fair":
			continue
		case "read", "write":
			channel = rwChannel
		}
		channel = prefixed(channel, s.prefix+l.Name)
		channels, locks[channel] = append(channels, channel), l
	}
	_, isCluster := s.rdb.(cluster)
	for part := range slices.Chunk(channels, listenerBatch) {
		for _, n := range nodes {
			pipe := n.rdb.Pipeline()
			answers := []*redis.Cmd{pipe.Do(ctx, append([]any{"pubsub", "numsub"}, part...)...)}
			if isCluster {
				answers = append(answers, pipe.Do(ctx, append([]any{"pubsub", "shardnumsub"}, part...)...))
			}
			err := s.bounded(ctx, func(ctx context.Context) error { return sendAll(ctx, pipe) })
			if err != nil {
				return err
			}
			for _, answer := range answers {
				counted, _ := answer.Slice() // without the right to ask, nobody is seen to wait
				for i := 0; i+1 < len(counted); i += 2 {
					channel, _ := counted[i].(string)
					n, _ := counted[i+1].(int64)
					if l := locks[channel]; l != nil {
						l.Waiting += int(n)
					}
				}
			}
		}
	}
	return nil
}

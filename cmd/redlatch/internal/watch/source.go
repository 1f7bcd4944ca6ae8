package watch

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

// Bounds of one look, so that a large keyspace costs Redis no more than a small one.
const (
	page       = 1000   // COUNT of a SCAN
	maxPages   = 20     // SCANs of a node in one look, for hashes and for clients
	maxNew     = 5_000  // hashes of a node that one look finds and reads for the first time
	maxHeld    = 10_000 // held locks that a look reads
	maxHolders = 100    // holders of a lock
	maxWaiters = 100    // waiters of a lock
	maxClients = 5_000  // clients that say for what they wait
	chunk      = 500    // names in a pipeline
)

// Source reads snapshots. It is not safe for concurrent use.
type Source struct {
	rdb           redis.UniversalClient
	prefix, match string

	passes  map[string]*pass  // by address of a master
	held    map[string]bool   // keys of the locks in the last snapshot
	clients map[string]string // names of clients by tag

	searches map[string]*search // by address of a master
	telling  map[string]bool    // the tags of the clients that say for what they wait
}

// pass is the position of a SCAN that may last for many looks.
type pass struct {
	cursor  uint64
	visited int64
	size    int64 // keys when the pass began
}

// search is the position of a SCAN for clients that say for what they wait. It begins when a pass is complete.
type search struct {
	cursor   uint64
	underWay bool
}

// NewSource returns a source of the locks whose names match the glob. prefix is that of WithPrefix.
func NewSource(rdb redis.UniversalClient, prefix, match string) *Source {
	return &Source{rdb: rdb, prefix: prefix, match: literal(prefix) + match, passes: map[string]*pass{},
		searches: map[string]*search{}, telling: map[string]bool{}}
}

// Look reads the locks that are held now. It reads the locks of the last look again, and goes on with the
// SCAN where the last look left it. A pass that is complete starts again at the next look.
func (s *Source) Look(ctx context.Context) (*Snapshot, error) {
	nodes, err := redisutil.Masters(ctx, s.rdb)
	if err != nil {
		return nil, err
	}
	snap := &Snapshot{Whole: true}
	keys := slices.Collect(maps.Keys(s.held))
	for _, node := range nodes {
		pages := maxPages
		if err := s.findClients(ctx, node, &pages); err != nil {
			return nil, err
		}
		found, err := s.scan(ctx, node, snap, &pages)
		if err == nil {
			err = s.findClients(ctx, node, &pages)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, found...)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	if snap.Keys > 0 {
		snap.Visited = min(snap.Visited/float64(snap.Keys), 1)
	}
	if snap.Whole {
		snap.Visited = 1
	}
	snap.At = time.Now()
	s.held = map[string]bool{}
	for part := range slices.Chunk(keys, chunk) {
		if snap.Cut = len(snap.Held) >= maxHeld; snap.Cut {
			break
		}
		if err := s.read(ctx, part, snap); err != nil {
			return nil, err
		}
	}
	say, err := s.readClients(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.nameClients(ctx, snap, say); err != nil {
		return nil, err
	}
	return snap, s.countListeners(ctx, nodes, snap)
}

func addressOf(node redis.UniversalClient) string {
	if c, ok := node.(*redis.Client); ok {
		return c.Options().Addr
	}
	return ""
}

// scan continues the pass of one node, within its bounds. It takes its SCANs from pages, and returns hashes that the
// last look did not know.
func (s *Source) scan(
	ctx context.Context, node redis.UniversalClient, snap *Snapshot, pages *int,
) ([]string, error) {
	addr := addressOf(node)
	p := s.passes[addr]
	if p == nil {
		p = &pass{}
		s.passes[addr] = p
	}
	begins, isWhole := p.cursor == 0, false
	if begins && *pages > 0 {
		size, err := node.DBSize(ctx).Result()
		if err != nil {
			if !refused(err) {
				return nil, err
			}
			size = 0 // only the progress needs it
		}
		p.size, p.visited = size, 0
	}
	var found []string
	for ; *pages > 0; *pages-- {
		keys, cursor, err := node.ScanType(ctx, p.cursor, s.match, page, "hash").Result()
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			if !isOurs(key) && !s.held[key] {
				found = append(found, key)
			}
		}
		p.cursor = cursor
		p.visited = min(p.visited+page, p.size)
		if cursor == 0 {
			p.visited = p.size
			isWhole = begins
			s.searches[addr].underWay = true
		}
		if cursor == 0 || len(found) >= maxNew {
			*pages--
			break
		}
	}
	snap.Whole = snap.Whole && isWhole
	snap.Keys += p.size
	snap.Visited += float64(p.visited)
	return found, nil
}

// refused reports whether Redis answered with an error, as opposed to no answer.
func refused(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}

// sendAll sends a pipeline. Errors that Redis answered concern single commands, which their callers check.
func sendAll(ctx context.Context, pipe redis.Pipeliner) error {
	if pipe.Len() == 0 {
		return nil
	}
	_, err := pipe.Exec(ctx)
	if err == nil || refused(err) && !redis.HasErrorPrefix(err, "LOADING") && !redis.HasErrorPrefix(err, "CLUSTERDOWN") {
		return nil
	}
	return err
}

// candidate is a hash that may be a lock, with the answers about it.
type candidate struct {
	key     string
	fields  *redis.ScanCmd
	ttl     *redis.DurationCmd
	lock    Lock
	token   *redis.StringCmd
	queue   *redis.StringSliceCmd
	length  *redis.IntCmd
	clients *redis.IntCmd
	places  *redis.IntCmd          // of clients in line for a plain or fenced lock
	listens *redis.IntCmd          // how many of them listen on the lock's channel, too
	leases  [][]*redis.DurationCmd // of each holder that reads
}

// read adds the locks among these keys to the snapshot.
func (s *Source) read(ctx context.Context, keys []string, snap *Snapshot) error {
	pipe := s.rdb.Pipeline()
	all := make([]*candidate, len(keys))
	for i, key := range keys {
		// Not HGETALL: the hash may be anybody's, of any size.
		all[i] = &candidate{key: key, fields: pipe.HScan(ctx, key, 0, "", maxHolders), ttl: pipe.PTTL(ctx, key)}
	}
	if err := sendAll(ctx, pipe); err != nil {
		return err
	}
	pipe = s.rdb.Pipeline()
	var locks []*candidate
	for _, c := range all {
		if redisutil.LacksRights(c.fields.Err()) {
			snap.Denied++
		}
		if !c.parse(strings.TrimPrefix(c.key, s.prefix)) {
			continue
		}
		locks = append(locks, c)
		if c.lock.Kind == "lock" {
			c.token = pipe.Get(ctx, prefixed(tokenPrefix, c.key))
			c.length = pipe.LLen(ctx, prefixed(queuePrefix, c.key))
			c.queue = pipe.LRange(ctx, prefixed(queuePrefix, c.key), 0, maxWaiters-1)
			c.clients = pipe.Exists(ctx, prefixed(clientsPrefix, c.key))
			line := prefixed(requestPrefix, c.key) + ":line"
			c.places = pipe.ZCount(ctx, line, "0", "+inf")
			c.listens = pipe.ZCount(ctx, line, "-inf", "(0")
		} else {
			c.askLeases(ctx, pipe)
		}
	}
	if err := sendAll(ctx, pipe); err != nil {
		return err
	}
	for _, c := range locks {
		if c.finish() {
			s.held[c.key] = true
			snap.Held = append(snap.Held, c.lock)
		}
	}
	return nil
}

// parse fills in the lock from its hash. It reports whether the hash is a lock: all values are counts, and
// it expires, or all ids have the usual form.
func (c *candidate) parse(name string) bool {
	fields, cursor, err := c.fields.Result()
	if err != nil || len(fields) == 0 {
		return false
	}
	left, err := c.ttl.Result()
	if err != nil || left == -2 {
		return false
	}
	c.lock = Lock{Name: name, Kind: "lock", TTL: TTL(left), more: cursor != 0}
	for i := 0; i+1 < len(fields); i += 2 {
		id, value := fields[i], fields[i+1]
		if id == "mode" {
			switch value {
			case "read", "write":
				c.lock.Kind = value
				continue
			}
		}
		count, err := strconv.Atoi(value)
		if err != nil || left < 0 && !usualID.MatchString(id) {
			return false
		}
		c.lock.Holders = append(c.lock.Holders, Holder{ID: id, Count: count, TTL: c.lock.TTL})
	}
	if len(c.lock.Holders) > maxHolders {
		c.lock.Holders, c.lock.more = c.lock.Holders[:maxHolders], true
	}
	slices.SortFunc(c.lock.Holders, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
	return len(c.lock.Holders) > 0
}

// maxLeases bounds how many nested holds of one reader are read.
const maxLeases = 20

// askLeases asks for the TTLs of the readers. Each hold of a reader has a key of its own.
func (c *candidate) askLeases(ctx context.Context, pipe redis.Pipeliner) {
	c.leases = make([][]*redis.DurationCmd, len(c.lock.Holders))
	for i, h := range c.lock.Holders {
		if strings.HasSuffix(h.ID, ":write") {
			continue
		}
		for k := 1; k <= min(h.Count, maxLeases); k++ {
			c.leases[i] = append(c.leases[i], pipe.PTTL(ctx, suffixed(c.key, h.ID+":rwlock_timeout:"+strconv.Itoa(k))))
		}
	}
}

// finish fills in what the second pipeline answered. It returns false if no holder is left.
func (c *candidate) finish() bool {
	if c.leases != nil {
		alive := c.lock.Holders[:0]
		for i, h := range c.lock.Holders {
			if c.leases[i] == nil {
				h.ID = strings.TrimSuffix(h.ID, ":write")
				alive = append(alive, h)
				continue
			}
			left, known := TTL(0), false
			for _, lease := range c.leases[i] {
				if d, err := lease.Result(); err == nil {
					known = true
					left = max(left, TTL(d))
				}
			}
			if known {
				h.TTL = left
			}
			if h.TTL != 0 {
				alive = append(alive, h)
			}
		}
		c.lock.Holders = alive
		return len(alive) > 0
	}
	c.lock.Token, _ = c.token.Int64()
	c.lock.Waiting = int(c.length.Val())
	switch {
	case c.lock.Waiting > 0 || c.clients.Val() > 0:
		c.lock.Kind, c.lock.Waiters = "fair", append([]string{}, c.queue.Val()...)
	case c.token.Err() == nil:
		c.lock.Kind = "fenced"
	}
	if c.lock.Kind != "fair" { // countListeners adds the clients that listen
		c.lock.Waiting = max(0, int(c.places.Val()-c.listens.Val()))
	}
	return true
}

// findClients goes on with the search of one node, if one is under way. It takes its SCANs from pages.
func (s *Source) findClients(ctx context.Context, node redis.UniversalClient, pages *int) error {
	addr := addressOf(node)
	p := s.searches[addr]
	if p == nil {
		p = &search{}
		s.searches[addr] = p
	}
	for ; p.underWay && *pages > 0; *pages-- {
		keys, cursor, err := node.ScanType(ctx, p.cursor, statePrefix+"*"+stateSuffix, page, "string").Result()
		if err != nil {
			return err
		}
		for _, key := range keys {
			if len(s.telling) < maxClients {
				s.telling[strings.TrimSuffix(strings.TrimPrefix(key, statePrefix), stateSuffix)] = true
			}
		}
		p.cursor, p.underWay = cursor, cursor != 0
	}
	return nil
}

// told is what all clients say.
type told struct {
	waits map[string][]string // by raw name: the ids of the clients that wait for it
	held  map[string]int64    // by id of a holder: for how long, in ms
	rests map[string]bool     // the ids whose locks were released, and stay taken for the rest of their minimum hold
}

// readClients reads what clients say.
func (s *Source) readClients(ctx context.Context) (told, error) {
	all := told{map[string][]string{}, map[string]int64{}, map[string]bool{}}
	for tags := range slices.Chunk(slices.Sorted(maps.Keys(s.telling)), chunk) {
		pipe := s.rdb.Pipeline()
		texts, left := make([]*redis.StringCmd, len(tags)), make([]*redis.DurationCmd, len(tags))
		for i, tag := range tags {
			key := statePrefix + tag + stateSuffix
			texts[i], left[i] = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
		}
		if err := sendAll(ctx, pipe); err != nil {
			return told{}, err
		}
		for i, tag := range tags {
			if texts[i].Err() != nil {
				delete(s.telling, tag) // it has ended, or tells nothing any longer
				continue
			}
			all.add(texts[i].Val(), left[i].Val())
		}
	}
	return all, nil
}

// add adds the text of one client, whose key has that TTL.
func (all *told) add(text string, left time.Duration) {
	var of struct {
		Client string           `json:"client"`
		TTL    int64            `json:"ttl"` // when it was written
		Held   map[string]int64 `json:"held"`
		Rests  []string         `json:"rests"`
		Waits  [][]byte         `json:"waits"`
	}
	if json.Unmarshal([]byte(text), &of) != nil {
		return
	}
	id := func(short string) string { // a permit's has no uuid
		if strings.Trim(short, "0123456789") == "" {
			return of.Client + ":" + short
		}
		return short
	}
	age := max(of.TTL-left.Milliseconds(), 0)
	for short, ms := range of.Held {
		all.held[id(short)] = ms + age
	}
	for _, short := range of.Rests {
		all.rests[id(short)] = true
	}
	if time.Duration(age)*time.Millisecond > freshFor {
		return
	}
	for _, name := range of.Waits {
		all.waits[string(name)] = append(all.waits[string(name)], of.Client)
	}
}

// nameClients fills in the names of the holders' and of the waiters' clients, and what clients say. A name never
// changes while its client lives.
func (s *Source) nameClients(ctx context.Context, snap *Snapshot, say told) error {
	known := make(map[string]string, len(s.clients))
	ask := map[string]*redis.StringCmd{}
	pipe := s.rdb.Pipeline()
	need := func(id string) {
		tag := tagOf(id)
		if name := s.clients[tag]; name != "" {
			known[tag] = name
		} else if ask[tag] == nil {
			ask[tag] = pipe.Get(ctx, namePrefix+":{"+tag+"}")
		}
	}
	for i := range snap.Held {
		l := &snap.Held[i]
		for j, h := range l.Holders {
			need(h.ID)
			ms, isKnown := say.held[h.ID]
			switch {
			case say.rests[h.ID]:
				l.MinHold = true
			case isKnown:
				l.Holders[j].Held = &ms
			}
		}
		for _, id := range l.Waiters {
			need(id)
			l.Clients = append(l.Clients, Waiter{ID: id})
		}
		for _, client := range say.waits[s.prefix+l.Name] {
			stands := slices.ContainsFunc(l.Waiters, func(id string) bool { return strings.HasPrefix(id, client+":") })
			if !stands && len(l.Clients) < maxWaiters {
				need(client + ":0")
				l.Clients = append(l.Clients, Waiter{ID: client})
			}
		}
	}
	if err := sendAll(ctx, pipe); err != nil {
		return err
	}
	for tag, cmd := range ask {
		known[tag] = cmd.Val()
	}
	s.clients = known
	for i := range snap.Held {
		for j, h := range snap.Held[i].Holders {
			snap.Held[i].Holders[j].Client = known[tagOf(h.ID)]
		}
		for j, w := range snap.Held[i].Clients {
			id := w.ID
			if isClient := !strings.Contains(id, ":"); isClient {
				id += ":0" // of any hold of the client
			}
			snap.Held[i].Clients[j].Client = known[tagOf(id)]
		}
	}
	return nil
}

// countListeners adds the clients that listen on the channel of a lock. A client that waits listens there,
// once for all its waiters, unless it stands in line and need not. Waiters of a fair lock stand in its queue.
func (s *Source) countListeners(ctx context.Context, nodes []redis.UniversalClient, snap *Snapshot) error {
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
	_, cluster := s.rdb.(*redis.ClusterClient)
	for part := range slices.Chunk(channels, chunk) {
		for _, node := range nodes {
			pipe := node.Pipeline()
			answers := []*redis.Cmd{pipe.Do(ctx, append([]any{"pubsub", "numsub"}, part...)...)}
			if cluster {
				answers = append(answers, pipe.Do(ctx, append([]any{"pubsub", "shardnumsub"}, part...)...))
			}
			if err := sendAll(ctx, pipe); err != nil {
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

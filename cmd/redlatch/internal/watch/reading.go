package watch

import (
	"cmp"
	"context"
	_ "embed" // the script
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redisutil"
)

//go:embed look.lua
var lookText string

var lookScript = redis.NewScript(lookText)

// reading is a lock as it was read.
type reading struct {
	lock Lock // without what its clients say
	at   time.Time
}

// isDue reports whether a lease that was read may end soon. Whether it was renewed shall be known
// then.
func (r *reading) isDue(now time.Time) bool {
	return r.lock.TTL >= 0 && time.Duration(r.lock.TTL)-now.Sub(r.at) < 2*lookEvery
}

// left is what remains of a TTL that was read some time ago.
func left(ttl TTL, age time.Duration) TTL {
	if ttl < 0 {
		return ttl
	}
	return max(ttl-TTL(age), 0)
}

// readLocks reads as many locks as the bounds permit. It sets what the snapshot says about the
// whole.
func (s *Source) readLocks(ctx context.Context, nodes []*node, snap *Snapshot) error {
	known := s.byUrgency(ctx, time.Now())
	for _, n := range nodes {
		// Known locks must not wait for ever, however much is found, and the other way round.
		early := min(len(n.found), newBatches*batch)
		keys := slices.Concat(s.detailOn(ctx, n), n.found[:early], known[n], n.found[early:])
		done, err := s.readFrom(ctx, n, keys, snap)
		if err != nil {
			return err
		}
		n.found = slices.DeleteFunc(n.found, func(key string) bool { return done[key] })
		snap.Whole = snap.Whole && len(n.found) == 0
	}
	if snap.Keys > 0 {
		snap.Visited = min(snap.Visited/float64(snap.Keys), 1)
	}
	for _, n := range nodes {
		if len(n.found) > 0 {
			snap.Visited = min(snap.Visited, .99)
		}
	}
	if snap.Whole {
		snap.Visited = 1
	}
	return nil
}

// byUrgency returns the known locks of each node. Leases that may end soon come first, then what
// was read longest ago.
func (s *Source) byUrgency(ctx context.Context, now time.Time) map[*node][]string {
	type entry struct {
		key   string
		isDue bool
		at    time.Time
	}
	entries := make([]entry, 0, len(s.locks))
	for key, r := range s.locks {
		entries = append(entries, entry{key, r.isDue(now), r.at})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		if a.isDue != b.isDue {
			if a.isDue {
				return -1
			}
			return 1
		}
		return cmp.Or(a.at.Compare(b.at), strings.Compare(a.key, b.key))
	})
	keys := map[*node][]string{}
	for _, e := range entries {
		if n := s.nodeOf(ctx, e.key); n != nil {
			keys[n] = append(keys[n], e.key)
		}
	}
	return keys
}

// detailOn returns the keys of Detail that are on a node.
func (s *Source) detailOn(ctx context.Context, n *node) (keys []string) {
	if wanted := s.detail.Load(); wanted != nil {
		for _, key := range *wanted {
			if s.nodeOf(ctx, key) == n {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// readFrom reads keys of one node, until the batches of the look are used up. It returns the keys
// that were read.
func (s *Source) readFrom(ctx context.Context, n *node, keys []string, snap *Snapshot) (map[string]bool, error) {
	done := make(map[string]bool, len(keys))
	for range lockBatches {
		for len(keys) > 0 && done[keys[0]] { // a key of Detail is among the others, too
			keys = keys[1:]
		}
		part := keys[:min(len(keys), batch)]
		if len(part) == 0 {
			break
		}
		args := append(make([]any, 0, len(part)+4), batchWork, maxHolders, maxWaiters, maxLeases)
		for _, key := range part {
			args = append(args, key)
		}
		replies, err := s.run(ctx, lookScript, n, args)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for i, reply := range replies[:min(len(replies), len(part))] {
			s.take(part[i], reply, now, snap)
			done[part[i]] = true
		}
		keys = keys[min(len(replies), len(part)):]
	}
	return done, nil
}

// take takes the answer about one key in.
func (s *Source) take(key string, reply any, now time.Time, snap *Snapshot) {
	err, failed := reply.(error)
	if failed {
		if redisutil.LacksRights(err) {
			snap.Denied++
		} else if s.locks[key] != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return // it may be on its way to another node
		}
		delete(s.locks, key)
		return
	}
	l := Lock{Name: strings.TrimPrefix(key, s.prefix), Kind: "lock"}
	if !l.parse(reply) {
		delete(s.locks, key)
		return
	}
	isKnown := s.locks[key] != nil
	if !isKnown && len(s.locks) >= maxHeld {
		s.isCut = true
		return
	}
	s.locks[key] = &reading{lock: l, at: now}
}

// list returns a reply that should be a list.
func list(reply any) []any {
	l, _ := reply.([]any)
	return l
}

// parse fills in the lock from the answer of look.lua. It reports whether the key is a lock with
// holders: all values are counts, and it expires, or all ids have the usual form.
func (l *Lock) parse(reply any) bool {
	answers := list(reply)
	if len(answers) < 4 {
		return false
	}
	fields := list(answers[0])
	ms, isKnown := answers[2].(int64)
	if !isKnown || ms == -2 {
		return false
	}
	l.TTL = ttlOf(ms)
	l.more = answers[1] != "0"
	if len(fields) > 2*maxHolders+2 { // and a mode
		fields, l.more = fields[:2*maxHolders+2], true
	}
	var leases [][]any // of each holder
	ofFields := list(answers[3])
	for i := 0; i+1 < len(fields); i += 2 {
		id, _ := fields[i].(string)
		value, _ := fields[i+1].(string)
		isMode := id == "mode" && (value == "read" || value == "write")
		if isMode {
			l.Kind = value
			continue
		}
		count, err := strconv.Atoi(value)
		if err != nil || ms < 0 && !usualID.MatchString(id) {
			return false
		}
		l.Holders = append(l.Holders, Holder{ID: id, Count: count, TTL: l.TTL})
		var own []any
		if i/2 < len(ofFields) {
			own = list(ofFields[i/2])
		}
		leases = append(leases, own)
	}
	if l.Kind == "lock" {
		l.parseQueue(answers)
	} else {
		l.parseLeases(leases)
	}
	slices.SortFunc(l.Holders, func(a, b Holder) int { return strings.Compare(a.ID, b.ID) })
	return len(l.Holders) > 0
}

// ttlOf is the TTL that PTTL says.
func ttlOf(ms int64) TTL {
	if ms < 0 {
		return -1
	}
	return TTL(time.Duration(ms) * time.Millisecond)
}

// parseLeases fills in the TTLs of the readers. A reader whose leases have all ended holds nothing.
func (l *Lock) parseLeases(leases [][]any) {
	alive := l.Holders[:0]
	for i, h := range l.Holders {
		id, writes := strings.CutSuffix(h.ID, ":write")
		if writes {
			h.ID = id
			alive = append(alive, h)
			continue
		}
		longest, known := TTL(0), false
		for _, lease := range leases[i] {
			ms, ok := lease.(int64)
			if !ok {
				continue // it may not be read
			}
			known = true
			if ms >= 0 {
				longest = max(longest, ttlOf(ms))
			}
		}
		if known {
			h.TTL = longest
		}
		if h.TTL != 0 {
			alive = append(alive, h)
		}
	}
	l.Holders = alive
}

// parseQueue fills in what is not in the hash of a lock without a mode.
func (l *Lock) parseQueue(answers []any) {
	if len(answers) < 9 {
		return
	}
	token, isFenced := answers[3].(string)
	l.Token, _ = strconv.ParseInt(token, 10, 64)
	length, _ := answers[4].(int64)
	clients, _ := answers[6].(int64)
	inLine, _ := answers[7].(int64)
	listening, _ := answers[8].(int64)
	switch {
	case length > 0 || clients > 0:
		l.Kind, l.Waiting, l.Waiters = "fair", int(length), []string{}
		for _, id := range list(answers[5]) {
			text, _ := id.(string)
			l.Waiters = append(l.Waiters, text)
		}
		return
	case isFenced:
		l.Kind = "fenced"
	}
	l.Waiting = int(max(0, inLine-listening)) // countListeners adds the clients that listen
}

// compose fills in the locks of the snapshot, with their TTLs as of now.
func (s *Source) compose(snap *Snapshot, now time.Time) {
	snap.At = now
	s.isCut = s.isCut && len(s.locks) >= maxHeld
	snap.Cut = s.isCut
	say := s.told(now)
	snap.Held = make([]Lock, 0, len(s.locks))
	for _, r := range s.locks {
		l, age := r.lock, now.Sub(r.at)
		l.TTL = left(l.TTL, age)
		l.Holders = slices.Clone(l.Holders)
		for i := range l.Holders {
			l.Holders[i].TTL = left(l.Holders[i].TTL, age)
		}
		s.nameClients(&l, say)
		snap.Held = append(snap.Held, l)
	}
	slices.SortFunc(snap.Held, func(a, b Lock) int { return strings.Compare(a.Name, b.Name) })
}

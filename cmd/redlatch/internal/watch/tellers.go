package watch

import (
	"cmp"
	"context"
	_ "embed" // the script
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed clients.lua
var clientsText string

var clientsScript = redis.NewScript(clientsText)

// teller is a client, and what it says.
type teller struct {
	name  string // it never changes while the client lives
	state clientState
	age   time.Duration // of the state when it was read
	at    time.Time     // when it was read; zero: it was not
	tells bool          // a search has found its state
	used  bool          // a known lock has a holder or a waiter of it
}

// clientState is what a client says, in JSON.
type clientState struct {
	Client string           `json:"client"`
	TTL    int64            `json:"ttl"` // when it was written
	Held   map[string]int64 `json:"held"`
	Rests  []string         `json:"rests"`
	Waits  [][]byte         `json:"waits"`
}

// meet notes that a client says something.
func (s *Source) meet(tag string) {
	t := s.tellers[tag]
	if t == nil {
		if len(s.tellers) >= maxClients+maxHeld {
			return
		}
		t = &teller{}
		s.tellers[tag] = t
	}
	t.tells = true
}

// readClients reads what clients say, as far as the bounds permit: what was read longest ago first.
func (s *Source) readClients(ctx context.Context, nodes []*node) error {
	s.meetHolders()
	tags := make([]string, 0, len(s.tellers))
	for tag, t := range s.tellers {
		if t.tells || t.name == "" {
			tags = append(tags, tag)
		}
	}
	slices.SortFunc(tags, func(a, b string) int {
		return cmp.Or(s.tellers[a].at.Compare(s.tellers[b].at), strings.Compare(a, b))
	})
	of := map[*node][]string{}
	for _, tag := range tags {
		if n := s.nodeOf(ctx, namePrefix+":{"+tag+"}"); n != nil {
			of[n] = append(of[n], tag)
		}
	}
	for _, n := range nodes {
		count := min(len(of[n]), clientBatches*batch)
		for part := range slices.Chunk(of[n][:count], batch) {
			args := make([]any, len(part))
			for i, tag := range part {
				args[i] = tag
			}
			replies, err := s.run(ctx, clientsScript, n, args)
			if err != nil {
				return err
			}
			now := time.Now()
			for i, reply := range replies[:min(len(replies), len(part))] {
				s.hear(part[i], reply, now)
			}
		}
	}
	return nil
}

// meetHolders notes of which clients the known locks have holders or waiters, and forgets the
// others.
func (s *Source) meetHolders() {
	for _, t := range s.tellers {
		t.used = false
	}
	use := func(id string) {
		tag := tagOf(id)
		if s.tellers[tag] == nil {
			s.tellers[tag] = &teller{}
		}
		s.tellers[tag].used = true
	}
	for _, r := range s.locks {
		for _, h := range r.lock.Holders {
			use(h.ID)
		}
		for _, id := range r.lock.Waiters {
			use(id)
		}
	}
	for tag, t := range s.tellers {
		if !t.used && !t.tells {
			delete(s.tellers, tag)
		}
	}
}

// hear takes in what one client says.
func (s *Source) hear(tag string, reply any, now time.Time) {
	t, answers := s.tellers[tag], list(reply)
	if len(answers) < 3 {
		return
	}
	t.at = now
	name, _ := answers[0].(string)
	t.name = cmp.Or(name, t.name)
	t.state = clientState{}
	text, isTold := answers[1].(string)
	ms, _ := answers[2].(int64)
	t.tells = isTold // else it has ended, or tells nothing any longer
	if !isTold || json.Unmarshal([]byte(text), &t.state) != nil {
		t.state = clientState{}
		return
	}
	t.age = time.Duration(max(t.state.TTL-ms, 0)) * time.Millisecond
}

// told is what all clients say.
type told struct {
	waits map[string][]string // by raw name: the ids of the clients that wait for it
	held  map[string]int64    // by id of a holder: for how long, in ms
	rests map[string]bool     // the ids whose locks were released, and stay taken for the rest of their minimum hold
}

// told returns what all clients say, as of now.
func (s *Source) told(now time.Time) told {
	all := told{map[string][]string{}, map[string]int64{}, map[string]bool{}}
	for _, t := range s.tellers {
		all.add(&t.state, t.age, now.Sub(t.at))
	}
	for _, clients := range all.waits {
		slices.Sort(clients)
	}
	return all
}

// add adds the state of one client, which had an age when it was read, and was read some time ago.
func (all *told) add(of *clientState, age, ago time.Duration) {
	id := func(short string) string { // a permit's has no uuid
		if strings.Trim(short, "0123456789") == "" {
			return of.Client + ":" + short
		}
		return short
	}
	for short, ms := range of.Held {
		all.held[id(short)] = ms + (age + ago).Milliseconds()
	}
	for _, short := range of.Rests {
		all.rests[id(short)] = true
	}
	if age > freshFor {
		return
	}
	for _, name := range of.Waits {
		all.waits[string(name)] = append(all.waits[string(name)], of.Client)
	}
}

// nameClients fills in the names of the clients of a lock's holders and waiters, and what clients
// say about it.
func (s *Source) nameClients(l *Lock, say told) {
	for i := range l.Holders {
		h := &l.Holders[i]
		h.Client = s.nameOf(h.ID)
		ms, isKnown := say.held[h.ID]
		switch {
		case say.rests[h.ID]:
			l.MinHold, h.kept = true, true
		case isKnown:
			h.Held = &ms
		}
	}
	for _, id := range l.Waiters {
		l.Clients = append(l.Clients, Waiter{s.nameOf(id), id})
	}
	for _, client := range say.waits[s.prefix+l.Name] {
		stands := slices.ContainsFunc(l.Waiters, func(id string) bool { return strings.HasPrefix(id, client+":") })
		if !stands && len(l.Clients) < maxWaiters {
			l.Clients = append(l.Clients, Waiter{s.nameOf(client + ":0"), client}) // the tag of any hold of the client
		}
	}
}

// nameOf returns the name of the client of an id; "" if it is not known.
func (s *Source) nameOf(id string) string {
	if t := s.tellers[tagOf(id)]; t != nil {
		return t.name
	}
	return ""
}

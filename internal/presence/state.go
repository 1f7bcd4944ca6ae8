package presence

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/scripts"
)

// The state that a client reports besides its name: how long it has had its holds, which released
// locks stay taken for the rest of a minimum hold, and what it waits for. The state has a key of
// its own, because earlier versions read the name's key. No acquisition reads or writes the state:
//
//   - The client writes it with its name, and again when it has changed, but not more often than
//     every stateAgain.
//   - A hold or a wait that ends sooner than nameAfter is not reported.
//   - A client that holds and waits for nothing has no state, except for the rest of a minimum
//     hold. The name and the state then stay until that is over, whether the client lives or not.
//
// Times are ages, and the TTL of the key says how long ago they were written. So no two clocks are
// compared.

const (
	statePrefix = "redisson_unlock_latch:{"
	stateSuffix = "}:client"
	// stateAgain is the least time between two writes of the state.
	stateAgain = 500 * time.Millisecond
	// maxTold bounds how many holds, and how many names that it waits for, a client reports: the
	// oldest holds, and the first names in alphabetical order.
	maxTold = 1000
	// maxRests bounds how many rests of minimum holds a client remembers.
	maxRests = 1000
	// freshFor is how long a wait counts after it was written. A client that lives and waits writes
	// again every nameRefresh. If a client has died, or could not delete its key, the key stays
	// longer.
	freshFor = nameRefresh + 5*time.Second
	// searchLimit bounds a search for clients that wait.
	searchLimit = 10 * time.Second
)

// stateKey is the key of a client's state.
func stateKey(tag string) string { return statePrefix + tag + stateSuffix }

// state is the content of the key, as JSON.
type state struct {
	Client string           `json:"client"`          // the uuid
	TTL    int64            `json:"ttl"`             // the key's TTL when this was written, in ms
	Held   map[string]int64 `json:"held,omitempty"`  // by id, without the client's uuid: the age in ms
	Rests  []string         `json:"rests,omitempty"` // the ids, likewise, whose locks stay taken after their release
	Waits  [][]byte         `json:"waits,omitempty"` // the raw names that the client waits for
}

// waits counts the acquisitions that wait for one name.
type waits struct {
	n     int
	since engine.Instant // when the first of them began
}

// WaitBegan and WaitEnded are called for each acquisition that waits, in its caller's goroutine.
// They count the waiters, so that a client that waits but holds nothing also shows its name.
func (p *Presence) WaitBegan(r *engine.Resource) {
	now := p.now()
	if p.waiting.Add(1) == 1 {
		p.since.Store(int64(now))
	}
	isJoint := r.Identity != nil // its members have names
	if !isJoint {
		p.waitsMu.Lock()
		w := p.waits[r.Name]
		if w == nil {
			w = &waits{since: now}
			p.waits[r.Name] = w
		}
		w.n++
		p.waitsMu.Unlock()
	}
	p.Wake()
}

// WaitEnded undoes WaitBegan.
func (p *Presence) WaitEnded(r *engine.Resource) {
	p.waiting.Add(-1)
	if r.Identity != nil {
		return
	}
	p.waitsMu.Lock()
	defer p.waitsMu.Unlock()
	w := p.waits[r.Name]
	w.n--
	if w.n == 0 {
		delete(p.waits, r.Name)
	}
}

// waitsFor returns the raw names that the client has waited for since before.
func (p *Presence) waitsFor(before engine.Instant) (names [][]byte) {
	p.waitsMu.Lock()
	for name, w := range p.waits {
		if w.since <= before {
			names = append(names, []byte(p.Prefix+name))
		}
	}
	p.waitsMu.Unlock()
	slices.SortFunc(names, slices.Compare)
	return names[:min(len(names), maxTold)]
}

// StaysTaken notes that an id's lock stays taken for the rest of its minimum hold. It does not
// block.
func (p *Presence) StaysTaken(id string, rest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	isTold := p.Name != "" && TagOf(id) == p.tag
	if isTold && len(p.takenUntil) < maxRests {
		p.takenUntil[p.short(id)] = p.now() + engine.Instant(rest)
	}
}

// short is an id without the uuid of this client.
func (p *Presence) short(id string) string { return strings.TrimPrefix(id, p.ID+":") }

// currentState returns the client's current state, and how long the state stays if the client dies.
// mu is held.
func (p *Presence) currentState(now engine.Instant) (told state, ttl time.Duration) {
	ttl = nameTTL
	maps.DeleteFunc(p.takenUntil, func(_ string, until engine.Instant) bool { return until <= now })
	for _, until := range p.takenUntil {
		ttl = max(ttl, time.Duration(until-now))
	}
	told = state{
		Client: p.ID, TTL: scripts.CeilMillis(ttl), Rests: slices.Sorted(maps.Keys(p.takenUntil)),
		Waits: p.waitsFor(now - engine.Instant(nameAfter)),
	}
	for _, held := range p.core.OldestHolds(maxTold, now-engine.Instant(nameAfter)) {
		if TagOf(held.ID) != p.tag {
			continue // a reader looks for this id under another tag
		}
		if told.Held == nil {
			told.Held = map[string]int64{}
		}
		age := time.Duration(now - held.Since).Milliseconds()
		for id := range strings.SplitSeq(held.ID, ",") { // several permits
			told.Held[p.short(id)] = max(age, told.Held[p.short(id)])
		}
	}
	return told, ttl
}

// isNothing reports whether there is nothing to report.
func (s *state) isNothing() bool { return len(s.Held) == 0 && len(s.Rests) == 0 && len(s.Waits) == 0 }

// content is what a reader learns from s, without the times.
func (s *state) content() string {
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(s.Held)) {
		text.WriteString(id + " ")
	}
	text.WriteString("\n" + strings.Join(s.Rests, " ") + "\n")
	for _, name := range s.Waits {
		text.Write(name)
		text.WriteByte('\n')
	}
	return text.String()
}

// commands returns the command that writes the name, if it is due, and the one that writes the
// state. The rest of a minimum hold may need the name for longer, so then the name is due, too. mu
// is held.
func (p *Presence) commands(now engine.Instant, nameIsDue bool) (name, state []any) {
	told, ttl := p.currentState(now)
	p.lastState = told.content()
	p.lastStateAt = now
	// No script uses PSETEX or GETDEL, so INFO commandstats counts these writes separately.
	if nameIsDue || len(told.Rests) > 0 {
		name = []any{"psetex", tagged(ClientName, p.tag), scripts.CeilMillis(ttl), p.Name}
	}
	switch {
	case !told.isNothing():
		p.hasState = true
		text, _ := json.Marshal(told) // it cannot fail
		state = []any{"psetex", stateKey(p.tag), told.TTL, string(text)}
	case p.hasState:
		p.hasState = false
		state = []any{"getdel", stateKey(p.tag)}
	}
	return name, state
}

// minHoldCommands returns the commands that leave the name until the last rest of a minimum hold is
// over; nil if none is left. mu is held.
func (p *Presence) minHoldCommands(now engine.Instant) [][]any {
	told, _ := p.currentState(now)
	if len(told.Rests) == 0 {
		return nil
	}
	var ttl time.Duration
	for _, until := range p.takenUntil {
		ttl = max(ttl, time.Duration(until-now))
	}
	left := state{Client: p.ID, TTL: scripts.CeilMillis(ttl), Rests: told.Rests}
	text, _ := json.Marshal(left) // it cannot fail
	return [][]any{
		{"psetex", tagged(ClientName, p.tag), left.TTL, p.Name},
		{"psetex", stateKey(p.tag), left.TTL, string(text)},
	}
}

// About is what a client reports about itself.
type About struct {
	Name  string // "" if it is unknown
	state state
	age   time.Duration // of state
}

// Held returns how long the client has held under an id, or 0 if it does not report that.
func (a *About) Held(id string) time.Duration {
	ms, known := a.state.Held[strings.TrimPrefix(id, a.state.Client+":")]
	if !known || a.state.Client == "" {
		return 0
	}
	return max(time.Duration(ms)*time.Millisecond+a.age, time.Millisecond)
}

// StaysTaken reports whether an id's hold was released, and its lock stays taken for the rest of
// the minimum hold.
func (a *About) StaysTaken(id string) bool {
	return slices.Contains(a.state.Rests, strings.TrimPrefix(id, a.state.Client+":"))
}

// reads returns the commands that read the name and the state of a tag's client.
func reads(tag string) [][]any {
	return [][]any{{"get", tagged(ClientName, tag)}, {"get", stateKey(tag)}, {"pttl", stateKey(tag)}}
}

const readsOfOne = 3 // len(reads(tag))

// readAbout reads the replies to reads.
func readAbout(replies []any) *About {
	a := &About{}
	a.Name, _ = replies[0].(string)
	text, isTold := replies[1].(string)
	ttl, hasTTL := replies[2].(int64)
	isState := isTold && hasTTL && json.Unmarshal([]byte(text), &a.state) == nil
	if !isState {
		a.state = state{}
		return a
	}
	a.age = max(time.Duration(a.state.TTL-ttl)*time.Millisecond, 0)
	return a
}

// About returns what the clients of these ids report, in the same order. known contains answers by
// tag that need not be read again, and About adds the new ones to it. The reads are sent in
// pipelines. About is best effort, and takes nameRead at most: the result is empty for a client
// that cannot be read in time.
func (p *Presence) About(ctx context.Context, ids []string, known map[string]*About) []*About {
	var tags []string
	for _, id := range ids {
		tag := TagOf(id)
		if known[tag] == nil {
			known[tag] = &About{} // even if the read fails, because a list of locks would repeat it for each lock
			tags = append(tags, tag)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, nameRead)
	defer cancel()
	for chunk := range slices.Chunk(tags, pipelined) {
		about := p.readAll(ctx, chunk)
		if about == nil {
			break // there was no answer in time
		}
		for i, tag := range chunk {
			known[tag] = about[i]
		}
	}
	all := make([]*About, len(ids))
	for i, id := range ids {
		all[i] = known[TagOf(id)]
	}
	return all
}

// readAll reads what the clients of these tags report, in one pipeline. It returns nil if there is
// no answer.
func (p *Presence) readAll(ctx context.Context, tags []string) []*About {
	var commands [][]any
	for _, tag := range tags {
		commands = append(commands, reads(tag)...)
	}
	replies, _ := p.Runner.Reads(ctx, commands...)
	if replies == nil {
		return nil
	}
	about := make([]*About, len(tags))
	for i := range about {
		about[i] = readAbout(replies[i*readsOfOne:][:readsOfOne])
	}
	return about
}

// Waiter is a client that waits.
type Waiter struct {
	Client string // its name
	ID     string // its uuid
}

// Waiting returns the clients that wait, by the raw names that they wait for. It finds the clients
// by SCAN, which visits all keys. If it fails, it returns the clients found so far, and the error.
func (p *Presence) Waiting(ctx context.Context) (waiting map[string][]Waiter, err error) {
	ctx, cancel := context.WithTimeout(ctx, searchLimit)
	defer cancel()
	waiting = map[string][]Waiter{}
	var tags []string
	read := func() {
		for _, a := range p.readAll(ctx, tags) {
			if a.age > freshFor {
				continue
			}
			for _, name := range a.state.Waits {
				waiting[string(name)] = append(waiting[string(name)], Waiter{a.Name, a.state.Client})
			}
		}
		tags = nil
	}
	for key, err := range p.Runner.Keys(ctx, stateKey("*"), "string") {
		if err != nil {
			return waiting, err
		}
		tag := strings.TrimSuffix(strings.TrimPrefix(key, statePrefix), stateSuffix)
		isTag := isHex(tag, tagDigits)
		if !isTag || slices.Contains(tags, tag) {
			continue
		}
		tags = append(tags, tag)
		if len(tags) == pipelined {
			read()
		}
	}
	read()
	for name, clients := range waiting {
		slices.SortFunc(clients, func(a, b Waiter) int { return strings.Compare(a.Client+a.ID, b.Client+b.ID) })
		waiting[name] = slices.Compact(clients) // SCAN may return a key twice
	}
	return waiting, nil
}

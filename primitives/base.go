package primitives

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/scripts"
	"github.com/redlatch/redlatch/watchdog"
)

// handle is what every primitive is: a name on a client, options, and how its kind speaks to Redis. It is immutable, and making
// one costs no I/O; what is wrong with it is told by the first call.
type handle struct {
	c         *Client
	kind      string
	name      string // the user's
	raw       string // with the client's prefix: what Redisson's names are derived from
	settings  settings
	proto     protocol
	nests     *nestKey // by which a context finds holds of this name
	behind    string   // the kind whose waiters for the same name go first; "": none
	remembers string   // what the keys that remember a request begin with
	ttl       any      // the usual one, ms: an argument
	key       any      // raw, as a key of commands
	shared    any      // key of the shared counts: see sharedCounts
	group     any      // of a kind that is renewed: which of them may share a batch
	invalid   error
	many      bool // several may hold it at once, so a message during a successful try may tell of more room
}

// nestKey says of which holds a context is asked.
type nestKey struct {
	client *Client
	kind   string
	name   string
}

// init fills h. keys are all the keys and channels of the primitive: in a cluster they must share a slot.
func (h *handle) init(c *Client, kind, name string, opts []Option) {
	h.c, h.kind, h.name, h.raw = c, kind, name, c.prefix+name
	h.settings = c.defaults.with(opts)
	h.nests = &nestKey{c, kind, name}
	h.remembers = prefixed(memoryPrefix, h.raw) + ":"
	h.ttl, h.key = millis(h.settings.firstTTL()), h.raw
	h.shared = h.memory(sharedCounts)
	h.invalid = h.settings.err
	if name == "" {
		h.invalid = invalid("an empty name")
	}
}

// speaks sets the protocol and, on a cluster, refuses a name whose keys and channels fall into two slots.
func (h *handle) speaks(p protocol, keys []any) {
	h.proto = p
	slot := uint16(0)
	if h.c.enforcesSlots() {
		slot = slotOf(keys[0].(string))
	}
	if l, ok := p.(leased); ok {
		h.group = renewGroup{l.renewals(), slot}
	}
	if !h.c.cluster || h.invalid != nil {
		return
	}
	for _, key := range keys[1:] {
		if slotOf(key.(string)) != slot {
			h.invalid = invalid("name %q: its keys %q and %q fall into two cluster slots", h.name, keys[0], key)
			return
		}
	}
}

// Name is the user's name, without the client's prefix.
func (h *handle) Name() string { return h.name }

// with merges a call's options, and tells what is wrong with the handle or with them.
func (h *handle) with(opts []Option) (*settings, error) {
	if h.invalid != nil || len(opts) == 0 {
		return &h.settings, h.invalid
	}
	s := h.settings.with(opts)
	return &s, s.err
}

// call runs f for op between the checks and the dress that all calls share.
func (h *handle) call(ctx context.Context, op string, f func() error) error {
	if h.invalid != nil {
		return h.failed(op, h.invalid)
	}
	if err := context.Cause(ctx); err != nil {
		return h.failed(op, err)
	}
	if err := h.c.begin(ctx); err != nil {
		return h.failed(op, err)
	}
	defer h.c.calls.Done()
	return h.failed(op, f())
}

// memory is the key that remembers a request, named as Redisson names what remembers an unlock.
func (h *handle) memory(request string) string { return h.remembers + request }

// memoryOf is the key that remembers c.
func (h *handle) memoryOf(c *claim) string { return numbered(h.remembers, h.c.id, ":", c.number) }

// rememberedFor is how long the release or rollback of q must be remembered, as an argument.
func (c *Client) rememberedFor(q *claim) any {
	if q.doubt {
		return c.rememberedLong
	}
	return c.remembered
}

// shelf is how many acquisitions of a client one set remembers: so many small integers take Redis half a kilobyte.
const shelf = 256

// shelfOf is the set in which c stands when it has been given back.
func (h *handle) shelfOf(c *claim) string { return numbered(h.remembers, h.c.id, "#", c.number/shelf) }

// shelved is where c stands on its shelf.
func (c *claim) shelved() int { return int(c.number % shelf) }

// protocol is one kind's side of the conversation with Redis: its keys, its scripts, and how their answers read. What it
// sends may run more than once with equal arguments, to the effect of once. Every kind that can be held has one.
type protocol interface {
	// take tries once to acquire q.
	take(ctx context.Context, q *request) (verdict, error)
	// undo sees that whatever take did or may yet do for q comes to nothing.
	undo(ctx context.Context, q *request) error
	// give gives back what t holds: left counts remain, none at 0. lost: there was nothing to give back.
	give(ctx context.Context, t *tenure, left int) (lost bool, err error)
	// channel is where news for those that wait for q are published, and heeds tells which payloads are news.
	channel(q *request) string
	heeds(payload string) bool
}

// leased is a protocol whose holds last as long as a lease in Redis.
type leased interface {
	protocol
	// count sets t's count on the wire to n > 0 and keeps it for at least ttl. lost: it is not t's any more.
	count(ctx context.Context, t *tenure, n int, ttl time.Duration) (sent time.Time, lost bool, err error)
	// extend keeps t for at least d from now.
	extend(ctx context.Context, t *tenure, d time.Duration) (sent time.Time, lost bool, err error)
	// check asks whether Redis still has t.
	check(ctx context.Context, t *tenure) (lost bool, err error)
	// renewals is what renews many tenures of this kind at once.
	renewals() *renewals
}

// claim is one acquisition as Redis knows it.
type claim struct {
	id      string // on the wire, without suffixes
	number  uint64 // of the client's acquisitions; it is remembered by this
	shared  bool   // others may use the id: the wire counts
	doubt   bool   // an attempt to acquire it has an unknown outcome: a copy may still arrive
	ttl     time.Duration
	permits int
}

// named gives c another id.
func (c *claim) named(id string, shared bool) { c.id, c.shared = id, shared }

// request is a claim that is tried for: the same through all its tries, and through being undone.
type request struct {
	claim
	once     bool          // a second count is a deadlock
	behind   bool          // to write: it was refused for another that writes
	queue    bool          // may stand in a queue of Redis's
	patience time.Duration // how long it may be silent there
	parts    *bundle       // of a joint lock: what it has of its members
	settings *settings     // by which it was made
	split    time.Duration // of a joint lock: how long the last try took, if rivals had some members each
	wait     wait          // of the caller's own
	open     bool          // a try may have been executed, or may yet be, unknown to us
	ousted   []string      // by a ForceRelease: the ids that held
	nested   bool          // made under a hold with the same id: if Redis no longer has that id, the answer is "lost"
}

// fits tells whether room for n others has room for q.
func (q *request) fits(n int) bool { return q.permits <= n }

// verdict is what a try came to.
type verdict struct {
	granted bool
	sent    time.Time     // before the try that was answered: the lease counts from here
	token   int64         // of a fenced lock
	wait    time.Duration // refused: until something is known to end; negative: nothing is known
	holder  string        // refused: who holds, if one does
	met     error         // refused: what else was met
	more    int           // how many permits are left for others
	reign   reign         // granted by a hand-over: whose turn it continues
	brief   time.Duration // granted for less than was asked for; 0: for all of that
	place   place         // refused by a fair lock: where the request stands
	doubt   bool          // an earlier attempt of the same call has an unknown outcome
}

// renewals renews the tenures of one kind, by one script, in batches.
type renewals struct {
	script *scripts.Script
	// args appends what the script wants to know of one tenure beside its key.
	args func(args []any, t *tenure, ttl time.Duration) []any
	keys func(keys []any, t *tenure) []any
}

// renewGroup is what may share a batch: in a cluster a script's keys must share a slot.
type renewGroup struct {
	by   *renewals
	slot uint16
}

// renew is the watchdog's way to Redis. A lease whose key Redis refuses concerns no other lease of the batch: where Redis refuses a
// batch as a whole, its parts are sent one by one.
func (c *Client) renew(ctx context.Context, group any, batch []watchdog.Ask) ([]watchdog.State, error) {
	by := group.(renewGroup).by
	if !c.slotted.Load() {
		states, err := c.renewTogether(ctx, by, batch)
		switch {
		case err == nil || len(batch) == 1:
			return states, err
		case redis.HasErrorPrefix(err, "CROSSSLOT"):
			// A plain client's server, such as a proxy before a cluster, enforces slots.
			c.slotted.Store(true)
		case divisible(err):
			return c.renewApart(ctx, by, single(batch))
		default:
			return states, err
		}
	}
	parts := bySlot(batch)
	if len(parts) > 1 {
		return c.renewApart(ctx, by, parts)
	}
	states, err := c.renewTogether(ctx, by, batch)
	if len(batch) > 1 && divisible(err) {
		return c.renewApart(ctx, by, single(batch))
	}
	return states, err
}

// enforcesSlots tells whether the server is known to refuse keys of two cluster slots in one command.
func (c *Client) enforcesSlots() bool { return c.cluster || c.slotted.Load() }

// renewTogether renews a batch by one command.
func (c *Client) renewTogether(ctx context.Context, by *renewals, batch []watchdog.Ask) ([]watchdog.State, error) {
	keys := make([]any, 0, 2*len(batch))
	args := make([]any, 0, 2*len(batch))
	for _, ask := range batch {
		t := ask.Keeper.(*tenure)
		keys = by.keys(keys, t)
		args = by.args(args, t, ask.TTL)
	}
	states := make([]watchdog.State, len(batch))
	reply, err := c.run.Once(ctx, by.script, keys, args...)
	if err != nil {
		return states, err
	}
	for i, kept := range reply.Value.([]any) {
		states[i] = watchdog.Lost
		if kept == int64(1) {
			states[i] = watchdog.Renewed
		}
	}
	return states, nil
}

// part is some of a batch's leases, and where they stand in the batch.
type part struct {
	asks []watchdog.Ask
	at   []int
}

// bySlot divides a batch into parts of one cluster slot each.
func bySlot(batch []watchdog.Ask) []part {
	var parts []part
	of := map[uint16]int{}
	for i, ask := range batch {
		slot := slotOf(ask.Keeper.(*tenure).h.raw)
		n, ok := of[slot]
		if !ok {
			n = len(parts)
			of[slot] = n
			parts = append(parts, part{})
		}
		parts[n].asks, parts[n].at = append(parts[n].asks, ask), append(parts[n].at, i)
	}
	return parts
}

// single divides a batch into parts of one lease each.
func single(batch []watchdog.Ask) []part {
	parts := make([]part, len(batch))
	for i, ask := range batch {
		parts[i] = part{[]watchdog.Ask{ask}, []int{i}}
	}
	return parts
}

// divisible tells whether Redis refused a batch for a reason that may concern some of its keys only: a slot of which some keys
// have moved to another node, a key that is not allowed, or contents that a script cannot read.
func divisible(err error) bool {
	switch {
	case err == nil:
		return false
	case redis.HasErrorPrefix(err, "TRYAGAIN"):
		return true
	case redis.HasErrorPrefix(err, "NOAUTH"), redis.HasErrorPrefix(err, "WRONGPASS"), redis.HasErrorPrefix(err, "MISCONF"), redis.HasErrorPrefix(err, "OOM"):
		return false
	}
	return scripts.OutcomeOf(err) == scripts.Executed
}

// partsAbreast is how many parts of one batch are under way at the same time.
const partsAbreast = 8

// renewApart renews the parts of a batch, each by a command of its own. It waits for a third of the shortest TTL at most: so parts
// that Redis answers are confirmed in time although another part hangs. The leases of that one are Unknown, and the watchdog asks again.
func (c *Client) renewApart(ctx context.Context, by *renewals, parts []part) ([]watchdog.State, error) {
	type answer struct {
		part
		states []watchdog.State
		err    error
	}
	total, patience := 0, releaseTimeout
	for _, p := range parts {
		total += len(p.asks)
		for _, ask := range p.asks {
			patience = min(patience, max(ask.TTL/3, 50*time.Millisecond))
		}
	}
	var next atomic.Int64
	answers := make(chan answer, len(parts))
	for range min(partsAbreast, len(parts)) {
		c.spawn(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(parts) {
					return
				}
				p := parts[n]
				states, err := c.renewTogether(ctx, by, p.asks)
				if len(p.asks) > 1 && divisible(err) {
					for i, ask := range p.asks {
						one, failed := c.renewTogether(ctx, by, []watchdog.Ask{ask})
						states[i], err = one[0], failed
					}
				}
				answers <- answer{p, states, err}
			}
		})
	}
	states := make([]watchdog.State, total)
	var failed error
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for range parts {
		select {
		case a := <-answers:
			for i, state := range a.states {
				states[a.at[i]] = state
			}
			if a.err != nil {
				failed = a.err
			}
		case <-timer.C:
			return states, failed
		case <-ctx.Done():
			return states, ctx.Err()
		}
	}
	return states, failed
}

// lease is a TTL as an argument.
func (h *handle) lease(ttl time.Duration) any {
	if ttl == h.settings.firstTTL() {
		return h.ttl
	}
	return millis(ttl)
}

// millis is a duration as Redis takes it: whole milliseconds, never fewer than asked for.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

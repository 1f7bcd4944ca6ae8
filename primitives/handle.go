package primitives

import (
	"context"
	"fmt"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/scripts"
)

// All primitives embed a handle. It validates, merges options, wraps errors, and names the keys that
// remember requests. The engine sees it as an [engine.Resource].

// handle is the part that all primitives share: a name on a client, options, and a driver. After init and
// use it never changes, so it needs no mutex. Making one sends nothing. A handle with a bad name or
// option is still returned, and its first call fails: constructors without an error are easier to use.
type handle struct {
	c        *Client
	res      engine.Resource
	settings *settings  // the client's, unless the handle has options of its own
	invalid  error      // what is wrong with the name or the options; every call returns it
	joint    *jointLock // nil for all but joint locks

	// Prebuilt arguments of scripts.
	name         any      // raw, which is a string
	sharedCounts wireName // key of the acquisitions with WithOwner
}

// init sets everything but the driver, and returns what makes further names. name is the user's; opts add to the
// client's defaults. An application may make a handle for each acquisition, so this allocates little.
func (h *handle) init(c *Client, kind, name string, opts []Option) wireNames {
	raw := c.prefix + name
	h.c, h.name, h.settings = c, raw, c.defaults.and(opts)
	h.res = engine.Resource{Core: c.core, Kind: kind, Name: name}
	h.invalid = h.settings.err
	if name == "" {
		h.invalid = invalid("an empty name")
	}
	names := newWireNames(raw)
	h.sharedCounts = names.next(requestPrefix, ":"+sharedCounts)
	return names
}

// namedDriver is a driver of one name. names returns the keys and channels that its scripts use, beside
// the handle's own.
type namedDriver interface {
	engine.Driver
	names() []any
}

// use sets the driver. On a cluster its keys must share a slot, or the handle is invalid. A driver of a
// leased kind is a [renewer].
func (h *handle) use(driver namedDriver, traits *engine.Traits) {
	h.res.Driver, h.res.Traits = driver, traits
	if traits.Leased {
		script := driver.(renewer).renewScript()
		h.res.RenewGroup = script
		if h.c.enforcesSlots() {
			h.res.RenewGroup = renewGroup{script, redisutil.Slot(h.raw())}
		}
	}
	if !h.c.cluster || h.invalid != nil {
		return
	}
	for _, key := range append(driver.names(), h.requestKey("")) {
		if key := fmt.Sprint(key); redisutil.Slot(key) != redisutil.Slot(h.raw()) {
			h.invalid = invalid("name %q: its keys %q and %q fall into two cluster slots", h.res.Name, h.raw(), key)
			return
		}
	}
}

// raw is the name with the client's prefix: Redisson's keys derive from it.
func (h *handle) raw() string { return h.name.(string) }

// Name is the user's name, without the client's prefix.
func (h *handle) Name() string { return h.res.Name }

// with returns the settings of one call. It fails if the handle or an option is invalid. Without options
// it returns the handle's own settings, which the caller must not change.
func (h *handle) with(opts []Option) (*settings, error) {
	if h.invalid != nil || len(opts) == 0 {
		return h.settings, h.invalid
	}
	s := h.settings.with(opts)
	if h.joint != nil {
		s.ForMember = h.joint.terms(&s)
	}
	return &s, s.err
}

// failed wraps an error for the caller; nil stays nil.
func (h *handle) failed(op string, err error) error { return failed(&h.res, op, err) }

// call validates the handle, registers with the client, runs f and wraps its error. If ctx has ended, f
// does not run and nothing is sent. Close waits for f.
func (h *handle) call(ctx context.Context, op string, f func() error) error {
	if h.invalid != nil {
		return h.failed(op, h.invalid)
	}
	if err := context.Cause(ctx); err != nil {
		return h.failed(op, err)
	}
	if err := h.c.core.Begin(ctx); err != nil {
		return h.failed(op, err)
	}
	defer h.c.core.Leave()
	return h.failed(op, h.withType(ctx, f()))
}

// withType says what the key holds if err is Redis's WRONGTYPE, which says only that it is something else.
// It asks Redis, and blocks for typeTimeout at most. Any other error stays as it is.
func (h *handle) withType(ctx context.Context, err error) error {
	if !isWrongType(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, typeTimeout)
	defer cancel()
	keys := []*handle{h}
	if h.joint != nil {
		keys = nil
		for _, m := range h.joint.members {
			keys = append(keys, &m.handle)
		}
	}
	text := fmt.Sprintf("WRONGTYPE: the key does not hold %s", inWords(h.res.Kind))
	for _, key := range keys {
		if found := key.foundType(ctx); found != "" {
			text = fmt.Sprintf("WRONGTYPE: key %q holds a %s, not %s", key.raw(), found, inWords(key.res.Kind))
			break
		}
	}
	return &foreignError{text + ": use another name, or delete the key", err}
}

// inWords is a kind with its article.
func inWords(kind string) string {
	switch kind {
	case "fair", "fenced":
		return "a " + kind + " lock"
	case "reader", "writer":
		return "a read-write lock"
	case permitsKind:
		return "a semaphore"
	}
	return "a " + kind
}

const typeTimeout = 500 * time.Millisecond

// foundType returns the type of h's main key if it is not that of h's kind; "" if it is, if there is none,
// or if Redis does not tell.
func (h *handle) foundType(ctx context.Context) string {
	values, err := h.c.run.Commands(ctx, []any{"type", h.raw()})
	if err != nil {
		return ""
	}
	right := "hash"
	if isCounter(h.res.Kind) {
		right = "string"
	}
	found, _ := values[0].(string)
	if found == right || found == "none" {
		return ""
	}
	return found
}

// acquire acquires with a call's options. once: try once, whatever the options say. most is the largest
// number of permits; 0 for a primitive without permits. The engine emits the event of the acquisition,
// except for one that fails here because its options are invalid.
func (h *handle) acquire(ctx context.Context, opts []Option, once bool, most int) (*Hold, error) {
	s, err := h.with(opts)
	if err == nil && most > 0 && s.Permits > most {
		err = invalid("%d permits (at most %d)", s.Permits, most)
	}
	if err != nil {
		h.res.ReportNotAcquired(ctx, err)
		return nil, h.failed("acquire", err)
	}
	if s.Linger > 0 && h.res.Traits.Cohorts {
		h.c.presence.HearAsks() // before the release
	}
	limit := s.Wait
	if once {
		limit = 0
	}
	var hold *engine.Hold
	if most > 0 && s.Permits == 0 {
		hold, err = h.res.AcquireNothing(ctx, &s.Terms)
	} else {
		hold, err = h.res.Acquire(ctx, &s.Terms, limit)
	}
	if err != nil {
		return nil, h.failed("acquire", h.withType(ctx, err))
	}
	return newHold(hold), nil
}

// change runs a script such as that of Init or CountDown, which changes a primitive without acquiring it.
// It returns the script's answer. wrong is the error of bad arguments, or nil.
//
// Each call gets a new number and so a new request key, which remembers the answer: memory. Repetitions
// after a lost reply, and late copies, then change nothing and give the same answer.
func (h *handle) change(
	ctx context.Context, op string, wrong error, run func(memory string) (scripts.Number, error),
) (int, error) {
	if wrong != nil {
		return 0, h.failed(op, wrong)
	}
	var answer scripts.Number
	err := h.call(ctx, op, func() (err error) {
		answer, err = run(h.requestKey(h.c.newOwner().ID))
		return err
	})
	return int(answer.Number), err
}

// requests is the prefix of the keys that remember requests. It is that of sharedCounts, too.
func (h *handle) requests() []byte { return h.sharedCounts[:len(h.sharedCounts)-len(sharedCounts)] }

// requestKey is the key that remembers a request. Its name has the form of Redisson's key for an unlock,
// so the same ACL rules cover it.
func (h *handle) requestKey(request string) string { return string(h.requests()) + request }

// ownerKey is the key that remembers the acquisition of an owner and its release. The number makes it
// unique, even where many callers share the owner's id.
func (h *handle) ownerKey(o *engine.Owner) string { return numbered(h.requests(), h.c.id, o.Number) }

// extend implements [engine.Driver].Extend for a driver with leases, by a renewal in a batch of one. The script
// raises the TTL and never shortens it, so copies in any order are harmless.
func (h *handle) extend(
	ctx context.Context, d renewer, o *engine.Ownership, ttl time.Duration,
) (sent time.Time, lost bool, _ error) {
	var batch scripts.Batch
	d.renewal(&batch, o, ttl)
	reply, err := batch.Do(ctx, h.c.confirmed)
	if err == nil {
		err = reply.Unconfirmed
	}
	return reply.Sent, err == nil && !reply.Kept[0], err
}

// checkCount asks whether o, which has a shared id, still has its count. Others may hold with that id, so the
// lock's field does not tell. A renewal of 0 ms changes nothing.
func (h *handle) checkCount(ctx context.Context, d renewer, o *engine.Ownership) (lost bool, err error) {
	var batch scripts.Batch
	d.renewal(&batch, o, 0)
	reply, err := batch.Do(ctx, h.c.calls)
	return err == nil && !reply.Kept[0], err
}

// renewField adds the renewal of a lock whose owner has one field in the hash to a batch.
func (h *handle) renewField(batch *scripts.Batch, o *engine.Ownership, field string, ttl time.Duration) {
	if o.Shared {
		scripts.LockRenewShared{
			LockHash: h.name, SharedCounts: &h.sharedCounts, Field: field, TTL: h.ttlArg(ttl), MemoryKey: h.ownerKey(&o.Owner),
		}.AddTo(batch)
		return
	}
	scripts.LockRenew{LockHash: h.name, Owner: field, TTL: h.ttlArg(ttl)}.AddTo(batch)
}

// nest sets the count of a private hold to n when another one nests in it, by lock/nested_acquire. The script
// does so only while the owner holds the lock, so a copy changes nothing. A late copy of an earlier change may
// restore an older count. That is harmless: the last release of a private id frees the lock, whatever its
// count. Like every acquisition it is confirmed by replicas, if the client asks for that.
func (h *handle) nest(ctx context.Context, field string, n int, ttl time.Duration) (time.Time, bool, error) {
	reply, err := scripts.LockNestedAcquire{
		LockHash: h.name, SharedCounts: &h.sharedCounts, Field: field, Wanted: int64(n), TTL: scripts.InMillis(ttl),
	}.Do(ctx, h.c.confirmed)
	if err == nil {
		err = reply.Unconfirmed
	}
	lost, err := isLost(reply, err)
	return reply.Sent, lost, err
}

// unnest sets the count of a private hold to n when a nested one is released, by lock/nested_release. The
// script sets the count instead of subtracting one, so a copy changes nothing and no memory is needed.
func (h *handle) unnest(ctx context.Context, o *engine.Ownership, field string, n int) (engine.Released, error) {
	lost, err := isLost(scripts.LockNestedRelease{
		LockHash: h.name, SharedCounts: &h.sharedCounts, Field: field, Wanted: int64(n),
		DefaultTTL: scripts.InMillis(o.TTL),
	}.Do(ctx, h.c.calls))
	return engine.Released{Lost: lost}, err
}

// isLost reads a reply that is 0 if the hold is lost.
func isLost(reply scripts.Number, err error) (bool, error) {
	return err == nil && reply.Number == 0, err
}

// ttlArg is a TTL as an argument, without an allocation for the usual one.
func (h *handle) ttlArg(ttl time.Duration) scripts.Millis {
	if ttl == h.settings.FirstTTL() {
		return h.settings.firstTTL
	}
	return scripts.InMillis(ttl)
}

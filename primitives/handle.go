package primitives

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/scripts"
)

// All primitives have a handle. The primitives that can be held embed it, for its methods. It
// validates, merges options, wraps errors, and names the keys that remember requests. The engine
// sees it as an [engine.Resource].

// handle is the part that all primitives share: a name on a client, options, and a driver. After
// init and use it never changes, so it needs no mutex. Making one sends nothing. A handle with a
// bad name or option is still returned, and its first call fails: constructors without an error are
// easier to use.
type handle struct {
	c        *Client
	res      engine.Resource
	settings *settings  // the settings of the client, unless the handle has options of its own, or is invalid
	joint    *jointLock // nil for all primitives except joint locks

	maxPermits int // how many permits one acquisition may ask for; 0 for a primitive without permits

	keys  scripts.Keys // the keys of the driver's scripts
	names wireNames    // the names to which keys refers: see nextName
}

// init sets everything except the driver, and the channel and keys of its kind. name is the user's
// name. opts add to the defaults of the client. An application may make a handle for each
// acquisition, so this allocates little.
func (h *handle) init(c *Client, kind, name string, opts []Option) {
	h.c = c
	h.settings = c.defaults.and(opts)
	h.res = engine.Resource{Core: c.core, Kind: kind, Name: name}
	if name == "" {
		h.refuse(invalid("an empty name"))
	}
	h.keys.Main = c.prefix + name
	h.keys.SharedCounts = h.nextName(requestPrefix, ":"+sharedCounts)
}

// refuse makes every call return err, which says what is wrong with the name or the options.
func (h *handle) refuse(err error) {
	s := settings{}
	if h.settings != nil {
		s = *h.settings
	}
	s.err = err
	h.settings = &s
}

// nextName sets the next one of a handle's wireNames to prefixed(prefix, raw), followed by suffix,
// and returns it.
func (h *handle) nextName(prefix, suffix string) *wireName {
	var room []byte
	for i := range h.names {
		if name := &h.names[i]; *name == nil {
			if i == 0 {
				room = make([]byte, 0, 3*len(h.raw())+85)
			}
			*name = append(appendPrefixed(room, prefix, h.raw()), suffix...)
			return name
		}
		room = h.names[i][len(h.names[i]):] // the room behind this name
	}
	name := wireName(append(appendPrefixed(nil, prefix, h.raw()), suffix...))
	return &name
}

// holdDriver is a driver whose holds can be released.
type holdDriver interface {
	engine.Driver
	engine.HoldDriver
}

// useLeases sets the driver of a kind whose holds have leases.
func (h *handle) useLeases(driver leaseDriver, traits *engine.Traits) {
	script := driver.renewScript()
	h.res.Leases = driver
	h.res.RenewGroup = script
	if h.c.enforcesSlots() {
		h.res.RenewGroup = renewGroup{script, redisutil.Slot(h.raw())}
	}
	h.useHolds(driver, traits)
}

// useHolds sets the driver of a kind whose holds may have no leases.
func (h *handle) useHolds(driver holdDriver, traits *engine.Traits) {
	h.res.Holds = driver
	h.use(driver, traits)
}

// use sets the driver of a kind that may have no holds. On a cluster all keys and channels must
// share a slot, or the handle is invalid. The request keys and the channel stand for the others.
func (h *handle) use(driver engine.Driver, traits *engine.Traits) {
	h.res.Driver = driver
	h.res.Traits = traits
	if !h.c.cluster || h.settings.err != nil {
		return
	}
	for _, key := range []string{h.channel(), h.requestKey("")} {
		if redisutil.Slot(key) != redisutil.Slot(h.raw()) {
			h.refuse(invalid("name %q: its keys %q and %q fall into two cluster slots", h.res.Name, h.raw(), key))
			return
		}
	}
}

// raw returns the name with the client's prefix. Redisson derives the keys from it.
func (h *handle) raw() string { return h.keys.Main.(string) }

// channel returns the name of the channel of messages for waiters.
func (h *handle) channel() string { return h.keys.Channel.(*wireName).String() }

// Name returns the user's name, without the client's prefix.
func (h *handle) Name() string { return h.res.Name }

// with returns the settings of one call. It fails if the handle or an option is invalid. Without
// options it returns the handle's own settings, which the caller must not change.
func (h *handle) with(opts []Option) (*settings, error) {
	if h.settings.err != nil || len(opts) == 0 {
		return h.settings, h.settings.err
	}
	s := h.settings.with(opts)
	if h.joint != nil {
		s.ForMember = h.joint.terms(s.Owner, slices.Clone(opts))
	}
	return &s, s.err
}

// failed wraps an error for the caller. A nil error stays nil.
func (h *handle) failed(op string, err error) error { return failed(&h.res, op, err) }

// call validates the handle, registers with the client, runs f and wraps its error. If ctx has
// ended, f does not run and nothing is sent. Close waits for f.
func (h *handle) call(ctx context.Context, op string, f func() error) error {
	err := h.settings.err
	if err == nil {
		err = h.c.during(ctx, func() error { return h.withType(ctx, f()) })
	}
	return h.failed(op, err)
}

// withType adds what the key holds to a WRONGTYPE error, which only says that the key holds
// something else. It asks Redis, and blocks for typeTimeout at most. Any other error stays as it
// is.
func (h *handle) withType(ctx context.Context, err error) error {
	if !scripts.IsWrongType(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, typeTimeout)
	defer cancel()
	text := fmt.Sprintf("WRONGTYPE: a key beside %q does not hold what belongs to %s", h.res.Name, inWords(h.res.Kind))
	for _, key := range h.parts() {
		if found := key.otherType(ctx); found != "" {
			text = fmt.Sprintf("WRONGTYPE: key %q holds a %s, not %s", key.raw(), found, inWords(key.res.Kind))
			break
		}
	}
	if h.joint != nil { // the errors of the other members stay
		text = err.Error() + "; " + text
	}
	return &foreignError{text + ": " + foreignAdvice, err}
}

// foreignAdvice does not say "delete the key", because during a migration it is often a held lock
// of the other library.
const foreignAdvice = "use another name; another library may hold a lock there, so find out which program writes " +
	"the key"

// otherType asks for the type of the main key. It returns "" if the type is right, if there is no
// key, or without an answer.
func (h *handle) otherType(ctx context.Context) string {
	right := "hash"
	if isCounter(h.res.Kind) {
		right = "string"
	}
	found, err := h.c.typeAt(ctx, h.raw())
	if err != nil || found == "none" {
		return ""
	}
	if found == right {
		return ""
	}
	return found
}

// parts returns h, or the members of a joint lock.
func (h *handle) parts() []*handle {
	if h.joint == nil {
		return []*handle{h}
	}
	members := make([]*handle, len(h.joint.members))
	for i, m := range h.joint.members {
		members[i] = &m.handle
	}
	return members
}

// inWords returns a kind with its article.
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

// waitMode is how long an acquisition waits.
type waitMode uint8

const (
	waitAsOptionsSay waitMode = iota
	tryOnce                   // whatever the options say
	waitForever               // whatever the options say
)

// acquire acquires with a call's options. The engine emits the event of the acquisition, except for
// one that fails here because its options are invalid.
func (h *handle) acquire(ctx context.Context, opts []Option, how waitMode) (*Hold, error) {
	s, err := h.with(opts)
	isTooMany := h.maxPermits > 0 && s.Permits > h.maxPermits
	if err == nil && isTooMany {
		err = invalid("%d permits (at most %d)", s.Permits, h.maxPermits)
	}
	if err != nil {
		h.res.ReportNotAcquired(ctx, err)
		return nil, h.failed("acquire", err)
	}
	mayLinger := s.Linger > 0 && h.res.Traits.HasTurnsOfUsers()
	if mayLinger && ctx.Err() == nil {
		h.c.presence.SubscribeToAsks() // now, because the release needs the subscription
	}
	limit := s.Wait
	switch how {
	case waitAsOptionsSay: // see limit above
	case tryOnce:
		limit = engine.NoWait
	case waitForever:
		limit = engine.Forever
	}
	var hold *engine.Hold
	if h.maxPermits > 0 && s.Permits == 0 {
		hold, err = h.res.AcquireNothing(ctx, &s.Terms)
	} else {
		hold, err = h.res.Acquire(ctx, &s.Terms, limit)
	}
	if err != nil {
		return nil, h.failed("acquire", h.withType(ctx, err))
	}
	return newHold(hold), nil
}

// TryAcquire makes one attempt. It is Acquire with [WithWait](0), whatever other scopes say.
func (h *handle) TryAcquire(ctx context.Context, opts ...Option) (*Hold, error) {
	return h.acquire(ctx, opts, tryOnce)
}

// Do runs f with the lock or the permits held, and with the hold's context. It releases them when f
// returns, fails or panics. It returns f's error, joined with [ErrLost] if they were lost before f
// ended. The permits of a plain semaphore are lost if the semaphore no longer existed at the
// release. Any other failure of the release goes to the observer, and the release is repeated in
// the background.
func (h *handle) Do(ctx context.Context, f func(context.Context) error, opts ...Option) error {
	hold, err := h.acquire(ctx, opts, waitAsOptionsSay)
	if err != nil {
		return err
	}
	return hold.do(ctx, f)
}

// TryDo is Do for work that somebody else may already be doing. It tries once, as TryAcquire does.
//
//   - (false, nil): Redis says that somebody else holds it. f did not run, and need not.
//   - (false, err): f did not run, and it is not known that anybody does the work. Redis did not
//     answer, or ctx ended, or a semaphore has no count yet.
//   - (true, err): f ran. err is what Do returns, nil after success.
func (h *handle) TryDo(
	ctx context.Context, f func(context.Context) error, opts ...Option,
) (ran bool, err error) {
	hold, err := h.acquire(ctx, opts, tryOnce)
	if isTaken(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, hold.do(ctx, f)
}

// do runs f with the hold's context, and releases the hold. ctx is the caller's.
func (h *Hold) do(ctx context.Context, f func(context.Context) error) (err error) {
	defer func() {
		// Any other failure of a release goes to the observer, because the work is done, and must
		// not look undone.
		released := h.Release(ctx)
		if errors.Is(released, ErrLost) && !errors.Is(err, ErrLost) {
			err = errors.Join(err, released)
		}
	}()
	return f(h.Context())
}

// inspect serves Info. It calls read, which returns everything except the names.
func (h *handle) inspect(ctx context.Context, read func() (Info, error)) (info Info, err error) {
	err = h.call(ctx, "inspect", func() (err error) {
		info, err = read()
		h.c.nameHolders(ctx, info.Holders)
		return err
	})
	info.Name = h.res.Name
	info.Kind = h.res.Kind
	return info, err
}

// requests returns the prefix of the keys that remember requests. The key of the shared counts has
// the same prefix.
func (h *handle) requests() []byte {
	counts := *h.keys.SharedCounts.(*wireName)
	return counts[:len(counts)-len(sharedCounts)]
}

// requestKey returns the key that remembers a request. Its name has the form of Redisson's key for
// an unlock, so the same ACL rules cover it.
func (h *handle) requestKey(request string) string { return string(h.requests()) + request }

// ownerKey returns the key that remembers the acquisition of an owner and its release. The owner's
// number makes it unique, even where many callers share the owner's id.
func (h *handle) ownerKey(o *engine.Owner) string { return numbered(h.requests(), h.c.id, o.Number) }

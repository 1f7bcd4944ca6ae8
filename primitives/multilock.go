package primitives

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/joint"
	"github.com/redlatch/redlatch/internal/redisutil"
	"github.com/redlatch/redlatch/scripts"
)

// NewMultiLock makes one lock of several: Redisson's RedissonMultiLock. It is held while all of its
// members are. They may live on different clients. The hold has one id, the owner in every member.
// It is lost when one member is lost.
//
// Plain locks ([Client.Lock]) of one client are acquired by one command, all or none, if they are
// on one server; on a cluster, in one hash slot. One command also renews or releases them. Of
// rivals that come at the same time one wins, and a waiter holds nothing. It tries when a member
// that it was refused is released, and gets the lock if all members are free at that moment.
// Waiters of one client for the same members go in order of arrival. No order is promised among
// clients, nor between waiters for one member and waiters for several: a multilock of many busy
// members may wait for long.
//
// Other members are acquired one after another, sorted by name, whatever order they were given in.
// If somebody else holds a member, the multilock soon releases the others, and waits for that
// member while it holds none. That also holds for plain locks with different options of their own,
// for [WithOwner] and [WithPolling], and for an acquisition with the context of a hold of a member.
//
// The multilock's client (defaults, observer, ids, Close) is the client of the first member by
// name. Options given here or to a call replace the same options of the members, which keep their
// others. A member given twice counts once.
//
// Every method of the lock returns [ErrInvalid] if there is no member, or one that is nil or a
// joint lock. Two kinds of lock on one name of one client are invalid, too.
func NewMultiLock(locks []*Lock, opts ...Option) *Lock { return newJoint("multi", locks, opts) }

// maxWhole is how many members one command acquires at most, because Redis does nothing else
// meanwhile.
const maxWhole = 100

// wholeDriver acquires and releases the members of a multilock by one command each. It implements
// [joint.Whole], and belongs to the handle.
//
//	lock/acquire_all  acquires all members, or names the first one that is taken
//	lock/release_all  frees all members, and publishes on the channel of each
//
// Each key has the content that it would have if the member were acquired alone. The commands are
// also as safe to repeat: see mutex.go. For the acquisition each member has a memory key, so that
// the release or the rollback of any member stops a late copy.
type wholeDriver struct {
	c       *Client
	name    string // the name of the multilock
	members []*mutexDriver
}

// newWholeDriver returns nil if each member needs a command of its own, whatever the terms of an
// acquisition are.
func newWholeDriver(name string, members []*Lock) joint.Whole {
	first := members[0]
	w := &wholeDriver{c: first.c, name: name}
	if len(members) > maxWhole {
		return nil
	}
	w.members = make([]*mutexDriver, len(members))
	for i, m := range members {
		driver, isMutex := m.res.Driver.(*mutexDriver)
		isPlain := isMutex && !m.res.Traits.Fenced
		isAlike := m.c == first.c && sameLease(&m.settings.Terms, &first.settings.Terms)
		// Requests wait in the local queue of the multilock's name, and names with commas may be
		// ambiguous.
		isAmbiguous := strings.Contains(m.res.Name, ",")
		if !isPlain || !isAlike || isAmbiguous {
			return nil
		}
		w.members[i] = driver
	}
	return w
}

// sameLease reports whether two members are acquired, kept and waited for in the same way.
func sameLease(a, b *engine.Terms) bool {
	isKeptAlike := a.TTL == b.TTL && a.Renew == b.Renew && a.MaxHold == b.MaxHold && a.MinHold == b.MinHold
	waitsAlike := a.Wait == b.Wait && a.PollMin == b.PollMin && a.PollMax == b.PollMax
	return isKeptAlike && waitsAlike
}

// Fits implements [joint.Whole].
func (w *wholeDriver) Fits(terms, member *engine.Terms) bool {
	if terms.PollMin > 0 || member.PollMin > 0 {
		return false
	}
	waitsLonger := terms.Wait == engine.Forever || terms.Wait > member.Wait
	if waitsLonger && member.Wait != engine.Forever {
		return false // the members have limits of their own
	}
	return w.sharesSlot() || !w.c.enforcesSlots()
}

// sharesSlot reports whether the keys of all members are in one slot of a cluster.
func (w *wholeDriver) sharesSlot() bool {
	return !slices.ContainsFunc(w.members, func(d *mutexDriver) bool {
		return redisutil.Slot(d.h.raw()) != redisutil.Slot(w.members[0].h.raw())
	})
}

// TryAcquire implements [joint.Whole] by lock/acquire_all.
func (w *wholeDriver) TryAcquire(ctx context.Context, o *engine.Owner) (engine.Result, error) {
	keys := make([]scripts.LockAcquireAllMember, len(w.members))
	for i, d := range w.members {
		keys[i] = scripts.LockAcquireAllMember{Keys: &d.h.keys, MemoryKey: d.h.ownerKey(o)}
	}
	found, _ := w.c.multiListeners.Load(w.name)
	listener, _ := found.(*multiListener) // nil if no request waits
	before := listener.trying()
	reply, err := scripts.LockAcquireAll{
		Owner: o.ID, TTL: o.TTL, Members: keys,
	}.Do(ctx, w.c.confirmed)
	if err != nil && redis.HasErrorPrefix(err, "CROSSSLOT") { // a plain client, on a server that enforces slots
		w.c.slotted.Store(true)
	}
	res, err := acquiredResult(reply.Acquired, err)
	busy := unknownMember
	isRefused := err == nil && !res.Granted
	isMember := reply.Busy >= 0 && int(reply.Busy) < len(w.members)
	if isRefused && isMember {
		busy = int(reply.Busy)
		res.BusyMember = &w.members[busy].h.res
		res.Why = (*busyMember)(res.BusyMember)
	}
	listener.tried(before, res.Granted, busy)
	return res, err
}

// busyMember is the reason of a refusal. It names the member that somebody else holds.
type busyMember engine.Resource

func (m *busyMember) Error() string { return fmt.Sprintf("%s %q", m.Kind, m.Name) }

// Release implements [joint.Whole] by lock/release_all. A copy finds the id gone, and changes
// nothing.
func (w *wholeDriver) Release(ctx context.Context, o *engine.Owner) (held []bool, inDoubt bool, err error) {
	keys := make([]scripts.LockReleaseAllMember, len(w.members))
	for i, d := range w.members {
		keys[i] = scripts.LockReleaseAllMember{Keys: &d.h.keys}
	}
	reply, err := scripts.LockReleaseAll{Owner: o.ID, Members: keys}.Do(ctx, w.c.calls)
	if err == nil && len(reply.Held) != len(keys) {
		err = scripts.Unreadable(reply.Value)
	}
	return reply.Held, reply.Doubt, err
}

// Subscribe implements [joint.Whole]. It listens to all members: see [multiListener].
func (w *wholeDriver) Subscribe(hear func(engine.Message)) []engine.Subscription {
	listener := &multiListener{hear: hear, latest: make([]int, len(w.members)), busy: unknownMember}
	w.c.multiListeners.Store(w.name, listener)
	subs := make([]engine.Subscription, len(w.members))
	for i, d := range w.members {
		subs[i] = d.Subscribe(func(m engine.Message) { listener.message(i, m) })[0]
	}
	subs[0] = &multiSubscription{subs[0], func() {
		w.c.multiListeners.CompareAndDelete(w.name, listener) // if requests wait again, another listener is there
	}}
	return subs
}

// multiSubscription is a subscription that does more when it is closed.
type multiSubscription struct {
	engine.Subscription

	closed func()
}

func (s *multiSubscription) Close() {
	s.Subscription.Close()
	s.closed()
}

func (s *multiSubscription) CloseSoon() {
	s.Subscription.CloseSoon()
	s.closed()
}

// multiListener receives the messages of all members of a multilock for which requests wait. An
// attempt that one member has refused cannot succeed before that member is released, so only
// messages of that member wake the waiters.
//
// A message may overtake the reply to the attempt that was refused before it. Messages are
// therefore numbered, so that an attempt knows which ones came after it began. A nil listener
// stands for a multilock for which no request waits: trying and tried accept it.
type multiListener struct {
	hear func(engine.Message) // takes the mutex of the wait queues

	mu       sync.Mutex // guards the rest; innermost
	busy     int        // the member that has refused the latest attempt, or unknownMember
	messages int        // how many messages came
	latest   []int      // the number of each member's latest message
}

// unknownMember means that the release of any member is a reason to try.
const unknownMember = -1

// message receives a message of the release of a member.
func (e *multiListener) message(member int, m engine.Message) {
	e.mu.Lock()
	e.messages++
	e.latest[member] = e.messages
	matters := e.busy == member || e.busy == unknownMember
	e.mu.Unlock()
	if matters || m == engine.Missed {
		e.hear(m)
	}
}

// trying is called before each attempt. It returns how many messages came before.
func (e *multiListener) trying() int {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.messages
}

// tried is called after each attempt. before is the result of trying, and busy is the member that
// has refused the attempt, or unknownMember if there is none.
func (e *multiListener) tried(before int, granted bool, busy int) {
	if e == nil {
		return
	}
	e.mu.Lock()
	e.busy = busy
	latest := e.messages
	if busy != unknownMember {
		latest = e.latest[busy]
	}
	e.mu.Unlock()
	if !granted && latest > before {
		e.hear(engine.Heard)
	}
}

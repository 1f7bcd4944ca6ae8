package waitq

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A world is one queue with its waiters, a server that has permits, and other clients. Who acts
// next is drawn at random. Commands are sent, executed and answered in three steps, and anything
// may come in between.
type world struct {
	*rapid.T
	q   Queue
	now time.Time

	free    int
	foreign []int // permits of others
	others  int   // clients that hear our releases

	waiting, holding []*client
	releases         []*freeing
	subscribed       bool // a message that is sent now will be heard
	unconfirmed      int
	inbox            int       // release messages on their way to us
	since            time.Time // the last change that the queue must find out about
	faults           bool
	failed           bool // an attempt was not answered, or messages were lost: the next poll is in time
}

// client is the goroutine of a waiter.
type client struct {
	Waiter
	asleep    bool
	awaits    bool // the confirmation of a subscription
	attempt   phase
	granted   bool
	has       bool // the server has granted it, by any command
	left      int  // free permits according to the reply
	companion []*client
	lost      bool // the lock was taken by force, and nobody here knows that
}

// freeing is a release under way.
type freeing struct {
	phase     phase
	by        *client
	successor *client
	action    Action
	yields    bool
	granted   bool
	left      int
	sent      time.Time
	receivers int
}

type phase int

const (
	none phase = iota
	sent
	executed
)

func newWorld(t *rapid.T) *world {
	w := &world{T: t, now: time.Unix(1000, 0), faults: rapid.Bool().Draw(t, "faults")}
	w.since = w.now
	w.free = rapid.SampledFrom([]int{1, 1, 3}).Draw(t, "permits")
	w.others = rapid.IntRange(0, 2).Draw(t, "others")
	w.q.ManyHolders = w.free > 1
	w.q.TakeTurns = rapid.Bool().Draw(t, "take turns")
	w.q.Batches = w.q.ManyHolders && rapid.Bool().Draw(t, "batches")
	w.foreign = []int{w.free}
	w.free = 0
	return w
}

// on gives the queue an event, and does what it says.
func (w *world) on(e Event) []Action {
	e.Now = w.now
	actions := append([]Action(nil), w.q.On(&e)...)
	for _, a := range actions {
		switch a.Kind {
		case Wake:
			a.Who.Of.(*client).asleep = false
		case Subscribe:
			w.unconfirmed = 1
			w.q.Subscribed(1, 0)
		case Unsubscribe:
			w.subscribed, w.unconfirmed, w.inbox = false, 0, 0
		default:
		}
	}
	for _, c := range w.waiting {
		if c.State == Due && c.asleep {
			w.Fatalf("a waiter has a reason to try, and sleeps")
		}
	}
	return actions
}

// publish sends the message of a release.
func (w *world) publish() (receivers int) {
	w.since = w.now
	receivers = w.others
	if w.subscribed {
		w.inbox++
		receivers++
	}
	return receivers
}

func (w *world) pick(of []*client, what string) *client {
	return of[rapid.IntRange(0, len(of)-1).Draw(w.T, what)]
}

// arrive makes a request, which joins at once if its first attempt is refused.
func (w *world) arrive() {
	permits := rapid.IntRange(1, max(1, w.total()-1)).Draw(w.T, "permits")
	if w.q.MustWait(permits) || permits > w.free {
		c := &client{}
		c.Waiter = Waiter{Of: c, Permits: permits}
		w.waiting = append(w.waiting, c)
		w.on(Event{Kind: Joined, Who: &c.Waiter, RetryAfter: -1})
	}
}

func (w *world) total() int {
	n := w.free
	for _, p := range w.foreign {
		n += p
	}
	for _, c := range w.holding {
		if !c.lost {
			n += c.Permits
		}
	}
	for _, r := range w.releases {
		if r.phase == sent {
			n += r.by.Permits
		}
	}
	return n
}

// run lets a waiter that is awake look at its state.
func (w *world) run(c *client) {
	switch {
	case c.State == Granted:
		w.leave(c, true)
	case c.Leaves:
		w.leave(c, false)
	case c.State == Due:
		w.on(Event{Kind: Begins, Who: &c.Waiter})
		c.attempt, c.granted, c.companion = sent, false, nil
		if w.q.Batches {
			for _, a := range w.on(Event{Kind: Batching, Who: &c.Waiter}) {
				c.companion = append(c.companion, a.Who.Of.(*client))
			}
		}
	default:
		c.asleep, c.awaits = true, w.q.Head() == &c.Waiter && w.unconfirmed > 0
	}
}

// confirm lets the head see that its subscription is confirmed.
func (w *world) confirm() {
	for _, c := range w.waiting {
		if c.awaits && c.asleep && w.q.Head() == &c.Waiter && w.unconfirmed > 0 {
			w.unconfirmed, w.subscribed = 0, true
			w.since = w.now
			w.on(Event{Kind: Confirmed, Who: &c.Waiter})
			return
		}
	}
}

// take is what the server does to acquire for c. It grants again what it has granted, and nothing
// once c has left.
func (w *world) take(c *client) bool {
	if !c.has && contains(w.waiting, c) && c.Permits <= w.free {
		w.free -= c.Permits
		c.has = true
	}
	return c.has
}

// goOn lets the attempt of c be executed, or answered.
func (w *world) goOn(c *client) {
	if c.attempt == sent {
		c.attempt, c.granted = executed, w.take(c)
		if c.granted {
			for _, o := range c.companion {
				w.take(o)
			}
		}
		c.left = w.free
		return
	}
	c.attempt = none
	for _, o := range c.companion {
		w.on(Event{Kind: Answered, Who: &o.Waiter, Granted: c.granted && o.has, Untried: !c.granted})
	}
	if c.granted {
		w.leave(c, true)
		return
	}
	c.asleep = false
	w.on(Event{Kind: Tried, Who: &c.Waiter, RetryAfter: -1, Free: c.left})
}

// lose ends an attempt that was not executed, without an answer.
func (w *world) lose(c *client) {
	w.failed, w.since = true, w.now
	c.attempt, c.asleep = none, false
	for _, o := range c.companion {
		w.on(Event{Kind: Answered, Who: &o.Waiter, Doubt: true})
	}
	w.on(Event{Kind: Tried, Who: &c.Waiter, RetryAfter: -1, Doubt: true})
}

// leave removes a waiter: with the lock, or because it gives up. Then its grant is rolled back.
func (w *world) leave(c *client, granted bool) {
	w.waiting = without(w.waiting, c)
	if granted {
		w.holding = append(w.holding, c)
	} else if c.has {
		c.has = false
		w.free += c.Permits
		w.publish()
	}
	w.on(Event{Kind: Left, Who: &c.Waiter, Granted: granted, Free: w.free, RetryAfter: time.Minute})
}

// withdraw makes a waiter give up as soon as it runs.
func (w *world) withdraw(c *client) { c.Leaves, c.asleep = true, false }

// force is a takeover: another client frees one of our holds, and publishes that.
func (w *world) force(c *client) {
	c.has, c.lost = false, true
	w.free += c.Permits
	w.publish()
}

// release begins to release one of our holds.
func (w *world) release(c *client) {
	w.holding = without(w.holding, c)
	if c.lost { // a command finds that
		w.on(Event{Kind: Missed})
		w.requireReason("a loss")
		return
	}
	r := &freeing{phase: sent, by: c, sent: w.now}
	w.releases = append(w.releases, r)
	over := rapid.Bool().Draw(w.T, "over")
	for _, a := range w.on(Event{Kind: Releasing, Permits: c.Permits, HandsOff: true, HasHadTurn: over}) {
		r.action, r.yields = a, a.Kind == Yield
		if a.Kind == Offer {
			r.successor = a.Who.Of.(*client)
		}
	}
}

func (w *world) goOnReleasing(r *freeing) {
	if r.phase == sent {
		r.phase = executed
		w.free += r.by.Permits
		if s := r.successor; s != nil {
			before := w.free
			if r.granted = w.take(s); w.free < before && w.free == 0 {
				return
			}
		}
		r.left, r.receivers = w.free, w.publish()
		return
	}
	for i := range w.releases {
		if w.releases[i] == r {
			w.releases = append(w.releases[:i:i], w.releases[i+1:]...)
			break
		}
	}
	switch s := r.successor; {
	case s != nil:
		w.on(Event{Kind: Answered, Who: &s.Waiter, Granted: r.granted && s.has})
	case r.yields:
		ownMessages := 0
		if r.action.HearsRelease {
			ownMessages = 1
		}
		w.on(Event{Kind: Yielded, Sent: r.sent, Others: r.receivers - ownMessages})
	}
}

func (w *world) deliver() {
	w.inbox--
	w.since = w.now
	w.on(Event{Kind: Heard})
	w.requireReason("a message")
}

// requireReason fails if the queue has heard a reason to try and no attempt follows soon.
func (w *world) requireReason(what string) {
	head := w.q.Head()
	switch {
	case len(w.waiting) == 0, head == nil && w.q.unused:
	case head != nil && head.isDue():
	case !w.q.TryAt.IsZero() && w.q.TryAt.Sub(w.now) <= MaxTurn:
	default:
		w.Fatalf("%s was eaten", what)
	}
}

// pass lets time pass, at most until the alarm.
func (w *world) pass(d time.Duration) {
	if at := w.q.TryAt; !at.IsZero() && at.Sub(w.now) <= d {
		w.now = at
		w.on(Event{Kind: Alarm})
		return
	}
	w.now = w.now.Add(d)
}

// settle finishes everything that is under way, until only the alarm is left.
func (w *world) settle() {
	for range 1000 {
		switch {
		case len(w.releases) > 0:
			w.goOnReleasing(w.releases[0])
		case w.inbox > 0:
			w.deliver()
		default:
			if !w.advance() {
				return
			}
		}
	}
	w.Fatalf("it never comes to rest")
}

func (w *world) advance() bool {
	for _, c := range w.waiting {
		if c.attempt != none {
			w.goOn(c)
			return true
		}
		if !c.asleep {
			w.run(c)
			return true
		}
	}
	before := w.unconfirmed
	w.confirm()
	return w.unconfirmed < before
}

// requireProgress fails if permits are free, somebody waits for them, and nobody tries in time.
func (w *world) requireProgress() {
	limit := 100 * ms
	if w.failed {
		limit = SlowPoll + StuckAfter
	}
	for {
		w.settle()
		fits := false
		for _, c := range w.waiting {
			fits = fits || c.Permits <= w.free && c.State != Granted
		}
		if !fits {
			return
		}
		if w.q.TryAt.IsZero() || w.q.TryAt.Sub(w.since) > limit {
			w.Fatalf("%d permits are free, and nobody tries for %v", w.free, w.q.TryAt.Sub(w.since))
		}
		w.pass(time.Hour)
	}
}

// Whatever happens in whatever order: a reason to try is never lost, free permits find their
// waiters within 100 ms where messages arrive, and everybody's turn comes.
func TestNobodyWaitsForNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w.step()
		}
		w.requireProgress()
		for w.foreign = append(w.foreign, 0); len(w.foreign) > 0; w.foreign = w.foreign[1:] {
			w.free += w.foreign[0]
			w.publish()
		}
		w.inbox = max(w.inbox, min(1, len(w.waiting))) // also to clients that are not confirmed: they try then
		if !w.subscribed {
			w.inbox = 0
		}
		for range 500 {
			w.requireProgress()
			if len(w.holding) == 0 {
				break
			}
			w.release(w.holding[0])
		}
		if len(w.waiting) > 0 {
			t.Fatalf("%d waiters never have their turn", len(w.waiting))
		}
	})
}

// step is one thing that happens.
func (w *world) step() {
	var can []func()
	may := func(possible bool, f func()) {
		if possible {
			can = append(can, f)
		}
	}
	var awake, trying, idle []*client
	for _, c := range w.waiting {
		switch {
		case c.attempt != none:
			trying = append(trying, c)
		default:
			idle = append(idle, c)
			if !c.asleep {
				awake = append(awake, c)
			}
		}
	}
	may(len(w.waiting) < 5, w.arrive)
	may(len(awake) > 0, func() { w.run(w.pick(awake, "runs")) })
	may(len(trying) > 0, func() { w.goOn(w.pick(trying, "goes on")) })
	may(len(idle) > 0, func() { w.leave(w.pick(idle, "gives up"), false) })
	may(w.unconfirmed > 0, w.confirm)
	may(w.inbox > 0, w.deliver)
	may(len(w.holding) > 0, func() { w.release(w.pick(w.holding, "releases")) })
	may(len(w.releases) > 0, func() {
		w.goOnReleasing(w.releases[rapid.IntRange(0, len(w.releases)-1).Draw(w.T, "release")])
	})
	may(len(w.waiting) > 0, func() { w.withdraw(w.pick(w.waiting, "is withdrawn")) })
	may(len(w.holding) > 0, func() {
		if c := w.pick(w.holding, "is taken by force"); !c.lost {
			w.force(c)
		}
	})
	may(len(w.foreign) > 0, func() { // another client releases
		w.free += w.foreign[0]
		w.foreign = w.foreign[1:]
		w.publish()
	})
	may(w.free > 0, func() { // another client acquires
		w.foreign = append(w.foreign, w.free)
		w.free = 0
	})
	may(true, func() {
		w.pass(rapid.SampledFrom([]time.Duration{0, time.Microsecond, ms, 40 * ms, 90 * ms, time.Second}).Draw(w.T, "passes"))
	})
	may(w.faults && len(trying) > 0, func() {
		if c := w.pick(trying, "is not answered"); c.attempt == sent {
			w.lose(c)
		}
	})
	may(w.faults && w.inbox > 0, func() { // the connection is lost, and comes back
		w.inbox = 0
		w.since = w.now
		w.on(Event{Kind: Missed})
		w.requireReason("a reconnection")
	})
	can[rapid.IntRange(0, len(can)-1).Draw(w.T, "what")]()
}

func without(list []*client, c *client) (rest []*client) {
	for _, o := range list {
		if o != c {
			rest = append(rest, o)
		}
	}
	return rest
}

func contains(list []*client, c *client) bool { return len(without(list, c)) < len(list) }

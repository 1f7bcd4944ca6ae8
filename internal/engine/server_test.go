package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// server is a lock server in memory. Leases end by the fake clock of the test's bubble. Commands are
// executed at once, unless a fault is scripted for them.
type server struct {
	start time.Time

	mu        sync.Mutex
	locks     map[string]*lockState // by name
	requests  map[string]*memory    // by client and number of the owner
	subs      []*subscription
	line      []*linePlace // of all names
	ticks     int64        // orders it
	log       []logEntry
	granted   []string           // ids, in the order in which they were granted something
	scripted  map[string][]fault // by operation: for the next commands
	intercept func(command) fault
	subscribe subscribeFault
	silent    bool                      // messages are lost
	deaf      *client                   // messages to it are lost
	lag       map[*client]time.Duration // of messages to it
	clients   []*client                 // for ask
	polls     map[string]time.Time      // until when a name has the mark of a client that polls
	endless   bool                      // leases do not end
}

// lockState is one name: who holds how many of its permits.
type lockState struct {
	permits int
	holders map[string]*holder // by id, or by request if it has none
	token   int64              // the last fencing token that was reserved
}

type holder struct {
	count   int
	permits int
	until   time.Time // zero: no lease
	change  uint32    // the last numbered change of the count
	token   int64     // the first of its fencing tokens
}

// memory is what the server remembers of a request, so that all copies of its commands have the effect
// of one.
type memory struct {
	counted bool // it was granted
	ended   time.Time
	lost    bool // the reply to the release
}

// command is one command that was sent. Its log line is "op name id".
type command struct {
	op, name, id string
	client       string
}

type logEntry struct {
	at time.Duration // since the start
	command
}

// fault is what happens to one command. The zero value: it is executed and answered at once.
type fault struct {
	delay time.Duration // until it is executed
	reply time.Duration // from then until the reply arrives
	lost  bool          // it is never executed, and never answered
	mute  bool          // it is executed, but its reply is lost
	copy  time.Duration // a copy is executed that much later, and the reply says so; 0: no copy
	twice bool          // an earlier copy was executed without a reply, and the reply says so
	err   error         // the answer; it is not executed
}

// subscribeFault is what happens to subscriptions.
type subscribeFault struct {
	delay time.Duration // until they are confirmed or refused
	err   error         // why they are refused
}

// netError is a failure that the engine can classify.
type netError struct {
	text    string
	failure Failure
	cause   error
}

func (e *netError) Error() string { return e.text }
func (e *netError) Unwrap() error { return e.cause }

var (
	errDown    = &netError{text: "connection refused", failure: Failure{Retry: true}}
	errBusy    = &netError{text: "busy", failure: Failure{Retry: true, NotNow: true}}
	errFatal   = &netError{text: "wrong type"}
	errStopped = &netError{text: "transport closed", failure: Failure{Closed: true}}
)

func unanswered(cause error) error {
	return &netError{"no answer", Failure{InDoubt: true, Retry: true}, cause}
}

func cutShort(cause error, silent time.Duration) error {
	return &netError{"no answer", Failure{InDoubt: true, Retry: true, Ended: true, Silent: silent}, cause}
}

func classify(err error) Failure {
	if e, ok := errors.AsType[*netError](err); ok {
		return e.failure
	}
	return Failure{}
}

// bubble runs f in a bubble with a fake clock, with a server of its own. The bubble fails if a goroutine
// is left at its end.
func bubble(t *testing.T, f func(t *testing.T, s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newServer()) })
}

func newServer() *server {
	return &server{
		start: time.Now(), locks: map[string]*lockState{}, requests: map[string]*memory{},
		scripted: map[string][]fault{}, lag: map[*client]time.Duration{}, polls: map[string]time.Time{},
	}
}

// script sets what happens to the next commands of an operation.
func (s *server) script(op string, faults ...fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripted[op] = append(s.scripted[op], faults...)
}

// onEach sets what happens to every command for which none is scripted.
func (s *server) onEach(f func(command) fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// keepLeases makes leases last for ever, so that a test finds a lock that was not released.
func (s *server) keepLeases() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endless = true
}

// resetFaults ends all scripted faults.
func (s *server) resetFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept, s.silent, s.subscribe = nil, false, subscribeFault{}
	clear(s.scripted)
}

// next logs a command and returns what happens to it.
func (s *server) next(c command) fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.log) > 100_000 { // the fake clock would let a loop run for ever
		panic(fmt.Sprintf("too many commands; the last ones are %v", s.log[len(s.log)-10:]))
	}
	s.log = append(s.log, logEntry{time.Since(s.start), c})
	if faults := s.scripted[c.op]; len(faults) > 0 {
		s.scripted[c.op] = faults[1:]
		return faults[0]
	}
	if s.intercept != nil {
		return s.intercept(c)
	}
	return fault{}
}

// trip is what a client knows of a command that it has sent.
type trip struct {
	sent  time.Time
	doubt bool // a copy may still arrive
}

// do sends a command of c. exec runs with s.mu held, once for each copy that arrives.
func do[R any](ctx context.Context, c *client, cmd command, exec func() (R, error)) (R, trip, error) {
	type answer struct {
		reply R
		err   error
	}
	var none R
	if ctx.Err() != nil {
		return none, trip{}, &netError{"not sent", Failure{Retry: true}, context.Cause(ctx)}
	}
	s := c.s
	cmd.client = c.id
	f := s.next(cmd)
	sent := trip{time.Now(), f.copy > 0 || f.twice}
	answers := make(chan answer, 1)
	after := func(d time.Duration, f func()) {
		if d > 0 {
			time.AfterFunc(d, f)
		} else {
			f()
		}
	}
	execute := func() answer {
		s.mu.Lock()
		defer s.mu.Unlock()
		reply, err := exec()
		return answer{reply, err}
	}
	if f.twice {
		execute()
	}
	switch {
	case f.err != nil:
		after(f.delay, func() { answers <- answer{err: f.err} })
	case !f.lost:
		after(f.delay, func() {
			if a := execute(); !f.mute {
				after(f.reply, func() { answers <- a })
			}
		})
	}
	if f.copy > 0 {
		time.AfterFunc(f.copy, func() { execute() })
	}
	select {
	case a := <-answers: // counts, whatever else has happened
		return a.reply, sent, a.err
	default:
	}
	timeout := time.NewTimer(c.CommandTimeout)
	defer timeout.Stop()
	select {
	case a := <-answers:
		return a.reply, sent, a.err
	case <-ctx.Done():
		return none, sent, cutShort(context.Cause(ctx), time.Since(sent.sent))
	case <-timeout.C:
		return none, sent, unanswered(nil)
	case <-c.hurried:
		return none, sent, unanswered(nil)
	case <-c.stopped:
		return none, sent, errStopped
	}
}

// lock returns the state of a name, without the holders whose leases have ended. mu is held, as in all
// methods below that are called by commands.
func (s *server) lock(name string) *lockState {
	l := s.locks[name]
	if l == nil {
		l = &lockState{permits: 1, holders: map[string]*holder{}}
		s.locks[name] = l
	}
	now := time.Now()
	for id, h := range l.holders {
		if !h.until.IsZero() && !now.Before(h.until) && !s.endless {
			delete(l.holders, id)
		}
	}
	return l
}

func (l *lockState) free() int {
	free := l.permits
	for _, h := range l.holders {
		free -= h.permits
	}
	return free
}

// remembered returns what the server knows of a request. It forgets that a request has ended when the
// client may no longer repeat it.
func (s *server) remembered(key string) *memory {
	m := s.requests[key]
	if m == nil || (!m.ended.IsZero() && !time.Now().Before(m.ended)) {
		m = &memory{}
		s.requests[key] = m
	}
	return m
}

// attempt is the arguments of an acquisition.
type attempt struct {
	name, key, id        string
	permits              int // negative: all
	ttl                  time.Duration
	shared, nonReentrant bool
	nested               bool
	tokens               int32 // fencing tokens to reserve; 0 and 1: one
}

func (s *server) acquire(a attempt) (res Result, err error) {
	l, m := s.lock(a.name), s.remembered(a.key)
	if a.permits < 0 {
		a.permits = l.permits
	}
	h := l.holders[a.id]
	switch {
	case !m.ended.IsZero():
		return res, fmt.Errorf("this acquisition was given back already: %w", ErrReleased)
	case a.nested && h == nil:
		return res, ErrLost
	case h != nil && (m.counted || !a.shared):
	case h != nil && a.nonReentrant:
		return res, ErrDeadlock
	case h != nil:
		h.count++
	case a.permits > l.free():
		res.RetryAfter, res.Free = -1, l.free()
		for id, other := range l.holders {
			res.Holder = id
			if left := time.Until(other.until); !other.until.IsZero() && (res.RetryAfter < 0 || left < res.RetryAfter) {
				res.RetryAfter = left
			}
		}
		return res, nil
	default:
		h = &holder{count: 1, permits: a.permits, token: l.token + 1}
		l.token += int64(max(a.tokens, 1))
		l.holders[a.id] = h
		s.granted = append(s.granted, a.id)
	}
	m.counted = true
	h.keep(a.ttl)
	return Result{Granted: true, Free: l.free(), Token: h.token, Tokens: max(a.tokens, 1)}, nil
}

// keep extends the lease; ttl 0: there is none.
func (h *holder) keep(ttl time.Duration) {
	if until := time.Now().Add(ttl); ttl > 0 && until.After(h.until) {
		h.until = until
	}
}

// end takes back what a request was granted. The server remembers that for as long as keep; with 0 a copy
// finds nothing.
func (s *server) end(name, key, id string, shared, rollback bool, keep time.Duration) (freed, lost bool) {
	l, m := s.lock(name), s.remembered(key)
	if !m.ended.IsZero() {
		return false, m.lost
	}
	h := l.holders[id]
	switch {
	case h == nil, rollback && shared && !m.counted:
		lost = h == nil
	case shared && h.count > 1:
		h.count--
	default:
		delete(l.holders, id)
		freed = true
	}
	if keep > 0 {
		m.ended, m.lost = time.Now().Add(keep), lost
	}
	return freed, lost
}

// publish sends the messages of a release, and returns how many clients receive one. A client receives its
// messages in the order in which they were sent. own is the place of the client that releases.
func (s *server) publish(name string, own *placeID) (heard int) {
	mail, told := s.wakeFirst(name, own)
	return told + s.send(name, mail)
}

// send sends messages to places, and then the common message. It returns how many clients hear the common one.
func (s *server) send(name string, mail []placeMail) (heard int) {
	var clients []*client
	inbox := map[*client][]func(){}
	for _, m := range mail {
		inbox[m.sub.c] = append(inbox[m.sub.c], func() { m.sub.deliverPlace(m.m) })
	}
	for _, sub := range s.subs {
		if sub.name != name || !sub.active {
			continue
		}
		if !slices.Contains(clients, sub.c) {
			clients = append(clients, sub.c)
		}
		inbox[sub.c] = append(inbox[sub.c], func() { sub.deliver(false) })
	}
	for c, messages := range inbox {
		if s.silent || s.deaf == c {
			continue
		}
		lag := s.lag[c]
		go func() {
			time.Sleep(lag)
			for _, deliver := range messages {
				deliver()
			}
		}()
	}
	return len(clients)
}

// subscription implements [Subscription].
type subscription struct {
	c         *client
	name      string
	confirmed chan struct{}
	err       error // set before confirmed is closed
	active    bool  // guarded by server.mu
	place     placeID
	hear      func(LineMessage) // of a place

	mu     sync.Mutex // held while wake runs
	wake   func(missed bool)
	closed bool
}

func (s *server) newSubscription(c *client, name string, wake func(bool)) *subscription {
	sub := &subscription{c: c, name: name, wake: wake, confirmed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs, sub)
	f := s.subscribe
	settle := func() {
		sub.err, sub.active = f.err, f.err == nil
		close(sub.confirmed)
	}
	if f.delay == 0 {
		settle()
	} else {
		time.AfterFunc(f.delay, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			settle()
		})
	}
	return sub
}

func (sub *subscription) Confirmed() <-chan struct{} { return sub.confirmed }
func (sub *subscription) Err() error                 { return sub.err }

func (sub *subscription) deliver(missed bool) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if !sub.closed {
		sub.wake(missed)
	}
}

func (sub *subscription) deliverPlace(m LineMessage) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if !sub.closed {
		sub.hear(m)
	}
}

func (sub *subscription) Close() {
	sub.mu.Lock()
	sub.closed = true
	sub.mu.Unlock()
	s := sub.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = slices.DeleteFunc(s.subs, func(o *subscription) bool { return o == sub })
}

// ask tells the client of a holder that another client asks for what it holds.
func (s *server) ask(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, logEntry{time.Since(s.start), command{op: "ask", id: holder}})
	for _, c := range s.clients {
		if c.HolderTag(holder) == c.id && s.deaf != c && !s.silent {
			lag := s.lag[c]
			go func() {
				time.Sleep(lag)
				c.Wanted(func(h *Hold) bool { return h.ID() == holder })
			}()
		}
	}
}

// message sends the common message of a name, though no client has released it.
func (s *server) message(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(name, nil)
}

// reconnected signals all subscribers that messages may have been missed.
func (s *server) reconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		go sub.deliver(true)
	}
}

// setPermits sets how many permits a name has.
func (s *server) setPermits(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lock(name).permits = n
}

// seize makes a client outside of the test hold a name, for ttl; 0: until it is freed.
func (s *server) seize(name, id string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &holder{count: 1, permits: 1}
	h.keep(ttl)
	s.lock(name).holders[id] = h
}

// forget deletes a name, as a server does that has lost its data.
func (s *server) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.lock(name).holders)
}

// free deletes a name and announces that.
func (s *server) free(name string) {
	s.forget(name)
	s.message(name)
}

// ids returns who holds a name, sorted.
func (s *server) ids(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := []string{}
	for id := range s.lock(name).holders {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// holder returns a copy of what the server keeps for an id; the zero value if it holds nothing.
func (s *server) holder(name, id string) holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.lock(name).holders[id]; h != nil {
		return *h
	}
	return holder{}
}

// lease returns how long the lease of an id lasts; 0 if it holds nothing.
func (s *server) lease(name, id string) time.Duration {
	return max(time.Until(s.holder(name, id).until), 0)
}

// requireFree checks that no lock is held.
func (s *server) requireFree(t testing.TB) {
	t.Helper()
	for _, name := range s.names() {
		require.Empty(t, s.ids(name), "%q is still held", name)
	}
}

func (s *server) names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.locks {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// sent returns the times of all commands of an operation, since the start. match filters by id, name or
// client. "" matches all.
func (s *server) sent(op, match string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := []time.Duration{}
	for _, e := range s.log {
		if (op == "" || e.op == op) && (match == "" || e.id == match || e.name == match || e.client == match) {
			times = append(times, e.at)
		}
	}
	return times
}

// now is the time since the start.
func (s *server) now() time.Duration { return time.Since(s.start) }

package enginetest

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

	"github.com/redlatch/redlatch/internal/engine"
	"github.com/redlatch/redlatch/internal/failure"
)

// Server is a lock server in memory. Leases end by the fake clock of the test's bubble. Commands
// are executed at once, unless a fault is scripted for them.
type Server struct {
	Start time.Time

	Mu          sync.Mutex
	locks       map[string]*lockState // by name
	requests    map[string]*memory    // by client and number of the owner
	Subs        []*subscription
	line        []*linePlace // of all names
	ticks       int64        // orders it
	Log         []logEntry
	Granted     []string           // ids, in the order in which they were granted something
	scripted    map[string][]Fault // by operation: for the next commands
	Intercept   func(Command) Fault
	Subscribe   SubscribeFault
	Silent      bool                      // messages are lost
	Deaf        *Client                   // messages to it are lost
	Lag         map[*Client]time.Duration // of messages to it
	clients     []*Client                 // for ask
	polls       map[string]time.Time      // until when a name has the mark of a client that polls
	endless     bool                      // leases do not end
	mayStayHeld bool                      // by somebody, when the bubble ends
}

// lockState is one name: who holds how many of its permits.
type lockState struct {
	permits int
	holders map[string]*holder // by id, or by request if it has none
	token   int64              // the last fencing token that was reserved
}

type holder struct {
	Count   int
	permits int
	until   time.Time // zero: no lease
	change  uint32    // the last numbered change of the count
	token   int64     // the first of its fencing tokens
	shared  []string  // the requests that share it
}

// memory is what the server remembers of a request, so that all copies of its commands have the
// effect of one.
type memory struct {
	counted bool // it was granted
	ended   time.Time
	lost    bool // the reply to the release
}

// Command is one command that was sent. Its log line is "op name id".
type Command struct {
	Op, Name, ID string
	Client       string
}

type logEntry struct {
	at time.Duration // since the start
	Command
}

// Fault is what happens to one command. The zero value: it is executed and answered at once.
type Fault struct {
	Delay time.Duration // until it is executed
	Reply time.Duration // from then until the reply arrives
	Lost  bool          // it is never executed, and never answered
	Mute  bool          // it is executed, but its reply is lost
	Copy  time.Duration // a copy is executed that much later, and the reply says so; 0: no copy
	Twice bool          // an earlier copy was executed without a reply, and the reply says so
	Err   error         // the answer; it is not executed
	Panic bool          // a hook of go-redis panics, before it is executed or, with Twice, after that
}

// SubscribeFault is what happens to subscriptions.
type SubscribeFault struct {
	Delay time.Duration // until they are confirmed or refused
	Err   error         // why they are refused
}

// NewError returns the error of a command, with a text.
func NewError(text string, f failure.Failure) error {
	return &failure.Error{Failure: f, Err: errors.New(text)}
}

var (
	ErrDown    = NewError("connection refused", failure.Failure{Outcome: failure.NotExecuted})
	ErrBusy    = NewError("busy", failure.Failure{Outcome: failure.NotExecuted, NotNow: true})
	ErrFatal   = NewError("wrong type", failure.Failure{Outcome: failure.Executed, Answered: true})
	ErrStopped = NewError("transport closed", failure.Failure{Outcome: failure.NotExecuted, Closed: true})

	ErrNoAnswer = failure.Unanswered(errors.New("no answer"))
)

// Bubble runs f in a bubble with a fake clock, with a server of its own. The bubble fails if a
// goroutine is left at its end, or if somebody holds a lock: see [Server.MayStayHeld].
func Bubble(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := NewServer()
		f(t, s)
		if !s.mayStayHeld {
			s.RequireFree(t)
		}
	})
}

// RunBubble runs f as Bubble does, in a subtest of that name.
func RunBubble(t *testing.T, name string, f func(t *testing.T, s *Server)) {
	t.Run(name, func(t *testing.T) { Bubble(t, f) })
}

func NewServer() *Server {
	return &Server{
		Start: time.Now(), locks: map[string]*lockState{}, requests: map[string]*memory{},
		scripted: map[string][]Fault{}, Lag: map[*Client]time.Duration{}, polls: map[string]time.Time{},
	}
}

// Script sets what happens to the next commands of an operation.
func (s *Server) Script(op string, faults ...Fault) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.scripted[op] = append(s.scripted[op], faults...)
}

// OnEach sets what happens to every command for which none is scripted.
func (s *Server) OnEach(f func(Command) Fault) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Intercept = f
}

// KeepLeases makes leases last for ever, so that a test finds a lock that was not released.
func (s *Server) KeepLeases() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.endless = true
}

// ResetFaults ends all scripted faults.
func (s *Server) ResetFaults() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Intercept, s.Silent, s.Subscribe = nil, false, SubscribeFault{}
	clear(s.scripted)
}

// next logs a command and returns what happens to it.
func (s *Server) next(c Command) Fault {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if len(s.Log) > 100_000 { // the fake clock would let a loop run for ever
		panic(fmt.Sprintf("too many commands; the last ones are %v", s.Log[len(s.Log)-10:]))
	}
	s.Log = append(s.Log, logEntry{time.Since(s.Start), c})
	if faults := s.scripted[c.Op]; len(faults) > 0 {
		s.scripted[c.Op] = faults[1:]
		return faults[0]
	}
	if s.Intercept != nil {
		return s.Intercept(c)
	}
	return Fault{}
}

// trip is what a client knows of a command that it has sent.
type trip struct {
	Sent  time.Time
	doubt bool // a copy may still arrive
}

// Do sends a command of c. exec runs with s.mu held, once for each copy that arrives.
func Do[R any](ctx context.Context, c *Client, cmd Command, exec func() (R, error)) (R, trip, error) {
	type answer struct {
		reply R
		err   error
	}
	var none R
	if ctx.Err() != nil {
		return none, trip{}, &failure.Error{Failure: failure.Failure{Outcome: failure.NotExecuted}, Err: context.Cause(ctx)}
	}
	s := c.s
	cmd.Client = c.ID
	f := s.next(cmd)
	sent := trip{time.Now(), f.Copy > 0 || f.Twice}
	answers := make(chan answer, 1)
	after := func(d time.Duration, f func()) {
		if d > 0 {
			time.AfterFunc(d, f)
		} else {
			f()
		}
	}
	execute := func() answer {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		reply, err := exec()
		return answer{reply, err}
	}
	if f.Twice {
		execute()
	}
	switch {
	case f.Panic:
		panic("hook")
	case f.Err != nil:
		after(f.Delay, func() { answers <- answer{err: f.Err} })
	case !f.Lost:
		after(f.Delay, func() {
			if a := execute(); !f.Mute {
				after(f.Reply, func() { answers <- a })
			}
		})
	}
	if f.Copy > 0 {
		time.AfterFunc(f.Copy, func() { execute() })
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
		return none, sent, failure.CutShort(ctx, sent.Sent)
	case <-timeout.C:
		return none, sent, ErrNoAnswer
	case <-c.Hurried:
		return none, sent, ErrNoAnswer
	case <-c.stopped:
		return none, sent, ErrStopped
	}
}

// lock returns the state of a name, without the holders whose leases have ended. mu is held, as in
// all methods below that are called by commands.
func (s *Server) lock(name string) *lockState {
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

// remembered returns what the server knows of a request. It forgets that a request has ended when
// the client may no longer repeat it.
func (s *Server) remembered(key string) *memory {
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
	pool                 bool  // a refusal names no holder
	tokens               int32 // fencing tokens to reserve; 0 and 1: one
}

func (s *Server) acquire(a attempt) (res engine.Result, err error) {
	l, m := s.lock(a.name), s.remembered(a.key)
	if a.permits < 0 {
		a.permits = l.permits
	}
	h := l.holders[a.id]
	switch {
	case !m.ended.IsZero():
		return res, fmt.Errorf("this acquisition was given back already: %w", engine.ErrReleased)
	case a.nested && h == nil:
		return res, engine.ErrLost
	case h != nil && (m.counted || !a.shared):
	case h != nil && a.nonReentrant:
		return res, engine.ErrDeadlock
	case h != nil:
		h.Count++
		h.shared = append(h.shared, a.key)
	case a.permits > l.free():
		res.RetryAfter, res.Free = -1, l.free()
		for id, other := range l.holders {
			if !a.pool {
				res.Holder = id
			}
			if left := time.Until(other.until); !other.until.IsZero() && (res.RetryAfter < 0 || left < res.RetryAfter) {
				res.RetryAfter = left
			}
		}
		return res, nil
	default:
		h = &holder{Count: 1, permits: a.permits, token: l.token + 1}
		if a.shared {
			h.shared = []string{a.key}
		}
		l.token += int64(max(a.tokens, 1))
		l.holders[a.id] = h
		s.Granted = append(s.Granted, a.id)
	}
	m.counted = true
	h.keep(a.ttl)
	return engine.Result{Granted: true, Free: l.free(), Token: h.token, Tokens: int16(max(a.tokens, 1))}, nil
}

// hasOwn reports whether there are counts besides the shared ones.
func (h *holder) hasOwn() bool { return h.Count > len(h.shared) }

// keep extends the lease; ttl 0: there is none.
func (h *holder) keep(ttl time.Duration) {
	if until := time.Now().Add(ttl); ttl > 0 && until.After(h.until) {
		h.until = until
	}
}

// end takes back what a request was granted. The server remembers that for as long as keep; with 0
// a copy finds nothing.
func (s *Server) end(
	name, key, id string, shared, rollback bool, keep time.Duration,
) (freed, lost bool) {
	l, m := s.lock(name), s.remembered(key)
	if !m.ended.IsZero() {
		return false, m.lost
	}
	h := l.holders[id]
	switch {
	case h == nil, rollback && shared && !m.counted:
		lost = h == nil
	case shared && !slices.Contains(h.shared, key): // of a later acquisition with this id
		lost = true
	case shared && h.Count > 1:
		h.Count--
		h.shared = slices.DeleteFunc(h.shared, func(other string) bool { return other == key })
	case !shared && len(h.shared) > 0: // the shared counts stay
		lost = !h.hasOwn()
		h.Count = len(h.shared)
	default:
		delete(l.holders, id)
		freed = true
	}
	if keep > 0 {
		m.ended, m.lost = time.Now().Add(keep), lost
	}
	return freed, lost
}

// shorten ends the lease of an id after rest, unless others have counts of it, too.
func (s *Server) shorten(name, key, id string, shared bool, rest time.Duration) (got engine.Released) {
	h := s.lock(name).holders[id]
	switch {
	case h == nil, shared && !slices.Contains(h.shared, key), !shared && !h.hasOwn():
		got.Lost = true
	case shared && h.Count > 1, !shared && len(h.shared) > 0:
		got.Stays = true
	default:
		if until := time.Now().Add(rest); until.Before(h.until) {
			h.until = until
			s.publish(name, nil)
		}
	}
	return got
}

// publish sends the messages of a release, and returns how many clients receive one. A client
// receives its messages in the order in which they were sent. own is the place of the client that
// releases.
func (s *Server) publish(name string, own *placeID) (heard int) {
	mail, told := s.wakeFirst(name, own)
	return told + s.send(name, mail)
}

// send sends messages to places, and then the common message. It returns how many clients hear the
// common one.
func (s *Server) send(name string, mail []placeMail) (heard int) {
	var clients []*Client
	inbox := map[*Client][]func(){}
	for _, m := range mail {
		inbox[m.sub.c] = append(inbox[m.sub.c], func() { m.sub.deliver(m.m) })
	}
	for _, sub := range s.Subs {
		if sub.name != name || !sub.active {
			continue
		}
		if !slices.Contains(clients, sub.c) {
			clients = append(clients, sub.c)
		}
		inbox[sub.c] = append(inbox[sub.c], func() { sub.deliver(engine.Heard) })
	}
	for c, messages := range inbox {
		if s.Silent || s.Deaf == c {
			continue
		}
		lag := s.Lag[c]
		go func() {
			time.Sleep(lag)
			for _, deliver := range messages {
				deliver()
			}
		}()
	}
	return len(clients)
}

// subscription implements [engine.Subscription].
type subscription struct {
	c         *Client
	name      string
	confirmed chan struct{}
	err       error // set before confirmed is closed
	active    bool  // guarded by server.mu
	place     placeID

	mu     sync.Mutex // held while hear runs
	hear   func(engine.Message)
	closed bool
}

func (s *Server) NewSubscription(c *Client, name string, hear func(engine.Message)) *subscription {
	sub := &subscription{c: c, name: name, hear: hear, confirmed: make(chan struct{})}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Subs = append(s.Subs, sub)
	f := s.Subscribe
	settle := func() {
		sub.err, sub.active = f.Err, f.Err == nil
		close(sub.confirmed)
	}
	if f.Delay == 0 {
		settle()
	} else {
		time.AfterFunc(f.Delay, func() {
			s.Mu.Lock()
			defer s.Mu.Unlock()
			settle()
		})
	}
	return sub
}

func (sub *subscription) Confirmed() <-chan struct{} { return sub.confirmed }
func (sub *subscription) Err() error                 { return sub.err }

func (sub *subscription) deliver(m engine.Message) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if !sub.closed {
		sub.hear(m)
	}
}

func (sub *subscription) CloseSoon() { sub.Close() }

func (sub *subscription) Close() {
	sub.mu.Lock()
	sub.closed = true
	sub.mu.Unlock()
	s := sub.c.s
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Subs = slices.DeleteFunc(s.Subs, func(o *subscription) bool { return o == sub })
}

// ask tells the client of a holder that another client asks for what it holds.
func (s *Server) ask(name, holder string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Log = append(s.Log, logEntry{time.Since(s.Start), Command{Op: "ask", ID: holder}})
	for _, c := range s.clients {
		if c.Owners.TagOf(holder) == c.ID && s.Deaf != c && !s.Silent {
			lag := s.Lag[c]
			go func() {
				time.Sleep(lag)
				c.HandleAsk(name, holder)
			}()
		}
	}
}

// Message sends the common message of a name, though no client has released it.
func (s *Server) Message(name string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.send(name, nil)
}

// Reconnected signals all subscribers that messages may have been missed.
func (s *Server) Reconnected() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, sub := range s.Subs {
		go sub.deliver(engine.Missed)
	}
}

// SetPermits sets how many permits a name has.
func (s *Server) SetPermits(name string, n int) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.lock(name).permits = n
}

// Seize makes a client outside of the test hold a name, for ttl; 0: until it is freed.
func (s *Server) Seize(name, id string, ttl time.Duration) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	h := &holder{Count: 1, permits: 1}
	h.keep(ttl)
	s.lock(name).holders[id] = h
}

// Forget deletes a name, as a server does that has lost its data.
func (s *Server) Forget(name string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	clear(s.lock(name).holders)
}

// Free deletes a name and announces that.
func (s *Server) Free(name string) {
	s.Forget(name)
	s.Message(name)
}

// IDs returns who holds a name, sorted.
func (s *Server) IDs(name string) []string {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	ids := []string{}
	for id := range s.lock(name).holders {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Holder returns a copy of what the server keeps for an id; the zero value if it holds nothing.
func (s *Server) Holder(name, id string) holder {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if h := s.lock(name).holders[id]; h != nil {
		return *h
	}
	return holder{}
}

// Lease returns how long the lease of an id lasts; 0 if it holds nothing.
func (s *Server) Lease(name, id string) time.Duration {
	return max(time.Until(s.Holder(name, id).until), 0)
}

// RequireFree checks that no lock is held.
func (s *Server) RequireFree(t testing.TB) {
	t.Helper()
	for _, name := range s.Names() {
		require.Empty(t, s.IDs(name), "%q is still held", name)
	}
}

// MayStayHeld allows that a lock is held when a bubble ends.
func (s *Server) MayStayHeld() { s.mayStayHeld = true }

func (s *Server) Names() (names []string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for name := range s.locks {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Sent returns when the commands of an operation were sent, counted from the start. With a text, it
// returns only commands whose id, name or client is that text.
func (s *Server) Sent(op string, text ...string) []time.Duration {
	isMeant := func(c Command) bool {
		isOne := func(s string) bool { return s == c.ID || s == c.Name || s == c.Client }
		return len(text) == 0 || slices.ContainsFunc(text, isOne)
	}
	return s.times(func(c Command) bool { return c.Op == op && isMeant(c) })
}

// Commands returns the times of all commands, since the start.
func (s *Server) Commands() []time.Duration { return s.times(func(Command) bool { return true }) }

func (s *Server) times(match func(Command) bool) []time.Duration {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	times := []time.Duration{}
	for _, e := range s.Log {
		if match(e.Command) {
			times = append(times, e.at)
		}
	}
	return times
}

// Now is the time since the start.
func (s *Server) Now() time.Duration { return time.Since(s.Start) }

// SetAway makes replies and messages reach a client that much later.
func (s *Server) SetAway(c *Client, away time.Duration) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Lag[c] = away
	before := s.Intercept
	s.Intercept = func(cmd Command) Fault {
		if cmd.Client == c.ID {
			return Fault{Reply: away}
		}
		if before != nil {
			return before(cmd)
		}
		return Fault{}
	}
}

// LongestIdle watches a name for d, and returns the longest time for which nobody held it.
func (s *Server) LongestIdle(name string, d time.Duration) (longest time.Duration) {
	held := time.Now()
	for end := time.Now().Add(d); time.Now().Before(end); Sleep(time.Millisecond) {
		if len(s.IDs(name)) > 0 {
			held = time.Now()
		}
		longest = max(longest, time.Since(held))
	}
	return longest
}

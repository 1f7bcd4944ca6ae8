package simnet

import (
	"slices"
	"time"

	"github.com/redlatch/redlatch/internal/test/memredis"
)

// The directions of a connection.
const (
	ToServer = 0
	ToClient = 1
)

// Route is what a client process and a server have between them. Its faults last until they are
// ended, and concern open and new connections.
type Route struct {
	n        *Net
	client   *Client
	server   *Server
	refusing overlapping
	delays   [2]time.Duration
	held     [2]overlapping
	silent   overlapping // no messages
	rules    []*Rule
}

// overlapping counts the faults of one kind that are under way. They may overlap. The end of one
// does not end the other.
type overlapping int

// set notes that a fault begins or ends.
func (o *overlapping) set(on bool) {
	if on {
		*o++
	} else {
		*o = max(*o-1, 0)
	}
}

func (o *overlapping) isOn() bool { return *o > 0 }

// Effect is what a rule does.
type Effect int

// The effects.
const (
	// Pass executes the command. The rule only sees it.
	Pass Effect = iota
	// LoseCommand breaks the connection before the command arrives.
	LoseCommand
	// LoseReply breaks the connection after the command was executed.
	LoseReply
	// HoldReply holds the reply back, and what comes after it, until the rule is removed.
	HoldReply
	// Late breaks the connection, and lets the command arrive after Rule.After.
	Late
)

// Rule is a fault of single commands.
type Rule struct {
	// Match is called with each command that arrives. It must not block.
	Match  func(args []string) bool
	Effect Effect
	After  time.Duration
	// Over, if not nil, is called when a late command was executed, or was dropped.
	Over func()
	// Alive, if not nil, says whether a late command still arrives.
	Alive func() bool

	links []*link // whose replies are held
}

// Refuse refuses dials, until it is called with false as often as with true.
func (r *Route) Refuse(on bool) {
	r.n.lock()
	defer r.n.unlock()
	r.refusing.set(on)
}

// Delay adds d, which may be negative, to the time that data is under way in a direction.
func (r *Route) Delay(direction int, d time.Duration) {
	r.n.lock()
	defer r.n.unlock()
	r.delays[direction] += d
}

// Hold keeps data of a direction back, until it is called with false as often as with true. Then
// all of it arrives, also what was written to connections that are closed by then: a kernel sends
// it again.
func (r *Route) Hold(direction int, on bool) {
	r.n.lock()
	defer r.n.unlock()
	r.held[direction].set(on)
	if r.held[direction].isOn() {
		return
	}
	for _, l := range r.links() {
		l.deliver(direction)
	}
}

// Strand breaks all connections, except that what the client has written still arrives, after so
// much time: a kernel sends it again and again. It is called while the route holds ToServer.
func (r *Route) Strand(after time.Duration) {
	r.n.lock()
	defer r.n.unlock()
	for _, l := range r.links() {
		written := l.input
		for _, c := range l.under[ToServer] {
			written = append(written, c.data...)
		}
		l.reset()
		if len(written) > 0 {
			time.AfterFunc(after, func() { r.arriveLate(written) })
		}
	}
}

// arriveLate executes what a connection that is gone has written.
func (r *Route) arriveLate(written []byte) {
	r.n.lock()
	defer r.n.unlock()
	if r.server.down {
		return
	}
	conn := r.server.redis.NewConn(func([]byte) {})
	defer conn.Close()
	for {
		args, size, err := memredis.ReadCommand(written)
		if err != nil || size == 0 {
			return
		}
		written = written[size:]
		r.n.note(-1, ToServer, r.server.execute(conn, args))
	}
}

// Silence drops messages of subscriptions, until it is called with false as often as with true.
func (r *Route) Silence(on bool) {
	r.n.lock()
	defer r.n.unlock()
	r.silent.set(on)
}

// Reset breaks all connections. What is under way is lost.
func (r *Route) Reset() {
	r.n.lock()
	defer r.n.unlock()
	r.n.reset(func(l *link) bool { return l.route == r })
}

// CutSubscriptions breaks the connections with subscriptions.
func (r *Route) CutSubscriptions() {
	r.n.lock()
	defer r.n.unlock()
	r.n.reset(func(l *link) bool { return l.route == r && l.redis.Subscribes() })
}

// Add adds a rule. remove ends it, and may be called again.
func (r *Route) Add(rule *Rule) (remove func()) {
	r.n.lock()
	defer r.n.unlock()
	r.rules = append(r.rules, rule)
	return func() {
		r.n.lock()
		defer r.n.unlock()
		r.rules = slices.DeleteFunc(r.rules, func(other *Rule) bool { return other == rule })
		for _, l := range rule.links {
			l.heldBy = slices.DeleteFunc(l.heldBy, func(other *Rule) bool { return other == rule })
			l.deliver(ToClient)
		}
		rule.links = nil
	}
}

// links returns the connections of the route. n.mu is held.
func (r *Route) links() (out []*link) {
	for _, l := range r.n.links {
		if l.route == r {
			out = append(out, l)
		}
	}
	return out
}

// executeLate executes a command whose connection is gone.
func (r *Route) executeLate(rule *Rule, args []string) {
	time.AfterFunc(rule.After, func() {
		if rule.Over != nil {
			defer rule.Over()
		}
		if rule.Alive != nil && !rule.Alive() {
			return
		}
		r.n.lock()
		defer r.n.unlock()
		if r.server.down {
			return
		}
		conn := r.server.redis.NewConn(func([]byte) {})
		r.n.note(-1, ToServer, r.server.execute(conn, args))
		conn.Close()
	})
}

// execute executes a command, and calls the functions that [Server.Watch] has added, unless the
// reply is an error. n.mu is held.
func (s *Server) execute(conn *memredis.Conn, args []string) (reply []byte) {
	reply = conn.Do(args)
	isError := reply[0] == '-'
	if isError {
		return reply
	}
	for _, seen := range s.seen {
		seen(args)
	}
	return reply
}

// Watch calls seen with each command that the server has executed, by whomever and however late,
// unless the reply is an error. seen must not block, and must not use the network.
func (s *Server) Watch(seen func(args []string)) {
	s.n.lock()
	defer s.n.unlock()
	s.seen = append(s.seen, seen)
}

package memredis

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// Fault is a state in which a server refuses commands.
type Fault string

// The faults.
const (
	Healthy Fault = ""
	Loading Fault = "LOADING" // it reads its data from the disk
	Busy    Fault = "BUSY"    // a script does not end
	Full    Fault = "OOM"     // maxmemory is reached: commands that need memory fail
)

// Server is a Redis server. It is not safe for concurrent use.
type Server struct {
	clock func() time.Time
	skew  time.Duration // how far its clock has jumped
	rand  *rand.Rand
	fault Fault

	readOnly bool      // it is a replica, or was told to become one
	primary  *Server   // whose messages it passes on; nil if there is none
	replicas []*Server // that pass its messages on

	now      int64 // ms since 1970, of the current command
	keys     map[string]*item
	channels [2]map[string][]*Conn // plain and sharded; subscribers in the order of their subscriptions
	scripts  map[string]*lua.FunctionProto
	state    *lua.LState
	running  run // the script that runs now
	lastConn int64
	wrote    int64 // number of write commands
}

// New returns an empty server. The seed decides what its random commands return.
func New(clock func() time.Time, seed uint64) *Server {
	s := &Server{clock: clock, rand: rand.New(rand.NewPCG(seed, 77))} //nolint:gosec // a simulation repeats it
	s.Forget()
	return s
}

// Forget makes the server as it is after a restart without data. Connections must have been closed
// before.
func (s *Server) Forget() {
	s.keys = map[string]*item{}
	s.restart()
}

// restart drops what no restart keeps.
func (s *Server) restart() {
	s.channels = [2]map[string][]*Conn{{}, {}}
	s.scripts = map[string]*lua.FunctionProto{}
	s.fault = Healthy
}

// SetFault begins a fault, or ends it with Healthy.
func (s *Server) SetFault(f Fault) { s.fault = f }

// Jump lets the server's clock jump, back if d is negative.
func (s *Server) Jump(d time.Duration) { s.skew += d }

// wallClock is what the server's clock says.
func (s *Server) wallClock() time.Time { return s.clock().Add(s.skew) }

// SetReadOnly makes the server refuse writes. It goes on answering reads with the data that it has.
func (s *Server) SetReadOnly(on bool) { s.readOnly = on }

// Follow makes the server a replica of another one, with all of its data. It keeps its connections,
// and passes the messages of the other one on to their subscribers.
func (s *Server) Follow(primary *Server) {
	s.leave()
	s.keys, s.readOnly, s.primary = copyKeys(primary.keys), true, primary
	primary.replicas = append(primary.replicas, s)
}

// Promote makes a replica a primary, with the data that it has.
func (s *Server) Promote() {
	s.leave()
	s.readOnly = false
}

// leave ends that the server follows another one.
func (s *Server) leave() {
	if s.primary != nil {
		s.primary.replicas = slices.DeleteFunc(s.primary.replicas, func(other *Server) bool { return other == s })
		s.primary = nil
	}
}

// Snapshot is the data of a server at an instant.
type Snapshot struct{ keys map[string]*item }

// Snapshot copies the data.
func (s *Server) Snapshot() Snapshot { return Snapshot{copyKeys(s.keys)} }

// Restore makes the server as it is after a restart with that data.
func (s *Server) Restore(from Snapshot) {
	s.keys = copyKeys(from.keys)
	s.restart()
}

func copyKeys(keys map[string]*item) map[string]*item {
	out := make(map[string]*item, len(keys))
	for name, it := range keys {
		out[name] = it.clone()
	}
	return out
}

// Writes is the number of write commands so far, also of those in scripts.
func (s *Server) Writes() int64 { return s.wrote }

// Conn is a connection.
type Conn struct {
	s      *Server
	id     int64
	resp3  bool
	name   string
	push   func(data []byte)
	topics [2][]string // plain and sharded channels, in the order of their subscriptions
}

// NewConn opens a connection. push is called with what the server sends beside replies.
func (s *Server) NewConn(push func(data []byte)) *Conn {
	s.lastConn++
	return &Conn{s: s, id: s.lastConn, push: push}
}

// Close ends the subscriptions of the connection.
func (c *Conn) Close() {
	for kind := range c.topics {
		for _, topic := range c.topics[kind] {
			c.s.unsubscribe(c, kind, topic)
		}
		c.topics[kind] = nil
	}
}

// Subscribes reports whether the connection has subscriptions.
func (c *Conn) Subscribes() bool { return len(c.topics[0])+len(c.topics[1]) > 0 }

// Do executes a command and returns the reply.
func (c *Conn) Do(args []string) []byte {
	s := c.s
	s.now = s.wallClock().UnixMilli()
	return appendReply(nil, s.call(c, args), c.resp3)
}

// call executes a command of a client.
func (s *Server) call(c *Conn, args []string) any {
	name := strings.ToLower(args[0])
	cmd, ok := commands[name]
	if !ok {
		return failure("ERR unknown command '" + args[0] + "'")
	}
	if !cmd.admits(len(args)) {
		return failure("ERR wrong number of arguments for '" + name + "' command")
	}
	if refusal := s.refuses(cmd, false); refusal != "" {
		return refusal
	}
	if cmd.flags&write != 0 {
		s.wrote++
	}
	return cmd.do(s, c, args)
}

// refuses returns the error of a command that the current fault does not allow; "" if it is
// allowed. Within a script, only what the script wants to write can be refused, and nothing after
// its first write.
func (s *Server) refuses(cmd *command, inScript bool) failure {
	switch {
	case s.fault == Healthy && !s.readOnly || cmd.flags&always != 0:
	case s.fault == Loading && !inScript:
		return "LOADING Redis is loading the dataset in memory"
	case s.fault == Busy && !inScript:
		return "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
	case s.fault == Full && cmd.flags&grows != 0 && !s.running.wrote:
		return "OOM command not allowed when used memory > 'maxmemory'."
	case s.readOnly && cmd.flags&write != 0:
		return "READONLY You can't write against a read only replica."
	}
	return ""
}

// Flags of commands.
const (
	write  = 1 << iota
	grows  // needs memory
	always // allowed in each fault
)

// command is a command of Redis.
type command struct {
	least, most int // arguments, with the name; most < 0: any number
	flags       int
	do          func(s *Server, c *Conn, args []string) any
}

func (c *command) admits(n int) bool { return n >= c.least && (c.most < 0 || n <= c.most) }

// look returns the item of a key; nil if there is none.
func (s *Server) look(key string) *item {
	it := s.keys[key]
	if it != nil && it.isOver(s.now) {
		delete(s.keys, key)
		return nil
	}
	return it
}

// liveKeys returns the names of all keys, in order.
func (s *Server) liveKeys() []string {
	var out []string
	for key := range s.keys {
		out = append(out, key)
	}
	slices.Sort(out)
	return slices.DeleteFunc(out, func(key string) bool { return s.look(key) == nil })
}

func (s *Server) subscribe(c *Conn, kind int, topic string) {
	if !slices.Contains(c.topics[kind], topic) {
		c.topics[kind] = append(c.topics[kind], topic)
		s.channels[kind][topic] = append(s.channels[kind][topic], c)
	}
}

func (s *Server) unsubscribe(c *Conn, kind int, topic string) {
	left := slices.DeleteFunc(s.channels[kind][topic], func(other *Conn) bool { return other == c })
	if len(left) == 0 {
		delete(s.channels[kind], topic)
		return
	}
	s.channels[kind][topic] = left
}

// publish sends a message to the subscribers of a channel, and returns their number.
func (s *Server) publish(kind int, topic, payload string) any {
	word := []string{"message", "smessage"}[kind]
	all := s.channels[kind][topic]
	for _, c := range all {
		c.push(appendReply(nil, push{word, topic, payload}, c.resp3))
	}
	for _, replica := range s.replicas {
		replica.publish(kind, topic, payload)
	}
	return int64(len(all))
}

// match reports whether a name matches a pattern of Redis, of which only "*" and "?" are known.
func match(pattern, name string) bool {
	for i := range len(pattern) {
		switch {
		case pattern[i] == '*':
			for j := range len(name) - i + 1 {
				if match(pattern[i+1:], name[i+j:]) {
					return true
				}
			}
			return false
		case i >= len(name) || pattern[i] != '?' && pattern[i] != name[i]:
			return false
		}
	}
	return len(pattern) == len(name)
}

func compareMembers(a, b member) int {
	return cmp.Or(cmp.Compare(a.score, b.score), cmp.Compare(a.name, b.name))
}

// Peek returns the fields of a hash and the time until it expires, which is negative if it does not
// expire. ok is false if the key exists and is no hash. It changes nothing.
func (s *Server) Peek(key string) (fields []string, left time.Duration, ok bool) {
	now := s.wallClock().UnixMilli()
	it := s.keys[key]
	switch {
	case it == nil || it.isOver(now):
		return nil, 0, true
	case it.kind != isHash:
		return nil, 0, false
	case it.expires == 0:
		left = -time.Millisecond
	default:
		left = time.UnixMilli(it.expires).Sub(s.wallClock())
	}
	for _, f := range it.fields {
		fields = append(fields, f.name)
	}
	return fields, left, true
}

// Left returns the time until a key expires; 0 if it does not exist, or does not expire.
func (s *Server) Left(key string) time.Duration {
	it := s.keys[key]
	if it == nil || it.expires == 0 {
		return 0
	}
	return max(time.UnixMilli(it.expires).Sub(s.wallClock()), 0)
}

// PeekScores returns the members of a sorted set, and the times until their scores, which are ms
// since 1970. It changes nothing.
func (s *Server) PeekScores(key string) map[string]time.Duration {
	out := map[string]time.Duration{}
	it := s.keys[key]
	if it == nil || it.isOver(s.wallClock().UnixMilli()) {
		return out
	}
	for _, m := range it.zset {
		out[m.name] = time.UnixMilli(int64(m.score)).Sub(s.wallClock())
	}
	return out
}

// Keys returns the names of all keys, in order.
func (s *Server) Keys() []string {
	s.now = s.wallClock().UnixMilli()
	return s.liveKeys()
}

// Evict deletes a key, as a server does whose memory is full.
func (s *Server) Evict(key string) { delete(s.keys, key) }

// EndSoon makes this the last millisecond of a key with a TTL.
func (s *Server) EndSoon(key string) {
	now := s.wallClock().UnixMilli()
	if it := s.keys[key]; it != nil && it.expires != 0 && !it.isOver(now) {
		it.expires = now
	}
}

// ForgetScripts does what SCRIPT FLUSH does.
func (s *Server) ForgetScripts() { clear(s.scripts) }

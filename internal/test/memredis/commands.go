package memredis

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

const (
	ok          status  = "OK"
	notInteger  failure = "ERR value is not an integer or out of range"
	notFloat    failure = "ERR min or max is not a float"
	syntaxError failure = "ERR syntax error"
)

// commands are all commands, by their names in lower case. It is filled by init, because scripts
// call commands.
var commands map[string]*command

func init() {
	commands = map[string]*command{
		// Connections.
		"hello":        {1, -1, always, (*Server).hello},
		"auth":         {2, 3, always, reply(ok)},
		"ping":         {1, 2, 0, (*Server).ping},
		"echo":         {2, 2, 0, func(_ *Server, _ *Conn, args []string) any { return args[1] }},
		"select":       {2, 2, always, reply(ok)},
		"client":       {2, -1, always, (*Server).client},
		"info":         {1, -1, 0, (*Server).info},
		"role":         {1, 1, 0, (*Server).role},
		"time":         {1, 1, 0, (*Server).time},
		"wait":         {3, 3, 0, reply(int64(0))},
		"config":       {2, -1, 0, func(*Server, *Conn, []string) any { return ok }},
		"subscribe":    {2, -1, 0, subscribing(0, "subscribe")},
		"ssubscribe":   {2, -1, 0, subscribing(1, "ssubscribe")},
		"unsubscribe":  {1, -1, 0, unsubscribing(0, "unsubscribe")},
		"sunsubscribe": {1, -1, 0, unsubscribing(1, "sunsubscribe")},
		"publish":      {3, 3, 0, func(s *Server, _ *Conn, args []string) any { return s.publish(0, args[1], args[2]) }},
		"spublish":     {3, 3, 0, func(s *Server, _ *Conn, args []string) any { return s.publish(1, args[1], args[2]) }},
		"pubsub":       {2, -1, 0, (*Server).pubsub},

		// Scripts.
		"eval":    {3, -1, 0, (*Server).eval},
		"evalsha": {3, -1, 0, (*Server).evalSHA},
		"script":  {2, -1, 0, (*Server).script},

		// Keys.
		"del":      {2, -1, write, (*Server).del},
		"unlink":   {2, -1, write, (*Server).del},
		"exists":   {2, -1, 0, (*Server).exists},
		"type":     {2, 2, 0, (*Server).typeOf},
		"expire":   {3, 3, write, expiring(1000)},
		"pexpire":  {3, 3, write, expiring(1)},
		"persist":  {2, 2, write, (*Server).persist},
		"ttl":      {2, 2, 0, ttlIn(1000)},
		"pttl":     {2, 2, 0, ttlIn(1)},
		"scan":     {2, -1, 0, (*Server).scan},
		"keys":     {2, 2, 0, (*Server).keysLike},
		"dbsize":   {1, 1, 0, func(s *Server, _ *Conn, _ []string) any { return int64(len(s.liveKeys())) }},
		"flushall": {1, 2, write, (*Server).flushAll},

		// Strings.
		"get":      {2, 2, 0, (*Server).get},
		"set":      {3, -1, write | grows, (*Server).set},
		"getrange": {4, 4, 0, (*Server).getRange},
		"incr":     {2, 2, write | grows, adding(1, false)},
		"decr":     {2, 2, write | grows, adding(-1, false)},
		"incrby":   {3, 3, write | grows, adding(1, true)},
		"decrby":   {3, 3, write | grows, adding(-1, true)},

		// Hashes.
		"hget":       {3, 3, 0, (*Server).hget},
		"hset":       {4, -1, write | grows, (*Server).hset},
		"hdel":       {3, -1, write, (*Server).hdel},
		"hexists":    {3, 3, 0, (*Server).hexists},
		"hlen":       {2, 2, 0, (*Server).hlen},
		"hmget":      {3, -1, 0, (*Server).hmget},
		"hgetall":    {2, 2, 0, (*Server).hgetall},
		"hkeys":      {2, 2, 0, (*Server).hkeys},
		"hincrby":    {4, 4, write | grows, (*Server).hincrby},
		"hscan":      {3, -1, 0, (*Server).hscan},
		"hrandfield": {2, 3, 0, (*Server).hrandfield},

		// Lists.
		"rpush":  {3, -1, write | grows, (*Server).rpush},
		"lpop":   {2, 2, write, (*Server).lpop},
		"llen":   {2, 2, 0, (*Server).llen},
		"lindex": {3, 3, 0, (*Server).lindex},
		"lrange": {4, 4, 0, (*Server).lrange},
		"lrem":   {4, 4, write, (*Server).lrem},

		// Sorted sets.
		"zadd":             {4, -1, write | grows, (*Server).zadd},
		"zrem":             {3, -1, write, (*Server).zrem},
		"zscore":           {3, 3, 0, (*Server).zscore},
		"zcard":            {2, 2, 0, (*Server).zcard},
		"zcount":           {4, 4, 0, (*Server).zcount},
		"zrange":           {4, 5, 0, (*Server).zrange},
		"zrangebyscore":    {4, -1, 0, (*Server).zrangeByScore},
		"zremrangebyscore": {4, 4, write, (*Server).zremRangeByScore},
	}
}

func reply(r any) func(*Server, *Conn, []string) any {
	return func(*Server, *Conn, []string) any { return r }
}

func (s *Server) roleName() string {
	if s.readOnly {
		return "replica"
	}
	return "master"
}

func (s *Server) hello(c *Conn, args []string) any {
	if len(args) > 1 {
		switch args[1] {
		case "2", "3":
			c.resp3 = args[1] == "3"
		default:
			return failure("NOPROTO unsupported protocol version")
		}
	}
	proto := int64(2)
	if c.resp3 {
		proto = 3
	}
	return pairs{
		"server", "redis", "version", "7.4.0", "proto", proto, "id", c.id, "mode", "standalone", "role", s.roleName(),
		"modules", []any{},
	}
}

func (s *Server) ping(c *Conn, args []string) any {
	switch {
	case !c.resp3 && c.Subscribes():
		return []any{"pong", strings.Join(args[1:], "")}
	case len(args) > 1:
		return args[1]
	}
	return status("PONG")
}

func (s *Server) client(c *Conn, args []string) any {
	switch strings.ToLower(args[1]) {
	case "setname":
		c.name = args[2]
	case "getname":
		return c.name
	case "id":
		return c.id
	}
	return ok
}

func (s *Server) info(*Conn, []string) any {
	return "# Server\r\nredis_version:7.4.0\r\nredis_mode:standalone\r\n# Replication\r\nrole:" + s.roleName() + "\r\n"
}

func (s *Server) role(*Conn, []string) any {
	if s.readOnly {
		return []any{"slave", "127.0.0.1", int64(0), "connected", int64(0)}
	}
	return []any{"master", int64(0), []any{}}
}

func (s *Server) time(*Conn, []string) any {
	return []any{strconv.FormatInt(s.now/1000, 10), strconv.FormatInt(s.now%1000*1000, 10)}
}

func subscribing(kind int, word string) func(*Server, *Conn, []string) any {
	return func(s *Server, c *Conn, args []string) any {
		var out several
		for _, topic := range args[1:] {
			s.subscribe(c, kind, topic)
			out = append(out, push{word, topic, int64(len(c.topics[kind]))})
		}
		return out
	}
}

func unsubscribing(kind int, word string) func(*Server, *Conn, []string) any {
	return func(s *Server, c *Conn, args []string) any {
		topics := args[1:]
		if len(topics) == 0 {
			topics = slices.Clone(c.topics[kind])
		}
		if len(topics) == 0 {
			return several{push{word, nil, int64(0)}}
		}
		var out several
		for _, topic := range topics {
			c.topics[kind] = slices.DeleteFunc(c.topics[kind], func(other string) bool { return other == topic })
			s.unsubscribe(c, kind, topic)
			out = append(out, push{word, topic, int64(len(c.topics[kind]))})
		}
		return out
	}
}

func (s *Server) pubsub(_ *Conn, args []string) any {
	kind := 0
	word := strings.ToLower(args[1])
	if plain, sharded := strings.CutPrefix(word, "shard"); sharded {
		kind, word = 1, plain
	}
	switch word {
	case "channels":
		var names []string
		for topic := range s.channels[kind] {
			if len(args) < 3 || match(args[2], topic) {
				names = append(names, topic)
			}
		}
		slices.Sort(names)
		return texts(names)
	case "numsub":
		out := []any{}
		for _, topic := range args[2:] {
			out = append(out, topic, int64(len(s.channels[kind][topic])))
		}
		return out
	}
	return syntaxError
}

func texts(all []string) []any {
	out := make([]any, len(all))
	for i, each := range all {
		out[i] = each
	}
	return out
}

func (s *Server) eval(c *Conn, args []string) any {
	sha, bad := s.compile(args[1])
	if bad != "" {
		return bad
	}
	return s.runScript(c, sha, args[2:])
}

func (s *Server) evalSHA(c *Conn, args []string) any {
	sha := strings.ToLower(args[1])
	if s.scripts[sha] == nil {
		return failure("NOSCRIPT No matching script. Please use EVAL.")
	}
	return s.runScript(c, sha, args[2:])
}

func (s *Server) script(_ *Conn, args []string) any {
	switch strings.ToLower(args[1]) {
	case "load":
		sha, bad := s.compile(args[2])
		if bad != "" {
			return bad
		}
		return sha
	case "flush":
		clear(s.scripts)
		return ok
	case "exists":
		out := []any{}
		for _, sha := range args[2:] {
			n := int64(0)
			if s.scripts[strings.ToLower(sha)] != nil {
				n = 1
			}
			out = append(out, n)
		}
		return out
	}
	return syntaxError
}

func (s *Server) del(_ *Conn, args []string) any {
	n := int64(0)
	for _, key := range args[1:] {
		if s.look(key) != nil {
			delete(s.keys, key)
			n++
		}
	}
	return n
}

func (s *Server) exists(_ *Conn, args []string) any {
	n := int64(0)
	for _, key := range args[1:] {
		if s.look(key) != nil {
			n++
		}
	}
	return n
}

func (s *Server) typeOf(_ *Conn, args []string) any {
	if it := s.look(args[1]); it != nil {
		return status(it.kind)
	}
	return status("none")
}

func expiring(unit int64) func(*Server, *Conn, []string) any {
	return func(s *Server, _ *Conn, args []string) any {
		n, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return notInteger
		}
		it := s.look(args[1])
		if it == nil {
			return int64(0)
		}
		it.expires = s.now + n*unit
		if n <= 0 {
			delete(s.keys, args[1])
		}
		return int64(1)
	}
}

func (s *Server) persist(_ *Conn, args []string) any {
	it := s.look(args[1])
	if it == nil || it.expires == 0 {
		return int64(0)
	}
	it.expires = 0
	return int64(1)
}

func ttlIn(unit int64) func(*Server, *Conn, []string) any {
	return func(s *Server, _ *Conn, args []string) any {
		it := s.look(args[1])
		switch {
		case it == nil:
			return int64(-2)
		case it.expires == 0:
			return int64(-1)
		}
		return (it.expires - s.now + unit/2) / unit
	}
}

// scan returns everything at once.
func (s *Server) scan(_ *Conn, args []string) any {
	pattern := "*"
	for i := 2; i+1 < len(args); i += 2 {
		if strings.EqualFold(args[i], "match") {
			pattern = args[i+1]
		}
	}
	return []any{"0", s.keysLike(nil, []string{"keys", pattern})}
}

func (s *Server) keysLike(_ *Conn, args []string) any {
	return texts(slices.DeleteFunc(s.liveKeys(), func(key string) bool { return !match(args[1], key) }))
}

func (s *Server) flushAll(*Conn, []string) any {
	clear(s.keys)
	return ok
}

func (s *Server) get(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isString)
	switch {
	case wrong != "":
		return wrong
	case it == nil:
		return nil
	}
	return it.text
}

func (s *Server) set(_ *Conn, args []string) any {
	expires, onlyNew, onlyOld, keep := int64(0), false, false, false
	for i := 3; i < len(args); i++ {
		switch word := strings.ToLower(args[i]); word {
		case "nx":
			onlyNew = true
		case "xx":
			onlyOld = true
		case "keepttl":
			keep = true
		case "px", "ex":
			if i++; i == len(args) {
				return syntaxError
			}
			n, err := strconv.ParseInt(args[i], 10, 64)
			if err != nil {
				return notInteger
			}
			if n <= 0 {
				return failure("ERR invalid expire time in 'set' command")
			}
			if word == "ex" {
				n *= 1000
			}
			expires = s.now + n
		default:
			return syntaxError
		}
	}
	old := s.look(args[1])
	if onlyNew && old != nil || onlyOld && old == nil {
		return nil
	}
	if keep && old != nil {
		expires = old.expires
	}
	s.keys[args[1]] = &item{kind: isString, text: args[2], expires: expires}
	return ok
}

func (s *Server) getRange(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isString)
	if wrong != "" {
		return wrong
	}
	text := ""
	if it != nil {
		text = it.text
	}
	start, err1 := strconv.Atoi(args[2])
	end, err2 := strconv.Atoi(args[3])
	if err1 != nil || err2 != nil {
		return notInteger
	}
	n := len(text)
	isBackwards := start < 0 && end < 0 && start > end
	// An end before the text counts as its first byte.
	if start < 0 {
		start = max(0, n+start)
	}
	if end < 0 {
		end = max(0, n+end)
	}
	end = min(end, n-1)
	if isBackwards || start > end {
		return ""
	}
	return text[start : end+1]
}

// bounds turns a start and an inclusive stop, which may count from the end, into a range of
// indexes.
func bounds(start, stop string, n int) (from, to int, bad failure) {
	a, err1 := strconv.Atoi(start)
	b, err2 := strconv.Atoi(stop)
	if err1 != nil || err2 != nil {
		return 0, 0, notInteger
	}
	if a < 0 {
		a = max(0, n+a)
	}
	if b < 0 {
		b = n + b
	}
	b = min(b, n-1)
	if a > b {
		return 0, 0, ""
	}
	return a, b + 1, ""
}

func adding(sign int64, hasArgument bool) func(*Server, *Conn, []string) any {
	return func(s *Server, _ *Conn, args []string) any {
		by := int64(1)
		if hasArgument {
			n, err := strconv.ParseInt(args[2], 10, 64)
			if err != nil {
				return notInteger
			}
			by = n
		}
		it, wrong := s.typed(args[1], isString)
		if wrong != "" {
			return wrong
		}
		old := int64(0)
		if it != nil {
			n, err := strconv.ParseInt(it.text, 10, 64)
			if err != nil {
				return notInteger
			}
			old = n
		}
		by *= sign
		if by > 0 && old > math.MaxInt64-by || by < 0 && old < math.MinInt64-by {
			return failure("ERR increment or decrement would overflow")
		}
		it, _ = s.made(args[1], isString)
		it.text = strconv.FormatInt(old+by, 10)
		return old + by
	}
}

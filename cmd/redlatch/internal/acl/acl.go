// Package acl knows which rights on a Redis server the library uses. It gives them as rules of an
// ACL, and as examples by which a server can be asked whether it grants them.
package acl

import (
	"slices"
	"strings"
)

// Right is something that the library does, and what a user needs for it.
type Right struct {
	// Commands are examples, of which the user must be able to run one. A right to a key has
	// several: the user may lack the right to one of the commands.
	Commands [][]string
	Grant    string // what ACL SETUSER adds
	Without  string // what does not work without it; "": acquisitions
}

// derived is a kind of key or channel whose name contains the user's name. The main key is the name
// itself.
type derived struct{ before, after, without string }

var (
	keys = []derived{
		{"", ":timeout", "readers and leased permits fail"},
		{"redisson_unlock_latch:", ":1", ""},
		{"redisson_lock_token:", "", ""},
		{"redisson_lock_queue:", "", ""},
		{"redisson_lock_timeout:", "", ""},
		{"redlatch_lock_waiters:", "", "fair locks fail"},
		{"redlatch_lock_clients:", "", "fair locks fail"},
		{"redlatch_rwlock_claim:", "", "writers fail"},
	}
	channels = []derived{ // scripts get them as keys, too
		{"redisson_lock__channel:", "", ""},
		{"redisson_rwlock:", "", ""},
		{"redisson_sc:", "", ""},
		{"redisson_countdownlatch__channel__", "", ""},
	}
)

// allKeys is the rule for a service without a prefix.
const allKeys = "~*"

// The keys and channels of a client have no prefix.
const (
	clientKeys     = "redlatch_client:"
	stateKeys      = "redisson_unlock_latch:{????????????????}:client"
	holderChannels = "redlatch_holder:"
)

// command is a command. One without an example is not asked for: another right includes it, or
// replaces it.
type command struct{ name, example, without string }

var (
	general = []command{
		{"evalsha", "evalsha 0 0", ""}, {"eval", "", ""}, {"script|load", "script load return", "scripts are sent as text"},
		{"publish", "", ""}, {"subscribe", "", ""}, {"unsubscribe", "", ""},
		{"ping", "ping", "a broken connection is noticed late"}, {"time", "time", ""},
		{"pubsub|numsub", "pubsub numsub", "Hold.Wanted does not see waiters of Redisson"},
	}
	ofCluster = []command{
		{"cluster|slots", "cluster slots", noTopology}, {"cluster|shards", "cluster shards", noTopology},
		{"cluster|nodes", "cluster nodes", noTopology}, {"command", "", ""},
		{"pubsub|shardnumsub", "", ""}, {"spublish", "", ""}, {"ssubscribe", "", ""}, {"sunsubscribe", "", ""},
	}
	// ofOperators are the commands that a service can do without.
	ofOperators = []command{
		{"scan", "scan 0", "redlatch ls and watch cannot list locks"},
		{"wait", "wait 0 0", "WithReplicas fails"},
	}
)

const (
	noTopology = "the client cannot follow the cluster"
	noWakeUp   = "waiters are not woken, they look once a second"
	noNames    = "the names of clients are not shown"
	noStates   = "ls does not show who waits, and since when a lock is held"
	noNotice   = "a former holder is not told of a takeover"
	noLists    = "ls, watch, and inspect without --kind fail where there are strings"
)

// Commands with a key, as examples.
var (
	// Scripts has all commands that the library's scripts call, except Lists and TIME.
	Scripts = []string{
		"exists KEY", "del KEY", "type KEY", "pttl KEY", "pexpire KEY 1", "persist KEY",
		"get KEY", "set KEY 1", "incrby KEY 1", "decr KEY", "decrby KEY 1",
		"hget KEY f", "hset KEY f 1", "hdel KEY f", "hexists KEY f", "hincrby KEY f 1", "hlen KEY",
		"hmget KEY f", "hgetall KEY", "hscan KEY 0", "hrandfield KEY 1",
		"lindex KEY 0", "llen KEY", "lpop KEY", "lrange KEY 0 1", "lrem KEY 1 x", "rpush KEY x",
		"zadd KEY 1 x", "zcard KEY", "zcount KEY 0 1", "zrange KEY 0 1", "zrangebyscore KEY 0 1", "zrem KEY x",
		"zremrangebyscore KEY 0 1", "zscore KEY x",
	}
	// Lists has what only the scripts of lists call.
	Lists = []string{"getrange KEY 0 1"}
	names = []string{"psetex KEY 1 x", "getdel KEY"}
)

// Rules returns the rules for a service whose names begin with prefix, and take all other rights
// away.
func Rules(prefix string, cluster bool) []string {
	rules := []string{"on", "resetkeys", "resetchannels", "-@all", "clearselectors", "~" + glob(prefix)}
	for _, k := range keys {
		rules = append(rules, k.patterns("~", prefix)...)
	}
	for _, c := range channels {
		rules = append(append(rules, c.patterns("~", prefix)...), c.patterns("&", prefix)...)
	}
	rules = append(rules, "~"+clientKeys+"*", "~"+stateKeys, "&"+holderChannels+"*")
	if prefix == "" { // Redis refuses a pattern after the one for all keys
		rules = slices.DeleteFunc(rules, func(rule string) bool { return rule[0] == '~' && rule != allKeys })
	}
	for _, c := range general {
		rules = append(rules, "+"+c.name)
	}
	for _, example := range append(append([]string{}, Scripts...), names...) {
		rules = append(rules, "+"+strings.Fields(example)[0])
	}
	if cluster {
		for _, c := range ofCluster {
			rules = append(rules, "+"+c.name)
		}
	}
	return rules
}

// OnNames returns the rights to read and write each kind of key of a name that begins with prefix.
func OnNames(prefix, name string) []Right {
	rights := onKey(name, "~"+glob(prefix), "")
	for _, d := range append(append([]derived{}, keys...), channels...) {
		rights = append(rights, onKey(d.of(name), d.patterns("~", prefix)[0], d.without)...)
	}
	rights = append(rights, onKey(clientKeys+"{0000000000000000}", "~"+clientKeys+"*", noNames)...)
	return append(rights, onKey(strings.ReplaceAll(stateKeys, "?", "0"), "~"+stateKeys, noStates)...)
}

// onKey returns the right to write a key, and that to read it.
func onKey(key, grant, without string) []Right {
	return []Right{
		{[][]string{{"set", key, "1"}, {"del", key}, {"hset", key, "f", "1"}, {"zadd", key, "1", "x"}}, grant, without},
		{[][]string{{"get", key}, {"exists", key}, {"hget", key, "f"}, {"zscore", key, "x"}}, grant, without},
	}
}

// WithoutKeys returns the rights to commands without keys, and to the channels of a name that
// begins with prefix.
func WithoutKeys(prefix, name string, cluster bool) []Right {
	asked := append(append([]command{}, general...), ofOperators...)
	publish, subscribe := "publish", "subscribe"
	if cluster {
		asked = append(asked, ofCluster...)
		publish, subscribe = "spublish", "ssubscribe"
	}
	var rights []Right
	add := func(grant, without string, example ...string) {
		rights = append(rights, Right{[][]string{example}, grant, without})
	}
	for _, c := range asked {
		if c.example != "" {
			add("+"+c.name, c.without, strings.Fields(c.example)...)
		}
	}
	add("&"+holderChannels+"*", noNotice, "publish", holderChannels+"{0}", "x")
	add("&"+holderChannels+"*", noNotice, "subscribe", holderChannels+"{0}")
	for _, c := range channels {
		pattern := " " + c.patterns("&", prefix)[0]
		add("+"+publish+pattern, "", publish, c.of(name), "0")
		add("+"+subscribe+pattern, noWakeUp, subscribe, c.of(name))
	}
	return rights
}

// OnKey returns the rights to commands that take a key. key is one that the user may use.
func OnKey(key string) []Right {
	var rights []Right
	add := func(examples []string, without string) {
		for _, example := range examples {
			words := strings.Fields(strings.ReplaceAll(example, "KEY", key))
			rights = append(rights, Right{[][]string{words}, "+" + words[0], without})
		}
	}
	add(Scripts, "")
	add(Lists, noLists)
	add(names, noNames)
	return rights
}

// LockChannel is the channel of a lock.
func LockChannel(name string) string { return channels[0].of(name) }

// of returns the key or channel of a name. It contains the name in braces, unless the name has some
// of its own.
func (d derived) of(name string) string {
	if !strings.Contains(name, "{") {
		name = "{" + name + "}"
	}
	return d.before + name + d.after
}

// patterns returns the narrowest patterns for all names with that prefix, that of names without
// braces first.
func (d derived) patterns(sigil, prefix string) []string {
	own := sigil + d.before + glob(prefix)
	switch {
	case strings.Contains(prefix, "{"):
		return []string{own}
	case d.before == "": // the rule of the main key covers names with braces
		return []string{sigil + "{" + glob(prefix)}
	}
	return []string{sigil + d.before + "{" + glob(prefix), own}
}

// glob returns the pattern for all texts with that prefix.
func glob(prefix string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(prefix) + "*"
}

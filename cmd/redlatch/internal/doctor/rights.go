package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// right is something that the library does, and what a user needs for it.
type right struct {
	// commands are examples, of which the user must be able to run one. A right to a key has several: the
	// user may lack the right to one of the commands.
	commands [][]string
	grant    string // what ACL SETUSER adds
	without  string // what does not work without it; "": acquisitions
}

// asker is a script that executes nothing. It returns the indexes of the rights that the user does not have.
var asker = redis.NewScript(`local denied = {}
for i, commands in ipairs(cjson.decode(ARGV[1])) do
  local granted = false
  for _, command in ipairs(commands) do
    local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
    granted = granted or not known or allowed
  end
  if not granted then
    table.insert(denied, i - 1)
  end
end
return denied`)

// rights asks Redis which rights this user lacks. It tries nothing.
func rights(ctx context.Context, e *exam) ([]Result, error) {
	if e.unfit {
		return skipped()
	}
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	wanted := append(keyRights(e.Prefix, e.name), otherRights(e.Prefix, e.name, e.cluster)...)
	denied, err := e.denied(ctx, wanted)
	if err == nil {
		// A command right can only be asked for with a key that the user may use.
		usable := func(r right) bool { return r.commands[0][0] == "set" && !slices.ContainsFunc(denied, r.same) }
		if i := slices.IndexFunc(wanted, usable); i >= 0 {
			var more []right
			more, err = e.denied(ctx, commandRights(wanted[i].commands[0][1]))
			denied = append(denied, more...)
		}
	}
	switch {
	case err == nil:
	case !answered(err):
		return nil, err
	case strings.Contains(err.Error(), "acl_check_cmd") || strings.Contains(err.Error(), "cjson"):
		return warn("see the line primitives for what works", "the server cannot tell which rights this user has"), nil
	default:
		return unchecked(err), nil
	}
	user := e.user(ctx)
	if len(denied) == 0 {
		return ok("%s has all rights", user), nil
	}
	var results []Result
	required, optional := describe(denied)
	if len(required.grants) > 0 {
		fix := "ACL SETUSER " + user + " " + strings.Join(required.grants, " ")
		switch {
		case !slices.Contains(required.grants, "~"+e.Prefix+"*"):
		case e.Prefix == "":
			// The rights to all names would open the whole server to whoever pastes this.
			fix = "try names that this user may use: --prefix P; redlatch acl --prefix P --user " + user + " prints its rights"
		default:
			fix += "; or try names that this user may use: --prefix"
		}
		results = append(results, fail(fix, "%s lacks %s: acquisitions fail", user, strings.Join(required.grants, " "))...)
	}
	if len(optional.grants) > 0 {
		results = append(results, warn("ACL SETUSER "+user+" "+strings.Join(optional.grants, " "),
			"%s lacks %s: %s", user, strings.Join(optional.grants, " "), strings.Join(optional.effects, "; "))...)
	}
	return results, nil
}

func (r right) same(other right) bool { return slices.Equal(r.commands[0], other.commands[0]) }

// missing is a list of rights, each once.
type missing struct{ grants, effects []string }

func describe(denied []right) (required, optional missing) {
	add := func(list *[]string, all ...string) {
		for _, s := range all {
			if !slices.Contains(*list, s) {
				*list = append(*list, s)
			}
		}
	}
	for _, r := range denied {
		if r.without == "" {
			add(&required.grants, strings.Fields(r.grant)...)
			continue
		}
		add(&optional.grants, strings.Fields(r.grant)...)
		add(&optional.effects, r.without)
	}
	return required, optional
}

// denied returns the wanted rights that the user does not have.
func (e *exam) denied(ctx context.Context, wanted []right) ([]right, error) {
	commands := make([][][]string, len(wanted))
	for i, r := range wanted {
		commands[i] = r.commands
	}
	text, err := json.Marshal(commands)
	if err != nil {
		return nil, err
	}
	answer, err := asker.Run(ctx, e.Redis, nil, text).Int64Slice()
	if err != nil {
		return nil, err
	}
	var lacking []right
	for _, i := range answer {
		lacking = append(lacking, wanted[i])
	}
	return lacking, nil
}

// user returns the name of the user.
func (e *exam) user(ctx context.Context) string {
	if name, err := e.Redis.Do(ctx, "acl", "whoami").Text(); err == nil {
		return name
	}
	if name := e.nodes[0].rdb.Options().Username; name != "" {
		return name
	}
	return "default"
}

// tagged puts a name into braces, unless it has some of its own: keys derive from it like that.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// patternOf returns the narrowest pattern for the same key or channel of all names with that prefix.
func patternOf(key, prefix, name string) string {
	before, _, _ := strings.Cut(key, name)
	return before + prefix + "*"
}

// one is the commands of a right to one command.
func one(command ...string) [][]string { return [][]string{command} }

// keyRights returns the rights to read and write each kind of key.
func keyRights(prefix, name string) []right {
	var rights []right
	add := func(key, pattern, without string) {
		rights = append(rights,
			right{
				[][]string{{"set", key, "1"}, {"del", key}, {"hset", key, "f", "1"}, {"zadd", key, "1", "x"}},
				"~" + pattern, without,
			},
			right{
				[][]string{{"get", key}, {"exists", key}, {"hget", key, "f"}, {"zscore", key, "x"}},
				"~" + pattern, without,
			})
	}
	for _, k := range []struct{ key, without string }{
		{name, ""},
		{tagged(name) + ":timeout", "readers and leased permits fail"},
		{"redisson_unlock_latch:" + tagged(name) + ":1", ""},
		{"redisson_lock_token:" + tagged(name), ""},
		{"redisson_lock_queue:" + tagged(name), ""},
		{"redisson_lock_timeout:" + tagged(name), ""},
		{"redisson_lock__channel:" + tagged(name), ""}, // scripts get it as a key
		{"redisson_rwlock:" + tagged(name), ""},
		{"redisson_sc:" + tagged(name), ""},
		{"redisson_countdownlatch__channel__" + tagged(name), ""},
		{"redlatch_lock_waiters:" + tagged(name), "fair locks fail"},
		{"redlatch_lock_clients:" + tagged(name), "fair locks fail"},
		{"redlatch_rwlock_claim:" + tagged(name), "writers fail"},
	} {
		add(k.key, patternOf(k.key, prefix, name), k.without)
	}
	add("redlatch_client:{0000000000000000}", "redlatch_client:*", "the names of clients are not shown")
	return rights
}

// otherRights returns the rights to commands without keys, and to channels.
func otherRights(prefix, name string, cluster bool) []right {
	const noWakeUp = "waiters are not woken, they look once a second"
	publish, subscribe := "publish", "subscribe"
	if cluster {
		publish, subscribe = "spublish", "ssubscribe"
	}
	rights := []right{
		{one("ping"), "+ping", "a broken connection is noticed late"},
		{one("evalsha", "0", "0"), "+evalsha", ""},
		{one("script", "load", "return"), "+script|load", "scripts are sent as text"},
		{one("scan", "0"), "+scan", "redlatch ls and watch cannot list locks"},
		{one("time"), "+time", ""},
		{one("wait", "0", "0"), "+wait", "WithReplicas fails"},
		{one("publish", "redlatch_holder:{0}", "x"), "&redlatch_holder:*", "a former holder is not told of a takeover"},
		{one("subscribe", "redlatch_holder:{0}"), "&redlatch_holder:*", "a former holder is not told of a takeover"},
	}
	for _, channel := range []string{
		"redisson_lock__channel:" + tagged(name), "redisson_rwlock:" + tagged(name), "redisson_sc:" + tagged(name),
		"redisson_countdownlatch__channel__" + tagged(name),
	} {
		pattern := " &" + patternOf(channel, prefix, name)
		rights = append(rights, right{one(publish, channel, "0"), "+" + publish + pattern, ""},
			right{one(subscribe, channel), "+" + subscribe + pattern, noWakeUp})
	}
	if cluster {
		for _, sub := range []string{"slots", "shards", "nodes"} {
			rights = append(rights, right{one("cluster", sub), "+cluster|" + sub, "the client cannot follow the cluster"})
		}
	}
	return rights
}

// commandRights are the rights to commands that take a key. key is one that the user may use.
func commandRights(key string) []right {
	var rights []right
	add := func(commands []string, without string) {
		for _, command := range commands {
			args := strings.Fields(strings.ReplaceAll(command, "KEY", key))
			rights = append(rights, right{one(args...), "+" + args[0], without})
		}
	}
	add(scriptCommands, "")
	add(listCommands, "ls, watch, and inspect without --kind fail where there are strings")
	add([]string{"psetex KEY 1 x", "getdel KEY"}, "the names of clients are not shown")
	return rights
}

// scriptCommands are examples of all commands that the library's scripts call, except listCommands.
var scriptCommands = []string{
	"decr KEY", "decrby KEY 1", "del KEY", "exists KEY", "get KEY", "incrby KEY 1", "set KEY 1", "type KEY",
	"hdel KEY f", "hexists KEY f", "hget KEY f", "hgetall KEY", "hincrby KEY f 1", "hkeys KEY", "hlen KEY", "hmget KEY f",
	"hscan KEY 0", "hset KEY f 1",
	"lindex KEY 0", "llen KEY", "lpop KEY", "lrange KEY 0 1", "lrem KEY 1 x", "rpush KEY x",
	"persist KEY", "pexpire KEY 1", "pttl KEY",
	"zadd KEY 1 x", "zcard KEY", "zcount KEY 0 1", "zrange KEY 0 1", "zrangebyscore KEY 0 1", "zrem KEY x",
	"zremrangebyscore KEY 0 1", "zscore KEY x",
}

// listCommands are examples of what only the scripts of lists call.
var listCommands = []string{"getrange KEY 0 1"}

// String is for messages of tests.
func (r right) String() string { return fmt.Sprint(r.commands[0]) }

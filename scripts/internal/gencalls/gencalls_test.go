package gencalls

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// generated returns what Generate makes of one Lua file, a script called lock/example.
func generated(header string) (string, error) {
	text, err := Generate(fstest.MapFS{"lock/example.lua": {Data: []byte(header)}})
	return string(text), err
}

func TestFixedKeysAndArguments(t *testing.T) {
	text, err := generated(`-- lock/example: do it.
-- uses     lib/acl
-- KEYS[1]  lock_hash
-- KEYS[2]  not used
-- KEYS[3]  memory_key (optional): what it is,
--          and more
-- KEYS[4]  line
-- KEYS[5]  token_key (optional)
-- ARGV[1]  owner (text)
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  is_last (flag)
-- ARGV[5]  tokens (number, optional)
-- returns  number: 1 or 0, '' for a foreign key
local lock_hash, memory_key, owner = KEYS[1], KEYS[3], ARGV[1]
local is_last, all_keys = ARGV[4] == '1', KEYS
`)
	require.NoError(t, err)
	for _, want := range []string{
		"// LockExample is a call of lock/example: do it.\n",
		"\t// optional: what it is, and more\n\tMemoryKey any\n",
		"\tif memoryKey == nil {\n\t\tmemoryKey = c.Main // any key of the slot\n\t}\n",
		"keys := []any{c.Main, c.Main, memoryKey, c.Line, c.own().TokenKey}\n",
		"args := []any{c.Owner, by.millis(c.TTL), by.runner.publish.Load(), c.IsLast, c.Tokens}\n",
		"// Do runs the script. Redis returns 1 or 0, \"\" for a foreign key.\n",
		"return readNumber(by.send(ctx, lockExample, keys, 4, args, 4))\n",
	} {
		require.Contains(t, text, want)
	}
}

// A script takes the keys of its primitive from one value.
func TestSharedKeys(t *testing.T) {
	text, err := generated(`-- lock/example: do it.
-- KEYS[1]  lock_hash
-- KEYS[2]  channel: what it is
-- KEYS[3]  memory_key (optional)
-- KEYS[4]  other
-- KEYS[5]  line (optional)
-- returns  nothing
`)
	require.NoError(t, err)
	for _, want := range []string{
		"type Keys struct {\n\tMain         any\n",
		"\t// Main; Channel: what it is; Line: optional\n\t*Keys\n\n",
		"\tmemoryKey := c.MemoryKey\n\tif memoryKey == nil {\n\t\tmemoryKey = c.Main // any key of the slot\n\t}\n",
		"keys := []any{c.Main, c.Channel, memoryKey, c.Other, c.Line}\n",
	} {
		require.Contains(t, text, want)
	}
}

func TestListsOfArguments(t *testing.T) {
	text, err := generated(`-- lock/example: do it.
-- KEYS[1..2]  lock_hash, channel: see there
-- KEYS[3..]  others.memory_key
-- KEYS[-1]  mark (optional)
-- ARGV[1]  owner (text)
-- ARGV[2..]  others.id (text), others.ttl_ms (ms)
-- ARGV[-1]  mark_ttl_ms (ms, optional)
-- returns  nothing
`)
	require.NoError(t, err)
	for _, want := range []string{
		"//\n// See there.\ntype LockExample struct",
		"\tOthers  []LockExampleOther\n",
		"\t\tkeys = append(keys, element.MemoryKey)\n",
		"\t\targs = append(args, element.ID, by.millis(element.TTL))\n",
		"\tif c.Mark != nil {\n",
		"\tif c.MarkTTL != 0 {\n\t\targs = append(args, by.millis(c.MarkTTL))\n",
		"func (c LockExample) Do(ctx context.Context, by Sender) (Reply, error) {\n",
	} {
		require.Contains(t, text, want)
	}
}

func TestBatches(t *testing.T) {
	text, err := generated(`-- lock/example: do it.
-- KEYS[1..]  each.lock_hash, each.line
-- ARGV[1..]  each.owner (text), each.ttl_ms (ms)
-- returns    kept: for each, 1 or 0
`)
	require.NoError(t, err)
	require.Contains(t, text, "func (c LockExample) AddTo(by *Batch) {\n")
	require.Contains(t, text, "by.keys = append(by.keys, c.Main, c.Line)\n")
	require.NotContains(t, text, "Do(")
}

func TestChanges(t *testing.T) {
	text, err := generated(`-- lock/example: do it.
-- KEYS[1]  lock_hash
-- KEYS[2]  channel
-- KEYS[3]  memory_key
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  count (number)
-- returns  change: 1 or 0
`)
	require.NoError(t, err)
	require.Contains(t, text, "// LockExample runs lock/example: do it. Redis returns 1 or 0.\n"+
		"func LockExample(ctx context.Context, by Sender, c Change) (Number, error) {\n"+
		"\treturn readNumber(c.send(ctx, by, lockExample))\n}\n")
	require.NotContains(t, text, "type LockExample")
}

func TestReplies(t *testing.T) {
	const head = "-- lock/example: do it.\n-- KEYS[1]  lock_hash\n-- returns  "
	for returns, want := range map[string][]string{
		"{pttl number, fields (field text, value text)...}: all": {
			"\tPTTL   int64\n\tFields []LockExampleField\n", "LockExampleField{rest.text(), rest.text()}",
		},
		"{fields {field text, value text}, ids {id text}, is_ours flag}": {
			"fields := rest.list()\n", "reply.IDs = append(reply.IDs, ids.text())\n", "reply.IsOurs = rest.flag()\n",
		},
		"{kind text} or {}: maybe": {"if err != nil || !rest.more() {"},
		"acquired":                 {"got, _, err := readAcquired(", "(Acquired, error)"},
		"acquired {since number}":  {"if err != nil || len(rest.rest) == 0 {", "reply := LockExampleReply{Acquired: got}"},
		"released {epoch number}":  {"if err != nil || !got.HandedOff {", "reply.Epoch = rest.number()\n"},
	} {
		text, err := generated(head + returns + "\n")
		require.NoError(t, err, returns)
		for _, part := range want {
			require.Contains(t, text, part, returns)
		}
	}
}

func TestLibrariesAreLeftOut(t *testing.T) {
	text, err := generated("-- lock/example: for others.\n-- defines  f()\nlocal function f() end\n")
	require.NoError(t, err)
	require.NotContains(t, text, "Example")
}

// Each of these headers is wrong in one line. The error names the file and the line.
func TestBadHeaders(t *testing.T) {
	const key, returns = "-- KEYS[1]  lock_hash\n", "-- returns  nothing\n"
	for _, c := range []struct{ rest, want string }{
		{"-- KEYS 1  lock_hash\n" + returns, `:2: cannot read "-- KEYS 1  lock_hash"`},
		{"-- KEYS[one]  lock_hash\n" + returns, ":2: cannot read KEYS[one]"},
		{"-- KEYS[1]  Lock hash\n" + returns, `:2: cannot read "Lock hash"`},
		{"-- KEYS[1]  lock_hash (text)\n" + returns, `:2: lock_hash: cannot read "text"`},
		{"-- KEYS[2]  lock_hash\n" + returns, ":2: KEYS[2] is out of order"},
		{key + key + returns, ":3: KEYS[1] is out of order"},
		{"-- KEYS[1..3]  a, b\n" + returns, ":2: KEYS[1..3] has 2 names"},
		{"-- KEYS[1]  not used\n" + returns, ":1: KEYS[1] is not used"},
		{"-- KEYS[1]  a.lock_hash\n" + returns, ":2: KEYS[1] is no list, but has the group a"},
		{"-- KEYS[1..]  a, b\n" + returns, ":2: KEYS[1..] is a list of 2 names without a group"},
		{"-- KEYS[1..]  a.x, b.y\n" + returns, `:2: y is not of the group "a"`},
		{"-- KEYS[-1]  mark\n" + returns, ":2: KEYS[-1] is not the one after a list"},
		{key + "-- KEYS[2]  lock_hash\n" + returns, ":1: two fields are named Main"},
		{key + "-- ARGV[1]  owner\n" + returns, ":3: owner has no type: one of text, number, ms, flag, command"},
		{key + "-- ARGV[1]  owner (string)\n" + returns, ":3: owner has no type"},
		{
			key + "-- ARGV[1]  a (text, optional)\n-- ARGV[2]  b (text)\n" + returns,
			":1: the argument b follows an optional one",
		},
		{key, ":1: the header has 0 lines that begin with returns"},
		{key + returns + returns, ":1: the header has 2 lines that begin with returns"},
		{returns, ":1: the header names no key"},
		{key + "-- returns  1 or 0\n", `:3: no reply is called "1"`},
		{key + "-- returns  number {a text}\n", `:3: nothing follows a reply called "number"`},
		{key + "-- returns  {a}\n", `:3: cannot read the element "a}"`},
		{key + "-- returns  {a string}\n", ":3: element a has no type: text, number or flag"},
		{key + "-- returns  {a (b text)..., c text}\n", `:3: after the element a: want "}", got ", c text}"`},
		{key + "-- returns  {a text\n", ":3: element a has no type"},
		{key + "-- returns  kept: 1\n", ":1: a batch, and nothing else, returns kept"},
		{key + "-- returns  change: 1\n", ":1: a change has a key, a channel and a memory"},
		{
			"-- KEYS[1..]  each.a\n-- ARGV[1]  b (text)\n-- returns  kept\n",
			":1: keys and arguments of a batch are both lists named each",
		},
		{key + returns + "local a = KEYS[1]\n", ":4: KEYS[1] is called a, and in the header lock_hash"},
		{key + returns + "local a = ARGV[1]\n", ":4: the header does not name ARGV[1]"},
		{key + "-- KEYS[2]  not used\n" + returns + "local a = KEYS[2]\n", ":5: the header does not name KEYS[2]"},
		{key + returns + "local lock_hash, a = KEYS[1]\n", ":4: 2 names for 1 values"},
	} {
		_, err := generated("-- lock/example: do it.\n" + c.rest)
		require.ErrorContains(t, err, "lock/example.lua"+c.want, "%s", c.rest)
	}
	_, err := generated("-- lock/other: do it.\n" + key + returns)
	require.ErrorContains(t, err, `lock/example.lua:1: the first line is not "-- lock/example: what it does"`)
}

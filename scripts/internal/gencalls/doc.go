// Package gencalls generates the Go side of the scripts, calls.go, from the headers of the Lua
// files. The names and positions of a script's keys, arguments and reply stand in its header only.
//
// # Headers
//
// A header is the comment at the beginning of a file. These lines of it are read; a line that is
// indented further continues the line before:
//
//	-- lock/example: what the script does.
//	-- KEYS[1]  lock_hash
//	-- KEYS[2]  token_key (optional): what it is
//	-- ARGV[1]  owner (text): what it is
//	-- ARGV[2]  ttl_ms (ms)
//	-- returns  number: what it says
//
// A name is that of the Lua variable. Its field in Go has the same name in Go's spelling, without
// "_ms". An argument has a type:
//
//	text     string
//	number   int64
//	ms       time.Duration
//	flag     bool: 1 or 0
//	command  no field: PUBLISH or SPUBLISH, as the runner knows
//
// A key is a string, or another value that go-redis sends. The last keys and arguments may be
// optional: they are left out as long as they are nil or zero. An optional key before others may be
// nil, too. The first key then stands in its place, as it does for a key that is "not used": it is
// in the right slot.
//
// A handle makes the keys of its primitive once, as a [scripts.Keys]: see shared in generate.go.
// The struct of a call embeds a pointer to it, and uses the keys that the script's header names.
//
// A script with the keys and the arguments of a [scripts.Change] becomes a function with that as
// its parameter.
//
// "KEYS[1..3] a, b, c" names several keys at once. "ARGV[4..] ids (text)" is a list of any length,
// and "KEYS[6..] companions.memory_key" with "ARGV[7..] companions.owner (text)" a list of structs.
// Only KEYS[-1] and ARGV[-1] may follow a list. A script with lists named "each" alone is a batch:
// the struct is one element, and AddTo adds it to a [scripts.Batch].
//
// # Replies
//
// After "returns" comes the form of the reply, then a colon and its meaning:
//
//	nothing      the reply does not matter
//	number       and other words: a type that package scripts defines, see words in generate.go
//	change       a number. The script has the keys and the arguments of a [scripts.Change]
//	{a text, b number, c flag}
//	             a list with these elements; "or {}": it may be empty
//	released {epoch number}
//	             a list of the type released, and what follows its elements
//
// The last element may be repeated, as "holders (id text, count number)...", and any element may be
// a list that consists of such repetitions, as "fields {field text, value text}".
package gencalls

package scripts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/failure"
)

// A library calls the command that a script passes to it. The error names the line of the library.
func TestLackingCommandOfALibraryIsNamed(t *testing.T) {
	for script, command := range map[string]string{
		"lock/check": "HGET", "lock/renew": "HGET", "lock/release_all": "HDEL", "lock/renew_shared": "HEXISTS",
	} {
		line := 0
		for i, l := range strings.Split(Load(script).text, "\n") {
			if strings.Contains(l, "redis.call(command") {
				line = i + 1
			}
		}
		require.Positive(t, line, script)
		e := newError(script, reply(fmt.Sprint(
			"ERR Unknown Redis command called from script script: 33b7, on @user_script:", line, ".")), failure.Executed)
		assert.ErrorContains(t, e, "this server has no "+command+" command", script)
	}
	text := "ERR Unknown Redis command called from script script: 33b7, on @user_script:9."
	unknown := newError("", reply(text), failure.Executed)
	assert.NotContains(t, unknown.Error(), "user_script")
}

// What servers and proxies answer instead of running a command, and the command that the error names.
func TestLackingCommandIsNamed(t *testing.T) {
	lines := strings.Split(Load("lock/acquire").text, "\n")
	line := func(part string) int {
		return 1 + slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, part) })
	}
	acl, hset := line("acl_check_cmd"), line("redis.call('hset'")
	require.Positive(t, acl)
	require.Positive(t, hset)
	for _, tt := range []struct {
		reply, command string
		caught         bool
	}{
		{"ERR unknown command 'evalsha', with args beginning with: '33b7' '4' 'l' ", "EVALSHA", false},
		{"ERR unknown command `publish`, with args beginning with: ", "PUBLISH", false},
		{"ERR unknown command 'SCRIPT|LOAD'", "SCRIPT|LOAD", false},
		{"ERR unsupported command 'wait'", "WAIT", false},
		{"ERR Command is not available: 'eval'. See the manual", "EVAL", false},
		{"ERR Could not find scripting engine 'lua'", lua, false},
		{
			fmt.Sprint("ERR Invalid command passed to redis.acl_check_cmd() script: 33b7, on @user_script:", acl, "."),
			"PUBLISH", false,
		},
		{fmt.Sprint("ERR Unknown Redis command called from script script: 33b7, on @user_script:", hset, "."), "HSET", false},
		{fmt.Sprintf("ERR Error running script (call to f_33b7): @user_script:%d: @user_script: %d: "+
			"Unknown Redis command called from Lua script", hset, hset), "HSET", false},
		{"ERR the counter of fencing tokens x: Unknown Redis command called from script", "INCRBY", true},
		{"ERR Unknown Redis command called from script script: 33b7, on @user_script:9999.", "", false},
	} {
		e := newError("lock/acquire", reply(tt.reply), failure.Executed)
		missing, ok := errors.AsType[*LackingError](e)
		if assert.True(t, ok, tt.reply) {
			if tt.caught { // the script names no line
				assert.Contains(t, missing.Command, tt.command, tt.reply)
			} else {
				assert.Equal(t, tt.command, missing.Command, tt.reply)
			}
			assert.Contains(t, e.Error(), tt.command)
		}
		assert.Equal(t, strings.Contains(tt.reply, "script"), e.Denied || tt.command == lua, tt.reply)
	}
	for _, other := range []string{
		"ERR value is not an integer", "NOPERM no", "WRONGTYPE Operation", "NOSCRIPT No matching",
	} {
		_, ok := errors.AsType[*LackingError](newError("lock/acquire", reply(other), failure.Executed))
		assert.False(t, ok, other)
	}
	_, ok := errors.AsType[*LackingError](newError("no script", reply("ERR unknown command 'wait'"), failure.Executed))
	assert.True(t, ok)
}

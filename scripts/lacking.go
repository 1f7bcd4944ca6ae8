package scripts

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Servers that lack a command that the scripts need, because rename-command has removed it, or
// because a proxy or a managed service does not have it. The answer of Redis then seldom names the
// command.

// LackingError is the answer of a server that does not have a command. It is an error of Redis, and
// another attempt would get it, too. It may have stopped a script halfway.
type LackingError struct {
	Command  string // such as PUBLISH, or "HSET or DEL"; "" if it is unknown
	inScript bool   // a script called the command, and may have written something before
	err      error  // the error as Redis worded it
}

func (e *LackingError) Error() string {
	switch e.Command {
	case "":
		text := withoutScript(e.err).Error()
		return "this server has no command that the library needs (renamed or disabled?): " + text
	case lua:
		return "this server cannot run Lua scripts: " + e.err.Error()
	}
	return "this server has no " + e.Command + " command (renamed or disabled?)"
}

func (e *LackingError) Unwrap() error { return e.err }

// RedisError makes it a [redis.Error].
func (e *LackingError) RedisError() {}

// lua stands for the missing command of a server that has EVAL, but no engine for it.
const lua = "Lua"

var (
	unknownCommand = regexp.MustCompile(
		"(?i)^(?:-?ERR )?(?:unknown|unsupported) command:? ?['\"`]?([a-z|.]+)" +
			"|^(?:-?ERR )?command is not available: '?([a-z|.]+)")
	unknownInScript = regexp.MustCompile(
		`Unknown .*command called from .*script|Invalid command passed to \w+\.acl_check_cmd`)
	withoutLua    = regexp.MustCompile(`(?i)find scripting engine|lua scripting is (not enabled|disabled)`)
	placeInScript = regexp.MustCompile(`@?user_script: ?(\d+)`)
	commandInLua  = regexp.MustCompile(`(?:redis\.p?call|acl_check_cmd)\((?:'(\w+)'|(publish))`)
	passedInLua   = regexp.MustCompile(`call_typed\('\w+', (?:'(\w+)'|(publish))`)
	caughtInLua   = regexp.MustCompile(`redis\.pcall\((?:'(\w+)'|(publish))`)
)

// lacking returns a *LackingError if err says that the server does not have a command, and nil
// otherwise. script is the path of the script that was run, or any other text.
func lacking(script string, err error) *LackingError {
	reply, ok := err.(redis.Error) //nolint:errorlint // as go-redis returns it
	if !ok {
		return nil
	}
	text := reply.Error()
	switch {
	case withoutLua.MatchString(text):
		return &LackingError{lua, false, err}
	case unknownInScript.MatchString(text):
		return &LackingError{commandAt(script, text), true, err}
	}
	if named := unknownCommand.FindStringSubmatch(text); named != nil {
		return &LackingError{strings.ToUpper(named[1] + named[2]), false, err}
	}
	return nil
}

// commandAt returns the commands in the line of a script that an error names. Redis names no line
// if the script has caught the error. Then commandAt returns all commands whose errors the script
// catches. It returns "" if they are unknown.
func commandAt(script, text string) string {
	if !isScript(script) {
		return ""
	}
	code := Load(script).text
	calls := caughtInLua
	if places := placeInScript.FindAllStringSubmatch(text, -1); len(places) > 0 {
		lines := strings.Split(code, "\n")
		number, err := strconv.Atoi(places[len(places)-1][1])
		if err != nil || number < 1 || number > len(lines) {
			return ""
		}
		if strings.Contains(lines[number-1], "redis.call(command,") { // in lib/typed, whose callers pass the command
			calls = passedInLua
		} else {
			calls = commandInLua
			code = lines[number-1]
		}
	}
	var commands []string
	for _, found := range calls.FindAllStringSubmatch(code, -1) {
		command := strings.ToUpper(found[1] + found[2])
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return strings.Join(commands, " or ")
}

// isScript reports whether there is a script with that path.
func isScript(name string) bool {
	f, err := files.Open(name + ".lua")
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

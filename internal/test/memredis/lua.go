package memredis

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"strings"

	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// run is what the server knows of the script that runs.
type run struct {
	conn  *Conn
	wrote bool // it has written, so nothing may refuse its further writes
}

func digest(text string) string {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // Redis names scripts by it
	return hex.EncodeToString(sum[:])
}

// compiled has each script that was compiled in this process: compiling takes longer than most
// runs.
var compiled = map[string]*lua.FunctionProto{}

// compile makes a script known to the server, and returns its digest.
func (s *Server) compile(text string) (string, failure) {
	sha := digest(text)
	if s.scripts[sha] != nil {
		return sha, ""
	}
	proto := compiled[sha]
	if proto == nil {
		chunk, err := parse.Parse(strings.NewReader(text), "@user_script")
		if err == nil {
			proto, err = lua.Compile(chunk, "@user_script")
		}
		if err != nil {
			return "", failure("ERR Error compiling script (new function): " + oneLine(err.Error()))
		}
		compiled[sha] = proto
	}
	s.scripts[sha] = proto
	return sha, ""
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// runScript runs a compiled script. args are the number of keys, the keys and the arguments.
func (s *Server) runScript(c *Conn, sha string, args []string) any {
	n, err := strconv.Atoi(args[0])
	switch {
	case err != nil:
		return notInteger
	case n < 0:
		return failure("ERR Number of keys can't be negative")
	case n > len(args)-1:
		return failure("ERR Number of keys can't be greater than number of args")
	}
	if s.state == nil {
		s.state = newState(s)
	}
	l := s.state
	l.SetGlobal("KEYS", listOf(l, args[1:1+n]))
	l.SetGlobal("ARGV", listOf(l, args[1+n:]))
	s.running = run{conn: c}
	defer func() { s.running = run{} }()
	l.Push(l.NewFunctionFromProto(s.scripts[sha]))
	if err := l.PCall(0, 1, nil); err != nil {
		return scriptFailure(err, sha)
	}
	result := l.Get(-1)
	l.Pop(1)
	return fromLua(result)
}

// scriptFailure is the reply to a script that has raised an error.
func scriptFailure(err error, sha string) failure {
	raised, ok := err.(*lua.ApiError) //nolint:errorlint // gopher-lua returns it as it is
	if !ok {
		return failure("ERR " + oneLine(err.Error()))
	}
	if t, ok := raised.Object.(*lua.LTable); ok {
		if text, ok := t.RawGetString("err").(lua.LString); ok {
			return failure(oneLine(string(text)) + " script: " + sha + ", on @user_script.")
		}
	}
	return failure("ERR " + oneLine(raised.Object.String()) + " script: " + sha)
}

func listOf(l *lua.LState, all []string) *lua.LTable {
	t := l.CreateTable(len(all), 0)
	for _, each := range all {
		t.Append(lua.LString(each))
	}
	return t
}

// newState makes a Lua state with the libraries that Redis has.
func newState(s *Server) *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	for _, lib := range []struct {
		name string
		open lua.LGFunction
	}{
		{lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}, {lua.StringLibName, lua.OpenString},
		{lua.MathLibName, lua.OpenMath},
	} {
		l.Push(l.NewFunction(lib.open))
		l.Push(lua.LString(lib.name))
		l.Call(1, 0)
	}
	redis := l.NewTable()
	l.SetFuncs(redis, map[string]lua.LGFunction{
		"call":  func(l *lua.LState) int { return s.fromScript(l, true) },
		"pcall": func(l *lua.LState) int { return s.fromScript(l, false) },
		"error_reply": func(l *lua.LState) int {
			text := strings.TrimPrefix(l.CheckString(1), "-")
			if !strings.Contains(text, " ") {
				text = "ERR " + text
			}
			l.Push(named(l, "err", text))
			return 1
		},
		"status_reply": func(l *lua.LState) int {
			l.Push(named(l, "ok", l.CheckString(1)))
			return 1
		},
		"sha1hex": func(l *lua.LState) int {
			l.Push(lua.LString(digest(lua.LVAsString(l.Get(1)))))
			return 1
		},
		"acl_check_cmd": func(l *lua.LState) int {
			l.Push(lua.LTrue)
			return 1
		},
		"log":     func(*lua.LState) int { return 0 },
		"setresp": func(*lua.LState) int { return 0 },
	})
	l.SetGlobal("redis", redis)
	cjson := l.NewTable()
	l.SetFuncs(cjson, map[string]lua.LGFunction{"encode": encodeJSON, "decode": decodeJSON})
	l.SetGlobal("cjson", cjson)
	return l
}

func named(l *lua.LState, key, text string) *lua.LTable {
	t := l.CreateTable(0, 1)
	t.RawSetString(key, lua.LString(text))
	return t
}

// fromScript executes a command of a script. raise: an error ends the script.
func (s *Server) fromScript(l *lua.LState, raise bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch a := l.Get(i + 1).(type) {
		case lua.LString:
			args[i] = string(a)
		case lua.LNumber:
			args[i] = formatNumber(float64(a))
		default:
			return refuse(l, raise, "ERR Lua redis lib command arguments must be strings or integers")
		}
	}
	if len(args) == 0 {
		return refuse(l, raise, "ERR Please specify at least one argument for this redis lib call")
	}
	cmd, ok := commands[args[0]]
	if !ok {
		cmd, ok = commands[strings.ToLower(args[0])]
	}
	if !ok {
		return refuse(l, raise, "ERR Unknown Redis command called from script")
	}
	if !cmd.admits(len(args)) {
		return refuse(l, raise, "ERR Wrong number of args calling Redis command from script")
	}
	if refusal := s.refuses(cmd, true); refusal != "" {
		return refuse(l, raise, refusal)
	}
	if cmd.flags&write != 0 {
		s.wrote++
	}
	reply := cmd.do(s, s.running.conn, args)
	if f, ok := reply.(failure); ok {
		return refuse(l, raise, f)
	}
	if cmd.flags&write != 0 {
		s.running.wrote = true
	}
	l.Push(toLua(l, reply))
	return 1
}

func refuse(l *lua.LState, raise bool, f failure) int {
	t := named(l, "err", string(f))
	if raise {
		l.Error(t, 1)
		return 0
	}
	l.Push(t)
	return 1
}

// formatNumber writes a number as Redis does when a script passes it to a command.
func formatNumber(f float64) string {
	if math.IsInf(f, 0) {
		return map[bool]string{true: "inf", false: "-inf"}[f > 0]
	}
	if f == math.Trunc(f) && math.Abs(f) < 1e17 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', 17, 64)
}

func toLua(l *lua.LState, reply any) lua.LValue {
	switch r := reply.(type) {
	case nil:
		return lua.LFalse
	case int64:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case status:
		return named(l, "ok", string(r))
	case failure:
		return named(l, "err", string(r))
	case []any:
		return tableOf(l, r)
	case pairs:
		return tableOf(l, r)
	}
	panic("memredis: a reply that no script may see")
}

func tableOf(l *lua.LState, all []any) *lua.LTable {
	t := l.CreateTable(len(all), 0)
	for _, each := range all {
		t.Append(toLua(l, each))
	}
	return t
}

// fromLua turns what a script returns into a reply.
func fromLua(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LBool:
		if v {
			return int64(1)
		}
		return nil
	case lua.LNumber:
		return int64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		if text, ok := v.RawGetString("err").(lua.LString); ok {
			return failure(oneLine(string(text)))
		}
		if text, ok := v.RawGetString("ok").(lua.LString); ok {
			return status(text)
		}
		out := []any{}
		for i := 1; ; i++ {
			each := v.RawGetInt(i)
			if each == lua.LNil {
				return out
			}
			out = append(out, fromLua(each))
		}
	}
	return nil
}

func encodeJSON(l *lua.LState) int {
	text, err := json.Marshal(plain(l.Get(1)))
	if err != nil {
		l.RaiseError("%s", err.Error())
	}
	l.Push(lua.LString(text))
	return 1
}

// plain returns a value of Lua as one of Go. Tables with an array part are arrays.
func plain(v lua.LValue) any {
	switch v := v.(type) {
	case lua.LBool:
		return bool(v)
	case lua.LNumber:
		return float64(v)
	case lua.LString:
		return string(v)
	case *lua.LTable:
		if n := v.Len(); n > 0 {
			out := make([]any, n)
			for i := range out {
				out[i] = plain(v.RawGetInt(i + 1))
			}
			return out
		}
		out := map[string]any{}
		v.ForEach(func(key, value lua.LValue) { out[key.String()] = plain(value) })
		return out
	}
	return nil
}

func decodeJSON(l *lua.LState) int {
	var v any
	if err := json.Unmarshal([]byte(l.CheckString(1)), &v); err != nil {
		l.RaiseError("%s", err.Error())
	}
	l.Push(ofPlain(l, v))
	return 1
}

func ofPlain(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case []any:
		t := l.CreateTable(len(v), 0)
		for _, each := range v {
			t.Append(ofPlain(l, each))
		}
		return t
	case map[string]any:
		t := l.NewTable()
		for key, each := range v {
			t.RawSetString(key, ofPlain(l, each))
		}
		return t
	}
	return lua.LNil
}

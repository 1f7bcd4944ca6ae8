package gencalls

import (
	"bytes"
	"cmp"
	"fmt"
	"go/format"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// word is a reply of which package scripts has the type and the function that reads it.
type word struct {
	typ  string // "": the method of a batch reads it
	read string // the function; "": read and the type, such as readNumber
	rest string // when no elements follow that the header names: a condition; "": always
}

// words are the replies that a header may name.
var words = map[string]word{
	"number":        {typ: "Number"},
	"change":        {typ: "Number"},
	"ids":           {typ: "IDs"},
	"kept":          {},
	"acquired":      {typ: "Acquired", rest: "len(rest.rest) == 0"},
	"released":      {typ: "Released", rest: "!got.HandedOff"},
	"fair_released": {typ: "FairReleased"},
	"permits":       {typ: "Acquired", read: "readPermits"},
	"holders":       {typ: "Holders", rest: "!rest.more()"},
}

// reader is the function that reads a reply.
func (w word) reader() string { return cmp.Or(w.read, "read"+w.typ) }

// sharedKey is a key that a handle makes once for all calls, in the struct scripts.Keys.
type sharedKey struct {
	field string
	names []string // in Lua
}

// usual are the keys that locks have. KEYS[1] is the primitive's own key, whatever a kind keeps
// there.
var usual = []sharedKey{
	{"Main", []string{"lock_hash", "permits_key", "count_key", "number_key"}},
	{"Channel", []string{"channel"}},
	{"SharedCounts", []string{"shared_counts"}},
	{"Line", []string{"line"}},
}

// ofKinds are the keys that only single kinds have. Other kinds spend no memory on them.
var ofKinds = []sharedKey{
	{"TokenKey", []string{"token_key"}},
	{"Queue", []string{"queue"}},
	{"Deadlines", []string{"deadlines"}},
	{"Waiters", []string{"waiters"}},
	{"Clients", []string{"clients"}},
	{"ClaimKey", []string{"claim_key"}},
	{"Turns", []string{"turns"}},
	{"EpochKey", []string{"epoch_key"}},
	{"Leases", []string{"leases"}},
}

// sharedField is the field of scripts.Keys for a key; "" if a call has a field of its own for it.
func (p param) sharedField() string {
	field, _ := p.shared()
	return field
}

// shared is sharedField, and whether only single kinds have the key.
func (p param) shared() (field string, ofKind bool) {
	for i, key := range slices.Concat(usual, ofKinds) {
		if p.typ == "key" && slices.Contains(key.names, p.name) {
			return key.field, i >= len(usual)
		}
	}
	return "", false
}

// Generate returns the text of calls.go for the Lua files in a file system. An error begins with a
// file's name and the number of a line.
func Generate(files fs.FS) ([]byte, error) {
	paths, err := fs.Glob(files, "*/*.lua")
	if err != nil {
		return nil, err
	}
	var all []*script
	for _, path := range paths { // sorted
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return nil, err
		}
		s, err := parse(strings.TrimSuffix(path, ".lua"), string(text))
		if err != nil {
			return nil, err
		}
		if s != nil {
			all = append(all, s)
		}
	}
	g := &generator{}
	g.line("// Code generated from the headers of the Lua files by go generate; DO NOT EDIT.")
	g.line("")
	g.line("package scripts")
	g.line("")
	g.line("import (")
	g.line("%q", "context")
	g.line("%q", "time")
	g.line(")")
	g.line("")
	g.line("var (")
	for _, s := range all {
		g.line("%s = Load(%q)", varName(s), s.path)
	}
	g.line(")")
	g.line("")
	g.comment("Keys are the keys and the channel of a primitive. Each call says which of them it takes. The first one " +
		"is a string: a cluster client finds the slot by it.")
	g.line("type Keys struct {")
	for _, key := range usual {
		g.line("%s any", key.field)
	}
	g.line("*KindKeys // nil: none")
	g.line("}")
	g.line("")
	g.comment("KindKeys are the keys that only single kinds have.")
	g.line("type KindKeys struct {")
	for _, key := range ofKinds {
		g.line("%s any", key.field)
	}
	g.line("}")
	for _, s := range all {
		g.script(s)
	}
	return format.Source(g.out.Bytes())
}

// generator prints Go code; go/format indents it.
type generator struct{ out bytes.Buffer }

func (g *generator) line(format string, args ...any) { fmt.Fprintf(&g.out, format+"\n", args...) }

// comment prints a comment, in lines of about 100 columns. Go doc shows the empty string of Lua as
// a quotation mark.
func (g *generator) comment(text string) {
	text = strings.ReplaceAll(text, "''", `""`)
	line := "//"
	for w := range strings.FieldsSeq(text) {
		if len(line)+1+len(w) > 100 {
			g.line("%s", line)
			line = "//"
		}
		line += " " + w
	}
	g.line("%s", line)
}

func (g *generator) script(s *script) {
	name := typeName(s)
	g.line("")
	if s.isChange() {
		others := elements(s.keys.fixed[changeKeys:], "c")
		if len(others) > maxValues-30 { // of the line, the names of functions take more
			others = strings.ReplaceAll(others, ", ", ",\n") + ",\n"
		}
		w := words[s.returns.word]
		g.comment(fmt.Sprintf("%s runs %s: %s. %s", name, s.path, s.purpose, returnsDoc(s)))
		g.line("func %s(ctx context.Context, by Sender, c Change) (%s, error) {", name, w.typ)
		g.line("return %s(c.send(ctx, by, %s, %s))", w.reader(), varName(s), others)
		g.line("}")
		return
	}
	g.comment(fmt.Sprintf("%s is a call of %s: %s.", name, s.path, s.purpose))
	for _, note := range s.notes {
		g.line("//")
		g.comment(strings.ToUpper(note[:1]) + strings.TrimSuffix(note[1:], ".") + ".")
	}
	g.line("type %s struct {", name)
	if s.isBatch() {
		g.keys(s.keys.list)
		g.params(s.args.list)
		g.line("}")
		g.batch(s, name)
		return
	}
	element := name + singular(goName(s.keys.group))
	g.keys(s.keys.fixed)
	if s.keys.last != nil {
		g.params([]param{*s.keys.last})
	}
	g.params(s.args.fixed)
	if s.args.last != nil {
		g.params([]param{*s.args.last})
	}
	switch {
	case s.keys.group != "":
		g.line("%s []%s", goName(s.keys.group), element)
	case len(s.args.list) > 0:
		p := s.args.list[0]
		g.doc(p)
		g.line("%s []%s", p.field(), goTypes[p.typ])
	}
	g.line("}")
	if s.keys.group != "" {
		g.line("")
		g.line("// %s is an element of %s.%s.", element, name, goName(s.keys.group))
		g.line("type %s struct {", element)
		g.keys(s.keys.list)
		g.params(s.args.list)
		g.line("}")
	}
	result := g.replyTypes(s, name)
	g.line("")
	g.comment("Do runs the script. " + returnsDoc(s))
	g.line("func (c %s) Do(ctx context.Context, by Sender) (%s, error) {", name, result)
	required, needed := g.vector("keys", s.keys, s), g.vector("args", s.args, s)
	send := fmt.Sprintf("by.send(ctx, %s, keys, %s, args, %s)", varName(s), required, needed)
	g.read(s, send)
	g.line("}")
}

// returnsDoc is what the comment of a call says about its reply.
func returnsDoc(s *script) string {
	if s.returns.doc == "" {
		return ""
	}
	return "Redis returns " + strings.TrimSuffix(s.returns.doc, ".") + "."
}

var goTypes = map[string]string{
	"key": "any", "text": "string", "number": "int64", "ms": "time.Duration", "flag": "bool",
}

var zeros = map[string]string{"key": "nil", "text": `""`, "number": "0", "ms": "0", "flag": "false"}

// params prints the fields of a struct.
func (g *generator) params(params []param) {
	for _, p := range params {
		if p.name != "" && p.typ != "command" {
			g.doc(p)
			g.line("%s %s", p.field(), goTypes[p.typ])
		}
	}
}

// keys prints the fields for keys. Shared ones are embedded.
func (g *generator) keys(keys []param) {
	var taken []string
	var own []param
	for _, p := range keys {
		if field := p.sharedField(); field != "" {
			taken = append(taken, strings.TrimSuffix(field+": "+p.text(), ": "))
		} else {
			own = append(own, p)
		}
	}
	if taken != nil {
		g.comment(strings.Join(taken, "; "))
		g.line("*Keys")
		g.line("")
	}
	g.params(own)
}

// doc prints the comment of a field.
func (g *generator) doc(p param) {
	if text := p.text(); text != "" {
		g.comment(text)
	}
}

// text is the description of a field.
func (p param) text() string {
	if p.optional {
		return strings.TrimSuffix("optional: "+p.doc, ": ")
	}
	return p.doc
}

// value is the expression for a key or an argument. by is the Sender, or the Batch.
func value(of string, p param) string {
	name := of + "." + p.field()
	if field, ofKind := p.shared(); ofKind {
		name = of + ".own()." + field
	}
	switch p.typ {
	case "ms":
		return "by.millis(" + name + ")"
	case "command":
		return "by.runner.publish.Load()"
	}
	return name
}

// maxValues is how many characters of keys or arguments stand in one line.
const maxValues = 85

// vector prints the statement that makes the keys or the arguments of a call. It returns how many
// of them must be sent, as an expression.
func (g *generator) vector(name string, v vector, s *script) string {
	required := 0
	var values []string
	for i, p := range v.fixed {
		if !p.optional {
			required = i + 1
		}
		values = append(values, value("c", p))
	}
	for i, p := range v.fixed {
		switch {
		case p.name == "":
			values[i] = "0"
			if v.isKeys() {
				values[i] = value("c", s.keys.fixed[0])
			}
		case p.optional && i < required:
			g.line("%s := %s", goVar(p.name), values[i])
			values[i] = goVar(p.name)
			g.line("if %s == nil {", values[i])
			g.line("%s = %s // any key of the slot", values[i], value("c", s.keys.fixed[0]))
			g.line("}")
		}
	}
	list := strings.Join(values, ", ")
	if len(list) > maxValues {
		list = "\n" + strings.Join(values, ",\n") + ",\n"
	}
	switch {
	case len(values) == 0 && len(v.list) == 0:
		g.line("var %s []any", name)
		return "0"
	case len(values) == 0:
		g.line("%s := make([]any, 0, %d*len(c.%s))", name, len(v.list), goName(v.group))
	case len(v.list) == 0:
		g.line("%s := []any{%s}", name, list)
		return strconv.Itoa(required)
	default:
		g.line("%s := append(make([]any, 0, %d), %s)", name, len(values)+2, list)
	}
	if v.group == "" {
		g.line("for _, element := range c.%s {", v.list[0].field())
		g.line("%s = append(%s, element)", name, name)
	} else {
		g.line("for _, element := range c.%s {", goName(v.group))
		g.line("%s = append(%s, %s)", name, name, elements(v.list, "element"))
	}
	g.line("}")
	if v.last != nil {
		g.line("if c.%s != %s {", v.last.field(), zeros[v.last.typ])
		g.line("%s = append(%s, %s)", name, name, value("c", *v.last))
		g.line("}")
	}
	return fmt.Sprintf("len(%s)", name)
}

func elements(params []param, of string) string {
	var values []string
	for _, p := range params {
		values = append(values, value(of, p))
	}
	return strings.Join(values, ", ")
}

// batch prints the methods of an element of a batch.
func (g *generator) batch(s *script, name string) {
	g.line("")
	g.line("// Script returns the script. Elements of one script may share a batch.")
	g.line("func (%s) Script() *Script { return %s }", name, varName(s))
	g.line("")
	g.comment("AddTo adds c to a batch. " + returnsDoc(s))
	g.line("func (c %s) AddTo(by *Batch) {", name)
	g.line("by.begin(%s)", varName(s))
	g.line("by.keys = append(by.keys, %s)", elements(s.keys.list, "c"))
	g.line("by.args = append(by.args, %s)", elements(s.args.list, "c"))
	g.line("}")
}

// replyTypes prints the types of a reply that package scripts does not have, and returns the name
// of the reply's type.
func (g *generator) replyTypes(s *script, name string) string {
	r := s.returns
	if len(r.fields) == 0 {
		if r.word == "nothing" {
			return "Reply"
		}
		return words[r.word].typ
	}
	result, base := name+"Reply", "Reply"
	if r.word != "" {
		base = words[r.word].typ
	}
	g.line("")
	g.line("// %s is the reply to %s.", result, name)
	g.line("type %s struct {", result)
	g.line("%s", base)
	g.line("")
	for _, f := range r.fields {
		g.line("%s %s", goName(f.name), fieldType(f, name))
	}
	g.line("}")
	for _, f := range r.fields {
		if len(f.fields) > 1 {
			g.line("")
			g.line("// %s is an element of %s.%s.", name+singular(goName(f.name)), result, goName(f.name))
			g.line("type %s struct {", name+singular(goName(f.name)))
			for _, inner := range f.fields {
				g.line("%s %s", goName(inner.name), goTypes[inner.typ])
			}
			g.line("}")
		}
	}
	return result
}

// fieldType is the Go type of an element of the reply to the call called name.
func fieldType(f field, name string) string {
	switch {
	case f.typ != "":
		return goTypes[f.typ]
	case len(f.fields) == 1:
		return "[]" + goTypes[f.fields[0].typ]
	}
	return "[]" + name + singular(goName(f.name))
}

// read prints the statements that send a call and read its reply.
func (g *generator) read(s *script, send string) {
	r := s.returns
	switch {
	case r.word == "nothing":
		g.line("return %s", send)
		return
	case len(r.fields) == 0 && words[r.word].rest == "":
		g.line("return %s(%s)", words[r.word].reader(), send)
		return
	case len(r.fields) == 0:
		g.line("got, _, err := %s(%s)", words[r.word].reader(), send)
		g.line("return got, err")
		return
	case r.word == "":
		g.line("got, rest, err := readList(%s)", send)
		g.line("reply := %sReply{Reply: got}", typeName(s))
		if r.orNone {
			g.line("if err != nil || !rest.more() {")
		} else {
			g.line("if err != nil {")
		}
		g.line("return reply, err")
		g.line("}")
		g.fields("reply", "rest", r.fields, typeName(s))
		g.line("return reply, rest.err")
		return
	}
	g.line("got, rest, err := %s(%s)", words[r.word].reader(), send)
	g.line("reply := %sReply{%s: got}", typeName(s), words[r.word].typ)
	g.line("if err != nil || %s {", words[r.word].rest)
	g.line("return reply, err")
	g.line("}")
	g.fields("reply", "rest", r.fields, typeName(s))
	g.line("return reply, rest.err")
}

// fields prints the statements that read elements.
func (g *generator) fields(to, from string, fields []field, name string) {
	for _, f := range fields {
		if f.typ != "" {
			g.line("%s.%s = %s.%s()", to, goName(f.name), from, f.typ)
			continue
		}
		list := from
		if f.nested {
			list = goVar(f.name)
			g.line("%s := %s.list()", list, from)
		}
		var values []string
		for _, inner := range f.fields {
			values = append(values, fmt.Sprintf("%s.%s()", list, inner.typ))
		}
		element := values[0]
		if len(values) > 1 {
			element = fmt.Sprintf("%s{%s}", name+singular(goName(f.name)), strings.Join(values, ", "))
		}
		g.line("for %s.more() {", list)
		g.line("%s.%s = append(%s.%s, %s)", to, goName(f.name), to, goName(f.name), element)
		g.line("}")
		if f.nested {
			g.line("if %s.err == nil {", from)
			g.line("%s.err = %s.err", from, list)
			g.line("}")
		}
	}
}

// spelling has the words whose Go spelling is not just a capital letter in front.
var spelling = map[string]string{
	"ttl": "TTL", "pttl": "PTTL", "id": "ID", "ids": "IDs", "fairlock": "FairLock", "rwlock": "RWLock",
	"permitsemaphore": "PermitSemaphore",
}

// goName is the Go name for a name of Lua.
func goName(name string) string {
	var b strings.Builder
	for w := range strings.SplitSeq(name, "_") {
		if special, ok := spelling[w]; ok {
			b.WriteString(special)
		} else if w != "" {
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

// field is the name of a struct's field. Its type says that a duration is in milliseconds.
func (p param) field() string {
	if field := p.sharedField(); field != "" {
		return field
	}
	if p.typ == "ms" {
		return goName(strings.TrimSuffix(p.name, "_ms"))
	}
	return goName(p.name)
}

// goVar is the name of a local variable for a name of Lua.
func goVar(name string) string {
	first, rest, _ := strings.Cut(name, "_")
	return first + goName(rest)
}

func singular(name string) string { return strings.TrimSuffix(name, "s") }

// typeName is the name of a script's struct, such as LockAcquire.
func typeName(s *script) string { return goName(strings.ReplaceAll(s.path, "/", "_")) }

// varName is the name of the variable with the script, such as lockAcquire.
func varName(s *script) string {
	folder, file, _ := strings.Cut(s.path, "/")
	return folder + goName(file)
}

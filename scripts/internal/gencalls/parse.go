package gencalls

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// script is what the header of one Lua file says.
type script struct {
	path       string // without the extension
	purpose    string
	notes      []string // descriptions of several keys or arguments at once
	keys, args vector
	returns    reply
}

// vector is KEYS or ARGV.
type vector struct {
	fixed []param
	group string  // of the list after the fixed ones; "": its elements are no structs
	list  []param // one element of the list; none: there is no list
	last  *param  // after the list
}

// param is a key or an argument.
type param struct {
	name     string // "": not used
	typ      string // "key", or the type of an argument
	optional bool
	doc      string
}

// reply is the form of a reply, and what it means.
type reply struct {
	word   string // "": none
	fields []field
	orNone bool // the list may be empty
	doc    string
}

// field is an element of a list.
type field struct {
	name   string
	typ    string  // "": repeated or nested
	fields []field // of each repetition
	nested bool    // the repetitions are a list of their own
}

// argTypes are the types of arguments.
var argTypes = []string{"text", "number", "ms", "flag", "command"}

// entry is one line of a header with its continuation.
type entry struct {
	line int
	kind string // "KEYS", "ARGV" or "returns"
	at   string // what stands in brackets
	text string
}

var (
	titleLine = regexp.MustCompile(`^-- ([a-z_]+/[a-z_]+): (.+)$`)
	entryLine = regexp.MustCompile(`^-- (?:(KEYS|ARGV)\[([^\]]*)\]|(returns|uses|defines)) +(\S.*)$`)
	nextLine  = regexp.MustCompile(`^-- {9,}(\S.*)$`)
	paramForm = regexp.MustCompile(`^([a-z][a-z_]*\.)?([a-z][a-z_]*)(?: \(([a-z]+(?:, [a-z]+)*)\))?(, |: |$)`)
	rangeForm = regexp.MustCompile(`^([1-9]\d*)(\.\.)?([1-9]\d*)?$`)
	nameForm  = regexp.MustCompile(`^[a-z][a-z_]*$`)
)

// parse reads the header of a file. It returns nil for a library. An error begins with the file's
// name and the number of the line.
func parse(path, text string) (*script, error) {
	s := &script{path: path}
	fail := func(line int, format string, args ...any) (*script, error) {
		return nil, fmt.Errorf("%s.lua:%d: %s", path, line, fmt.Sprintf(format, args...))
	}
	lines := strings.Split(text, "\n")
	title := titleLine.FindStringSubmatch(lines[0])
	if title == nil || title[1] != path {
		return fail(1, `the first line is not "-- %s: what it does"`, path)
	}
	s.purpose = strings.TrimRight(title[2], ".:")
	var entries []entry
	continued := false
	for i, line := range lines[1:] {
		if !strings.HasPrefix(line, "--") {
			break
		}
		m, next := entryLine.FindStringSubmatch(line), nextLine.FindStringSubmatch(line)
		switch {
		case m != nil && m[3] == "defines":
			return nil, nil //nolint:nilnil // a library is no script, and no error
		case m != nil:
			entries, continued = append(entries, entry{i + 2, m[1] + m[3], m[2], m[4]}), true
		case next != nil && continued:
			entries[len(entries)-1].text += " " + next[1]
		case strings.HasPrefix(line, "-- KEYS"), strings.HasPrefix(line, "-- ARGV"), strings.HasPrefix(line, "-- returns"):
			return fail(i+2, "cannot read %q", line)
		default:
			continued = false
		}
	}
	returns := 0
	for _, e := range entries {
		var err error
		switch e.kind {
		case "KEYS":
			err = s.add(&s.keys, e, true)
		case "ARGV":
			err = s.add(&s.args, e, false)
		case "returns":
			returns++
			s.returns, err = parseReply(e.text)
		}
		if err != nil {
			return fail(e.line, "%s", err)
		}
	}
	switch {
	case returns != 1:
		return fail(1, "the header has %d lines that begin with returns", returns)
	case len(s.keys.fixed) == 0 && len(s.keys.list) == 0:
		return fail(1, "the header names no key")
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return s, s.checkCode(lines)
}

// add reads the entry of one key or argument, or of several, of which v is the list.
func (s *script) add(v *vector, e entry, isKeys bool) error {
	params, group, doc, err := parseParams(e, isKeys)
	if err != nil {
		return err
	}
	if len(params) == 1 {
		params[0].doc = doc
	} else if doc != "" {
		s.notes = append(s.notes, doc)
	}
	label := e.kind + "[" + e.at + "]"
	if e.at == "-1" {
		if len(v.list) == 0 || v.last != nil || len(params) != 1 {
			return fmt.Errorf("%s is not the one after a list", label)
		}
		v.last = &params[0]
		return nil
	}
	m := rangeForm.FindStringSubmatch(e.at)
	if m == nil {
		return fmt.Errorf("cannot read %s", label)
	}
	if first, _ := strconv.Atoi(m[1]); first != len(v.fixed)+1 || len(v.list) > 0 {
		return fmt.Errorf("%s is out of order", label)
	}
	if m[2] != "" && m[3] == "" {
		v.group, v.list = group, params
		if group == "" && len(params) != 1 {
			return fmt.Errorf("%s is a list of %d names without a group", label, len(params))
		}
		return nil
	}
	end := m[1]
	if m[2] != "" {
		end = m[3]
	}
	if last, _ := strconv.Atoi(end); last != len(v.fixed)+len(params) {
		return fmt.Errorf("%s has %d names", label, len(params))
	}
	if group != "" {
		return fmt.Errorf("%s is no list, but has the group %s", label, group)
	}
	v.fixed = append(v.fixed, params...)
	return nil
}

// parseParams reads the names, types and description of an entry.
func parseParams(e entry, isKeys bool) (params []param, group, doc string, err error) {
	if e.text == "not used" {
		return []param{{}}, "", "", nil
	}
	for rest := e.text; ; {
		m := paramForm.FindStringSubmatch(rest)
		if m == nil {
			return nil, "", "", fmt.Errorf("cannot read %q: not a name, its type in parentheses, and a colon", rest)
		}
		p := param{name: m[2], typ: "key"}
		attributes := strings.Split(m[3], ", ")
		if m[3] == "" {
			attributes = nil
		}
		if !isKeys {
			if len(attributes) == 0 || !slices.Contains(argTypes, attributes[0]) {
				return nil, "", "", fmt.Errorf("%s has no type: one of %s", p.name, strings.Join(argTypes, ", "))
			}
			p.typ, attributes = attributes[0], attributes[1:]
		}
		for _, a := range attributes {
			if a != "optional" {
				return nil, "", "", fmt.Errorf("%s: cannot read %q", p.name, a)
			}
			p.optional = true
		}
		own := strings.TrimSuffix(m[1], ".")
		if len(params) > 0 && own != group {
			return nil, "", "", fmt.Errorf("%s is not of the group %q", p.name, group)
		}
		group, params = own, append(params, p)
		rest = rest[len(m[0]):]
		switch m[4] {
		case ": ":
			return params, group, rest, nil
		case "":
			return params, group, "", nil
		}
	}
}

// isBatch reports whether the script is a batch of elements.
func (s *script) isBatch() bool { return s.keys.group == "each" }

// check checks what lines say together.
func (s *script) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s.lua:1: %s", s.path, fmt.Sprintf(format, args...))
	}
	names := map[string]bool{}
	for _, v := range []vector{s.keys, s.args} {
		optional := false
		for i, p := range v.fixed {
			switch {
			case p.name == "" && i == 0 && v.isKeys():
				return fail("KEYS[1] is not used, but the slot is found by it")
			case p.name != "" && names[p.field()]:
				return fail("two fields are named %s", p.field())
			case optional && !p.optional && !v.isKeys():
				return fail("the argument %s follows an optional one", p.name)
			}
			optional = p.optional
			names[p.field()] = true
		}
	}
	each := s.args.group == "each"
	if s.isBatch() != each || (s.isBatch() && len(s.keys.fixed)+len(s.args.fixed) > 0) {
		return fail("keys and arguments of a batch are both lists named each, and nothing else")
	}
	if s.isBatch() != (s.returns.word == "kept") {
		return fail("a batch, and nothing else, returns kept")
	}
	if s.returns.word == "change" && !s.isChange() {
		return fail("a change has a key, a channel and a memory, and further keys of the primitive; " +
			"publish, memory_ttl_ms and one more number at most")
	}
	return nil
}

// changeKeys is how many keys each [scripts.Change] has.
const changeKeys = 3

// isChange reports whether the script has the keys and the arguments of a [scripts.Change], and a
// reply without further elements.
func (s *script) isChange() bool {
	keys, args := s.keys.fixed, s.args.fixed
	return len(s.keys.list)+len(s.args.list) == 0 &&
		len(keys) >= changeKeys && keys[1].name == "channel" && keys[2].name == "memory_key" &&
		!slices.ContainsFunc(keys[changeKeys:], func(p param) bool { return p.sharedField() == "" }) &&
		(len(args) == 2 || len(args) == 3 && args[2].typ == "number") &&
		args[0].name == "publish" && args[1].name == "memory_ttl_ms" &&
		words[s.returns.word].typ != "" && words[s.returns.word].rest == ""
}

var (
	localLine = regexp.MustCompile(`^local (.+) = (.*\b(?:KEYS|ARGV)\[.*)$`)
	reference = regexp.MustCompile(`\b(KEYS|ARGV)\[(\d+)\]`)
)

// checkCode checks that the code gives the names of the header to its KEYS and ARGV. It may use one
// of them for further variables, too.
func (s *script) checkCode(lines []string) error {
	type use struct {
		line  int
		names []string
	}
	uses := map[string]*use{} // by KEYS[1] and the like
	for i, line := range lines {
		m := localLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
		if len(names) != len(values) {
			return fmt.Errorf("%s.lua:%d: %d names for %d values", s.path, i+1, len(names), len(values))
		}
		for j, value := range values {
			if ref := reference.FindString(value); ref != "" {
				if uses[ref] == nil {
					uses[ref] = &use{line: i + 1}
				}
				uses[ref].names = append(uses[ref].names, names[j])
			}
		}
	}
	for ref, use := range uses {
		m := reference.FindStringSubmatch(ref)
		v, n := s.keys, 0
		if m[1] == "ARGV" {
			v = s.args
		}
		n, _ = strconv.Atoi(m[2])
		switch {
		case n > len(v.fixed) || v.fixed[n-1].name == "":
			return fmt.Errorf("%s.lua:%d: the header does not name %s", s.path, use.line, ref)
		case !slices.Contains(use.names, v.fixed[n-1].name):
			return fmt.Errorf("%s.lua:%d: %s is called %s, and in the header %s",
				s.path, use.line, ref, strings.Join(use.names, ", "), v.fixed[n-1].name)
		}
	}
	return nil
}

// isKeys reports whether v is KEYS.
func (v vector) isKeys() bool {
	return len(v.fixed) > 0 && (v.fixed[0].typ == "key" || v.fixed[0].typ == "")
}

// parseReply reads the form of a reply.
func parseReply(text string) (r reply, err error) {
	word, rest := text, ""
	if i := strings.IndexAny(text, " :{"); i >= 0 {
		word, rest = text[:i], strings.TrimPrefix(text[i:], " ")
	}
	if word != "" {
		if _, known := words[word]; !known && word != "nothing" {
			return r, fmt.Errorf("no reply is called %q", word)
		}
		r.word = word
	}
	if strings.HasPrefix(rest, "{") {
		if r.word != "" && words[r.word].rest == "" {
			return r, fmt.Errorf("nothing follows a reply called %q", r.word)
		}
		r.fields, rest, err = parseFields(rest[1:], "}")
		if err != nil {
			return r, err
		}
		if after, found := strings.CutPrefix(rest, " or {}"); found {
			r.orNone, rest = true, after
		}
	}
	doc, found := strings.CutPrefix(rest, ": ")
	if !found && rest != "" {
		return r, fmt.Errorf("cannot read %q", rest)
	}
	r.doc = doc
	return r, nil
}

// parseFields reads elements up to end, and returns what follows it.
func parseFields(text, end string) (fields []field, rest string, err error) {
	for {
		name, after, _ := strings.Cut(text, " ")
		if !nameForm.MatchString(name) || after == "" {
			return nil, "", fmt.Errorf("cannot read the element %q", text)
		}
		f := field{name: name}
		switch after[0] {
		case '(':
			f.fields, rest, err = parseFields(after[1:], ")...")
		case '{':
			f.nested = true
			f.fields, rest, err = parseFields(after[1:], "}")
		default:
			at := strings.IndexAny(after, ",)}")
			if at < 0 || !slices.Contains([]string{"text", "number", "flag"}, after[:at]) {
				return nil, "", fmt.Errorf("element %s has no type: text, number or flag", name)
			}
			f.typ, rest = after[:at], after[at:]
		}
		if err != nil {
			return nil, "", err
		}
		fields = append(fields, f)
		if last, found := strings.CutPrefix(rest, end); found {
			return fields, last, nil
		}
		next, found := strings.CutPrefix(rest, ", ")
		if !found || (f.fields != nil && !f.nested) {
			return nil, "", fmt.Errorf("after the element %s: want %q, got %q", name, end, rest)
		}
		text = next
	}
}

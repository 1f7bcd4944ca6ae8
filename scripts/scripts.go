// Package scripts holds the library's Lua and the one door through which it reaches Redis.
//
// Each primitive has a folder of Lua files; each file opens with a header that says what it does, its KEYS, its ARGV
// and what it returns. [Load] finds one by its path without the ending; [Runner] runs it exactly once in effect.
//
// # Exactly once
//
// A command whose reply was lost may have been executed, and a copy of it may be executed later still: go-redis repeats
// after a broken connection, and a hung server works off what its sockets hold when it wakes. So every script here that writes
// may run any number of times with equal arguments, to the effect of one run and with the first run's answer. Scripts whose
// ids belong to one acquisition alone get there by writing what is wanted; where the wire format counts, and where an
// answer must be remembered, a key of the same slot remembers the request for [Runner.Memory].
package scripts

import (
	"crypto/sha1" //nolint:gosec // EVALSHA addresses scripts by SHA-1; nothing secret depends on it.
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

//go:embed */*.lua
var files embed.FS

// Script is one Lua file, ready to be run. It is immutable.
type Script struct {
	name   string
	text   string
	sha    string
	digest any // sha, as commands take it
}

// Name is the script's path without its ending, such as "lock/acquire".
func (s *Script) Name() string { return s.name }

// Text is what Redis is given: the libraries the script uses, then the script.
func (s *Script) Text() string { return s.text }

// SHA is the digest by which EVALSHA finds it.
func (s *Script) SHA() string { return s.sha }

// uses matches the header line that names the files of lib/ to be put in front of a script.
var uses = regexp.MustCompile(`(?m)^-- uses +(.+)$`)

// Load returns the embedded script of that path, such as "lock/acquire". A library that it uses is looked for in the folders of own, then
// in the script's own folder, then in lib/: so that one script serves primitives that differ in a detail. It is meant for
// package-level variables and panics if there is no such file.
func Load(name string, own ...string) *Script {
	var text strings.Builder
	include(&text, name, append(own, path.Dir(name)), map[string]bool{})
	return newScript(name, text.String())
}

func newScript(name, text string) *Script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	sha := hex.EncodeToString(sum[:])
	return &Script{name: name, text: text, sha: sha, digest: sha}
}

// include writes a file behind the libraries that it uses, each once.
func include(text *strings.Builder, name string, own []string, done map[string]bool) {
	body := read(name)
	if m := uses.FindStringSubmatch(body); m != nil {
		for lib := range strings.SplitSeq(m[1], ",") {
			lib = library(strings.TrimSpace(lib), own)
			if !done[lib] {
				done[lib] = true
				include(text, lib, own, done)
			}
		}
	}
	text.WriteString(code(body))
}

func library(name string, own []string) string {
	for _, folder := range own {
		if _, err := fs.Stat(files, folder+"/"+name+".lua"); err == nil {
			return folder + "/" + name
		}
	}
	return "lib/" + name
}

func read(name string) string {
	b, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(fmt.Sprintf("scripts: no script %q: %v", name, err))
	}
	return string(b)
}

// code drops whole-line comments and blank lines: what Redis keeps and hashes is the code alone.
func code(body string) string {
	var b strings.Builder
	for line := range strings.Lines(body) {
		if s := strings.TrimSpace(line); s != "" && !strings.HasPrefix(s, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

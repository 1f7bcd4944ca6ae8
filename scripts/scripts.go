// Package scripts is not for users, and any release may change it: it holds the library's Lua
// scripts, and the runner that sends every command to Redis.
//
// Each primitive has a folder of Lua files. Each file opens with a header: what the script does,
// its KEYS, its ARGV and what it returns. [Load] returns a script by its path without the
// extension; [Runner] runs it, exactly once in effect.
//
// # Exactly once
//
// A command whose reply was lost may have been executed. A copy of it may be executed later still:
// go-redis repeats a command after a broken connection, and a server that hung executes what its
// sockets hold when it runs again. Therefore every script here that writes is idempotent: it may
// run any number of times with equal arguments, with the effect of one run and the first run's
// answer.
//
// A script whose owner id belongs to one acquisition alone writes the wanted state. Where the wire
// format counts, or where a copy would take what was given back, a key of the same slot remembers
// the request for [Runner.Memory]. doc/decisions/late-copies.md says which script relies on what.
//
// # Mutexes
//
// Each part of a runner has a mutex: recovery, punctual, hooks, prober, batcher, patientAttempts,
// Runner itself, places, shards and slotMap. All of them are innermost, with one exception:
//
//	shards.mu -> hooks.mu
//
// None of them is held while a command is sent, while [Runner.OnReturn]'s func runs, or while a
// hook of the application runs. But the caller of a command may hold mutexes of its own: package
// engine holds Ownership.wire during commands. So a hook of the go-redis client must not release a
// hold of the same ownership, or nest under one. That is the only case in which the user's code
// runs while a mutex is held.
//
// # Goroutines
//
// Runner.running counts the calls and the goroutines of a runner: attempts that outlive their call,
// the workers of the batchers, dials of the probers, and readings of the slot map. They end with
// the timeout of a command. A patient attempt ends with the validity of its leases, or when the
// runner closes. [Runner.Close] waits for all of them, but not for an attempt that is stuck in the
// application's code. After [Runner.Stop] there are no more retries, and all commands share one
// deadline, which is one command timeout away.
package scripts

import (
	"crypto/sha1" //nolint:gosec // EVALSHA addresses scripts by SHA-1; nothing secret depends on it.
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:generate go run ./internal/gencalls/main

//go:embed */*.lua
var files embed.FS

// Script is one Lua file, ready to be run. It is immutable.
type Script struct {
	name string
	text string
	sha  string
	wire []byte // sha as it is written: see mark
	slow bool   // it may take long on a quick server, because it may look at a key of each reader
}

// Name returns the script's path without its extension, such as "lock/acquire".
func (s *Script) Name() string { return s.name }

// Text returns the code that Redis executes: the libraries that the script uses, then the script.
func (s *Script) Text() string { return s.text }

// SHA returns the digest of Text, by which EVALSHA finds the script.
func (s *Script) SHA() string { return s.sha }

// Load returns the embedded script with that path, such as "lock/acquire". A "uses" line names
// libraries, which take its place. It is in the header, or behind code that needs none of their
// functions, because Redis makes each function anew for each call of a script. A name without a
// slash is looked up in the folder of the script that is loaded, then in the file's folder, then in
// lib/. Therefore a script may use another folder's script as it is, with libraries of its own. It
// then consists of a header only. Load panics if there is no such file.
//
// Every process loads all scripts at its start, so this must be quick.
func Load(name string) *Script {
	var text strings.Builder
	libraries := map[string]bool{}
	include(&text, name, path.Dir(name), libraries)
	s := newScript(name, text.String())
	s.slow = libraries[fitTTL]
	return s
}

// fitTTL is the library of scripts that may look at every reader.
const fitTTL = "rwlock/fit_ttl"

func newScript(name, text string) *Script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	sha := hex.EncodeToString(sum[:])
	return &Script{name: name, text: text, sha: sha, wire: []byte(sha)}
}

// include writes the libraries that a file uses, each of them once, and then the file. own is the
// folder of the script that is loaded.
func include(text *strings.Builder, name, own string, done map[string]bool) {
	for line := range strings.Lines(read(name)) {
		if isCode(line) {
			text.WriteString(line)
			continue
		}
		for _, lib := range uses(line) {
			lib = library(lib, own, path.Dir(name))
			if !done[lib] {
				done[lib] = true
				include(text, lib, own, done)
			}
		}
	}
}

// uses returns the libraries that lines name.
func uses(body string) (libraries []string) {
	for line := range strings.Lines(body) {
		if names, ok := strings.CutPrefix(line, "-- uses "); ok {
			names = strings.Join(strings.Fields(names), "")
			libraries = append(libraries, strings.Split(names, ",")...)
		}
	}
	return libraries
}

// library returns the path of the library that a "uses" line calls name.
func library(name string, folders ...string) string {
	if strings.Contains(name, "/") {
		return name
	}
	for _, folder := range folders {
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

// code returns body without whole-line comments and blank lines, so that Redis keeps and hashes
// only code.
func code(body string) string {
	var b strings.Builder
	for line := range strings.Lines(body) {
		if isCode(line) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func isCode(line string) bool {
	s := strings.TrimSpace(line)
	return s != "" && !strings.HasPrefix(s, "--")
}

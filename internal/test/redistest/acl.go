package redistest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Password is the password of all users that this package makes, and of those in doc/operations.md.
const Password = "secret"

// DocumentedRules returns the rules that doc/operations.md lists for an ACL user: one list for each
// of its "ACL SETUSER" commands. The package's directory must be below the module's root.
func DocumentedRules(t testing.TB, user string) (commands [][]string) {
	t.Helper()
	var page []byte
	err := error(nil)
	for dir := "."; len(dir) < 30; dir = filepath.Join(dir, "..") {
		if page, err = os.ReadFile(filepath.Join(dir, "doc", "operations.md")); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	within := false
	for line := range strings.Lines(string(page)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 2 && words[0] == "ACL" && words[1] == "SETUSER":
			if within = words[2] == user; within {
				commands = append(commands, words[3:])
			}
		case strings.HasPrefix(line, "```"):
			within = false
		case within:
			last := len(commands) - 1
			commands[last] = append(commands[last], words...)
		}
	}
	if len(commands) == 0 {
		t.Fatalf("redistest: doc/operations.md has no rules for the user %s", user)
	}
	return commands
}

// SetUser runs ACL SETUSER. The rules should include ">" and Password.
func (s *Server) SetUser(t testing.TB, user string, rules ...string) {
	t.Helper()
	if _, err := s.do(context.Background(), append([]string{"acl", "setuser", user}, rules...)...); err != nil {
		t.Fatalf("redistest: rules of %s: %v", user, err)
	}
}

// As returns s for clients that log in as an ACL user, with Password. This package's own commands, such as
// Keys, need no rights of that user.
func (s *Server) As(user string) *Server {
	return &Server{
		name: s.name, addr: s.addr, shared: s.shared, proc: s.proc, mini: s.mini, dial: s.dial, calls: s.calls, user: user,
	}
}

package redistest

import (
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
)

// lastName is the number in the last name that Name returned. It makes names
// unique in the test binary.
var lastName atomic.Int64

// Name returns a key name that no other call in this test binary returns. It consists of the last
// part of t's name, reduced to letters, digits and dashes, and a number. All numbers have the same
// number of digits, so that no name is a prefix of another: tests search by pattern for the keys
// that are left of a name.
func Name(t testing.TB) string {
	return fmt.Sprintf("%s-%05d", sanitize(path.Base(t.Name())), lastName.Add(1))
}

const maxNameLen = 24

// sanitize replaces all characters that have a meaning in Redis patterns or
// hash tags, and truncates s.
func sanitize(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		default:
			return '-'
		}
	}, strings.TrimPrefix(s, "Test"))
	return s[:min(len(s), maxNameLen)]
}

// Each runs f as two subtests: "miniredis" on a new miniredis, and "redis" on the
// shared redis-server. The latter ends as described at Missing if there is no
// binary. If there is one, the former runs only with all tests (Full), because
// redis-server says the same, and sooner.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		if _, err := binary(); err == nil {
			NeedFull(t, "this test runs on redis-server")
		}
		f(t, Miniredis(t))
	})
	t.Run("redis", func(t *testing.T) { f(t, Redis(t)) })
}

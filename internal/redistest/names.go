package redistest

import (
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"testing"
)

// names numbers the names given out, so that no two tests of a binary share one.
var names atomic.Int64

// Name returns a key name that no other call in this test binary returns: the
// last part of t's name, shortened to letters, digits and dashes, and a number.
func Name(t testing.TB) string {
	return fmt.Sprintf("%s-%d", plain(path.Base(t.Name())), names.Add(1))
}

const longestName = 24

func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9':
			return r
		default:
			return '-'
		}
	}, strings.TrimPrefix(s, "Test"))
	return s[:min(len(s), longestName)]
}

// Each runs f as a subtest on a miniredis of its own ("miniredis") and on the
// shared redis-server ("redis"), which is skipped visibly when there is none.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { f(t, Miniredis(t)) })
	t.Run("redis", func(t *testing.T) { f(t, Redis(t)) })
}

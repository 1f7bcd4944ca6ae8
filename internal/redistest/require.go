package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What a test can need beyond miniredis, as named in REDLATCH_REQUIRE.
const (
	NeedRedis    = "redis"    // a redis-server binary
	NeedCluster  = "cluster"  // the same binary, run as a cluster
	NeedSentinel = "sentinel" // the same binary, run as sentinels
	NeedRedisson = "redisson" // Java with Redisson
)

const (
	envRequire = "REDLATCH_REQUIRE"
	envServer  = "REDIS_SERVER"
)

var needs = []string{NeedRedis, NeedCluster, NeedSentinel, NeedRedisson}

// Require returns the path of the redis-server binary that what (NeedRedis,
// NeedCluster or NeedSentinel) runs on: $REDIS_SERVER, else redis-server from
// the PATH. Without one the test ends as in Missing.
func Require(t testing.TB, what string) string {
	t.Helper()
	name := os.Getenv(envServer)
	if name == "" {
		name = "redis-server"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, what, fmt.Sprintf("no %s (set %s): %v", name, envServer, err))
	}
	return path
}

// Missing ends the test because what it needs is not here, for the given
// reason: with t.Fatal when $REDLATCH_REQUIRE, a comma-separated list, names
// what; with t.Skip otherwise. It does not return.
func Missing(t testing.TB, what, reason string) {
	t.Helper()
	required, err := requires(os.Getenv(envRequire), what)
	switch {
	case err != nil:
		t.Fatal(err)
	case required:
		t.Fatalf("%s is required by %s: %s", what, envRequire, reason)
	default:
		t.Skipf("needs %s: %s", what, reason)
	}
}

// requires tells whether list names what. A name nobody knows is an error: a
// typing mistake must not turn a required server into a skipped one.
func requires(list, what string) (bool, error) {
	if !slices.Contains(needs, what) {
		return false, fmt.Errorf("redistest: %q is none of %v", what, needs)
	}
	found := false
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name != "" && !slices.Contains(needs, name) {
			return false, fmt.Errorf("redistest: %s names %q, which is none of %v", envRequire, name, needs)
		}
		found = found || name == what
	}
	return found, nil
}

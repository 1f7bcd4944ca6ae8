package redistest

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The requirements that a test can have beyond miniredis, as named in
// REDLATCH_REQUIRE.
const (
	NeedRedis    = "redis"    // a redis-server binary
	NeedCluster  = "cluster"  // the same binary, run as a cluster
	NeedSentinel = "sentinel" // the same binary, run as sentinels
	NeedRedisson = "redisson" // Java with Redisson
	NeedChromium = "chromium" // a browser
)

const (
	envRequire = "REDLATCH_REQUIRE"
	envServer  = "REDIS_SERVER"
)

var needs = []string{NeedRedis, NeedCluster, NeedSentinel, NeedRedisson, NeedChromium}

// Require returns the path of the redis-server binary: $REDIS_SERVER, or else
// redis-server from the PATH. what must be NeedRedis, NeedCluster or NeedSentinel.
// Without a binary the test ends as described at Missing.
func Require(t testing.TB, what string) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		Missing(t, what, fmt.Sprintf("no redis-server (set %s): %v", envServer, err))
	}
	return path
}

// binary returns the path of the redis-server that Require describes.
func binary() (string, error) {
	return exec.LookPath(cmp.Or(os.Getenv(envServer), "redis-server"))
}

// Missing ends the test because a requirement is not met, for the given reason.
// what names the requirement. Missing calls t.Fatal if the comma-separated list
// $REDLATCH_REQUIRE contains what, and t.Skip otherwise. It does not return.
func Missing(t testing.TB, what, reason string) {
	t.Helper()
	if Required(t, what) {
		t.Fatalf("%s is required by %s: %s", what, envRequire, reason)
	}
	t.Skipf("needs %s: %s", what, reason)
}

// Required reports whether $REDLATCH_REQUIRE contains what. A wrong list ends the test.
func Required(t testing.TB, what string) bool {
	t.Helper()
	required, err := requires(os.Getenv(envRequire), what)
	if err != nil {
		t.Fatal(err)
	}
	return required
}

// requires reports whether list contains what. An unknown name is an error,
// because a misspelled requirement must not skip a test.
func requires(list, what string) (bool, error) {
	if !slices.Contains(needs, what) {
		return false, fmt.Errorf("redistest: %q is not one of %v", what, needs)
	}
	found := false
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name != "" && !slices.Contains(needs, name) {
			return false, fmt.Errorf("redistest: %s contains %q, which is not one of %v", envRequire, name, needs)
		}
		found = found || name == what
	}
	return found, nil
}

package interop_test

import (
	"os"
	"testing"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

// The Java processes of this test binary, started by the first test that needs them.
var (
	redisson4 = redisson.Shared{Options: redisson.Options{Version: redisson.Redisson4}}
	redisson3 = redisson.Shared{Options: redisson.Options{Version: redisson.Redisson3}}
)

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	_, _ = redisson4.Close(), redisson3.Close()
	os.Exit(code)
}

// eachRedisson runs a test against the newest Redisson of each major version.
func eachRedisson(t *testing.T, test func(t *testing.T, driver *redisson.Driver)) {
	t.Run("redisson 4", func(t *testing.T) { test(t, redisson4.Driver(t)) })
	t.Run("redisson 3", func(t *testing.T) { test(t, redisson3.Driver(t)) })
}

package interop_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

// The Java processes of this test binary, started by the first test that needs them.
var (
	redisson4 = redisson.Shared{Options: redisson.Options{Version: release(redisson.Redisson4)}}
	redisson3 = redisson.Shared{Options: redisson.Options{Version: release(redisson.Redisson3)}}
)

// release returns version, or $REDLATCH_REDISSON if that is a release of the same major version.
func release(version redisson.Version) redisson.Version {
	major, _, _ := strings.Cut(string(version), ".")
	if other := os.Getenv("REDLATCH_REDISSON"); strings.HasPrefix(other, major+".") {
		return redisson.Version(other)
	}
	return version
}

// results collects the results of the matrix cells of this run.
var results = newReport()

var (
	matrixFile = flag.String("matrix", "",
		"write the matrix into this markdown file, between <!-- matrix --> and <!-- /matrix -->")
	iterationCount = flag.Int("count-to", 500,
		"iterations of each of the 8 workers of a counter cell; a tenth of that in all set-ups but the first")
)

func TestMain(m *testing.M) {
	flag.Parse()
	logging.Disable() // go-redis logs every sentinel that it discovers
	code := redistest.Main(m)
	_, _ = redisson4.Close(), redisson3.Close()
	results.print(os.Stdout)
	if *matrixFile != "" && code == 0 {
		if err := results.write(*matrixFile); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// eachRedisson runs a test against the Redisson of each major version.
func eachRedisson(t *testing.T, test func(t *testing.T, driver *redisson.Driver)) {
	t.Run("redisson 4", func(t *testing.T) { test(t, redisson4.Driver(t)) })
	t.Run("redisson 3", func(t *testing.T) { test(t, redisson3.Driver(t)) })
}

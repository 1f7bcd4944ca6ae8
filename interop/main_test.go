package interop_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/redlatch/redlatch/internal/redistest"
	"github.com/redlatch/redlatch/interop/redisson"
)

// The Java processes of this test binary, started by the first test that needs them.
var (
	redisson4 = redisson.Shared{Options: redisson.Options{Version: redisson.Redisson4}}
	redisson3 = redisson.Shared{Options: redisson.Options{Version: redisson.Redisson3}}
)

// outcome is what the cells of the matrix come to in this run.
var outcome = newReport()

var (
	matrixFile = flag.String("matrix", "", "write the matrix into this markdown file, between <!-- matrix --> and <!-- /matrix -->")
	fullCount  = flag.Int("count-to", 500, "how often each of the 8 workers of a matrix cell counts; a tenth of that in all set-ups but the first")
)

func TestMain(m *testing.M) {
	flag.Parse()
	logging.Disable() // go-redis tells of each sentinel that it meets
	alongside()
	code := redistest.Main(m)
	_, _ = redisson4.Close(), redisson3.Close()
	outcome.print(os.Stdout)
	if *matrixFile != "" && code == 0 {
		if err := outcome.write(*matrixFile); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// alongside lets more cells run at once than there are cores, unless the command line says otherwise: they wait for leases to end.
func alongside() {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "12")
	}
}

// eachRedisson runs a test against the newest Redisson of each major version.
func eachRedisson(t *testing.T, test func(t *testing.T, driver *redisson.Driver)) {
	t.Run("redisson 4", func(t *testing.T) { test(t, redisson4.Driver(t)) })
	t.Run("redisson 3", func(t *testing.T) { test(t, redisson3.Driver(t)) })
}

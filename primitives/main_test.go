package primitives_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // parallel tests mostly wait; the -parallel flag overrides it
	code := redistest.Main(m)
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

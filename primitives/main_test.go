package primitives_test

import (
	"flag"
	"os"
	"testing"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "4") // parallel tests mostly wait; the -parallel flag overrides it
	os.Exit(redistest.Main(m))
}

package primitives_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/redlatch/redlatch/internal/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	var leaked error
	for range 4 { // half a second each: a pool of go-redis that dialed in vain takes a second to end
		if leaked = goleak.Find(); leaked == nil {
			break
		}
	}
	if leaked != nil {
		fmt.Fprintln(os.Stderr, leaked)
		code = max(code, 1)
	}
	os.Exit(code)
}

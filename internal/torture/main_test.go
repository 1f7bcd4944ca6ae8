package torture

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/redistest"
)

// clientVariable makes the test binary a client process.
const clientVariable = "REDLATCH_TORTURE_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(clientVariable) != "" {
		planted = plant
		if err := Worker(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redis.SetLogger(discard{}) // faults are no news
	os.Exit(redistest.Main(m))
}

func testClient() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clientVariable+"=1")
	return cmd
}

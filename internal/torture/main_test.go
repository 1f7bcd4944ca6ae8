package torture

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// clientVariable makes the test binary a client process.
const clientVariable = "REDLATCH_TORTURE_CLIENT"

func TestMain(m *testing.M) {
	if kind := os.Getenv(clientVariable); kind != "" {
		planted = plant
		work := Worker
		if open, ok := testLibraries[kind]; ok {
			work = func(in io.Reader, out io.Writer) error { return LibraryWorker(in, out, open) }
		}
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	redis.SetLogger(discard{}) // faults are no news
	os.Exit(redistest.Main(m))
}

func testClient() *exec.Cmd { return testClientOf("redlatch") }

// testClientOf starts a client process with redlatch, or with one of testLibraries.
func testClientOf(library string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clientVariable+"="+library)
	return cmd
}

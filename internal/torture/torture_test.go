package torture

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTry(t *testing.T) {
	seed, _ := strconv.ParseUint(os.Getenv("TS"), 10, 64)
	c := Config{Client: testClient, Seed: seed, Timelines: "/tmp/tlogs", Topology: os.Getenv("TT")}
	if p := os.Getenv("TP"); p != "" {
		c.Primitives = strings.Split(p, ",")
	}
	if p := os.Getenv("TF"); p != "" {
		c.Faults = strings.Split(p, ",")
	}
	if p := os.Getenv("TD"); p != "" {
		c.Duration, _ = time.ParseDuration(p)
	}
	r, err := Run(t.Context(), c)
	if r != nil {
		_ = r.Print(os.Stdout)
	}
	require.NoError(t, err)
	if len(r.Violations) > 0 {
		t.Fail()
	}
}

package report

import (
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
)

// Machine returns a setup that describes this machine and this program.
func Machine(date time.Time) Setup {
	return Setup{
		Date:    date,
		Machine: processor(),
		Cores:   runtime.NumCPU(),
		System:  runtime.GOOS + "/" + runtime.GOARCH,
		Go:      runtime.Version(),
		GoRedis: contend.Version("github.com/redis/go-redis/v9"),
	}
}

// processor returns the model name of the processor on Linux, and the architecture elsewhere.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if key, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

package harness

import (
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/server"
)

// setup describes the machine and the versions of a run.
func setup(s *server.Server, c Config) report.Setup {
	lib := map[string]string{}
	for _, contender := range c.Contenders {
		switch {
		case contender.Remote != nil:
			lib[contender.Family] = contender.Remote.Version()
		case contender.Module != "":
			lib[contender.Family] = contend.Version(contender.Module)
		}
	}
	return report.Setup{
		Date:    time.Now(),
		Machine: processor(),
		Cores:   runtime.NumCPU(),
		System:  runtime.GOOS + "/" + runtime.GOARCH,
		Go:      runtime.Version(),
		Redis:   s.Version,
		GoRedis: contend.Version("github.com/redis/go-redis/v9"),
		Forked:  c.Fork,
		Rounds:  c.Rounds,
		Lib:     lib,
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

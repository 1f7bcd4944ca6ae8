package harness

import (
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
	described := report.Machine(time.Now())
	described.Redis, described.Forked, described.Rounds, described.Lib = s.Version, c.Fork, c.Rounds, lib
	return described
}

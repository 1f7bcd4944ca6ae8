// Command torture runs clients of one lock library at a time on a Redis under faults, as redlatch
// torture does, and checks what that library itself says: while it says that a client holds a lock,
// no other client holds it.
//
//	go run ./torture
//	go run ./torture -libraries rueidislock -minutes 1 -seed 7 -timelines /tmp
//
// It exits with 1 if that was violated.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/internal/torture"
)

// asClient is the verb by which torture starts its client processes. The name of the library
// follows.
const asClient = "torture-client"

// exclusion is the check that counts. The others are about promises that only redlatch makes.
const exclusion = "exclusion"

var errViolated = errors.New("two clients held a lock at the same time")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) == 3 && os.Args[1] == asClient {
		l, err := named(os.Args[2])
		if err != nil {
			return err
		}
		return torture.LibraryWorker(os.Stdin, os.Stdout, play(l))
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	clientOf := func(name string) func() *exec.Cmd {
		return func() *exec.Cmd { return exec.Command(path, asClient, name) } //nolint:noctx // torture ends its clients
	}
	return app(os.Stdout, os.Stderr, clientOf).Run(ctx, os.Args)
}

const description = `Each library runs alone, in four client processes, on a redis-server of its own ($REDIS_SERVER, or
the PATH), behind proxies that lose, delay and repeat what is sent. Processes are stopped and killed. A round of a few
seconds has one or two kinds of faults, which its seed determines.

A violation is a history of a lock that no order of its operations explains, whatever became of those whose outcome is
unknown. A library that says until when a lock is valid is taken at its word, and one that must be asked, at its latest
answer; one that ends a context when a lock is lost has 50 ms for that. The faults do not include what no lock of one
server survives: a server that loses its data, and operators that delete or overwrite keys.`

// faults are the kinds of faults that destroy no data on the server.
var faults = []string{
	"black-hole", "copies", "dials", "kill", "late-replies", "memory", "messages", "pause", "pubsub", "refuse", "replies",
	"restart", "scripts", "slow", "stop",
}

// settings are what a run does.
type settings struct {
	libraries []library
	minutes   float64
	config    torture.Config
	clientOf  func(library string) func() *exec.Cmd
}

// app returns the command line interface. clientOf starts a client process of a library.
func app(out, progress io.Writer, clientOf func(string) func() *exec.Cmd) *cli.Command {
	return &cli.Command{
		Name: "torture", Usage: "check lock libraries by what they say, under faults",
		Description: description, HideVersion: true, Writer: out, ErrWriter: progress,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "libraries", Value: strings.Join(inGo(), ","),
				Usage: "comma-separated list of `LIBRARIES`; " + redissonName + " needs Java, and Maven for the first time",
			},
			&cli.FloatFlag{Name: "minutes", Value: 5, Usage: "how long each library runs, in `MINUTES`"},
			&cli.Uint64Flag{Name: "seed", Value: 1, Usage: "`SEED` of the first round of each library"},
			&cli.DurationFlag{
				Name: "lease", Value: 600 * time.Millisecond,
				Usage: "of half of the names, a `DURATION`; the others have three times as much",
			},
			&cli.StringFlag{
				Name: "faults", Value: strings.Join(faults, ","), Usage: "comma-separated list of `FAULTS`, or \"none\"",
			},
			&cli.BoolFlag{Name: "fail-fast", HideDefault: true, Usage: "end a library's run after its first violation"},
			&cli.StringFlag{Name: "timelines", Value: ".", Usage: "`DIRECTORY` for the timelines and logs of violations"},
			&cli.IntFlag{
				Name: "cut", HideDefault: true,
				Usage: "instead, cut `N` holders of each library off from Redis, with the library's own lease, and compare when " +
					"they learn of it with when another client has the lock",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			s := settings{minutes: c.Float("minutes"), clientOf: clientOf}
			switch {
			case c.Args().Present():
				return fmt.Errorf("unexpected argument %q; see --help", c.Args().First())
			case s.minutes <= 0:
				return errors.New("-minutes must be positive")
			case c.IsSet("cut") && c.Int("cut") < 1:
				return errors.New("-cut must be at least 1")
			case c.Duration("lease") < 100*time.Millisecond:
				return errors.New("-lease must be at least 100ms: shorter ones end before their holders have begun")
			}
			for name := range strings.SplitSeq(c.String("libraries"), ",") {
				l, err := named(name)
				if err != nil {
					return err
				}
				s.libraries = append(s.libraries, l)
				if name != redissonName {
					continue
				}
				if _, err := startJava(); err != nil { // it is built here, as client processes must start quickly
					return err
				}
			}
			if c.IsSet("cut") {
				return s.measureCuts(ctx, c.Int("cut"), out)
			}
			s.config = torture.Config{
				Duration: time.Duration(s.minutes * float64(time.Minute)), Seed: c.Uint64("seed"), TTL: c.Duration("lease"),
				Faults: strings.Split(c.String("faults"), ","), Primitives: []string{"lock"},
				Timelines: c.String("timelines"), FailFast: c.Bool("fail-fast"),
			}
			return s.measure(ctx, out, progress)
		},
	}
}

// progressPause is between two lines of progress.
const progressPause = 15 * time.Second

// names returns the names of the libraries.
func names() (out []string) {
	for _, l := range libraries {
		out = append(out, l.name)
	}
	return out
}

// inGo returns the names of the libraries that run without Java.
func inGo() []string {
	return slices.DeleteFunc(names(), func(name string) bool { return name == redissonName })
}

func named(name string) (library, error) {
	i := slices.IndexFunc(libraries, func(l library) bool { return l.name == name })
	if i < 0 {
		return library{}, fmt.Errorf("no library %q; there are: %s", name, strings.Join(names(), ", "))
	}
	return libraries[i], nil
}

// measure runs the libraries one after the other, and prints a row for each and the first history
// of each that was violated.
func (s *settings) measure(ctx context.Context, out, progress io.Writer) error {
	logging.Disable()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "library\tversion\tseeds\ttime\toperations\tfaults\tviolations\tan hour\t")
	var first []torture.Violation
	for _, l := range s.libraries {
		config := s.config
		config.Other = s.clientOf(l.name)
		var told time.Duration
		config.Progress = func(p torture.Progress) {
			if p.Elapsed < told+progressPause {
				return
			}
			told = p.Elapsed
			fmt.Fprintf(progress, "%s: %v, round %d, %d operations, %d violations\n",
				l.name, p.Elapsed.Round(time.Second), p.Round, p.Operations, p.Violations)
		}
		r, err := torture.Run(ctx, config)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		found := slices.DeleteFunc(slices.Clone(r.Violations), func(v torture.Violation) bool { return v.Check != exclusion })
		if len(found) > 0 {
			first = append(first, found[0])
		}
		injected := 0
		for _, name := range s.config.Faults {
			injected += r.Faults[name]
		}
		fmt.Fprintf(table, "%s\t%s\t%d to %d\t%v\t%d\t%d\t%d\t%.0f\t\n", l.name, l.version,
			r.Seed, r.Seed+uint64(max(r.Rounds, 1))-1, r.Elapsed.Round(time.Second), r.Total(), injected,
			len(found), float64(len(found))/r.Elapsed.Hours())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, v := range first {
		fmt.Fprintf(out, "\n%s\n  %s\n  repeat with -seed %d\n  timeline: %s\n", v.Name, v.Detail, v.Seed, v.Timeline)
	}
	if len(first) > 0 {
		return errViolated
	}
	return nil
}

// versionOf returns the version of a module that this program was built with.
func versionOf(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == module && m.Replace == nil {
			return m.Version
		}
	}
	return "this tree"
}

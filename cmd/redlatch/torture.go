package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/internal/torture"
)

// tortureClient is the verb by which torture starts its client processes.
const tortureClient = "torture-client"

func tortureCommand() *cli.Command {
	var list strings.Builder
	for _, f := range torture.Faults() {
		fmt.Fprintf(&list, "  %-13s %s\n", f.Name, f.Usage)
	}
	return &cli.Command{
		Name:  "torture",
		Usage: "inject faults while clients use all primitives, and check the promises",
		Description: withExamples("Client processes use all primitives, while faults of one or two kinds are injected.\n"+
			"Each round of a few seconds has other faults. All operations are recorded, and the history is checked:\n"+
			"while a hold is valid, nobody else holds; tokens rise; nothing waits for ever; nothing is left\n"+
			"behind; every call returns in time. doc/torture.md has the details.\n\n"+
			"It starts its own redis-server, whatever REDIS_URL says. With --redis it uses yours: then it leaves out\n"+
			"the faults that would disturb others, and says so. Run it on a Redis that may be slow for a while.\n\n"+
			"Faults:\n"+strings.TrimSuffix(list.String(), "\n"),
			"redlatch torture --duration 5s --seed 42"),
		Flags: []cli.Flag{
			&cli.FloatFlag{Name: "minutes", Usage: "how long to run, in `MINUTES`", Value: 1},
			&cli.DurationFlag{
				Name: "duration", HideDefault: true, Usage: "how long to run, a `DURATION` such as 90s, instead of --minutes",
			},
			&cli.Uint64Flag{
				Name: "seed", DefaultText: "random", Usage: "`SEED` of the first round: repeats workload and faults",
			},
			&cli.StringFlag{
				Name: "faults", HideDefault: true, Usage: "comma-separated list of `FAULTS`, or \"none\" (default: all)",
			},
			&cli.StringFlag{
				Name: "primitives", HideDefault: true,
				Usage: "comma-separated list of `PRIMITIVES`: " + strings.Join(torture.Primitives, ", ") + " (default: all)",
			},
			&cli.StringFlag{
				Name: "topology", Value: torture.Single,
				Usage: "`TOPOLOGY` of the servers to start: " + strings.Join(torture.Topologies, ", "),
			},
			&cli.StringFlag{
				Name: "other", Usage: "another build of redlatch, a `FILE`: every second client process is of that version",
			},
			&cli.BoolFlag{Name: "fail-fast", HideDefault: true, Usage: "stop after the first round with a violation"},
			&cli.StringFlag{Name: "timelines", Value: ".", Usage: "`DIRECTORY` for the timelines and logs of violations"},
			&cli.StringFlag{
				Name: "html", Usage: "`FILE` for a page with the timelines of clients, holds and faults, for a browser",
			},
		},
		Action: runTorture,
	}
}

func runTorture(ctx context.Context, c *cli.Command) error {
	config, err := tortureConfig(c)
	if err != nil {
		return err
	}
	var page *os.File
	if config.Pictures {
		if page, err = os.Create(c.String("html")); err != nil { // before the run, which may take an hour
			return badUsage("--html: %w", err)
		}
		defer func() { _ = page.Close() }()
	}
	result, err := torture.Run(ctx, config)
	if errs := c.Root().ErrWriter; colours(errs) && !c.Bool("json") {
		fmt.Fprint(errs, eraseLine)
	}
	if page != nil && result != nil {
		err = errors.Join(err, result.Page(page, torture.Made{Version: version(), At: time.Now()}))
	}
	switch {
	case errors.Is(err, torture.ErrConfig), errors.Is(err, exec.ErrNotFound), errors.Is(err, errors.ErrUnsupported):
		return &codedError{exitUsage, err}
	case errors.Is(err, torture.ErrUnreachable):
		return &codedError{exitUnreachable, err}
	case result == nil:
		return err
	case c.Bool("json"):
		err = errors.Join(err, printJSON(c, result))
	default:
		err = errors.Join(err, result.Print(c.Root().Writer))
	}
	switch {
	case len(result.Violations) > 0 && err != nil:
		return failure("violations: %d, and the run ended early: %w", len(result.Violations), err)
	case len(result.Violations) > 0:
		return failure("violations: %d", len(result.Violations))
	case err == nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// tortureConfig reads the flags.
func tortureConfig(c *cli.Command) (config torture.Config, err error) {
	if _, err := arguments(c); err != nil {
		return config, err
	}
	config = torture.Config{
		Duration: c.Duration("duration"), Seed: c.Uint64("seed"), Topology: c.String("topology"),
		Faults: commaList(c.String("faults")), Primitives: commaList(c.String("primitives")),
		Timelines: c.String("timelines"), Prefix: c.String("prefix"), Client: tortureClientOf(ownPath()),
		FailFast: c.Bool("fail-fast"), Pictures: c.IsSet("html"),
		Progress: func(p torture.Progress) { tellProgress(notesOf(c), p) },
	}
	switch {
	case c.IsSet("minutes") && c.IsSet("duration"):
		return config, badUsage("--minutes and --duration exclude each other")
	case !c.IsSet("duration"):
		config.Duration = time.Duration(c.Float("minutes") * float64(time.Minute))
	}
	if config.Duration <= 0 {
		return config, badUsage("a duration of %v: must be positive", config.Duration)
	}
	if c.IsSet("other") {
		path, err := exec.LookPath(c.String("other"))
		if err != nil {
			return config, badUsage("--other: %w", err)
		}
		config.Other = tortureClientOf(path)
	}
	if !c.IsSet("seed") {
		config.Seed = rand.Uint64N(1_000_000) //nolint:gosec // it only has to differ from run to run
	}
	switch {
	case !c.IsSet("redis") && !c.IsSet("cluster") && !c.IsSet("sentinel-master"):
		return config, nil
	case !c.IsSet("redis"):
		return config, badUsage("torture needs --redis with --cluster and --sentinel-master")
	case c.IsSet("topology"):
		return config, badUsage("--topology is for servers that torture starts, not for --redis")
	}
	config.Endpoint, err = tortureEndpoint(c)
	return config, err
}

// commaList splits a list. An empty one is nil.
func commaList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// tortureEndpoint returns the Redis that the flags describe.
func tortureEndpoint(c *cli.Command) (*torture.Endpoint, error) {
	rdb, _, err := connect(c) // checks the flags
	if err != nil {
		return nil, err
	}
	defer func() { _ = rdb.Close() }()
	var e torture.Endpoint
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		o := rdb.Options()
		e = torture.Endpoint{Addrs: o.Addrs, Cluster: true, Username: o.Username, Password: o.Password, TLS: o.TLSConfig}
	case *redis.Client:
		o := rdb.Options()
		if o.Network == "unix" {
			return nil, badUsage("--redis: torture needs TCP, to disturb it")
		}
		e = torture.Endpoint{Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, DB: o.DB, TLS: o.TLSConfig}
	}
	if e.Master = c.String("sentinel-master"); e.Master != "" {
		e.Addrs = nil
		for _, u := range c.StringSlice("redis") {
			o, err := parseURL("--redis", u)
			if err != nil {
				return nil, err
			}
			e.Addrs = append(e.Addrs, o.Addr)
		}
	}
	return &e, nil
}

// ownPath is the path of this program.
func ownPath() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// tortureClientOf starts client processes of a build of this program.
func tortureClientOf(path string) func() *exec.Cmd {
	return func() *exec.Cmd {
		return exec.Command(path, tortureClient) //nolint:noctx // the user names it, and the harness ends it
	}
}

// tortureClientCommand is a client process of torture.
func tortureClientCommand() *cli.Command {
	return &cli.Command{
		Name: tortureClient, Hidden: true,
		Action: func(context.Context, *cli.Command) error { return torture.Worker(os.Stdin, os.Stdout) },
	}
}

// tellProgress prints one line: on a terminal over the last one, and with --json an object.
func tellProgress(n notes, p torture.Progress) {
	text := fmt.Sprintf("%v: round %d, %d operations, %d faults, %d violations, longest wait %v",
		p.Elapsed.Round(time.Second), p.Round, p.Operations, p.Faults, p.Violations, p.LongestWait.Round(time.Millisecond))
	switch {
	case n.json:
		n.note("progress", "%s", text)
	case colours(n.out):
		fmt.Fprintf(n.out, eraseLine+"%.79s", text) // a line that is broken in two could not be erased
	default:
		fmt.Fprintln(n.out, text)
	}
}

// eraseLine goes to the beginning of a line of a terminal, and erases it.
const eraseLine = "\r\x1b[K"

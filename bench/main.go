// Command bench compares redlatch with its Go peers, with Redisson and with go-redis alone, which
// does the same job without renewal, loss detection or retries.
//
//	go run .                                   all workloads, in a few minutes
//	go run . -only W3,W4 -who redlatch -rounds 9
//	go run . -json results.json
//	go run . picture -json results.json -out ../doc/performance.svg -page results.md
//	go run . scale -json scale.json -out ../doc/scale.svg -page scale-results.md
//
// It exits with 1 if a contender failed or violated mutual exclusion, and with 2 if the run could
// not start or continue.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/delay"
	"github.com/redlatch/redlatch/bench/internal/harness"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/bench/internal/workload"
)

// Exit codes.
const (
	exitBadRows = 1 // see errBadRows
	exitError   = 2 // any other error, such as bad usage
)

var errBadRows = errors.New("rows are marked BROKE or FAILED")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	logging.Disable() // go-redis would log subscriptions that end when a client closes
	err := app(os.Stdin, os.Stdout, os.Stderr).Run(ctx, os.Args)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errBadRows):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitBadRows)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitError)
	}
}

// description has a verb for the list of workloads.
const description = `Starts its own redis-server ($REDIS_SERVER, or else the one in the PATH) and runs these workloads:

%s
In each round every contender of a workload runs once, in rotating order, on an empty server. A ratio compares a
contender with go-redis alone in the same round. The report shows the median ratio, its minimum and maximum, and the
median of each figure. In every section a guard counts the workers inside; in exclusive sections it also increments
a counter. If it finds an overlap or a lost update, the row is marked BROKE.`

// app returns the command line interface.
func app(in io.Reader, out, progress io.Writer) *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "only", Usage: "run only these workloads, such as `W1,W4`"},
		&cli.StringFlag{
			Name:  "who",
			Usage: "run only these families or rows, such as `go-redis,redlatch`, and the rows to compare them with",
		},
		&cli.IntFlag{
			Name: "rounds", Value: 5,
			Usage: "run `N` rounds; the slow workloads (W5, W6, W10) run half as many",
		},
		&cli.StringFlag{
			Name: "net", Value: harness.Unix,
			Usage: "connect by `unix|tcp|both`, except in W11 to W14; Redisson, and go-redis beside it, always use tcp",
		},
		&cli.DurationFlag{
			Name:  "duration",
			Usage: "length of each measurement, such as `200ms`; 0 is the workload's own length",
		},
		&cli.BoolFlag{Name: "fork", Usage: "run each client in its own process, except in W2, W6, W10 and W11"},
		&cli.BoolFlag{Name: "long", Usage: "in W6, hold 50,000 locks with a TTL of 30 s for 35 s"},
		&cli.StringFlag{Name: "profile", Usage: "write a CPU profile of each measurement in this process to `folder`"},
		&cli.StringFlag{Name: "json", Usage: "write the results to `file`"},
	}
	return &cli.Command{
		Name: "bench", Usage: "compare redlatch with its Go peers, with Redisson and with go-redis alone",
		Description: fmt.Sprintf(description, listWorkloads()), Flags: flags, HideVersion: true,
		Writer: out, ErrWriter: progress,
		Action: func(ctx context.Context, c *cli.Command) error { return measure(ctx, c, out, progress) },
		Commands: []*cli.Command{
			{
				Name: "picture", Usage: "make a picture and the tables of a page from results",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "json", Required: true, Usage: "read results from `file`, written by -json"},
					&cli.StringFlag{Name: "out", Usage: "write the picture to `file`, in SVG"},
					&cli.StringFlag{Name: "page", Usage: "write the tables between the markers of a Markdown `file`"},
				},
				Action: func(_ context.Context, c *cli.Command) error { return picture(c) },
			},
			scaleCommand(out, progress),
			{
				Name: delay.Command, Hidden: true,
				Action: func(ctx context.Context, _ *cli.Command) error { return delay.Serve(ctx, in, out) },
			},
			{
				Name: workload.PartCommand, Hidden: true,
				Action: func(ctx context.Context, _ *cli.Command) error {
					return workload.Serve(ctx, contend.All(), in, out)
				},
			},
		},
	}
}

// listWorkloads returns a line per workload.
func listWorkloads() string {
	var b strings.Builder
	for _, s := range harness.Specs(false) {
		fmt.Fprintf(&b, "  %-4s %s\n", s.ID, s.Title)
	}
	return b.String()
}

func measure(ctx context.Context, c *cli.Command, out, progress io.Writer) error {
	if c.Args().Present() {
		return fmt.Errorf("unexpected argument %q; see --help", c.Args().First())
	}
	config, err := configOf(c)
	if err != nil {
		return err
	}
	started := time.Now()
	config.Progress = func(text string) {
		fmt.Fprintf(progress, "%7.1fs  %s\n", time.Since(started).Seconds(), text)
	}
	s, err := server.Start(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if config.Wants(contend.FamilyRedisson) {
		closeRedisson := openRedisson(ctx, config.Contenders)
		defer closeRedisson()
	}
	r, err := harness.Run(ctx, s, config)
	if err != nil {
		return err
	}
	if err := r.Tables(out); err != nil {
		return err
	}
	if path := c.String("json"); path != "" {
		if err := r.Write(path); err != nil {
			return err
		}
	}
	if r.Bad() {
		return errBadRows
	}
	return nil
}

// openRedisson starts Java and returns a function that ends it. If Java cannot start, the report
// shows the reason in Redisson's rows.
func openRedisson(ctx context.Context, contenders map[string]contend.Contender) (closeRedisson func()) {
	c := contenders[contend.Redisson]
	remote, err := contend.OpenRedisson(ctx, nil)
	if err != nil {
		c.Missing = strings.Join(strings.Fields(err.Error()), " ")
		contenders[c.Name] = c
		return func() {}
	}
	c.Remote, c.Missing = remote, ""
	contenders[c.Name] = c
	return func() { _ = remote.Close() }
}

func configOf(c *cli.Command) (harness.Config, error) {
	config := harness.Config{
		Contenders: contend.All(), Who: splitList(c.String("who")), Rounds: c.Int("rounds"),
		Duration: c.Duration("duration"), Fork: c.Bool("fork"), Profile: c.String("profile"),
	}
	var err error
	if config.Networks, err = networks(c.String("net")); err != nil {
		return config, err
	}
	if config.Rounds < 1 || config.Duration < 0 {
		return config, errors.New("-rounds must be at least 1, and -duration must not be negative")
	}
	config.Specs, err = selectSpecs(harness.Specs(c.Bool("long")), splitList(c.String("only")))
	return config, err
}

func networks(name string) ([]string, error) {
	switch name {
	case harness.Unix, harness.TCP:
		return []string{name}, nil
	case "both":
		return []string{harness.Unix, harness.TCP}, nil
	}
	return nil, fmt.Errorf("-net must be unix, tcp or both, not %q", name)
}

// selectSpecs returns the specs with the given ids, or all if ids is empty.
func selectSpecs(all []harness.Spec, ids []string) ([]harness.Spec, error) {
	if len(ids) == 0 {
		return all, nil
	}
	var selected []harness.Spec
	for _, s := range all {
		if i := slices.IndexFunc(ids, func(id string) bool { return strings.EqualFold(id, s.ID) }); i >= 0 {
			selected = append(selected, s)
			ids = slices.Delete(ids, i, i+1)
		}
	}
	if len(ids) > 0 {
		return nil, fmt.Errorf("-only: no workload %s", strings.Join(ids, ", "))
	}
	return selected, nil
}

// splitList splits a list at its commas. A comma before a space is part of a row name.
func splitList(list string) []string {
	var parts []string
	for part := range strings.SplitSeq(list, ",") {
		if n := len(parts); n > 0 && strings.HasPrefix(part, " ") {
			parts[n-1] += "," + part
		} else if part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// picture writes the picture and the tables that the documentation shows.
func picture(c *cli.Command) error {
	r, err := report.Read(c.String("json"))
	if err != nil {
		return err
	}
	if path := c.String("out"); path != "" {
		if err := os.WriteFile(path, []byte(r.SVG()), 0o600); err != nil {
			return fmt.Errorf("picture: %w", err)
		}
	}
	if path := c.String("page"); path != "" {
		return r.Fill(path)
	}
	return nil
}

// Command bench measures redlatch beside the floor of the medium, its peers in Go, and Redisson.
//
//	go run .                                   everything, in a few minutes
//	go run . -only W3,W4 -who redlatch -rounds 9
//	go run . -json results.json
//	go run . picture -json results.json -out ../doc/performance.svg -page ../doc/performance.md
//
// It exits with 1 if a contender did not keep its promise or could not be measured, and with 2 if it could not begin.
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

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/bench/internal/contend"
	"github.com/redlatch/redlatch/bench/internal/harness"
	"github.com/redlatch/redlatch/bench/internal/report"
	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/bench/internal/workload"
)

// Exit codes.
const (
	exitFailed = 1 // a row is not to be trusted
	exitUsage  = 2 // there was nothing to begin with
)

var errBad = errors.New("rows are marked BROKE or FAILED")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	redis.SetLogger(silence{}) // clients are closed while others still listen
	err := app(os.Stdin, os.Stdout, os.Stderr).Run(ctx, os.Args)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errBad):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitFailed)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitUsage)
	}
}

// silence is go-redis's logger.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

const description = `Starts a redis-server of its own ($REDIS_SERVER, else the one in the PATH) and runs the workloads on it:

` + "%s" + `
In each round every contender of a workload runs once, in rotating order, each on an emptied server. A contender is compared with the floor
of the same round; what is shown is the median of the ratios, with their extremes, and the medians of the figures. On every row a guard counts
who is inside and keeps a counter: a row that it contradicts is shown as BROKE.`

// app is the command line.
func app(in io.Reader, out, progress io.Writer) *cli.Command {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "only", Usage: "run only these workloads, such as `W1,W4`"},
		&cli.StringFlag{Name: "who", Usage: "run only these families or rows, such as `floor,redlatch`; what they are compared with runs too"},
		&cli.IntFlag{Name: "rounds", Value: 5, Usage: "`N` rounds; the slow workloads (W5, W6, W10) take half as many"},
		&cli.StringFlag{Name: "net", Value: harness.Unix, Usage: "reach the server by `unix|tcp|both`; Redisson always uses tcp, and brings a floor that does"},
		&cli.DurationFlag{Name: "duration", Usage: "of each measurement, such as `200ms`; default: the workload's own"},
		&cli.BoolFlag{Name: "fork", Usage: "run each client as a process of its own in W3, W4, W5, W7, W8 and W9"},
		&cli.BoolFlag{Name: "long", Usage: "hold 50,000 locks in W6, with a TTL of 30 s, for 35 s"},
		&cli.StringFlag{Name: "profile", Usage: "write a processor profile of each measurement in this process into `folder`"},
		&cli.StringFlag{Name: "json", Usage: "write the results into `file`"},
	}
	return &cli.Command{
		Name: "bench", Usage: "measure redlatch beside the floor of the medium, its peers, and Redisson",
		Description: fmt.Sprintf(description, list()), Flags: flags, HideVersion: true, Writer: out, ErrWriter: progress,
		Action: func(ctx context.Context, c *cli.Command) error { return measure(ctx, c, out, progress) },
		Commands: []*cli.Command{
			{
				Name: "picture", Usage: "make a picture and the tables of a page from results",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "json", Required: true, Usage: "the results, a `file` that a run wrote"},
					&cli.StringFlag{Name: "out", Usage: "the picture, an SVG `file`"},
					&cli.StringFlag{Name: "page", Usage: "a Markdown `file`, in which what stands between the markers is replaced by the tables"},
				},
				Action: func(_ context.Context, c *cli.Command) error { return picture(c) },
			},
			{
				Name: workload.PartCommand, Hidden: true,
				Action: func(ctx context.Context, _ *cli.Command) error { return workload.Serve(ctx, contend.All(), in, out) },
			},
		},
	}
}

// list has a line for each workload.
func list() string {
	var b strings.Builder
	for _, s := range harness.Specs(false) {
		fmt.Fprintf(&b, "  %-4s %s\n", s.ID, s.Title)
	}
	return b.String()
}

func measure(ctx context.Context, c *cli.Command, out, progress io.Writer) error {
	if c.Args().Present() {
		return fmt.Errorf("what is %q? See --help", c.Args().First())
	}
	config, err := configOf(c)
	if err != nil {
		return err
	}
	began := time.Now()
	config.Progress = func(text string) { fmt.Fprintf(progress, "%7.1fs  %s\n", time.Since(began).Seconds(), text) }
	s, err := server.Start(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if config.Wants(contend.FamilyRedisson) {
		defer openRedisson(ctx, config.Contenders)()
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
		return errBad
	}
	return nil
}

// openRedisson starts Java, and returns what ends it. Where it cannot be had the rows say so.
func openRedisson(ctx context.Context, contenders map[string]contend.Contender) func() {
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
		Contenders: contend.All(), Who: split(c.String("who")), Rounds: c.Int("rounds"), Duration: c.Duration("duration"), Fork: c.Bool("fork"), Profile: c.String("profile"),
	}
	var err error
	if config.Networks, err = networks(c.String("net")); err != nil {
		return config, err
	}
	if config.Rounds < 1 || config.Duration < 0 {
		return config, errors.New("-rounds is at least 1, and -duration not negative")
	}
	config.Specs, err = choose(harness.Specs(c.Bool("long")), split(c.String("only")))
	return config, err
}

func networks(name string) ([]string, error) {
	switch name {
	case harness.Unix, harness.TCP:
		return []string{name}, nil
	case "both":
		return []string{harness.Unix, harness.TCP}, nil
	}
	return nil, fmt.Errorf("-net is unix, tcp or both, not %q", name)
}

func choose(all []harness.Spec, ids []string) ([]harness.Spec, error) {
	if len(ids) == 0 {
		return all, nil
	}
	var chosen []harness.Spec
	for _, s := range all {
		if i := slices.IndexFunc(ids, func(id string) bool { return strings.EqualFold(id, s.ID) }); i >= 0 {
			chosen = append(chosen, s)
			ids = slices.Delete(ids, i, i+1)
		}
	}
	if len(ids) > 0 {
		return nil, fmt.Errorf("-only: no workload %s", strings.Join(ids, ", "))
	}
	return chosen, nil
}

// split takes a list apart. Row names have commas of their own, after which a space stands.
func split(list string) []string {
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

// picture makes what the documentation shows.
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
		return report.Fill(path, r.Markdown())
	}
	return nil
}

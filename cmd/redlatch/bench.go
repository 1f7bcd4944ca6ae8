package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/measure"
)

func benchCommand() *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "measure locks on a Redis server, compared with the least work that a lock needs",
		Description: withExamples("Measures a free lock, a contended one, and the time from a release to the acquisition\n"+
			"by a waiting client. Each is compared with a floor: the least that a lock on Redis must send. The two take\n"+
			"turns on the same connections. Trust the ratio: the times depend on the machine and the network. The\n"+
			"names begin with --prefix, and nothing is left behind. It puts load on the server.",
			"redlatch bench --seconds 3"),
		Flags: []cli.Flag{&cli.Float64Flag{Name: "seconds", Value: 10, Usage: "how long to measure, `N` seconds in all"}},
		Action: func(ctx context.Context, c *cli.Command) error {
			if _, err := arguments(c); err != nil {
				return err
			}
			seconds := c.Float64("seconds")
			if !(seconds >= 0.1 && seconds <= 3600) {
				return badUsage("--seconds %v: from 0.1 to 3600", seconds)
			}
			return withSession(ctx, c, nil, func(s *session) error {
				cfg := measure.Config{
					Redis: s.rdb, Prefix: s.prefix, Timeout: c.Duration("timeout"),
					Duration: time.Duration(seconds * float64(time.Second)),
				}
				if c.Bool("json") {
					return measure.Run(ctx, cfg, func(r measure.Result) { _ = printJSON(c, r) })
				}
				out := c.Root().Writer
				fmt.Fprintf(out, "redlatch bench on %s, about %v\n\n", s.where(), cfg.Duration)
				var results []measure.Result
				if err := measure.Run(ctx, cfg, func(r measure.Result) { results = append(results, r) }); err != nil {
					return err
				}
				printResults(out, results)
				return nil
			})
		},
	}
}

// printResults prints a table, and what the floors are.
func printResults(out io.Writer, results []measure.Result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MEASUREMENT\tPER S\tP50\tP99\tFLOOR P50\tFLOOR P99\tRATIO")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%.0f\t%s\t%s\t%s\t%s\t%.2f\n", r.Name, r.PerSec, micros(r.P50), micros(r.P99),
			micros(r.FloorP50), micros(r.FloorP99), r.Ratio)
	}
	_ = w.Flush()
	fmt.Fprintln(out, "\nFloors:")
	for _, r := range results {
		fmt.Fprintf(out, "  %s: %s\n", r.Name, r.Floor)
	}
}

// micros is a time in microseconds for people.
func micros(us float64) string {
	if us >= 10_000 {
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.0f µs", us)
}

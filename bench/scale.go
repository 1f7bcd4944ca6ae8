package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/bench/internal/scale"
)

const scaleDescription = `Measures what one lock, renewal, poll, waiter and hand-off cost, at small sizes. Then
measures up to a million held locks, 100,000 waiters and 1,000 clients, and compares that with what the small sizes
predict. Starts its own redis-server, and then a cluster of three. Takes about 15 minutes and 4 GB of memory; with
-soak 5m ten minutes more.`

// scaleCommand returns the command that measures how costs grow.
func scaleCommand(out, progress io.Writer) *cli.Command {
	return &cli.Command{
		Name: "scale", Usage: "measure how costs grow with locks, waiters, clients and shards",
		Description: scaleDescription,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "quick", Usage: "small sizes only"},
			&cli.IntFlag{Name: "most", Value: 1_000_000, Usage: "hold at most `N` locks"},
			&cli.DurationFlag{Name: "soak", Usage: "also hold 100,000 locks for this `long`, on each system"},
			&cli.BoolFlag{Name: "only-soak", Usage: "measure nothing else"},
			&cli.StringFlag{Name: "json", Usage: "write the results to `file`"},
			&cli.StringFlag{Name: "from", Usage: "measure nothing: read the results from `file`, written by -json"},
			&cli.StringFlag{Name: "out", Usage: "write a picture to `file`, in SVG"},
			&cli.StringFlag{Name: "page", Usage: "write the tables between the markers of a Markdown `file`"},
		},
		Action: func(ctx context.Context, c *cli.Command) error { return measureScale(ctx, c, out, progress) },
	}
}

func measureScale(ctx context.Context, c *cli.Command, out, progress io.Writer) error {
	if c.Args().Present() || c.Duration("soak") < 0 {
		return errors.New("unexpected argument, or a negative -soak; see --help")
	}
	var r *scale.Report
	var err error
	if from := c.String("from"); from != "" {
		r, err = scale.Read(from)
	} else {
		started := time.Now()
		r, err = scale.Run(ctx, scale.Config{
			Quick: c.Bool("quick"), Most: c.Int("most"), Soak: c.Duration("soak"), OnlySoak: c.Bool("only-soak"),
			Progress: func(format string, args ...any) {
				fmt.Fprintf(progress, "%7.1fs  %s\n", time.Since(started).Seconds(), fmt.Sprintf(format, args...))
			},
		})
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(out, r.Markdown())
	if path := c.String("json"); path != "" {
		err = r.Write(path)
	}
	if path := c.String("out"); path != "" && err == nil {
		err = os.WriteFile(path, []byte(r.SVG()), 0o600)
	}
	if path := c.String("page"); path != "" && err == nil {
		err = r.Fill(path)
	}
	return err
}

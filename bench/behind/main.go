// Command behind measures what a caller pays for a lock around a short job over a network: when it
// waits for the release, and when the release goes on in the background while the next job begins.
//
//	go run ./behind
//	go run ./behind -job 5ms -round-trip 2ms
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/urfave/cli/v3"
	"golang.org/x/sync/errgroup"

	"github.com/redlatch/redlatch/bench/internal/delay"
	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := app(os.Stdout).Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "behind:", err)
		os.Exit(1)
	}
}

const description = `One goroutine does one short job after the other, each under a free lock. The time of a job beyond
its work is what the lock costs. The ways alternate on one Redis behind a proxy that delays all data. Needs redis-server
($REDIS_SERVER, or the PATH).`

// settings are what a run measures.
type settings struct {
	job       time.Duration
	roundTrip time.Duration
	jobs      int // of each way in a round
	rounds    int
}

// app returns the command line interface.
func app(out io.Writer) *cli.Command {
	return &cli.Command{
		Name: "behind", Usage: "measure what a lock around a short job costs over a network",
		Description: description, HideVersion: true, Writer: out,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "job", Value: 2 * time.Millisecond, Usage: "how long a job works, a `DURATION`"},
			&cli.DurationFlag{Name: "round-trip", Value: time.Millisecond, Usage: "of the network, a `DURATION`"},
			&cli.IntFlag{Name: "jobs", Value: 200, Usage: "`N` jobs of each way in a round"},
			&cli.IntFlag{Name: "rounds", Value: 9, Usage: "`N` rounds"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			s := settings{c.Duration("job"), c.Duration("round-trip"), c.Int("jobs"), c.Int("rounds")}
			switch {
			case c.Args().Present():
				return fmt.Errorf("unexpected argument %q; see --help", c.Args().First())
			case s.job <= 0 || s.roundTrip <= 0:
				return errors.New("-job and -round-trip must be positive")
			case s.jobs < 1 || s.rounds < 1:
				return errors.New("-jobs and -rounds must be at least 1")
			}
			return s.measure(ctx, out)
		},
	}
}

// releasesUnderWay is how many releases may go on in the background at a time. The next one waits
// for one of them.
const releasesUnderWay = 16

// way is how a caller uses locks.
type way struct {
	name string
	// run does the jobs, and returns when the last release has been answered.
	run   func(ctx context.Context, c *primitives.Client, job func(), names []string) error
	costs []time.Duration // of a job in each round, beyond its work
}

func ways() []*way {
	return []*way{
		{name: "waits for the release", run: func(
			ctx context.Context, c *primitives.Client, job func(), names []string,
		) error {
			for _, name := range names {
				hold, err := c.Lock(name).Acquire(ctx)
				if err != nil {
					return err
				}
				job()
				err = hold.Release(ctx)
				if err != nil {
					return err
				}
			}
			return nil
		}},
		{name: "releases in the background", run: func(
			ctx context.Context, c *primitives.Client, job func(), names []string,
		) error {
			var releases errgroup.Group
			releases.SetLimit(releasesUnderWay)
			for _, name := range names {
				hold, err := c.Lock(name).Acquire(ctx)
				if err != nil {
					return errors.Join(err, releases.Wait())
				}
				job()
				releases.Go(func() error { return hold.Release(ctx) })
			}
			return releases.Wait()
		}},
		{name: "one name, which lingers", run: func(
			ctx context.Context, c *primitives.Client, job func(), names []string,
		) error {
			l := c.Lock(names[0], primitives.WithLinger(50*time.Millisecond))
			for range names {
				err := l.Do(ctx, func(context.Context) error {
					job()
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		}},
	}
}

// measure runs all ways in rotating order, and prints a table.
func (s settings) measure(ctx context.Context, out io.Writer) (err error) {
	redisServer, err := server.Start(ctx)
	if err != nil {
		return err
	}
	defer redisServer.Close()
	dir, err := os.MkdirTemp("", "behind-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is a folder for temporary files
	socket := filepath.Join(dir, "redis.sock")
	network, err := delay.Listen(ctx, socket, redisServer.Unix, s.roundTrip)
	if err != nil {
		return err
	}
	defer network.Close()
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	all := ways()
	for round := range s.rounds + 1 { // the first one connects, and is not counted
		for i := range all {
			w := all[(i+round)%len(all)]
			cost, err := s.cost(ctx, client, w, round)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if round > 0 {
				w.costs = append(w.costs, cost)
			}
		}
	}
	return s.print(out, all)
}

// cost is what the lock adds to a job, as a mean over the jobs of a round.
func (s settings) cost(ctx context.Context, c *primitives.Client, w *way, round int) (time.Duration, error) {
	names := make([]string, s.jobs)
	for i := range names {
		names[i] = "job:" + w.name + ":" + strconv.Itoa(round) + ":" + strconv.Itoa(i)
	}
	var worked time.Duration
	began := time.Now()
	err := w.run(ctx, c, func() {
		start := time.Now()
		delay.SleepUntil(start.Add(s.job))
		worked += time.Since(start)
	}, names)
	return (time.Since(began) - worked) / time.Duration(s.jobs), err
}

func (s settings) print(out io.Writer, all []*way) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "way\ta lock costs\tround trips\tlowest\thighest\t")
	for _, w := range all {
		slices.Sort(w.costs)
		median := w.costs[len(w.costs)/2]
		in := func(d time.Duration) float64 { return float64(d) / float64(s.roundTrip) }
		fmt.Fprintf(table, "%s\t%v\t%.2f\t%.2f\t%.2f\t\n",
			w.name, median.Round(10*time.Microsecond), in(median), in(w.costs[0]), in(w.costs[len(w.costs)-1]))
	}
	return table.Flush()
}

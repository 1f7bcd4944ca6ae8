// Command failover measures what WithReplicas buys, and what it costs. In each round it starts a
// master with a replica, acquires a lock, and then loses the master: what has not reached the
// replica by then is lost. It promotes the replica and looks whether the lock is there.
//
//	go run ./failover
//	go run ./failover -rounds 50 -delay 0,1ms,10ms
//
// It exits with 1 if an acquisition that was confirmed by the replica is missing on it.
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
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/bench/internal/server"
	"github.com/redlatch/redlatch/primitives"
)

var errMissing = errors.New("confirmed acquisitions are missing on the promoted replica")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	logging.Disable() // go-redis would log the connections to dead masters
	err := app(os.Stdout, os.Stderr).Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

const description = `In each round it starts a master and a replica behind a proxy, and acquires a lock as soon as
the replica is in sync. Then it loses the master: it cuts the link, with all data on it, and kills the master (SIGKILL).
It promotes the replica (REPLICAOF NO ONE) and looks for the lock. Needs redis-server ($REDIS_SERVER, or the PATH).`

// app returns the command line interface.
func app(out, progress io.Writer) *cli.Command {
	return &cli.Command{
		Name: "failover", Usage: "count the locks that a failover forgets, with and without WithReplicas",
		Description: description, HideVersion: true, Writer: out, ErrWriter: progress,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "rounds", Value: 200, Usage: "acquire `N` locks for each row"},
			&cli.IntFlag{Name: "parallel", Value: 4, Usage: "run `N` rounds at a time"},
			&cli.StringFlag{
				Name: "delay", Value: "0,2ms", Usage: "one-way `delays` of the link between master and replica",
			},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return fmt.Errorf("unexpected argument %q; see --help", c.Args().First())
			}
			if c.Int("rounds") < 1 || c.Int("parallel") < 1 {
				return errors.New("-rounds and -parallel must be at least 1")
			}
			var delays []time.Duration
			for field := range strings.SplitSeq(c.String("delay"), ",") {
				delay, err := time.ParseDuration(field)
				if err != nil || delay < 0 {
					return fmt.Errorf("-delay: %q is no delay", field)
				}
				delays = append(delays, delay)
			}
			return measure(ctx, delays, c.Int("rounds"), c.Int("parallel"), out, progress)
		},
	}
}

// row is one line of the result.
type row struct {
	delay    time.Duration
	replicas int

	took        []time.Duration // of the acquisitions that returned a hold
	missing     int             // of these, on the promoted replica
	unconfirmed int             // failed with ErrNotReplicated
}

// measure fills and prints the rows. It fails if a confirmed acquisition is missing.
func measure(ctx context.Context, delays []time.Duration, rounds, parallel int, out, progress io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "link delay\tWithReplicas\tacquired\tmissing\tnot replicated\tmedian time\t")
	bad := false
	for _, delay := range delays {
		for replicas := range 2 {
			r := row{delay: delay, replicas: replicas}
			began := time.Now()
			if err := r.fill(ctx, rounds, parallel); err != nil {
				return err
			}
			fmt.Fprintf(progress, "%v, WithReplicas(%d): %v\n", delay, replicas, time.Since(began).Round(time.Second))
			bad = bad || replicas > 0 && r.missing > 0
			with := "no"
			if replicas > 0 {
				with = "1"
			}
			fmt.Fprintf(table, "%v\t%s\t%d\t%d\t%d\t%v\t\n",
				delay, with, len(r.took), r.missing, r.unconfirmed, median(r.took).Round(10*time.Microsecond))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if bad {
		return errMissing
	}
	return nil
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// fill runs the rounds of a row. Each worker has its own servers.
func (r *row) fill(ctx context.Context, rounds, parallel int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range rounds {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	var mu sync.Mutex // guards r
	var workers sync.WaitGroup
	for range min(parallel, rounds) {
		workers.Go(func() {
			replica, err := server.Start(ctx)
			if err != nil {
				cancel(err)
				return
			}
			defer replica.Close()
			for range next {
				took, missing, err := r.round(ctx, replica)
				mu.Lock()
				switch {
				case errors.Is(err, primitives.ErrNotReplicated):
					r.unconfirmed++
				case err != nil:
					cancel(err)
				default:
					r.took = append(r.took, took)
					if missing {
						r.missing++
					}
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// round acquires a lock on a new master and loses that master. It reports whether replica,
// promoted, lacks the lock.
func (r *row) round(ctx context.Context, replica *server.Server) (took time.Duration, missing bool, err error) {
	master, err := server.Start(ctx)
	if err != nil {
		return 0, false, err
	}
	kill := sync.OnceFunc(master.Close)
	defer kill()
	link, err := listen(ctx, master.TCP.Addr, r.delay)
	if err != nil {
		return 0, false, err
	}
	defer link.cut()
	if err := attach(ctx, master, replica, link); err != nil {
		return 0, false, err
	}
	rdb := redis.NewClient(master.TCP.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb, primitives.WithReplicas(r.replicas, time.Second), primitives.WithClientName(""))
	if err != nil {
		return 0, false, err
	}
	defer client.Close(done()) //nolint:errcheck // the hold is left
	warm, err := client.Lock("warm-up").Acquire(ctx)
	if err != nil {
		return 0, false, err
	}
	if err := warm.Release(ctx); err != nil {
		return 0, false, err
	}
	began := time.Now()
	hold, err := client.Lock("orders").Acquire(ctx)
	took = time.Since(began)
	link.cut()
	kill()
	if err != nil {
		return 0, false, err
	}
	if err := replica.Admin.ReplicaOf(ctx, "NO", "ONE").Err(); err != nil {
		return 0, false, err
	}
	held, err := replica.Admin.HExists(ctx, "orders", hold.ID()).Result()
	return took, !held, err
}

// attach makes replica a replica of master through the link, and waits until it confirms writes.
func attach(ctx context.Context, master, replica *server.Server, link *link) error {
	// A replica that was synchronized from disk counts at once, not only after its next ACK.
	if err := master.Admin.ConfigSet(ctx, "repl-diskless-sync", "no").Err(); err != nil {
		return err
	}
	host, port, _ := strings.Cut(link.addr(), ":")
	if err := replica.Admin.ReplicaOf(ctx, host, port).Err(); err != nil {
		return err
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err := master.Admin.Set(ctx, "probe", 1, 0).Err(); err != nil {
			return err
		}
		n, err := master.Admin.Wait(ctx, 1, 100*time.Millisecond).Result()
		if err != nil || n == 1 {
			return err
		}
		if time.Now().After(limit) {
			return errors.New("the replica is not in sync after 30 s")
		}
	}
}

// done returns a context that has ended: clients close without waiting for holds.
func done() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

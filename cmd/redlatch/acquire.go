package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/primitives"
)

// acquired is what acquire prints as JSON.
type acquired struct {
	ID         string    `json:"id"`
	Token      int64     `json:"token,omitempty"`
	ValidUntil time.Time `json:"valid_until"`
}

func acquireCommand() *cli.Command {
	return &cli.Command{
		Name:      "acquire",
		Usage:     "acquire a lock for a script, which frees it with release",
		ArgsUsage: "NAME",
		Description: withExamples(
			"Acquires NAME for --lease, prints the id of the holder, and exits. Nothing renews NAME: it is free when\n"+
				"the lease ends, or after \"redlatch release NAME ID\". With --json it also prints the fencing token, and\n"+
				"the time until which NAME is held.\n\n"+
				"Choose \"redlatch run\" if you can: it renews NAME, stops the work if NAME is lost, and releases NAME\n"+
				"whatever happens.\n\n"+
				"With --kind permits and --permits N the id is a list, which release takes as it is. A plain semaphore\n"+
				"has no ids and no leases: use permits.",
			"redlatch acquire --nonblock --lease 10m backup",
			"redlatch acquire --wait 10s --kind fenced --json ledger",
			`id=$(redlatch acquire -w 10s stock) && redlatch release stock "$id"`),
		Flags: append(requestFlags(heldKinds), &cli.DurationFlag{
			Name: "lease", Value: defaultTTL, Usage: "hold NAME for `DURATION`, unless it is released before",
		}),
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := arguments(c)
			if err != nil {
				return err
			}
			r, err := newRequest(c, args[0])
			if err != nil {
				return err
			}
			lease := c.Duration("lease")
			switch {
			case r.kind == kindSemaphore:
				return badUsage("a %s has no lease and no id; take --kind %s", r.kind, kindPermits)
			case lease < time.Millisecond:
				return badUsage("--lease %v: at least 1ms", lease)
			}
			r.options = append(r.options, primitives.WithLease(lease))
			return withSession(ctx, c, r.check, func(s *session) error {
				signals := make(chan os.Signal, 1)
				catch(signals, endingSignals)
				defer stopSoon(signals)
				signal.Ignore(syscall.SIGPIPE) // an id that cannot be printed must not end redlatch: see below
				hold, err := r.acquire(ctx, s, signals)
				if err != nil {
					return err
				}
				if err := printHold(c, hold); err != nil {
					_ = hold.Release(ctx) // nobody has learned the id
					return failure("cannot print the id: %w", err)
				}
				hold.Detach()
				return nil
			})
		},
	}
}

// printHold prints what a script needs to know of a hold.
func printHold(c *cli.Command, hold *primitives.Hold) error {
	if c.Bool("json") {
		return printJSON(c, acquired{hold.ID(), hold.Token(), hold.ValidUntil().UTC().Truncate(time.Millisecond)})
	}
	_, err := fmt.Fprintln(c.Root().Writer, hold.ID())
	return err
}

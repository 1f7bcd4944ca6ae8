package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/watch"
)

func watchCommand() *cli.Command {
	return &cli.Command{
		Name:      "watch",
		Usage:     "show holders, waiters and rates, live",
		ArgsUsage: "[PATTERN]",
		Description: withExamples("Shows the held locks whose names match PATTERN, a glob of Redis.\n\n"+watch.Help,
			"redlatch watch 'orders:*'"),
		Action: func(ctx context.Context, c *cli.Command) error {
			args, err := arguments(c)
			if err != nil {
				return err
			}
			// Not withSession: watch goes on while Redis is out of reach, also at the start.
			s, err := open(c)
			if err != nil {
				return err
			}
			defer s.close(nil)
			// SIGINT ends it also as a background job of a script, which starts with SIGINT ignored.
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
			defer stop()
			err = watch.Run(ctx, watch.Config{
				Redis: s.rdb, Prefix: s.prefix, Pattern: args[0], Where: s.where, Timeout: c.Duration("timeout"),
				In: os.Stdin, Out: c.Root().Writer,
				Note: func(event, text string) { notesOf(c).note(event, "%s", text) },
				JSON: c.Bool("json"), Color: colours(c.Root().Writer),
			})
			ended, ok := errors.AsType[*signalError](context.Cause(ctx))
			if err == nil && ok && ended.signal != syscall.SIGINT {
				return ended
			}
			return err
		},
	}
}

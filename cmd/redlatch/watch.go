package main

import (
	"bytes"
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
			"redlatch watch 'orders:*'", "redlatch watch --http 127.0.0.1:8080", "redlatch watch --once locks.html"),
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "http", Usage: "show them on a web page instead, at this `ADDRESS`; without a host it is loopback",
			},
			&cli.StringFlag{Name: "once", Usage: "write that page to a `FILE`, as of now, and end"},
		},
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
			// SIGINT ends it also as a background job of a script, which starts with SIGINT
			// ignored.
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
			defer stop()
			cfg := watch.Config{
				Redis: s.rdb, Prefix: s.prefix, Pattern: args[0], Where: s.where, Timeout: c.Duration("timeout"),
				In: os.Stdin, Out: c.Root().Writer,
				Note: func(event, text string) { notesOf(c).note(event, "%s", text) },
				JSON: c.Bool("json"), Color: colours(c.Root().Writer),
			}
			address, file := c.String("http"), c.String("once")
			switch {
			case c.IsSet("http") && c.IsSet("once"):
				return badUsage("--http and --once contradict each other")
			case c.IsSet("once"):
				return writePage(ctx, c, watch.NewPage(cfg), file)
			case c.IsSet("http"):
				err = servePage(ctx, c, watch.NewPage(cfg), address)
			default:
				err = watch.Run(ctx, cfg)
			}
			ended, ok := errors.AsType[*signalError](context.Cause(ctx))
			if err == nil && ok && ended.signal != syscall.SIGINT {
				return ended
			}
			return err
		},
	}
}

// servePage serves the page until ctx ends.
func servePage(ctx context.Context, c *cli.Command, page *watch.Page, address string) error {
	listener, err := watch.Listen(ctx, address)
	if err != nil {
		return badUsage("--http %s: %v", address, err)
	}
	notesOf(c).note("serving", "the page is at http://%s/", listener.Addr())
	return page.Serve(ctx, listener)
}

// writePage writes the page to a file.
func writePage(ctx context.Context, c *cli.Command, page *watch.Page, file string) error {
	var text bytes.Buffer
	if err := page.Once(ctx, &text); err != nil {
		return err
	}
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil { // names may be confidential
		return failure("--once: %w", err)
	}
	notesOf(c).note("written", "the page is in %s", file)
	return nil
}
